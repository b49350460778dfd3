"""The inspector's pages about state, records and artifacts: reading, compare-and-set, conflicts, downloads, and who may do what."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.edges.browser_kit import NARROW, browse, check_page, needs_chromium
from tests.edges.inspector_kit import HOSTILE, PNG, SECRET, read, serve_filled, submit
from tests.edges.server import Served, gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

RECORD = "/inspect/state/record?scope=user&user_id=default&namespace=prefs&key=counter"


async def get_state(served: Served, path: str = "/v1/sessions/s/state") -> Any:
    return (await served.http.get(path)).json()


async def add_record(served: Served) -> None:
    change = {"op": "put", "namespace": ["prefs"], "key": "counter", "value": 1, "text": "how often", "ttl": 90_000_000}
    answer = await served.http.post("/v1/records?user_id=default", json={"changes": [change]})
    assert answer.status_code == 200, answer.text


# -- state -------------------------------------------------------------------------


@needs_chromium
async def test_value_is_edited_and_a_conflict_shows_both_values() -> None:
    async with serve_filled() as served, browse(served.url, statuses=(400, 409)) as page:
        await page.goto("/inspect/sessions/s/state")
        await page.get_by_role("link", name="cart").click()
        await page.get_by_label("Value, as JSON").fill("{broken")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_contain_text("is not JSON")
        await check_page(page)
        await page.get_by_label("Value, as JSON").fill('{"items": [3]}')
        await served.http.patch("/v1/sessions/s/state", json={"cart": {"items": [9]}})
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_contain_text("nothing was saved")
        await expect(page.locator("#theirs")).to_contain_text("9")
        await expect(page.get_by_label("Value, as JSON")).to_have_value('{"items": [3]}')
        await check_page(page)
        assert (await get_state(served))["cart"] == {"items": [9]}
        await page.get_by_role("button", name="Replace with your value").click()
        await expect(page.get_by_text("The value was saved.")).to_be_visible()
        assert (await get_state(served))["cart"] == {"items": [3]}
        await page.get_by_role("link", name="cart").click()
        await page.get_by_text("Delete this key…").click()
        await page.get_by_role("button", name="Delete the key").click()
        await expect(page.get_by_text("The key was deleted.")).to_be_visible()
        assert "cart" not in await get_state(served)


@pytest.mark.parametrize(
    ("place", "path", "key"),
    [
        ("scope=app", "/v1/state?scope=tenant", "app:colour"),
        ("scope=user&user_id=ada", "/v1/state?user_id=ada", "user:colour"),
        ("session_id=s", "/v1/sessions/s/state", "colour"),
    ],
)
async def test_key_is_added_with_the_prefix_of_its_scope_but_never_over_another(
    place: str, path: str, key: str
) -> None:
    async with serve_filled() as served:
        form = f"/inspect/state/edit?{place}"
        answer = await submit(served, form, "Save", key="colour", value='"blue"', at="/inspect/state/save")
        assert answer.status_code == 200, answer.text
        assert (await get_state(served, path))[key] == "blue"
        answer = await submit(served, form, "Save", key="colour", value='"red"', at="/inspect/state/save")
        assert answer.status_code == 409
        assert (await get_state(served, path))[key] == "blue"


async def test_large_state_is_paged_and_filtered_on_the_server() -> None:
    async with serve_filled() as served:
        await served.http.patch("/v1/state?user_id=many", json={f"user:k{number:03}": number for number in range(150)})
        page = await read(served, "/inspect/state?scope=user&user_id=many")
        assert "150 keys" in page
        assert page.count("data-item") == 100
        assert "user:k099" in page
        assert "user:k100" not in page
        page = await read(served, "/inspect/state?scope=user&user_id=many&after=user:k099")
        assert page.count("data-item") == 50
        assert (await read(served, "/inspect/state?scope=user&user_id=many&q=k14")).count("data-item") == 10


# -- records -----------------------------------------------------------------------


async def test_record_is_put_only_in_the_version_that_was_shown() -> None:
    async with serve_filled() as served:
        await add_record(served)
        fields = {"value": "2", "text": "how often", "at": "/inspect/state/record/save"}
        answer = await submit(served, RECORD, "Save", **fields)
        assert "The record was saved." in answer.text
        path = "/v1/records/record?user_id=default&namespace=prefs&key=counter"
        saved = await get_state(served, path)
        assert (saved["value"], saved["text"]) == (2, "how often")
        assert saved["expires_at"] is None  # the form was sent without a lifetime
        answer = await submit(served, RECORD, "Save", **fields | {"value": "3", "version": "1"})
        assert answer.status_code == 409
        assert "The record was changed after you opened this form" in answer.text
        assert (await get_state(served, path))["value"] == 2
        answer = await submit(served, RECORD, "Delete the record", at="/inspect/state/record/save")
        assert "The record was deleted." in answer.text
        assert (await served.http.get(path)).status_code == 404


async def test_new_record_never_replaces_another() -> None:
    async with serve_filled() as served:
        form = "/inspect/state/record?scope=app&namespace=prefs"
        fields = {
            "namespace": "prefs",
            "key": "new",
            "value": "{}",
            "seconds": "60",
            "at": "/inspect/state/record/save",
        }
        answer = await submit(served, form, "Save", **fields)
        assert "The record was saved." in answer.text
        answer = await submit(served, form, "Save", **fields | {"value": "[]"})
        assert answer.status_code == 409
        answer = await submit(served, form, "Save", **fields | {"key": "other", "seconds": "soon"})
        assert answer.status_code == 400
        assert "whole number of seconds" in answer.text


async def test_search_highlights_words_and_shows_the_score() -> None:
    async with serve_filled() as served:
        await add_record(served)
        page = await read(served, "/inspect/state/records?scope=user&user_id=default&q=often")
        assert "how <mark>often</mark>" in page
        assert "score 0." in page or "score 1." in page
        nothing = await read(served, "/inspect/state/records?scope=user&user_id=default&q=zebra")
        assert "No record matches" in nothing


# -- artifacts ---------------------------------------------------------------------


async def test_content_is_a_download_in_a_sandbox_except_safe_images_on_pages() -> None:
    async with serve_filled() as served:
        for name, view in (
            ("report.html", "download"),
            ("report.html", "image"),
            ("drawing.svg", "image"),
            ("dot.png", "download"),
        ):
            answer = await served.http.get(f"/inspect/sessions/s/artifacts/{name}/content?view={view}", headers=HTML)
            assert answer.headers["content-disposition"].startswith("attachment"), name
            assert answer.headers["content-security-policy"].startswith("sandbox"), name
            assert answer.headers["x-content-type-options"] == "nosniff", name
        answer = await served.http.get("/inspect/sessions/s/artifacts/dot.png/content?view=image", headers=HTML)
        assert answer.content == PNG
        assert "content-disposition" not in answer.headers
        assert answer.headers["content-security-policy"].startswith("sandbox")


@needs_chromium
async def test_artifact_is_previewed_in_each_version_and_deleted() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await page.goto("/inspect/artifacts")
        await page.get_by_role("link", name="s", exact=True).click()
        await page.get_by_role("link", name="report.html").click()
        await expect(page.locator("#text")).to_contain_text("Second <script>")
        await page.get_by_role("link", name="0", exact=True).click()
        await expect(page.locator("#text")).to_contain_text(SECRET)
        await page.get_by_title("Delete version 0").click()
        await expect(page.get_by_text("The artifact was deleted.")).to_be_visible()
        await expect(page.locator("#text")).to_contain_text("Second <script>")
        await page.get_by_text("Delete this artifact…").click()
        await page.get_by_role("button", name="Delete all versions").click()
        await expect(page.get_by_role("link", name="drawing.svg")).to_be_visible()
        await expect(page.get_by_role("link", name="report.html")).to_have_count(0)
        await page.get_by_role("link", name="dot.png").click()
        assert await page.locator("img.preview").evaluate("image => image.naturalWidth") == 10
        await page.goto("/inspect/artifacts/user:data.bin")
        await expect(page.get_by_text("No preview")).to_be_visible()
        await check_page(page)


# -- rights ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/inspect/state/save", "/inspect/state/record/save"])
async def test_forms_of_other_sites_change_nothing(path: str) -> None:
    async with serve_filled() as served:
        data = {"scope": "app", "namespace": "a", "key": "app:motto", "value": "1", "delete": "true"}
        for headers in ({}, {"origin": "http://evil.example"}):
            answer = await served.http.post(path, data=data, headers={**HTML, **headers})
            assert answer.status_code == 403
        assert "app:motto" in await get_state(served, "/v1/state?scope=tenant")


async def test_readers_see_no_buttons() -> None:
    async with serve_filled() as served:
        await add_record(served)
        await sign_in(served, await add_key(served, "read"))
        for path in (
            "/inspect/state",
            "/inspect/sessions/s/state",
            RECORD,
            "/inspect/sessions/s/artifacts/report.html",
        ):
            page = await read(served, path)
            assert "csrf" not in page, path
            assert "/inspect/state/edit" not in page, path
        await read(served, "/inspect/state/edit?scope=app", 403)


async def test_roles_without_content_see_no_values_and_get_no_downloads() -> None:
    async with serve_filled("inspector: {hide_content: [write]}") as served:
        await sign_in(served, await add_key(served, "write"))
        for path in (
            "/inspect/state",
            "/inspect/sessions/s/state",
            "/inspect/state/records?session_id=s",
            "/inspect/sessions/s/artifacts/report.html?version=0",
        ):
            page = await read(served, path)
            assert "swordfish" not in page, path
            assert "right-to-left" not in page, path
        await read(served, "/inspect/sessions/s/artifacts/report.html/content", 403)
        await read(served, "/inspect/state/edit?session_id=s&key=secret", 403)
        await read(served, "/inspect/state/records?session_id=s&q=red", 403)


async def test_key_of_one_user_reaches_only_data_of_this_user() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "write", user_id="ada"))
        for path in (
            "/inspect/state?scope=user&user_id=default",
            "/inspect/sessions/s/state",
            "/inspect/state/records?session_id=s",
            "/inspect/state/record?session_id=s&namespace=prefs&key=x",
            "/inspect/state/records?scope=user&user_id=default",
            "/inspect/artifacts?user_id=default",
            "/inspect/artifacts/user:data.bin?user_id=default",
            "/inspect/sessions/s/artifacts/dot.png",
            "/inspect/sessions/s/artifacts/dot.png/content",
        ):
            assert (await served.http.get(path, headers=HTML)).status_code == 404, path
        await read(served, "/inspect/state/records?scope=app", 403)
        page = await read(served, "/inspect/state?scope=app")  # every user may read the state of the app
        assert "/inspect/state/edit" not in page
        await read(served, "/inspect/state/edit?scope=app", 403)
        assert HOSTILE not in page


@needs_chromium
@pytest.mark.parametrize("width", [1440, NARROW])
async def test_very_long_ids_and_values_do_not_widen_the_page(width: int) -> None:
    name = "L" * 500
    async with gateway(lambda _: "ok") as (served, _), browse(served.url, width=width) as page:
        await served.chat("hi", session_id=name, user_id=name)
        await served.http.patch(f"/v1/state?user_id={name}", json={f"user:{'k' * 250}": {"v": "x" * 200_000}})
        put = {"op": "put", "namespace": ["n" * 60] * 3, "key": "k" * 300, "value": "y" * 100_000, "text": "z" * 3000}
        await served.http.post(f"/v1/records?user_id={name}", json={"changes": [put]})
        for file in (f"user:{'f' * 200}.txt", f"{'g' * 200}.txt"):
            await served.http.put(f"/v1/sessions/{name}/artifacts/{file}?user_id={name}", content=b"q" * 200_000)
        memory = {"content": "W" * 4000, "user_id": name, "tags": ["t" * 60], "sources": [{"session_id": name}]}
        made = (await served.http.post("/v1/memories", json=memory)).json()
        for path in (
            f"/inspect/memories?scope=user&owner={name}",
            f"/inspect/memories/{made['id']}",
            f"/inspect/state?scope=user&user_id={name}",
            f"/inspect/state/records?scope=user&user_id={name}",
            f"/inspect/sessions/{name}/state?user_id={name}",
            f"/inspect/artifacts?user_id={name}",
            f"/inspect/artifacts/user:{'f' * 200}.txt?user_id={name}",
        ):
            response = await page.goto(path)
            assert response is not None
            assert response.status == 200, path
            await check_page(page)


async def test_state_of_a_session_is_shown_in_pages() -> None:
    async with serve_filled() as served:
        state = {f"{scope}k{number:03}": number for scope in ("", "user:") for number in range(250)}
        assert (await served.http.patch("/v1/sessions/second/state?user_id=ada", json=state)).status_code == 200
        seen: list[str] = []
        path = "/inspect/sessions/second/state?user_id=ada"
        while path:
            page = await read(served, path)
            keys = re.findall(r">(k\d+)<", page)
            assert len(keys) <= 100
            seen += keys
            assert len(re.findall(r">(?:user:k\d+|app:motto)<", page)) == 100
            assert "And 151 more" in page
            following = re.search(r'href="([^"]*)" rel="next"', page)
            path = html.unescape(following[1]) if following else ""
        assert seen == [key for key in state if not key.startswith("user:")]

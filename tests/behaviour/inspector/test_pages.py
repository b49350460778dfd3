"""Every page of the inspector: what it says, which buttons it has, and what it hides from whom."""

from __future__ import annotations

import base64

import pytest

from tests.behaviour.kit import gateway, user
from tests.behaviour.kit.inspector import HTML, PNG, add_key, look, serve_filled, sign_in_as
from tests.behaviour.kit.inspector_pages import PAGES, S


async def test_pages_say_what_is_stored_and_show_hostile_texts_as_texts() -> None:
    async with serve_filled() as served:
        missing = {}
        for path, words in PAGES.items():
            page = await look(served, path)
            missing[path] = [word for word in words if word not in page.text]
            assert "<img src=x" not in page.html, path
            assert "<script>document" not in page.html, path
            assert "\u202e" not in page.html, path
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
        assert {path: words for path, words in missing.items() if words} == {}


async def test_a_key_that_only_reads_gets_no_button_that_changes_something() -> None:
    async with serve_filled() as served:
        await sign_in_as(served, "read")
        seen = {}
        for path in PAGES:
            answer = await served.http.get(path, headers=HTML)
            assert answer.status_code in (200, 403), path
            if answer.status_code == 200:
                seen[path] = (await look(served, path)).buttons
        assert {label for labels in seen.values() for label in labels} == {"Export as JSONL"}
        assert {path.partition("?")[0] for path in PAGES if path not in seen} == {
            *(f"{S}/{page}" for page in ("messages/6/erase", "turns/1", "manage", "delete")),
            *(f"/inspect/{page}" for page in ("playground", "state/edit", "keys", "deletions", "retention")),
        }


@pytest.mark.parametrize(
    ("role", "fields"), [("read", {}), ("write", {"user_id": "ada"}), ("admin", {"user_id": "ada"})]
)
async def test_contents_are_hidden_from_keys_that_may_not_see_them(role: str, fields: dict[str, str]) -> None:
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        await sign_in_as(served, role, **fields)
        files = ("media/0/0", "messages/0/raw", "export", "export?format=jsonl", "export?format=markdown", "events")
        for path in [*PAGES, *(f"{S}/{name}" for name in files if role == "admin" or name != "events")]:
            answer = await served.http.get(path, headers=HTML)
            assert answer.status_code in (200, 403, 404), path
            assert "swordfish" not in answer.text, path


@pytest.mark.parametrize(
    "path",
    [
        "/inspect/sessions?q={}",
        "/inspect/memories?q={}",
        "/inspect/memories?tag={}",
        "/inspect/state/records?session_id=s&q={}",
        f"{S}?q={{}}",
        f"{S}/forgotten?q={{}}",
    ],
)
async def test_a_search_of_hidden_contents_answers_the_same_for_each_word(path: str) -> None:
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        await sign_in_as(served, "read")
        pages = [await served.http.get(path.format(word), headers=HTML) for word in ("launch", "nowhere")]
        assert pages[0].status_code == pages[1].status_code
        assert "see no content here" in pages[0].text or "cannot search" in pages[0].text
        assert pages[0].text.replace("launch", "nowhere") == pages[1].text


async def test_an_empty_server_shows_how_to_connect() -> None:
    async with gateway() as served:
        page = await look(served, "/")
        assert f"export OPENAI_BASE_URL={served.url}/v1" in page.text
        assert f"export ANTHROPIC_BASE_URL={served.url} " in page.text
        assert "YOUR_KEY" not in page.text
        served.http.headers["x-holdfast-key"] = await add_key(served)
        assert "authorization: Bearer YOUR_KEY" in (await look(served, "/")).text
        await served.rest.given("s", user("Hi."))
        assert "Sessions 1" in (await look(served, "/")).text


async def test_the_inspector_can_be_switched_off() -> None:
    async with gateway((), "inspector: {enabled: false}") as served:
        assert (await served.http.get("/", headers=HTML)).json()["chat"] == "POST /v1/chat/completions"
        for path in ("/inspect/sessions", "/inspect/sign-in"):
            assert (await served.http.get(path, headers=HTML)).status_code == 404
        assert (await served.http.get("/v1/sessions")).status_code == 200


async def test_files_and_media_are_served_so_that_a_browser_runs_nothing() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}}
    async with serve_filled() as served:
        await served.rest.session("s").append(user([image]))
        for path, kind in {
            f"{S}/artifacts/dot.png/content": "image/png",
            f"{S}/artifacts/drawing.svg/content": "image/svg+xml",
            f"{S}/artifacts/report.html/content": "text/html",
            "/inspect/artifacts/user:data.bin/content": "application/octet-stream",
            f"{S}/media/19/0": "image/png",
        }.items():
            answer = await served.http.get(path)
            assert answer.headers["content-type"] == kind
            assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
            assert answer.headers["x-content-type-options"] == "nosniff"
            inline = answer.headers.get("content-disposition", "inline").startswith("inline")
            assert inline == ("media" in path), path

"""The list of sessions in the inspector: rows, filters, sorting, pages, search, and changes of several sessions."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.context.explain import decode_record
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound
from holdfast.server.inspector import session_list as page_module
from holdfast.sessions import session_list as list_module
from holdfast.testing import Reply
from tests.clocks import Clock
from tests.edges.browser_kit import NARROW, browse, check_page, needs_chromium
from tests.edges.inspector_kit import SECRET, read, read_csrf, serve_filled
from tests.edges.server import Served, gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

LIST = "/inspect/sessions"
HOUR = 3_600_000


def list_ids(page: str) -> list[str]:
    """Return the ids in the rows of a page, in order."""
    values = re.findall(r'name="session" value="([^"]+)"', page)
    return [json.loads(html.unescape(value))[1] for value in values]


def read_cells(page: str, session_id: str) -> list[str]:
    """Return the texts of the cells in a session's row."""
    row = next(row for row in re.findall(r"<tr data-item>(.*?)</tr>", page, re.DOTALL) if f">{session_id}<" in row)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in cells]


async def create_sessions(served: Served, *names: str, **fields: Any) -> None:
    for name in names:
        answer = await served.http.post("/v1/sessions", json={"id": name, **fields})
        assert answer.status_code == 201, answer.text


async def post_bulk(served: Served, **fields: Any) -> Any:
    """Send the form of the list, with the text of its page."""
    return await served.http.post(
        "/inspect/bulk", data={"csrf": await read_csrf(served, LIST), "next": LIST, **fields}, headers=HTML
    )


def name_sessions(*ids: str, user_id: str = "default") -> list[str]:
    return [json.dumps([user_id, one]) for one in ids]


# -- the list ----------------------------------------------------------------------


async def test_row_describes_a_session() -> None:
    usage = {"prompt_tokens": 200, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50}}
    agents = "agents: {support: {llm: default}}"
    async with gateway(lambda _: Reply(text="Yes.", usage=usage), agents, clock=Clock()) as (served, _):
        await create_sessions(served, "s", user_id="ada", agent="support", ttl=HOUR)
        for text in ("\n Where is order 17?\nIt was due on Tuesday.", "And now?"):
            await served.chat(text, "s", user_id="ada")
        session = await served.hf.store.get(SessionRef("ada", "s"))
        assert read_cells(await read(served, LIST), "s") == [
            "",
            f"Where is order 17? s active 2 turns, {session.tokens} tokens",
            "ada support",
            "active",
            "2023-11-14 22:13",
            "2",
            str(session.tokens),
            "400",
            "200",
            "25 %",
            "0",
            "2023-11-14 23:13",
        ]


async def test_row_names_the_message_before_which_the_last_prompt_is_condensed() -> None:
    async with serve_filled() as served:
        page = await read(served, LIST)
        assert read_cells(page, "second")[10] == "0"
        last = (await served.hf.store.calls(SessionRef("default", "s"), limit=1))[0]
        record = decode_record(last.build)
        assert record is not None
        assert record.frontier > 0
        assert read_cells(page, "s")[10] == f"0 condensed before #{record.frontier}"


async def test_states_tell_busy_closed_and_expired_sessions_apart(tmp_path: Path) -> None:
    clock = Clock()
    async with gateway([], clock=clock, store=f"sqlite:///{tmp_path}/holdfast.db") as (served, _):
        await create_sessions(served, "old", ttl=1000)
        clock.now += 2000
        await create_sessions(served, "done", "running", "idle")
        await served.http.post("/v1/sessions/done/close")
        handle = await served.hf.session("running")
        async with handle.turn("Hello"):
            page = await read(served, LIST)
        states = {name: read_cells(page, name)[3] for name in list_ids(page)}
        assert states == {"old": "expired", "done": "closed", "running": "busy", "idle": "active"}


async def test_filters_apply_together(tmp_path: Path) -> None:
    clock, store = Clock(), f"sqlite:///{tmp_path}/holdfast.db"
    async with gateway([], "agents: {support: {llm: default}}", clock=clock, store=store) as (served, _):
        await create_sessions(served, "a1", user_id="ada")
        clock.now += 3 * HOUR  # past midnight
        await create_sessions(served, "a2", user_id="ada", agent="support")
        await create_sessions(served, "b1", user_id="bob", agent="support")
        await served.http.post("/v1/sessions/b1/close?user_id=bob")
        assert set(list_ids(await read(served, LIST))) == {"a1", "a2", "b1"}
        assert list_ids(await read(served, f"{LIST}?user_id=ada&agent=support")) == ["a2"]
        assert list_ids(await read(served, f"{LIST}?status=closed&user_id=&agent=&q=")) == ["b1"]
        assert list_ids(await read(served, f"{LIST}?until=2023-11-15")) == ["a1"]
        assert set(list_ids(await read(served, f"{LIST}?since=2023-11-15"))) == {"a2", "b1"}
        assert "No session matches" in await read(served, f"{LIST}?user_id=nobody")
        answer = await served.http.get(f"{LIST}?since=soon", headers=HTML)
        assert (answer.status_code, "since must be" in answer.text) == (400, True)


@pytest.mark.parametrize("query", ["", "?sort=turns", "?sort=tokens&order=asc", "?order=asc"])
async def test_pages_cover_every_session_once(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "_LISTED", 2)
    async with gateway(lambda _: "ok", clock=Clock()) as (served, _):
        for number in range(7):
            for _ in range(1 + number % 3):
                await served.chat("Hello", f"s{number % 4}", user_id=f"u{number % 2}")
        expected = {(f"u{number % 2}", f"s{number % 4}") for number in range(7)}
        seen: list[str] = []
        path: str | None = f"{LIST}{query}"
        while path is not None:
            page = await read(served, path)
            seen += list_ids(page)
            more = re.search(r'<a href="([^"]+)" rel="next"', page)
            path = html.unescape(more[1]) if more else None
        assert sorted(seen) == sorted(name for _, name in expected)


async def test_columns_sort_the_newest_sessions_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(lambda _: "ok", clock=Clock()) as (served, _):
        for name, turns in (("three", 3), ("one", 1), ("two", 2)):
            for _ in range(turns):
                await served.chat("Hello", name)
        assert list_ids(await read(served, f"{LIST}?sort=turns")) == ["three", "two", "one"]
        assert list_ids(await read(served, f"{LIST}?sort=sent_tokens")) == ["three", "two", "one"]
        page = await read(served, f"{LIST}?sort=turns&order=asc")
        assert list_ids(page) == ["one", "two", "three"]
        assert 'aria-sort="ascending"' in page
        assert "To see older ones" not in page
        monkeypatch.setattr(list_module, "SORTED_SESSIONS", 2)
        page = await read(served, f"{LIST}?sort=turns")
        assert len(list_ids(page)) == 2
        assert "To see older ones" in page


async def test_key_of_one_user_lists_only_that_user() -> None:
    async with gateway([]) as (served, _):
        await create_sessions(served, "mine", user_id="ada")
        await create_sessions(served, "theirs", user_id="bob")
        await sign_in(served, await add_key(served, "admin", user_id="ada"))
        page = await read(served, LIST)
        assert list_ids(page) == ["mine"]
        assert 'name="user_id"' not in page
        assert (await served.http.get(f"{LIST}?user_id=bob", headers=HTML)).status_code == 404
        answer = await post_bulk(served, operation="delete", session=name_sessions("theirs", user_id="bob"))
        assert answer.status_code == 404
        assert (await served.hf.store.get(SessionRef("bob", "theirs"))).status == "active"


async def test_hostile_names_are_text_and_can_be_selected() -> None:
    name = "\"><script>alert('1')</script>\u202eevil"
    async with gateway(lambda _: "ok") as (served, _):
        await served.chat(f"Task of {name}", name, user_id=name)
        page = await read(served, LIST)
        assert "<script>alert" not in page
        assert '<span class="control">U+202E</span>' in page
        assert list_ids(page) == [name]
        answer = await post_bulk(served, operation="delete", session=name_sessions(name, user_id=name))
        assert "Delete 1 session" in answer.text
        assert "<script>alert" not in answer.text
        assert list_ids(answer.text) == [name]


# -- search ------------------------------------------------------------------------


async def test_search_highlights_words_and_links_to_the_message() -> None:
    async with gateway(lambda _: "Noted.") as (served, _):
        await served.chat("The kelp <b>forest</b> is cold", "one", user_id="ada")
        await served.chat("My kelp salad was good", "two", user_id="bob")
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        page = await read(served, f"{LIST}?q=kelp+forest")
        assert "User ada" in page
        assert "User bob" in page
        assert "<mark>kelp</mark> &lt;b&gt;<mark>forest</mark>&lt;/b&gt;" in page
        assert f'href="{LIST}/one?user_id=ada&amp;at=0#m-0"' in page
        mine = await read(served, f"{LIST}?q=kelp&user_id=bob")
        assert "<mark>kelp</mark> salad" in mine
        assert "forest" not in mine
        assert "No message found" in await read(served, f"{LIST}?q=zebra")


async def test_search_marks_hits_without_the_words_and_says_which_users_it_covered() -> None:
    async with gateway(lambda _: "Noted.") as (served, _):
        await served.chat("The kelp forest is cold", "one", user_id="ada")
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        page = await read(served, f"{LIST}?q=kelp")
        hits = re.findall(r"<li data-item>(.*?)</li>", page, re.DOTALL)
        assert [("<mark>" in hit, ">context</span>" in hit) for hit in hits] == [(True, False), (False, True)]
        assert "All users were searched" in page
        for number in range(6):
            await served.chat("More kelp", "more", user_id=f"u{number}")
        await served.hf.engine.index.settled()
        assert "Searched: the 5 of 7 users who were active last" in await read(served, f"{LIST}?q=kelp")
        assert "only the 5 of 7 users who were active last were searched" in await read(served, f"{LIST}?q=zebra")


async def test_search_without_an_index_says_how_to_turn_it_on() -> None:
    async with gateway([], "storage: {index: {enabled: false}}") as (served, _):
        await create_sessions(served, "s")
        page = await read(served, f"{LIST}?q=kelp")
        assert "The search index is off" in page
        assert "index: {enabled: true}" in page
        assert list_ids(await read(served, LIST)) == ["s"]


async def test_search_shows_no_content_to_roles_that_may_not_see_it() -> None:
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        assert "swordfish" in await read(served, f"{LIST}?q=launch+code")
        await sign_in(served, await add_key(served, "read"))
        found = await served.http.get(f"{LIST}?q=launch+code", headers=HTML)
        assert (found.status_code, SECRET in found.text, "swordfish" in found.text) == (403, False, False)
        assert "hidden:" in await read(served, LIST)
        answer = await post_bulk(served, operation="export", scope="all")
        assert (answer.status_code, "swordfish" in answer.text) == (403, False)


# -- several sessions at once ------------------------------------------------------


async def test_deletion_shows_a_count_first_and_deletes_what_was_shown() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        for name in ("one", "two", "three"):
            await served.chat("Hello", name)
        answer = await post_bulk(served, operation="delete", session=name_sessions("one", "two", "gone"))
        assert answer.status_code == 200
        assert "Nothing has been changed yet" in answer.text
        assert "Delete 2 sessions" in answer.text
        assert len(list_ids(await read(served, LIST))) == 3
        shown = list_ids(answer.text)
        assert shown == ["one", "two"]
        answer = await post_bulk(served, operation="delete", confirmed="yes", session=name_sessions(*shown))
        assert "2 sessions were deleted" in answer.text
        assert list_ids(await read(served, LIST)) == ["three"]
        with pytest.raises(SessionNotFound):
            await served.hf.store.get(SessionRef("default", "one"))


async def test_all_sessions_of_a_filter_are_closed() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await create_sessions(served, "a1", "a2", user_id="ada")
        await create_sessions(served, "b1", user_id="bob")
        asked = await post_bulk(served, operation="close", scope="all", user_id="ada")
        assert sorted(list_ids(asked.text)) == ["a1", "a2"]
        sessions = name_sessions("a1", "a2", user_id="ada")
        done = await post_bulk(served, operation="close", confirmed="yes", session=sessions)
        assert "2 sessions were closed" in done.text
        assert list_ids(await read(served, f"{LIST}?status=active")) == ["b1"]


async def test_export_has_one_session_per_line_and_can_be_imported() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        for name in ("one", "two"):
            await served.chat("Hello", name)
        answer = await post_bulk(served, operation="export", scope="all")
        assert re.fullmatch(r'attachment; filename="sessions-[\d-]+\.jsonl"', answer.headers["content-disposition"])
        exported = [json.loads(line) for line in answer.text.splitlines()]
        assert [one["id"] for one in exported] == ["two", "one"]
        copied = await served.http.put("/v1/sessions/copy", json={**exported[0], "id": "copy"})
        assert copied.status_code == 200, copied.text
        assert await served.log("copy") == [("user", "Hello"), ("assistant", "ok")]


async def test_sessions_with_a_running_turn_are_left_unchanged_and_named() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await create_sessions(served, "free", "busy")
        handle = await served.hf.session("busy")
        async with handle.turn("Hello"):
            asked = await post_bulk(served, operation="close", session=name_sessions("free", "busy"))
            assert "left unchanged" in asked.text
            done = await post_bulk(served, operation="close", confirmed="yes", session=name_sessions("free", "busy"))
        assert "1 session was closed" in done.text
        assert "1 could not be closed" in done.text
        assert "a turn of the session is running" in done.text


async def test_many_sessions_are_deleted() -> None:
    """Sessions that are gone meanwhile count as deleted."""
    async with gateway([]) as (served, _):
        names = [f"s{number}" for number in range(25)]
        await create_sessions(served, *names)
        asked = await post_bulk(served, operation="delete", session=name_sessions(*names))
        assert f"Delete {len(names)} sessions" in asked.text
        done = await post_bulk(served, operation="delete", confirmed="yes", session=name_sessions(*names))
        assert f"{len(names)} sessions were deleted" in done.text
        assert list_ids(await read(served, LIST)) == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"operation": "close", "session": []}, 400),
        ({"operation": "explode", "session": ['["default", "s"]']}, 400),
        ({"operation": "close", "session": ["s"]}, 400),
        ({"operation": "close", "csrf": "x", "session": ['["default", "s"]']}, 403),
        ({"operation": "close", "scope": "all", "status": "dead"}, 400),
    ],
)
async def test_wrong_forms_change_nothing(fields: dict[str, Any], status: int) -> None:
    async with gateway([]) as (served, _):
        await create_sessions(served, "s")
        answer = await post_bulk(served, confirmed="yes", **fields)
        assert answer.status_code == status, answer.text
        assert list_ids(await read(served, f"{LIST}?status=active")) == ["s"]


async def test_reader_exports_but_changes_nothing() -> None:
    async with gateway([]) as (served, _):
        await create_sessions(served, "s")
        await sign_in(served, await add_key(served, "read"))
        page = await read(served, LIST)
        assert 'value="export"' in page
        assert 'value="delete"' not in page
        sessions = name_sessions("s")
        assert (await post_bulk(served, operation="delete", confirmed="yes", session=sessions)).status_code == 403
        assert (await post_bulk(served, operation="export", session=sessions)).status_code == 200
        assert list_ids(await read(served, LIST)) == ["s"]


# -- in a browser ------------------------------------------------------------------


@needs_chromium
async def test_filters_sorting_and_deletion_in_a_browser() -> None:
    async with gateway(lambda _: "ok") as (served, _), browse(served.url) as page:
        for name, user, turns in (("one", "ada", 1), ("two", "ada", 2), ("three", "bob", 1)):
            for _ in range(turns):
                await served.chat(f"Question {name}", name, user_id=user)
        await page.goto(LIST)
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(3)
        await page.get_by_label("User").fill("ada")
        await page.keyboard.press("Enter")
        await expect(rows).to_have_count(2)
        assert "user_id=ada" in page.url
        await page.get_by_role("link", name="turns").click()
        await expect(rows.first).to_contain_text("Question two")
        assert "user_id=ada" in page.url
        await page.get_by_label("Select session two").check()
        await page.get_by_role("button", name="Delete…").click()
        await expect(page.get_by_text("Nothing has been changed yet")).to_be_visible()
        await check_page(page)
        await page.get_by_role("button", name="Delete 1 session").click()
        await expect(page.get_by_role("status")).to_have_text("1 session was deleted.")
        await page.get_by_role("link", name="Back to the list").click()
        await expect(rows).to_have_count(1)
        assert "user_id=ada" in page.url


@needs_chromium
async def test_list_works_without_the_script_on_a_narrow_window() -> None:
    async with serve_filled() as served, browse(served.url, width=NARROW, script=False) as page:
        await page.goto(LIST)
        await page.get_by_label("User").fill("ada")
        await page.get_by_role("button", name="Apply").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        async with page.expect_download() as downloading:
            await page.get_by_label("Do for").select_option("all")
            await page.get_by_role("button", name="Export as JSONL").click()
        download = await downloading.value
        assert download.suggested_filename.endswith(".jsonl")

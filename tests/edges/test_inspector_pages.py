"""Every page of the inspector in a browser: legible, accessible, without errors, and with the log's texts shown as text."""

from __future__ import annotations

import pytest

from tests.edges.browser_kit import NARROW, WIDE, browse, check_keyboard, check_page, needs_chromium
from tests.edges.inspector_kit import SECRET, serve_filled
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

PAGES = (
    "/",
    "/?range=month",
    "/inspect/sessions",
    "/inspect/sessions?sort=tokens",
    "/inspect/sessions?q=launch+code",
    "/inspect/sessions?user_id=nobody",
    "/inspect/sessions/s",
    "/inspect/playground",
    "/inspect/playground?session_id=s",
    "/inspect/memories",
    "/inspect/memories?q=launch+code",
    "/inspect/memories/held",
    "/inspect/memories/files?path=/memories/notes.md",
    "/inspect/memories/diary",
    "/inspect/sessions/s/prompt",
    "/inspect/sessions/s/prompt?call=next&shape=gemini",
    "/inspect/sessions/s/prompt?strategy=token_window&from_budget=900",
    "/inspect/sessions/s?q=flight&at=5",
    "/inspect/sessions/s?view=raw",
    "/inspect/sessions/s/messages/4",
    "/inspect/sessions/s/messages/6/erase",
    "/inspect/sessions/s/turns/1",
    "/inspect/sessions/s/manage",
    "/inspect/sessions/s/delete",
    "/inspect/state",
    "/inspect/state?scope=user&user_id=default",
    "/inspect/sessions/s/state",
    "/inspect/state/records?session_id=s",
    "/inspect/state/records?session_id=s&q=launch",
    "/inspect/artifacts",
    "/inspect/agents",
    "/inspect/agents/default",
    "/inspect/keys",
    "/inspect/deletions",
    "/inspect/retention",
    "/inspect/sessions/s/artifacts/report.html",
    "/inspect/sessions/s/artifacts/dot.png",
    "/inspect/sessions/s/compactions",
    "/inspect/sessions/s/compactions?block=digest",
    "/inspect/sessions/s/compactions?block=summary",
    "/inspect/sessions/s/forgotten",
    "/inspect/sessions/s/forgotten?q=launch+code",
    "/inspect/sessions/s/forgotten?q=codes+for+a+launch",
    "/inspect/sessions/s/forgotten?seq=2&turn=6",
)
"""Addresses of all pages, on the server of `inspector_kit`."""


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (WIDE, True), (NARROW, False), (NARROW, True)])
async def test_pages_are_accessible_and_report_no_errors(width: int, dark: bool) -> None:
    async with serve_filled() as served, browse(served.url, width=width, dark=dark) as page:
        for path in PAGES:
            response = await page.goto(path)
            assert response is not None
            assert response.status == 200, path
            await check_page(page)
            assert await page.title() != "owned", path


@needs_chromium
async def test_pages_work_without_the_script() -> None:
    async with serve_filled() as served, browse(served.url, script=False) as page:
        for path in PAGES:
            await page.goto(path)
            assert await page.locator("h1").is_visible(), path


@needs_chromium
async def test_every_control_is_reached_by_keyboard() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        for path in PAGES:
            await page.goto(path)
            await check_keyboard(page)


@pytest.mark.parametrize("path", PAGES)
async def test_content_is_hidden_from_roles_that_may_not_see_it(path: str) -> None:
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        await sign_in(served, await add_key(served, "read"))
        answer = await served.http.get(path, headers=HTML)
        assert answer.status_code in (200, 403)
        assert SECRET not in answer.text
        assert "swordfish" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/inspect/sessions?q={}",
        "/inspect/memories?q={}",
        "/inspect/memories?tag={}",
        "/inspect/state/records?session_id=s&q={}",
        "/inspect/sessions/s?q={}",
        "/inspect/sessions/s/forgotten?q={}",
    ],
)
async def test_searches_do_not_reveal_hidden_words(path: str) -> None:
    """The answer to a search is the same for words that exist and words that do not."""
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        await sign_in(served, await add_key(served, "read"))
        texts = [(await served.http.get(path.format(word), headers=HTML)).text for word in ("launch", "nowhere")]
        assert texts[0].replace("launch", "nowhere") == texts[1]


@pytest.mark.parametrize("path", PAGES)
async def test_key_of_one_user_sees_nothing_of_another(path: str) -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "admin", user_id="ada"))
        answer = await served.http.get(path, headers=HTML)
        assert answer.status_code in (200, 403, 404)
        assert "swordfish" not in answer.text

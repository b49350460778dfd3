"""The pages of a session: transcript, messages, media, copies, exports, changes and live updates."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from holdfast.domain.session import SessionRef
from holdfast.server.inspector import live
from holdfast.server.inspector.transcript import read_page
from holdfast.server.limits import INSPECTOR_MESSAGES
from tests.edges.browser_kit import NARROW, WIDE, browse, check_page, needs_chromium, save_screenshot
from tests.edges.inspector_demo import serve_demo
from tests.edges.inspector_kit import HOSTILE, SECRET, read, serve_filled
from tests.edges.server import Served, gateway
from tests.edges.test_inspector_frame import add_key, sign_in

URL = "/inspect/sessions/s"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def append(served: Served, messages: Sequence[dict[str, Any]], session_id: str = "s", **body: Any) -> None:
    await served.http.post("/v1/sessions", json={"id": session_id})
    response = await served.http.post(
        f"/v1/sessions/{quote(session_id, safe='')}/messages", json={"messages": messages, **body}
    )
    assert response.status_code == 200, response.text


def data_url(content: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def make_turns(count: int) -> list[dict[str, Any]]:
    """Return turns of four messages: a question, a tool call, its result, an answer."""
    messages: list[dict[str, Any]] = []
    for number in range(count):
        function = {"name": "look_up", "arguments": json.dumps({"number": number})}
        messages += [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": json.dumps({"found": [number, None, True]})},
            {"role": "assistant", "content": f"Answer {number}"},
        ]
    return messages


def find_seqs(html: str) -> list[int]:
    """Return the numbers of the messages on a page, in order."""
    return [int(seq) for seq in re.findall(r'id="m-(\d+)"', html)]


# -- pages of the transcript -----------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_newest_message_is_in_view_and_a_chosen_result_is_opened(width: int, script: bool) -> None:
    async with gateway([]) as (served, _), browse(served.url, width=width, script=script) as page:
        await append(served, make_turns(30))
        await page.goto(URL)
        await expect(page.locator("#m-119")).to_be_in_viewport()
        await expect(page.locator("#m-98")).not_to_be_visible()
        await page.get_by_label("Go to message").fill("98")
        await page.get_by_role("button", name="Go", exact=True).click()
        await expect(page).to_have_url(re.compile(r"\?at=98#m-98$"))
        await expect(page.locator("#m-98")).to_be_in_viewport()
        await expect(page.locator("#m-98")).to_have_class("result chosen")
        await page.goto(f"{URL}?at=46")  # without a fragment, as other pages link to it
        await expect(page.locator("#m-46")).to_be_in_viewport()
        await page.goto(f"{URL}?q=Question+2")
        await expect(page.get_by_role("heading", name="11 messages with")).to_be_in_viewport()


@needs_chromium
async def test_menu_closes_with_escape_and_a_click_outside() -> None:
    async with gateway([]) as (served, _), browse(served.url) as page:
        await append(served, make_turns(1))
        await page.goto(URL)
        menu, item = page.get_by_text("Copy and export"), page.get_by_role("link", name="Export as JSON")
        await menu.click()
        await page.get_by_text("Continue this session with curl:").click()  # inside
        await expect(item).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(item).not_to_be_visible()
        await menu.click()
        await expect(item).to_be_visible()
        await page.get_by_role("heading", name="s active").click()
        await expect(item).not_to_be_visible()


@needs_chromium
@pytest.mark.parametrize("dark", [True, False])
async def test_narrow_page_has_its_content_in_the_first_half_of_the_screen(dark: bool) -> None:
    async with serve_filled() as served, browse(served.url, width=NARROW, height=844, dark=dark) as page:
        await page.goto(f"{URL}?notice=none")
        box = await page.locator(".toolbar").bounding_box()
        assert box
        assert box["y"] < 422
        await check_page(page)


async def test_pages_cover_the_log_once_and_begin_with_turns() -> None:
    async with gateway([]) as (served, _):
        await served.hf.import_({"messages": make_turns(120)}, session_id="s", user_id="default")
        url, seen = URL, list[int]()
        while True:
            html = await read(served, url)
            seqs = find_seqs(html)
            assert len(seqs) <= INSPECTOR_MESSAGES
            assert seqs == list(range(seqs[0], seqs[-1] + 1))
            assert seqs[0] % 4 == 0, "the page begins with a turn"
            assert "continues on another page" not in html
            seen = seqs + seen
            older = re.search(r'href="([^"]+)" rel="prev"', html)
            if older is None:
                break
            url = older[1]
        assert seen == list(range(480))


async def test_link_to_a_message_opens_the_same_page_while_the_log_grows() -> None:
    async with gateway([]) as (served, _):
        store, ref = served.hf.store, SessionRef("default", "s")
        await served.hf.import_({"messages": make_turns(120)}, session_id="s", user_id="default")
        pages = {at: await read_page(store, ref, 480, at) for at in range(0, 400, 7)}
        assert all(page.start <= at < page.stop for at, page in pages.items())
        await append(served, make_turns(60))
        for at, page in pages.items():
            if not page.is_newest:
                again = await read_page(store, ref, 720, at)
                assert (again.start, again.stop) == (page.start, page.stop), at


@pytest.mark.parametrize("path", ["", "?at=0", "?at=2000", "?at=2000&view=raw", "/messages/2000"])
async def test_pages_read_only_what_they_show(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway([]) as (served, _):
        await served.hf.import_({"messages": make_turns(1_000)}, session_id="s", user_id="default")
        counts: list[int] = []
        entries = served.hf.store.entries

        async def count_entries(*args: Any, **options: Any) -> Any:
            found = await entries(*args, **options)
            counts.append(len(found))
            return found

        monkeypatch.setattr(served.hf.store, "entries", count_entries)
        await read(served, URL + path)
        assert 0 < sum(counts) <= INSPECTOR_MESSAGES + 1


@needs_chromium
async def test_ten_thousand_messages_open_in_less_than_a_second() -> None:
    async with gateway([]) as (served, _), browse(served.url) as page:
        await served.hf.import_({"messages": make_turns(2_500)}, session_id="s", user_id="default")
        times = []
        for path in ("", "?at=0", "?at=5000"):
            await page.goto(URL + path)
            times.append(await page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
            assert len(find_seqs(await page.content())) <= INSPECTOR_MESSAGES
        assert min(times) < 1_000, times  # the others may wait for other tests on this machine


async def test_very_long_turn_is_divided_and_says_so() -> None:
    async with gateway([]) as (served, _):
        messages = [
            {"role": "user", "content": "Go"},
            *({"role": "assistant", "content": f"Step {n}"} for n in range(299)),
        ]
        await served.hf.import_({"messages": messages}, session_id="s", user_id="default")
        html = await read(served, f"{URL}?at=150")
        assert 150 in find_seqs(html)
        assert len(find_seqs(html)) <= INSPECTOR_MESSAGES
        assert "continues on another page" in html


async def test_number_beyond_the_log_shows_the_newest_page() -> None:
    async with serve_filled() as served:
        html = await read(served, f"{URL}?at=999999")
        assert "There is no message 999999" in html
        assert find_seqs(html)[-1] == 18


async def test_session_of_any_id_and_user_has_a_page() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        name, user = 'a/b ü?#&\u202e"<b>', "x&y/ö"
        await served.chat("Hello", session_id=name, user_id=user)
        url = f"/inspect/sessions/{quote(name, safe='')}?user_id={quote(user, safe='')}"
        html = await read(served, url)
        assert "Hello" in html
        assert "<b>" not in html.partition("<main")[2].replace("<b>user</b>", "").replace("<b>assistant</b>", "")
        for link in re.findall(r'href="(/inspect/sessions/[^"]+)"', html):
            await read(served, link.replace("&amp;", "&").partition("#")[0])


async def test_unknown_session_and_message_are_not_found() -> None:
    async with serve_filled() as served:
        for path in (
            "/inspect/sessions/none",
            f"{URL}/messages/99",
            f"{URL}/media/0/0",
            f"{URL}/events?user_id=nobody",
        ):
            await read(served, path, 404)


# -- messages --------------------------------------------------------------------


@needs_chromium
async def test_deep_link_shows_the_message_in_the_window() -> None:
    async with gateway([]) as (served, _), browse(served.url) as page:
        await served.hf.import_({"messages": make_turns(120)}, session_id="s", user_id="default")
        await page.goto(f"{URL}?at=130#m-130")  # a tool result, in a folded call
        await expect(page.locator("#m-130")).to_be_in_viewport()
        await expect(page.locator("#m-130")).to_have_class(re.compile("chosen"))
        await page.get_by_label("Go to message").fill("301")
        await page.keyboard.press("Enter")
        await expect(page.locator("article.chosen")).to_be_in_viewport()


@needs_chromium
async def test_messages_and_pages_are_reached_by_keyboard() -> None:
    async with gateway([]) as (served, _), browse(served.url) as page:
        await served.hf.import_({"messages": make_turns(120)}, session_id="s", user_id="default")
        await page.goto(f"{URL}?at=0")
        await expect(page.locator("#m-0")).to_be_focused()
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await expect(page.locator("#m-3")).to_be_focused()  # the result #m-2 is part of the call
        await page.keyboard.press("k")
        await expect(page.locator("#m-1")).to_be_focused()
        await page.keyboard.press("n")
        await expect(page.get_by_text(re.compile(r"^Messages 76\D151 of 480")).first).to_be_visible()
        await page.keyboard.press("p")
        await expect(page.get_by_text(re.compile(r"^Messages 0\D75 of 480")).first).to_be_visible()
        await page.keyboard.press("s")
        await expect(page.get_by_label("Search in this session")).to_be_focused()


@needs_chromium
async def test_tool_call_opens_with_arguments_and_result_without_the_script() -> None:
    async with serve_filled() as served, browse(served.url, script=False) as page:
        await page.goto(URL)
        result = page.locator("#m-5")
        await expect(result).to_be_hidden()
        await page.locator("summary", has_text="search_flights").click()
        await expect(result).to_be_visible()
        await expect(result.get_by_text("SK4700")).to_be_visible()


async def test_marks_of_messages_are_shown() -> None:
    async with gateway([]) as (served, _):
        await append(
            served,
            [
                {"role": "user", "content": "One", "metadata": {"user": "bob"}, "pinned": True},
                {"role": "assistant", "content": "Two", "importance": 0.7, "metadata": {"interrupted": True}},
                {"role": "note", "origin": {"step": "handover"}},
                {"role": "user", "content": "Three"},
            ],
        )
        await served.http.patch("/v1/sessions/s/messages/3", json={"refused_by": ["provider-x"]})
        await served.http.delete("/v1/sessions/s/messages/1")
        html = await read(served, URL)
        for mark in (">bob<", ">pinned<", ">erased<", "handover", "refused by provider-x"):
            assert mark in html, mark
        assert "Two" not in html


async def test_reasoning_and_system_prompt_are_folded() -> None:
    async with gateway([]) as (served, _):
        thought = {"type": "thinking", "thinking": "I should greet.", "signature": "x"}
        await served.http.post("/v1/sessions", json={"id": "s", "system_messages": "Be brief."})
        await append(served, [{"role": "assistant", "content": [thought, {"type": "text", "text": "Hi"}]}])
        await append(served, [{"role": "assistant", "content": "Ho", "reasoning_content": "Again."}])
        html = await read(served, URL)
        for text in ("I should greet.", "Again.", "Be brief."):
            before = html.partition(text)[0]
            assert before.count("<details") > before.count("</details>"), text


@pytest.mark.parametrize(
    ("retire", "reason"),
    [
        ([{"role": "user", "content": "New question"}], "2 messages were replaced by an edit"),
        (
            [{"role": "assistant", "content": "Cut", "metadata": {"interrupted": True}}],
            "2 messages were replaced by an interruption",
        ),
        ([], "2 messages were replaced by a rewind"),
    ],
)
async def test_retired_branch_is_folded_where_it_left(retire: list[dict[str, Any]], reason: str) -> None:
    async with gateway([]) as (served, _):
        texts = ["First", "Yes", "Old question", "Old answer"]
        roles = ["user", "assistant"] * 2
        await append(served, [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])
        await append(served, retire, retire_from=2)
        html = await read(served, URL)
        fold = html.partition(reason)[2].partition("</details>")[0]
        assert "Old question" in fold
        assert "Old answer" in fold
        assert "First" not in fold
        opened = await read(served, f"{URL}?at=3")
        assert '<details class="fold" id="fold-2" open>' in opened


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)])
async def test_everything_that_is_folded_is_accessible(width: int, dark: bool) -> None:
    async with serve_filled() as served, browse(served.url, width=width, dark=dark) as page:
        image = {"type": "image_url", "image_url": {"url": data_url(PNG, "image/png")}}
        await append(
            served,
            [
                {"role": "user", "content": [image], "name": "n" * 300},
                {"role": "note", "origin": {"list": [1, {"deep": None}]}},
                {"role": "assistant", "content": "Yes", "reasoning_content": "Because. " * 50, "pinned": True},
                {"role": "user", "content": "old"},
            ],
        )
        await append(served, [{"role": "user", "content": "new"}], retire_from=22)
        await served.http.patch("/v1/sessions/s/messages/21", json={"refused_by": ["u" * 200]})
        for path in (f"{URL}?at=21&q=e", f"{URL}?view=raw", f"{URL}/messages/21"):
            await page.goto(path)
            await page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
            await check_page(page)


async def test_page_limits_what_it_shows_of_huge_texts() -> None:
    async with serve_filled() as served:
        wide = json.dumps({f"key{n}": {"deep": [n] * 20} for n in range(1_000)})
        calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": wide}} for n in range(30)]
        await append(served, [{"role": "assistant", "content": None, "tool_calls": calls}])
        html = await read(served, URL)
        assert len(html) < 2_000_000
        assert "more items" in html
        assert "980,000 more characters" in html


async def test_search_marks_the_words_and_leads_to_the_message() -> None:
    async with serve_filled() as served:
        html = await read(served, f"{URL}?q=QUESTION+3")
        hit = re.search(r'href="([^"]+)#m-(\d+)">#', html)
        assert hit is not None
        assert "<mark>Question 3</mark>" in html
        assert f'id="m-{hit[2]}"' in await read(served, hit[1].replace("&amp;", "&"))
        assert "0 messages with" in await read(served, f"{URL}?q=%3Cscript%3Enothing")
        await read(served, f"{URL}?q={'x' * 201}", 400)


async def test_search_for_words_that_fill_a_text_marks_only_some() -> None:
    async with gateway([]) as (served, _):
        await append(served, [{"role": "user", "content": "w " * 100_000} for _ in range(10)])
        assert (await read(served, f"{URL}?q=w")).count("<mark>") <= 10 * 50 + 10 * 100


async def test_search_goes_on_to_older_messages() -> None:
    async with gateway([]) as (served, _):
        await served.hf.import_({"messages": make_turns(50)}, session_id="s", user_id="default")
        url, found = f"{URL}?q=answer", list[str]()
        while url:
            html = await read(served, url)
            found += re.findall(r'#m-(\d+)">#', html.partition("</section>")[0])
            more = re.search(r'href="([^"]+)">Search older', html)
            url = more[1].replace("&amp;", "&") if more else ""
        assert [int(seq) for seq in found] == list(range(199, 0, -4))


# -- media -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "kind", "shown"),
    [
        ({"type": "image_url", "image_url": {"url": data_url(PNG * 40, "image/png")}}, "image/png", True),
        ({"type": "image_url", "image_url": {"url": data_url(PNG, "image/png")}}, "image/png", True),
        ({"type": "image_url", "image_url": {"url": data_url(b"<svg onload=x>" * 99, "image/svg+xml")}}, None, False),
        ({"type": "image_url", "image_url": {"url": data_url(b"<script>1</script>" * 99, "text/html")}}, None, False),
        ({"type": "file", "file": {"filename": 'a"\r\nx: y.pdf', "file_data": data_url(b"%PDF" * 999, "application/pdf")}}, None, False),
        ({"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF" * 999).decode(), "format": "wav"}}, "audio/wav", True),
    ],
)  # fmt: skip
async def test_media_are_served_in_a_sandbox_and_only_safe_types_are_shown(
    part: dict[str, Any], kind: str | None, shown: bool
) -> None:
    async with gateway([]) as (served, _):
        await append(served, [{"role": "user", "content": [{"type": "text", "text": "See"}, part]}])
        html = await read(served, URL)
        assert "base64" not in html
        assert f"{URL}/media/0/1" in html
        answer = await served.http.get(f"{URL}/media/0/1")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == (kind or "application/octet-stream")
        assert answer.headers["content-disposition"].startswith("inline" if shown else "attachment")
        assert answer.headers["content-security-policy"].startswith("sandbox;")
        assert answer.headers["x-content-type-options"] == "nosniff"
        saved = await served.http.get(f"{URL}/media/0/1?download=true")
        assert saved.headers["content-disposition"].startswith("attachment")
        assert saved.content == answer.content
        assert answer.content[:4] in (PNG[:4], b"<svg", b"<scr", b"%PDF", b"RIFF")


@needs_chromium
async def test_images_are_visible_in_the_transcript() -> None:
    async with gateway([]) as (served, _), browse(served.url) as page:
        image = {"type": "image_url", "image_url": {"url": data_url(PNG, "image/png")}}
        linked = {"type": "image_url", "image_url": {"url": "https://elsewhere.example/cat.png"}}
        await append(served, [{"role": "user", "content": [image, linked]}])
        await page.goto(URL)
        await expect(page.locator("figure img")).to_have_count(1)
        await page.wait_for_function("document.querySelector('figure img').naturalWidth === 1")
        await check_page(page)


async def test_artifact_of_a_message_is_linked() -> None:
    async with gateway([]) as (served, _):
        named = {"artifacts": [{"name": "a b.html", "version": 0}]}
        await append(served, [{"role": "assistant", "content": "Saved", "metadata": named}])
        await served.http.put("/v1/sessions/s/artifacts/a%20b.html", content=b"<script>1</script>")
        link = re.search(rf'href="({URL}/artifacts/[^"]+)"', await read(served, URL))
        assert link is not None
        assert "a b.html" in await read(served, link[1])


# -- copies and exports ------------------------------------------------------------


@needs_chromium
async def test_message_is_copied_in_three_forms() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.goto(f"{URL}/messages/2")
        copies: list[str] = []
        for button in await page.locator("[data-copy]").all():
            await button.click()
            await expect(page.get_by_role("button", name="Copied")).to_have_count(len(copies) + 1)
            copies.append(await page.evaluate("navigator.clipboard.readText()"))
        commands, stored, markdown = copies
        assert json.loads(stored)["seq"] == 2
        assert commands.count("curl ") == 2
        assert markdown.startswith("### 2. user")


async def test_copied_commands_repeat_the_conversation_in_a_copy() -> None:
    async with serve_filled() as served:
        html = await read(served, f"{URL}/messages/9")
        text = re.search(r'<pre id="commands">(.*?)</pre>', html, re.DOTALL)
        assert text is not None
        commands = text[1].replace("&#39;", "'").replace("&#34;", '"').replace("&lt;", "<").replace("&gt;", ">")
        assert commands.isascii()
        for command in commands.replace("&amp;", "&").split("\n\n"):
            name, url, _, _, _, body = shlex.split(command.replace("\\\n", ""))
            assert name == "curl"
            answer = await served.http.post(url, content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 201), answer.text
        copy = await served.log("s-from-9")
        original = await served.log("s")
        assert [text for _, text in copy[:9]] == [text for _, text in original[:9]]
        assert copy[9] == original[9]


async def test_commands_contain_no_key() -> None:
    async with serve_filled() as served:
        key = await add_key(served)
        await sign_in(served, key)
        for path in (URL, f"{URL}/messages/0"):
            html = await read(served, path)
            assert "X-Holdfast-Key: $HOLDFAST_KEY" in html
            assert key not in html


async def test_exports_contain_the_whole_session() -> None:
    async with gateway([]) as (served, _):
        messages = make_turns(60)
        messages[3] = {"role": "assistant", "content": "```\nfence\n```"}
        await served.hf.import_({"messages": messages, "system_messages": "Be brief."}, session_id="s", user_id="ada")
        url = f"{URL}/export?user_id=ada&format="
        whole = await served.http.get(f"{url}json")
        assert whole.headers["content-disposition"] == "attachment; filename=\"s.json\"; filename*=UTF-8''s.json"
        assert len(whole.json()["messages"]) == 240
        lines = (await served.http.get(f"{url}jsonl")).text.splitlines()
        assert [json.loads(line)["seq"] for line in lines] == list(range(240))
        markdown = (await served.http.get(f"{url}markdown")).text
        assert markdown.startswith("# s\n\n### system\n\nBe brief.\n")
        assert markdown.count("\n### ") == 241
        assert "Calls `look_up`:\n\n```json\n" in markdown
        await read(served, f"{url}exe", 400)


# -- changes ---------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("script", [True, False])
async def test_message_is_pinned_rated_and_erased(script: bool) -> None:
    async with serve_filled() as served, browse(served.url, script=script) as page:
        await page.goto(URL)
        message = page.locator("#m-0")
        await message.get_by_role("button", name="Pin", exact=True).click()
        await expect(message.get_by_text("pinned")).to_be_visible()
        await message.get_by_role("button", name="Unpin").click()
        await expect(message.get_by_text("pinned")).to_be_hidden()
        await message.get_by_role("link", name="More").click()
        await page.get_by_label("Importance").select_option("0.9")
        await page.get_by_role("button", name="Set").click()
        await expect(page.get_by_text("importance 0.9")).to_be_visible()
        await page.get_by_role("link", name="Erase").click()
        await expect(page.get_by_text("This cannot be undone.")).to_be_visible()
        await page.get_by_role("button", name="Erase the content").click()
        await expect(page.get_by_text("Message 0 has no content any more")).to_be_visible()
        await page.get_by_role("link", name="Back").click()
        await expect(message.get_by_text("The content was erased.")).to_be_visible()
        assert SECRET not in str((await served.log())[0])


@needs_chromium
async def test_session_is_forked_rewound_moved_closed_and_deleted_without_the_script(tmp_path: Path) -> None:
    async with (
        serve_filled(store=f"sqlite:///{tmp_path}/sessions.db") as served,
        browse(served.url, script=False) as page,
    ):
        await page.goto(f"{URL}/turns/1")
        await page.get_by_label("Id of the copy").fill("copy")
        await page.get_by_role("button", name="Fork").click()
        await page.get_by_role("link", name="copy").click()
        await expect(page.get_by_text("forked from")).to_be_visible()
        assert len(await served.log("copy")) == 7

        await page.goto("/inspect/sessions/copy/turns/0")
        await page.get_by_role("button", name="Rewind").click()
        await expect(page.get_by_text("The session was rewound.")).to_be_visible()
        await expect(page.get_by_text("5 messages were replaced by a rewind")).to_be_visible()

        await page.get_by_role("link", name="Manage").click()
        await page.get_by_label("Time").select_option("3600000")
        await page.get_by_role("button", name="Set").click()
        await expect(page.get_by_text("it ends after 60 minutes")).to_be_visible()
        await page.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("status")).to_have_text("Closed. The next message opens it again.")
        await page.get_by_label("New user").fill("bob")
        await page.get_by_role("button", name="Move").click()
        await page.get_by_role("link", name="copy").click()

        await page.get_by_role("link", name="Manage").click()
        await page.get_by_role("link", name="Delete").click()
        await page.get_by_role("button", name="Delete the session").click()
        await expect(page.get_by_role("heading", name="Receipt")).to_be_visible()
        await expect(page.get_by_role("row", name="messages")).to_contain_text("2")
        assert (await served.http.get("/v1/sessions/copy?user_id=bob")).status_code == 404


async def test_read_only_key_sees_no_forms_and_no_confirmations() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "read"))
        for path in (URL, f"{URL}/messages/0"):
            html = await read(served, path)
            assert 'action="/inspect/do"' not in html
            assert "Manage" not in html
            assert "Erase" not in html
        for path in ("manage", "delete", "turns/0", "messages/0/erase"):
            await read(served, f"{URL}/{path}", 403)


@needs_chromium
async def test_real_conversation_is_legible_with_an_open_tool_call() -> None:
    async with serve_demo() as served, browse(served.url, height=1000) as page:
        await page.goto("/inspect/sessions/norway?user_id=ada")
        await page.locator("details.toolcall > summary").first.click()
        await expect(page.get_by_text("Strandgata").first).to_be_visible()
        await check_page(page)
        await save_screenshot(page, "inspector-session")


# -- rights ----------------------------------------------------------------------


async def test_role_without_content_gets_it_in_no_form() -> None:
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        image = {"type": "image_url", "image_url": {"url": data_url(PNG, "image/png")}}
        await append(served, [{"role": "user", "content": [image, {"type": "text", "text": SECRET}]}])
        await sign_in(served, await add_key(served, "read"))
        for path in (URL, f"{URL}?view=raw", f"{URL}?q=swordfish", f"{URL}/messages/0", f"{URL}/messages/5"):
            html = await read(served, path)
            assert "swordfish" not in html.replace('value="swordfish"', "").replace("q=swordfish", ""), path
            assert "<img" not in html
        assert "cannot search" in await read(served, f"{URL}?q=swordfish")
        for path in (
            "media/19/0",
            "messages/0/raw",
            "export",
            "export?format=jsonl",
            "export?format=markdown",
        ):
            assert "swordfish" not in await read(served, f"{URL}/{path}", 403)


async def test_key_of_another_user_reaches_nothing() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "admin", user_id="ada"))
        for path in ("", "/messages/0", "/messages/0/raw", "/export", "/media/0/0", "/events", "/manage", "/delete"):
            for query in ("", "?user_id=default"):
                assert "swordfish" not in await read(served, f"{URL}{path}{query}", 404)


async def test_hostile_texts_are_text_everywhere() -> None:
    async with serve_filled() as served:
        name = f"x{HOSTILE}"[:60]
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({HOSTILE: [HOSTILE]})}}
        await append(
            served,
            [
                {"role": "user", "content": HOSTILE, "name": name, "metadata": {"user": HOSTILE}},
                {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": HOSTILE},
                {"role": "tool", "tool_call_id": "c", "content": HOSTILE},
                {"role": "note", "origin": {HOSTILE: HOSTILE}},
            ],
        )
        for path in (URL, f"{URL}?view=raw", f"{URL}?q=script", f"{URL}/messages/19", f"{URL}/messages/20"):
            html = await read(served, path)
            assert "<script>document" not in html
            assert "<img src=x" not in html
            assert "\u202e" not in html
            assert "\x1b" not in html


# -- live updates ----------------------------------------------------------------


@needs_chromium
async def test_new_messages_are_announced_and_appear_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.05)
    async with serve_filled() as served, browse(served.url) as page:
        await page.goto(URL)
        await append(served, [{"role": "user", "content": "One more thing"}])
        pill = page.get_by_role("button", name="1 new")
        await expect(pill).to_be_visible()
        await append(served, [{"role": "assistant", "content": "Which one?"}])
        await page.get_by_role("button", name="2 new").click()
        await expect(page.get_by_text("Which one?")).to_be_in_viewport()
        await expect(page.locator("#facts")).to_contain_text("Messages21")
        await append(served, [{"role": "user", "content": "The third"}])
        await page.get_by_role("button", name="1 new").click()
        await expect(page.get_by_text("The third")).to_be_visible()


async def test_events_count_what_the_page_does_not_show_and_end_with_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.05)
    async with serve_filled() as served:
        async with served.http.stream("GET", f"{URL}/events?since=16") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = (line async for line in response.aiter_lines() if line.startswith("data"))
            assert await anext(events) == "data: 3"
            await served.http.patch("/v1/sessions/s", json={"state": {"not": "a message"}})
            await append(served, make_turns(1))
            assert await anext(events) == "data: 4"
            await served.http.patch("/v1/sessions/s/messages/0", json={"pinned": True})
            assert await anext(events) == "data: 1"
            await served.http.delete("/v1/sessions/s")
            async with asyncio.timeout(10):
                assert [event async for event in events] == []
        await read(served, f"{URL}/events", 404)


async def test_messages_that_another_server_writes_are_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.05)
    store = f"sqlite:///{tmp_path}/sessions.db"
    async with gateway([], store=store) as (one, _), gateway([], store=store) as (two, _):
        await append(one, make_turns(1))
        async with one.http.stream("GET", f"{URL}/events?since=4") as response:
            events = (line async for line in response.aiter_lines() if line.startswith("data"))
            await append(two, make_turns(2))
            async with asyncio.timeout(10):
                assert await anext(events) == "data: 8"


async def test_only_the_newest_page_is_followed() -> None:
    async with gateway([]) as (served, _):
        await served.hf.import_({"messages": make_turns(60)}, session_id="s", user_id="default")
        assert f'data-live="{URL}/events?since=240"' in await read(served, URL)
        assert "data-live" not in await read(served, f"{URL}?at=0")

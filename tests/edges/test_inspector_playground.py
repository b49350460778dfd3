"""The playground: streamed replies, the prompt next to them, errors of the model, stopping, and what other callers may do."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import expect

from holdfast.server.inspector.playground import format_event, show_messages
from holdfast.testing import Gate, Reply
from tests.edges.browser_kit import NARROW, WIDE, browse, check_page, needs_chromium, save_screenshot
from tests.edges.gateway_kit import gateway_with_tools
from tests.edges.inspector_demo import serve_demo
from tests.edges.inspector_kit import HOSTILE, SECRET, read_csrf, serve_filled
from tests.edges.server import Served, gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

PLAYGROUND = "/inspect/playground"
STREAM = {"accept": "text/event-stream"}


async def send(served: Served, text: str = "Hello", *, headers: dict[str, str] = STREAM, **fields: Any) -> Any:
    form = {"csrf": await read_csrf(served, PLAYGROUND), "message": text, **fields}
    return await served.http.post(f"{PLAYGROUND}/send", data=form, headers=headers)


# -- in a browser ------------------------------------------------------------------


@needs_chromium
async def test_reply_is_streamed_and_the_prompt_of_the_call_appears_next_to_it() -> None:
    gate = Gate()
    script = [Reply(text="Bergen is lovely", hold=gate, hold_after=3), "Again."]
    async with gateway(script) as (served, _), browse(served.url) as page:
        await page.goto(PLAYGROUND)
        await page.get_by_label("Message", exact=True).fill("Plan a trip to Bergen")
        await page.keyboard.press("Enter")
        await expect(page.locator("#reply")).to_contain_text("Bergen is")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        assert "lovely" not in await page.locator("#reply").inner_text()
        gate.open()
        await expect(page.locator("#conversation")).to_contain_text("Bergen is lovely")
        await expect(page.locator("#prompt-panel")).to_contain_text("Plan a trip to Bergen")
        await expect(page.locator("#prompt-panel .legend")).to_contain_text("Task")
        await expect(page.get_by_label("Message", exact=True)).to_have_value("")
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        [session] = parse_qs(urlsplit(page.url).query)["session_id"]
        await page.keyboard.type("And back?")
        await page.keyboard.press("Enter")
        await expect(page.locator("#conversation")).to_contain_text("Again.")
        assert [text for _, text in await served.log(session)] == [
            "Plan a trip to Bergen",
            "Bergen is lovely",
            "And back?",
            "Again.",
        ]


@needs_chromium
async def test_stop_ends_the_reply_and_its_model_call() -> None:
    gate = Gate()
    async with (
        gateway([Reply(text="One two three", hold=gate, hold_after=3)]) as (served, _),
        browse(served.url) as page,
    ):
        await page.goto(f"{PLAYGROUND}?session_id=s")
        await page.get_by_label("Message", exact=True).fill("Count")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#reply")).to_contain_text("One two")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator("#conversation")).to_contain_text("One two")
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        assert await served.log() == [("user", "Count"), ("assistant", "One two ")]


@needs_chromium
async def test_stop_before_the_first_word_ends_the_turn() -> None:
    gate = Gate()
    async with gateway([Reply(text="late", hold=gate), "next"]) as (served, upstream), browse(served.url) as page:
        await page.goto(f"{PLAYGROUND}?session_id=s")
        await page.get_by_label("Message", exact=True).fill("Wait")
        await page.keyboard.press("Enter")
        await upstream.until(lambda: upstream.requests)
        await page.get_by_role("button", name="Stop").click()
        async with asyncio.timeout(10):
            await upstream.until(lambda: upstream.requests[0].disconnected)
        answer = await served.chat("And now?")
        assert answer["choices"][0]["message"]["content"] == "next"


@needs_chromium
async def test_errors_of_the_model_are_shown_and_the_message_is_kept() -> None:
    script = [
        Reply(status=400, error="the prompt is offensive"),
        Reply(text="Half of it", error="overheated", cut_after=3, stream=True),
    ]
    async with gateway(script) as (served, _), browse(served.url) as page:
        await page.goto(f"{PLAYGROUND}?session_id=s")
        await page.get_by_label("Message", exact=True).fill("First")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("the prompt is offensive")
        await expect(page.locator("#conversation")).to_contain_text("First")
        await check_page(page)
        await page.get_by_label("Message", exact=True).fill("Second")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("overheated")
        await expect(page.locator("#conversation")).to_contain_text("Second")


@needs_chromium
async def test_settings_of_the_form_reach_the_request_and_the_address() -> None:
    agents = 'agents: {planner: {llm: default, instruction: "You plan trips."}}'
    async with gateway(["Yes."], agents) as (served, upstream), browse(served.url) as page:
        await page.goto(PLAYGROUND)
        await page.get_by_label("Agent").select_option("planner")
        await page.get_by_label("Strategy").select_option("token_window")
        await page.get_by_label("Budget").fill("900")
        await page.get_by_label("User").fill("ada")
        await page.get_by_label("Message", exact=True).fill("Hello")
        await page.keyboard.press("Enter")
        await expect(page.locator("#conversation")).to_contain_text("Yes.")
        assert upstream.requests[0].body["messages"][0]["content"] == "You plan trips."
        for text in ("of at most 900", "token_window"):
            await expect(page.locator("#prompt-panel")).to_contain_text(text)
        await expect(page.get_by_label("Agent")).to_have_value("planner")
        assert parse_qs(urlsplit(page.url).query)["user_id"] == ["ada"]
        await page.reload()
        await expect(page.locator("#conversation")).to_contain_text("Yes.")


@needs_chromium
async def test_playground_works_without_the_script() -> None:
    script = ["Hello back", Reply(status=400, error="no more today")]
    async with gateway(script) as (served, _), browse(served.url, script=False, statuses=(400,)) as page:
        await page.goto(PLAYGROUND)
        await page.get_by_label("Message", exact=True).fill("Hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#conversation")).to_contain_text("Hello back")
        await page.get_by_label("Message", exact=True).fill("One\nmore")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert")).to_contain_text("no more today")
        await expect(page.get_by_label("Message", exact=True)).to_have_value("One\nmore")


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)])
async def test_conversation_with_tools_and_hostile_texts_is_legible(width: int, dark: bool) -> None:
    async with serve_filled() as served, browse(served.url, width=width, dark=dark) as page:
        await page.goto(f"{PLAYGROUND}?session_id=s")
        await check_page(page)
        call = page.locator("#conversation details").first
        await call.locator("summary").click()
        await expect(call).to_contain_text("SK4700")
        await expect(page.locator("#prompt-panel")).to_contain_text("Digest")
        assert await page.title() == "Playground · Holdfast"


@needs_chromium
async def test_screenshot_of_a_conversation() -> None:
    async with serve_demo() as served, browse(served.url) as page:
        await page.goto(f"{PLAYGROUND}?session_id=norway&user_id=ada")
        await expect(page.locator("#prompt-panel")).to_contain_text("Digest")
        await check_page(page)
        await save_screenshot(page, "inspector-playground-chat")


# -- over HTTP ---------------------------------------------------------------------


async def test_streamed_text_names_control_characters() -> None:
    async with gateway([HOSTILE]) as (served, _):
        answer = await send(served)
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "U+202Eright-to-leftU+202C U+001B[31mred" in answer.text
        assert "<script>" in answer.text


async def test_repeated_message_is_a_new_turn() -> None:
    async with gateway(["One", "Two"]) as (served, _):
        for _ in range(2):
            await send(served, session_id="s")
        assert [text for _, text in await served.log()] == ["Hello", "One", "Hello", "Two"]


async def test_session_of_a_user_is_continued_by_its_id_alone() -> None:
    async with gateway(["One", "Two"]) as (served, _):
        await served.chat("Hi", session_id="mine", user_id="ada")
        page = await served.http.get(f"{PLAYGROUND}?session_id=mine", headers=HTML)
        assert '<option value="mine">ada, 2 messages' in page.text
        answer = await send(served, session_id="mine")
        assert "user_id=ada" in answer.headers["x-next"]
        assert [text for _, text in await served.log("mine", "ada")] == ["Hi", "One", "Hello", "Two"]


@pytest.mark.parametrize(
    ("fields", "mistake"),
    [
        ({"strategy": "forget"}, "unknown strategy"),
        ({"budget": "many"}, "budget"),
        ({"budget": "0"}, "budget"),
        ({"agent": "nobody"}, "no agent"),
        ({"session_id": "x" * 600}, "bytes"),
    ],
)
async def test_settings_that_are_not_valid_are_reported(fields: dict[str, Any], mistake: str) -> None:
    async with gateway(["Yes."]) as (served, upstream):
        answer = await send(served, **fields)
        assert answer.text.startswith("\x1e")
        assert mistake in answer.text
        page = await send(served, headers=HTML, **fields)
        assert page.status_code == 400
        assert "Hello" in page.text
        assert upstream.requests == []


async def test_empty_message_is_refused() -> None:
    async with gateway([]) as (served, upstream):
        answer = await send(served, " \r\n ")
        assert answer.status_code == 400
        assert "write something" in answer.text
        assert upstream.requests == []


async def test_message_needs_a_key_that_may_write_and_a_form_of_this_server() -> None:
    async with gateway(["Yes."]) as (served, upstream):
        answer = await served.http.post(f"{PLAYGROUND}/send", data={"message": "Hello"}, headers=STREAM)
        assert answer.status_code == 403
        await sign_in(served, await add_key(served, "read"))
        assert (await served.http.get(PLAYGROUND, headers=HTML)).status_code == 403
        assert (await served.http.post(f"{PLAYGROUND}/send", data={"message": "Hello"})).status_code == 403
        assert upstream.requests == []


async def test_reply_is_hidden_from_roles_that_may_not_see_content() -> None:
    async with gateway([SECRET], "inspector: {hide_content: [write]}") as (served, _):
        await sign_in(served, await add_key(served, "write"))
        answer = await send(served)
        assert answer.text == ""
        page = await served.http.get(answer.headers["x-next"], headers=HTML)
        assert "swordfish" not in page.text
        assert "hidden: " in page.text


async def test_key_of_one_user_cannot_chat_in_the_session_of_another() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "write", user_id="ada"))
        page = await served.http.get(f"{PLAYGROUND}?session_id=s&user_id=default", headers=HTML)
        assert page.status_code == 200
        assert "swordfish" not in page.text
        before = await served.log()
        await send(served, session_id="s", user_id="default")
        assert await served.log() == before


def test_format_event_writes_words_and_calls() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "search", "arguments": ""}}
    piece = {"index": 0, "function": {"arguments": '{"to": "OSL"}'}}
    events = [{"delta": {"content": "Wait."}}, {"delta": {"tool_calls": [call]}}, {"delta": {"tool_calls": [piece]}}]
    assert "".join(format_event({"choices": [one]}) for one in events) == 'Wait.\n[search] {"to": "OSL"}'
    assert format_event({"holdfast": {"tool": "search", "status": "started"}}) == "\n[search: started]\n"
    assert format_event({"choices": [], "usage": {}}) == ""


def test_result_without_its_call_is_a_message_of_its_own() -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": "42"}
    call = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "count", "arguments": "{}"}}]}
    [alone] = show_messages([result])
    assert (alone.role, alone.texts) == ("tool", ["42"])
    [joined] = show_messages([call, result])
    assert joined.calls[0].result == "42"


async def test_tools_of_the_server_are_announced_and_shown_with_their_results() -> None:
    script = [Reply(text="Wait.", tool_calls=[("find_order", {"number": 7})]), "It has shipped."]
    async with gateway_with_tools(script) as (served, _):
        answer = await send(served, session_id="s")
        lines = [line for line in answer.text.splitlines() if line]
        assert lines == ["Wait.", "[find_order: running]", "[find_order: done]", "It has shipped."]
        page = await served.http.get(answer.headers["x-next"], headers=HTML)
        result = page.text.partition("<h3>Result</h3>")[2].partition("</pre>")[0]
        assert "&#34;status&#34;:&#34;sent&#34;" in result


async def test_large_budget_leaves_room_for_the_sections_of_the_prompt() -> None:
    """The bar shows only the prompt; what is free of the budget is a number."""
    async with gateway(lambda _: "ok") as (served, _):
        await served.chat("Hello", "s")
        page = (await served.http.get("/inspect/playground?session_id=s", headers=HTML)).text
        bar = page[page.index('<figure class="bar">') :].partition("</figure>")[0]
        assert "fill-task" in bar
        assert "fill-headroom" not in bar
        assert re.search(r"of at most [\d,]{6,}, [\d,]{6,} free", page)


async def test_pages_of_a_session_link_to_the_playground() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.chat("Hello", "a b", user_id="ada")
        html = (await served.http.get("/inspect/sessions/a%20b?user_id=ada", headers=HTML)).text
        link = re.search(rf'href="({PLAYGROUND}\?[^"]+)"', html)
        assert link is not None
        assert "Hello" in (await served.http.get(unescape(link[1]), headers=HTML)).text

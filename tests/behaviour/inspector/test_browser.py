"""The inspector in Chromium: every page is legible and accessible, and what people do there works."""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import expect

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import Served, assistant, gateway, texts, until, user
from tests.behaviour.kit.browser import NARROW, WIDE, browse, check_keyboard, check_page, needs_chromium
from tests.behaviour.kit.inspector import add_key, serve_filled
from tests.behaviour.kit.inspector_pages import PAGES, S
from tests.behaviour.kit.seams import fast_updates

pytestmark = needs_chromium
PLAYGROUND: Final = "/inspect/playground"


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)])
async def test_every_page_is_legible_and_runs_no_text_of_the_log(width: int, dark: bool) -> None:
    async with serve_filled() as served, browse(served.url, width=width, dark=dark) as page:
        for path in PAGES:
            answer = await page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
            await expect(page.locator("h1")).to_be_visible()
            await check_page(page, structure=width == NARROW)
            assert await page.title() != "owned", path


async def test_every_control_is_reached_by_keyboard() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        for path in sorted({path.partition("?")[0] for path in PAGES}):
            await page.goto(path)
            await check_keyboard(page)


async def test_the_overview_shows_the_first_request_as_soon_as_it_arrives() -> None:
    async with gateway(lambda _: "Hello!") as served, browse(served.url) as page:
        with fast_updates():
            await page.goto("/")
            await expect(page.get_by_role("status")).to_contain_text("Waiting for the first request")
            await served.chat("Plan a trip to Oslo", "trip")
            await expect(page.get_by_role("link", name="Plan a trip to Oslo")).to_be_visible()
            await expect(page.get_by_role("heading", name="Connect a client")).to_have_count(0)


async def test_a_user_signs_in_with_a_key_and_out_again() -> None:
    async with gateway() as served:
        key = await add_key(served)
        async with browse(served.url, statuses=(401,)) as page:
            await page.goto("/inspect/sessions")
            await page.get_by_label("API key").fill("hf_wrong")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_contain_text("not valid")
            await check_page(page)
            await page.get_by_label("API key").fill(key)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Sessions", exact=True)).to_be_visible()
            [cookie] = await page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
            assert key not in cookie["value"]
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            assert await page.context.cookies() == []
            await page.goto("/")
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_sessions_are_filtered_sorted_and_deleted() -> None:
    async with gateway() as served, browse(served.url) as page:
        for name, owner, turns in (("one", "ada", 1), ("two", "ada", 2), ("three", "bob", 1)):
            said = [user(f"Question {name}"), assistant("Yes.")]
            await served.rest.given(name, *said * turns, user=owner)
        await page.goto("/inspect/sessions")
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(3)
        await page.get_by_label("User").fill("ada")
        await page.keyboard.press("Enter")
        await expect(rows).to_have_count(2)
        await page.get_by_role("link", name="turns").click()
        await page.wait_for_url("**?user_id=ada&sort=turns")
        await expect(rows.first).to_contain_text("Question two")
        await page.get_by_label("Select session two").check()
        await page.get_by_role("button", name="Delete…").click()
        await expect(page.get_by_text("Nothing has been changed yet")).to_be_visible()
        await page.get_by_role("button", name="Delete 1 session").click()
        await expect(page.get_by_role("status")).to_have_text("1 session was deleted.")
        assert [row["id"] for row in await served.rest.sessions(user="ada")] == ["one"]


@pytest.mark.parametrize("script", [True, False])
async def test_a_message_is_pinned_rated_and_erased(script: bool) -> None:
    async with serve_filled() as served, browse(served.url, script=script) as page:
        await page.goto(S)
        message = page.locator("#m-0")
        await message.get_by_role("button", name="Pin", exact=True).click()
        await expect(message.get_by_text("pinned")).to_be_visible()
        await message.get_by_role("link", name="More").click()
        await page.get_by_label("Importance").select_option("0.9")
        await page.get_by_role("button", name="Set").click()
        await expect(page.get_by_text("importance 0.9")).to_be_visible()
        await page.get_by_role("link", name="Erase").click()
        await page.get_by_role("button", name="Erase the content").click()
        await page.get_by_role("link", name="Back").click()
        await expect(message.get_by_text("The content was erased.")).to_be_visible()


async def test_new_messages_are_announced_and_appear_on_request() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        with fast_updates():
            await page.goto(S)
            await served.rest.session("s").append(user("One more thing"))
            await expect(page.get_by_role("button", name="1 new")).to_be_visible()
            await served.rest.session("s").append(assistant("Which one?"))
            await page.get_by_role("button", name="2 new").click()
            await expect(page.get_by_text("Which one?")).to_be_in_viewport()


async def test_the_slider_moves_from_call_to_call() -> None:
    async with serve_filled() as served, browse(served.url, height=1400) as page:
        await page.goto(f"{S}/prompt")
        await expect(page.get_by_text("exactly as it was sent")).to_be_visible()
        slider = page.get_by_role("slider")
        await slider.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator(".calls label")).to_have_text("Turn 6")
        await page.wait_for_url("**call=6*")
        await page.get_by_role("link", name="Previous call").click()
        await expect(page.locator(".calls label")).to_have_text("Turn 5")
        await page.get_by_role("link", name="Anthropic").click()
        await expect(page.locator("#raw")).to_contain_text('"messages"')


async def test_a_user_finds_out_why_a_sentence_was_forgotten_and_pins_it() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await page.goto(S)
        await page.get_by_role("link", name="Why forgotten").click()
        await page.get_by_label("What did the agent forget?").fill("SK4702")
        await page.keyboard.press("Enter")
        await expect(page.locator(".steps").first).to_contain_text("Left the prompt in turn 5")
        await page.get_by_role("button", name="Pin it").first.click()
        await expect(page.get_by_role("status")).to_contain_text("Pinned")
        await expect(page.get_by_role("heading", name="This message is in the prompt.").first).to_be_visible()


async def test_a_reply_is_streamed_and_its_prompt_appears_next_to_it() -> None:
    gate = Gate()
    script = [Reply(text="Bergen is lovely", hold=gate, hold_after=3), "Again."]
    async with gateway(script) as served, browse(served.url) as page:
        await page.goto(PLAYGROUND)
        await page.get_by_label("Message", exact=True).fill("Plan a trip to Bergen")
        await page.keyboard.press("Enter")
        await expect(page.locator("#reply")).to_contain_text("Bergen is")
        assert "lovely" not in await page.locator("#reply").inner_text()
        gate.open()
        await expect(page.locator("#conversation")).to_contain_text("Bergen is lovely")
        await expect(page.locator("#prompt-panel .legend")).to_contain_text("Task")
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        await page.wait_for_url("**session_id=*")
        [session] = parse_qs(urlsplit(page.url).query)["session_id"]
        await page.keyboard.type("And back?")
        await page.keyboard.press("Enter")
        await expect(page.locator("#conversation")).to_contain_text("Again.")
        said = texts(await served.rest.session(session).messages())
        assert said == ["Plan a trip to Bergen", "Bergen is lovely", "And back?", "Again."]


async def test_stop_ends_the_reply_and_keeps_what_arrived() -> None:
    held = Reply(text="One two three", hold=Gate(), hold_after=3)
    async with gateway([held]) as served, browse(served.url) as page:
        await page.goto(f"{PLAYGROUND}?session_id=s")
        await page.get_by_label("Message", exact=True).fill("Count")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#reply")).to_contain_text("One two")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await until(partial(has_messages, served, ["Count", "One two "]))


async def has_messages(served: Served, wanted: list[str]) -> bool:
    return texts(await served.rest.session("s").messages()) == wanted


async def test_an_error_of_the_model_is_shown_and_the_message_is_kept() -> None:
    broken = Reply(text="Half of it", error="overheated", cut_after=3, stream=True)
    async with gateway([Reply(status=400, error="offensive"), broken]) as served, browse(served.url) as page:
        await page.goto(f"{PLAYGROUND}?session_id=s")
        for said, words in (("First", "offensive"), ("Second", "overheated")):
            await page.get_by_label("Message", exact=True).fill(said)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_contain_text(words)
            await expect(page.locator("#conversation")).to_contain_text(said)

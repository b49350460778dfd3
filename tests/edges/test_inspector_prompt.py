"""The prompt view, the page about forgotten sentences and the compactions: what a user does there."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from holdfast.context.presence import Excerpt
from holdfast.server.inspector.prompt_words import describe_presence, name_state
from holdfast.sessions import message_explanations
from holdfast.sessions.explanation import MessageExplanation
from tests.edges.browser_kit import browse, check_page, needs_chromium, save_screenshot
from tests.edges.inspector_demo import FORGOTTEN, serve_demo
from tests.edges.inspector_kit import serve_filled
from tests.edges.server import gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

NORWAY = "/inspect/sessions/norway"
OF_ADA = "?user_id=ada"


@needs_chromium
async def test_user_finds_out_why_a_sentence_was_forgotten_and_pins_it() -> None:
    """From the session's page, with the mouse and some words of the sentence."""
    async with serve_demo() as served, browse(served.url) as page:
        await page.goto(f"{NORWAY}{OF_ADA}")
        await page.get_by_role("link", name="Why forgotten").click()
        await page.get_by_label("What did the agent forget?").fill("parking code")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="This message is not in the prompt.")).to_be_visible()
        steps = page.locator(".steps li")
        await expect(steps).to_have_text(
            [
                re.compile("Said in turn 2"),
                re.compile(
                    r"Left the prompt in turn \d+.*messages 1 to \d+ were condensed, because the budget was full"
                ),
                re.compile("In the next prompt: condensed: nothing of it is left"),
            ]
        )
        await save_screenshot(page, "inspector-forgotten")
        await page.get_by_text("Change the agent's strategy").click()
        await expect(page.locator(".code pre").first).to_have_text(
            re.compile(r"context:\n  strategy: digest\n  budget: \d+")
        )
        await page.get_by_role("button", name="Pin it").click()
        await expect(page.get_by_role("status")).to_contain_text("Pinned")
        await expect(page.get_by_role("heading", name="This message is in the prompt.")).to_be_visible()
        await page.get_by_role("link", name="Show this prompt").click()
        await expect(page.locator(".said", has_text=FORGOTTEN)).to_contain_text("Pinned")
        await expect(page.locator(".log li", has_text=FORGOTTEN)).to_contain_text("whole")


@needs_chromium
async def test_slider_moves_over_the_calls_and_marks_where_the_cache_breaks() -> None:
    async with serve_demo() as served, browse(served.url, height=1400) as page:
        await page.goto(f"{NORWAY}/prompt{OF_ADA}")
        await expect(page.get_by_text("exactly as it was sent")).to_be_visible()
        await check_page(page)
        await save_screenshot(page, "inspector-prompt")
        slider = page.get_by_role("slider")
        turn = int(await slider.input_value())
        await slider.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator(".calls label")).to_have_text(re.compile(rf"Turn {turn - 1}, call 2 of 2"))
        assert f"call={turn - 1}" in page.url
        await expect(slider).to_be_focused()
        await page.get_by_role("link", name="Previous call").click()
        await expect(page.locator(".calls label")).to_have_text(f"Turn {turn - 1}, call 1 of 2")
        await page.goto(f"{NORWAY}/prompt{OF_ADA}&call={turn}.0")
        await expect(page.locator("#difference")).to_contain_text("The provider's cache breaks at message")
        await page.locator("#difference a").first.click()
        await expect(page.locator(".said:target")).to_be_in_viewport()
        await page.get_by_role("link", name="Anthropic").click()
        await expect(page.locator("#raw")).to_contain_text('"cache_control"')
        await page.get_by_role("link", name="The next prompt").click()
        await expect(page.locator(".calls label")).to_have_text("Next prompt")
        await page.go_back()
        await expect(page.locator(".calls label")).to_have_text(f"Turn {turn}")


@needs_chromium
async def test_two_strategies_are_compared_without_the_script() -> None:
    async with serve_demo() as served, browse(served.url, script=False) as page:
        await page.goto(f"{NORWAY}/prompt{OF_ADA}&call=60")
        await page.locator("#what-if summary").click()
        await page.get_by_label("with B").select_option("token_window")
        await page.get_by_role("button", name="Compare").click()
        await expect(page.get_by_role("heading", name="A: As it was sent")).to_be_visible()
        await expect(page.get_by_role("heading", name="B: token_window")).to_be_visible()
        await expect(page.locator(".split .bar")).to_have_count(2)
        await expect(page.get_by_text("only in B")).to_be_visible()
        await page.goto(f"{NORWAY}/prompt{OF_ADA}&strategy=token_window&budget=5")
        await expect(page.locator(".split .error")).to_contain_text("tokens")
        await page.goto(f"{NORWAY}/prompt{OF_ADA}&call=2")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator(".calls label")).to_have_text("Turn 2")


@needs_chromium
async def test_compaction_shows_what_the_prompt_lost() -> None:
    async with serve_demo() as served, browse(served.url) as page:
        await page.goto(f"{NORWAY}/compactions{OF_ADA}")
        await page.get_by_role("link", name="Digest").click()
        await expect(page.locator(".chips.lost")).to_contain_text(["4417"])
        await expect(page.locator("mark.lost", has_text="4417")).to_be_visible()
        await expect(page.get_by_role("heading", name="After: what the model sees")).to_be_visible()
        await check_page(page)
        await save_screenshot(page, "inspector-compaction")


async def test_words_of_a_sentence_are_enough_to_find_it() -> None:
    async with serve_demo() as served:
        answer = await served.http.get(f"{NORWAY}/forgotten{OF_ADA}&q=code+for+parking+the+car", headers=HTML)
        assert "No message contains these words" in answer.text
        assert "/forgotten?user_id=ada&amp;seq=4" in answer.text


async def test_a_key_that_only_reads_gets_no_buttons() -> None:
    async with serve_demo() as served:
        await sign_in(served, await add_key(served, "read"))
        answer = await served.http.get(f"{NORWAY}/forgotten{OF_ADA}&q=parking+code", headers=HTML)
        assert "This message is not in the prompt." in answer.text
        assert "Pin it" not in answer.text
        assert "Raise the budget" in answer.text


async def test_words_cannot_be_guessed_where_content_is_hidden() -> None:
    async with serve_filled("inspector: {hide_content: [read]}") as served:
        await sign_in(served, await add_key(served, "read"))
        for words in ("launch code", "no such words"):
            answer = await served.http.get("/inspect/sessions/s/forgotten", params={"q": words}, headers=HTML)
            assert answer.status_code == 403


async def test_long_sessions_show_the_record_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_explanations, "EXPLAIN_REBUILT", 5)
    async with serve_filled() as served:
        answer = await served.http.get("/inspect/sessions/s/prompt?call=5", headers=HTML)
        assert "This prompt is not rebuilt" in answer.text
        assert "Rebuild it from the whole log" in answer.text
        answer = await served.http.get("/inspect/sessions/s/prompt?call=5&rebuild=true", headers=HTML)
        assert "exactly as it was sent" in answer.text


async def test_an_empty_session_has_helpful_pages() -> None:
    async with gateway([]) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "new"})
        for path, words in (
            ("prompt", "The session has no messages yet."),
            ("forgotten", "The session is empty."),
            ("compactions", "Nothing is compacted"),
        ):
            answer = await served.http.get(f"/inspect/sessions/new/{path}", headers=HTML)
            assert (answer.status_code, words in answer.text) == (200, True), path


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("prompt?call=x", 400),
        ("prompt?call=3.99", 404),
        ("prompt?log_after=-7", 400),
        ("prompt?shape=xml", 400),
        ("compactions?id=9", 404),
        ("compactions?block=poem", 400),
        ("forgotten?seq=99999", 404),
    ],
)
async def test_wrong_addresses_are_explained(path: str, status: int) -> None:
    async with serve_filled() as served:
        answer = await served.http.get(f"/inspect/sessions/s/{path}", headers=HTML)
        assert answer.status_code == status
        assert "data-error-message" in answer.text


async def test_pages_do_not_claim_that_a_changed_prompt_was_sent() -> None:
    """After an erasure no earlier prompt can be rebuilt exactly; after a pin they all can."""
    async with serve_demo() as served:
        before = await served.http.get(f"{NORWAY}/forgotten{OF_ADA}&seq=2&turn=30", headers=HTML)
        assert "condensed: all of it is kept in standing facts" in before.text
        pinned = await served.http.patch("/v1/sessions/norway/messages/2?user_id=ada", json={"pinned": True})
        assert pinned.status_code == 200
        after = await served.http.get(f"{NORWAY}/forgotten{OF_ADA}&seq=2&turn=30", headers=HTML)
        assert "condensed: all of it is kept in standing facts" in after.text
        assert "Left the prompt" in after.text
        assert "The model got this message" not in after.text
        prompt = await served.http.get(f"{NORWAY}/prompt{OF_ADA}&call=30", headers=HTML)
        assert "exactly as it was sent" in prompt.text
        assert (await served.http.delete("/v1/sessions/norway/messages/6?user_id=ada")).status_code == 200
        prompt = await served.http.get(f"{NORWAY}/prompt{OF_ADA}&call=2", headers=HTML)
        assert "exactly as it was sent" in prompt.text  # the message came later
        prompt = await served.http.get(f"{NORWAY}/prompt{OF_ADA}&call=3", headers=HTML)
        assert "Rebuilt with today&#39;s settings" in prompt.text
        assert "erased messages: 1" in prompt.text
        for seq in (0, 6):
            page = await served.http.get(f"{NORWAY}/forgotten{OF_ADA}&seq={seq}&turn=3", headers=HTML)
            assert "could not be rebuilt exactly" in page.text
            assert "The model got this message" not in page.text


async def test_both_sides_of_a_comparison_have_the_same_settings_unless_given() -> None:
    async with serve_demo() as served:
        url = f"{NORWAY}/prompt{OF_ADA}&call=60&from_strategy=token_window&from_budget=1000"
        one = await served.http.get(f"{url}&model=gpt-4o-mini", headers=HTML)
        assert _list_settings(one.text) == [("token_window", "1,000"), ("token_window", "1,000")]
        two = await served.http.get(f"{url}&strategy=head_tail&budget=1500", headers=HTML)
        assert "head_tail" in two.text
        three = await served.http.get(f"{NORWAY}/prompt{OF_ADA}&call=60&strategy=salience", headers=HTML)
        assert _list_settings(three.text) == [("digest", "2,400"), ("salience", "2,400")]


def _list_settings(page: str) -> list[tuple[str, str]]:
    """Return the strategy and the budget of each side of a comparison."""
    return re.findall(r"strategy <b>([^<]+)</b> · budget <b>([^<]+)</b>", page)


async def test_letters_in_arguments_are_readable() -> None:
    async with serve_demo() as served:
        answer = await served.http.get(f"{NORWAY}/prompt{OF_ADA}&call=9&log_after=-1", headers=HTML)
        assert "Bodø" in answer.text
        log = answer.text[answer.text.index('<ol class="log">') :]
        assert "\\u00f8" not in log


def test_a_message_whose_words_are_all_quoted_is_kept() -> None:
    quoted = Excerpt("facts", "I am allergic to  shellfish.")
    entry = MessageExplanation(
        seq=2,
        turn_id=1,
        role="user",
        timestamp=0,
        tokens=9,
        text="I am allergic to shellfish.",
        state="part",
        decision="compacted",
        reason="condensed",
        block=None,
        excerpts=(quoted,),
        departure=None,
        remedies=(),
        redacted=False,
    )
    assert name_state(entry) == "kept in standing facts"
    assert describe_presence(entry) == "condensed: all of it is kept in standing facts"

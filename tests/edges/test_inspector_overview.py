"""The overview of the inspector: its figures, its first state, and its live updates."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.accounting import Owner, charge_to
from holdfast.domain.activity import ActivityCounts
from holdfast.durations import to_utc
from holdfast.server.inspector import live
from holdfast.server.inspector.overview import Layer, describe_cost, draw_columns, format_compact
from holdfast.server.limits import INSPECTOR_STREAMS, INSPECTOR_STREAMS_OF_PRINCIPAL
from holdfast.server.permissions import Refused
from holdfast.testing import Reply
from tests.clocks import START, Clock
from tests.edges.browser_kit import NARROW, WIDE, browse, check_page, needs_chromium, save_screenshot
from tests.edges.inspector_kit import read
from tests.edges.server import gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

EVENTS = "/inspect/overview/events"
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes again and again."""
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.02)


@needs_chromium
async def test_empty_server_shows_how_to_connect_and_comes_alive_with_the_first_request() -> None:
    async with gateway(lambda _: "Hello!") as (served, _), browse(served.url) as page:
        await page.goto("/")
        await expect(page.get_by_role("heading", name="Connect a client")).to_be_visible()
        await expect(page.get_by_role("status")).to_contain_text("Waiting for the first request")
        await expect(page.locator("#way-curl")).to_contain_text(f"curl {served.url}/v1/chat/completions")
        await expect(page.locator("#way-variables")).to_contain_text(f"OPENAI_BASE_URL={served.url}/v1")
        await check_page(page)
        await expect(page.get_by_role("link", name="Open the playground")).to_be_visible()
        await served.chat("Plan a trip to Oslo", "trip")
        await expect(page.get_by_role("link", name="Plan a trip to Oslo")).to_be_visible()
        await expect(page.get_by_role("link", name="3 hours")).to_be_visible()
        await expect(page.get_by_role("heading", name="Connect a client")).to_have_count(0)
        await served.chat("Where is order 17?", "order")
        await expect(page.get_by_role("link", name="Where is order 17?")).to_be_visible()


TASKS = (
    ("Plan a trip to Oslo in May, with a hotel near the opera", "ada"),
    ("Where is order 17? It was due on Tuesday", "bob"),
    ("Refactor the parser so that it reports all errors at once", "cleo"),
    ("Summarize the notes of the meeting and list open questions", "ada"),
    ("Translate the contract into German", "default"),
)


def answer_plausibly(body: dict[str, Any]) -> Reply:
    """Reply with a usage like a provider's, which reads most of a longer prompt from its cache."""
    tokens = sum(len(str(message)) for message in body["messages"]) // 4
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": int(tokens * 0.8) if tokens > 400 else 0},
    }
    if "step 9" in str(body["messages"][-1]):
        return Reply(status=503, error="overloaded")
    return Reply(text="Here is what I found, with three options and their prices. " * 4, usage=usage)


@needs_chromium
async def test_day_of_turns_is_legible() -> None:
    clock = Clock(START)
    agents = "agents: {support: {llm: default, context: {budget: 900}}, coder: {llm: default}}"
    async with gateway(answer_plausibly, agents, clock=clock) as (served, _):
        for hour in range(24):
            for number in range((hour * 7) % 5 + (3 if 8 < hour < 18 else 0)):
                task, user = TASKS[(hour + number) % 5]
                text = f"{task}.\nThis is step {hour + number}."
                model = "coder" if user == "cleo" else "support"
                await served.chat(text + " I need the details." * 30, f"{user}-{hour // 8}", user_id=user, model=model)
            clock.now += HOUR
        clock.now -= HOUR // 2
        for width, dark in ((WIDE, False), (NARROW, True)):
            async with browse(served.url, width=width, dark=dark) as page:
                await page.clock.set_fixed_time(to_utc(clock.now))
                for path, name in (("/", "inspector-overview"), ("/inspect/sessions", "inspector-sessions")):
                    await page.goto(path)
                    await check_page(page)
                    if not dark:
                        await save_screenshot(page, name)


async def test_commands_of_the_first_state_name_a_key_if_one_is_needed() -> None:
    async with gateway([]) as (served, _):
        assert "authorization" not in await read(served, "/")
        await sign_in(served, await add_key(served))
        html = await read(served, "/")
        assert "authorization: Bearer YOUR_KEY" in html
        assert "OPENAI_API_KEY=YOUR_KEY" in html


async def test_cards_show_the_figures_of_the_chosen_range() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 100}}
    replies: list[Any] = [Reply(text="Yes.", usage=usage)] * 3 + [Reply(status=500, error="down")]
    clock = Clock(START)
    async with gateway(replies, clock=clock) as (served, _):
        await served.chat("Hello")
        clock.now += 26 * HOUR
        for text in ("Two", "Three", "Four"):
            await served.chat(text)
        assert read_figures(await read(served, "/")) == {
            "Turns": "3",
            "Prompt cache": "100 %",
            "Failed turns": "1",
            "Sessions": "1",
        }
        assert read_figures(await read(served, "/?range=month"))["Turns"] == "4"
        assert read_figures(await read(served, "/?range=hours"))["Turns"] == "3"
        rows = re.findall(r'<tr><th scope="row">([^<]+)</th><td class="n">([^<]+)</td>', await read(served, "/"))
        assert (len(rows), rows[0]) == (24, ("2023-11-16 00:00", "3"))


def read_figures(html: str) -> dict[str, str]:
    """Return the figures of some cards."""
    found = dict(re.findall(r'<h2>([^<]+)</h2>\s*<p class="figure">([^<]+)</p>', html))
    return {name: found[name].strip() for name in ("Turns", "Prompt cache", "Failed turns", "Sessions")}


async def test_unknown_range_is_an_error_page() -> None:
    async with gateway([]) as (served, _):
        answer = await served.http.get("/?range=year", headers=HTML)
        assert answer.status_code == 400
        assert "range must be one of day, hours, month" in answer.text


async def test_key_of_one_user_gets_no_figures_of_the_tenant() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.chat("Mine", "mine", user_id="ada")
        await served.chat("Theirs", "theirs", user_id="bob")
        await sign_in(served, await add_key(served, "admin", user_id="ada"))
        html = await read(served, "/")
        assert "Mine" in html
        assert "Theirs" not in html
        assert "Tokens sent" not in html
        assert "Charts over time need a key without a user" in html
        assert "Model default" not in html


async def test_health_names_a_model_that_does_not_answer() -> None:
    async with gateway([Reply(status=503, error="down")], clock=Clock()) as (served, _):
        await served.chat("Hello")
        html = " ".join((await read(served, "/")).split())
        assert "Model default" in html
        assert "not answering" in html
        assert "in memory: lost when the server stops" in html


async def test_events_follow_the_sessions_of_the_caller_only() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.chat("Hello", "s", user_id="ada")
        await sign_in(served, await add_key(served, "admin", user_id="ada"))
        async with served.http.stream("GET", EVENTS) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.aiter_lines()
            assert await anext(lines) == "retry: 3000"
            key = {"authorization": f"Bearer {await add_key(served, seed=2)}"}
            await served.chat("Not for ada", "other", user_id="bob", headers=key)
            await served.chat("For ada", "s", user_id="ada", headers=key)
            async for line in lines:
                if line:
                    assert line == "data: 1"
                    break


async def test_streams_end_when_the_server_stops_and_are_limited() -> None:
    updates = live.LiveUpdates()
    marks = iter(range(1_000_000))

    async def read_mark() -> object:
        return next(marks)

    def watch(name: str) -> Any:
        with charge_to(Owner("tenant", name)):
            return updates.watch(read_mark).body

    most = INSPECTOR_STREAMS_OF_PRINCIPAL
    streams = [watch(str(number // most)) for number in range(INSPECTOR_STREAMS)]
    for stream in streams:
        assert await anext(stream) == b"retry: 3000\n\n"
    with pytest.raises(Refused, match="pages have live updates already"):
        watch("another")
    await streams.pop().aclose()
    with pytest.raises(Refused, match="of your pages have live updates already"):
        watch("0")
    streams.append(watch("another"))
    assert await anext(streams[-1]) == b"retry: 3000\n\n"
    assert await anext(streams[0]) == b"data: 1\n\n"
    updates.close()
    rest = await asyncio.gather(*(_exhaust(stream) for stream in streams))
    assert len(rest) == INSPECTOR_STREAMS
    updates.watch(read_mark)


async def test_streams_opened_at_the_same_moment_are_limited() -> None:
    updates = live.LiveUpdates()

    async def read_mark() -> int:
        return 1

    with charge_to(Owner("default", "key/", "key")):
        streams = [updates.watch(read_mark).body for _ in range(INSPECTOR_STREAMS_OF_PRINCIPAL + 1)]
    first = [await anext(stream) for stream in streams]
    assert first == [b"retry: 3000\n\n"] * INSPECTOR_STREAMS_OF_PRINCIPAL + [b"retry: 60000\n\n"]
    assert await _exhaust(streams[-1]) == []
    updates.close()
    assert await asyncio.gather(*map(_exhaust, streams[:-1])) == [[]] * INSPECTOR_STREAMS_OF_PRINCIPAL


async def _exhaust(stream: Any) -> list[bytes]:
    return [chunk async for chunk in stream]


def test_columns_are_drawn_to_scale_and_escaped() -> None:
    chart = draw_columns([Layer("accent", [0, 5, 10])], ["<a>", "b", "c"], label='"&', highest=10)
    assert re.findall(r'<rect class="fill-accent" x="(\d+)" y="([\d.]+)"', chart) == [("11", "50.0"), ("21", "0.0")]
    assert "&lt;a&gt;" in chart
    assert 'aria-label="&#34;&amp;"' in chart
    assert "style" not in chart


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.9, "1.0 k"), (1234, "1.2 k"), (56_789, "57 k"), (1_000_000, "1.0 M"), (2e10, "20 B")],
)
def test_large_numbers_are_short(value: float, text: str) -> None:
    assert format_compact(value) == text


@pytest.mark.parametrize(
    ("counts", "figure", "hint"),
    [
        (ActivityCounts(), "\N{EN DASH}", "nothing was sent"),
        (
            ActivityCounts(sent_tokens=10_000, full_tokens=40_000),
            "75 % saved",
            "12 k instead of 50 k price-weighted tokens",
        ),
        (ActivityCounts(sent_tokens=2000, full_tokens=2000), "the same", "as with whole logs"),
        (
            ActivityCounts(sent_tokens=2000, full_tokens=4000, full_cached_tokens=3000),
            "61 % more",
            "whole logs of this size are cheap to resend",
        ),
    ],
)
def test_cost_is_compared_in_words(counts: ActivityCounts, figure: str, hint: str) -> None:
    shown = describe_cost(counts)
    assert shown[0] == figure
    assert hint in shown[1]

"""The overview of the inspector: its figures, its first state, and its live updates."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from holdfast.accounting import Owner, charge_to
from holdfast.durations import to_utc
from holdfast.server.inspector import live
from holdfast.server.inspector.overview import Layer, draw_columns
from holdfast.server.limits import INSPECTOR_STREAMS, INSPECTOR_STREAMS_OF_PRINCIPAL
from holdfast.server.permissions import Refused
from holdfast.testing import Reply
from tests.behaviour.kit.browser import NARROW, WIDE, browse, check_page, needs_chromium, save_screenshot
from tests.clocks import START, Clock
from tests.edges.server import gateway
from tests.edges.test_inspector_frame import add_key, sign_in

EVENTS = "/inspect/overview/events"
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes again and again."""
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.02)


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

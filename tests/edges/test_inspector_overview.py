"""The overview of the inspector: its figures, its first state, and its live updates."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.accounting import Owner, charge_to
from holdfast.server.inspector import live
from holdfast.server.limits import INSPECTOR_STREAMS, INSPECTOR_STREAMS_OF_PRINCIPAL
from holdfast.server.permissions import Refused
from tests.edges.server import gateway
from tests.edges.test_inspector_frame import add_key, sign_in

EVENTS = "/inspect/overview/events"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes again and again."""
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.02)


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

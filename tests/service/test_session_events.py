"""Following a session: which events are reported, and what a look reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.holdfast import Holdfast
from holdfast.limits import FOLLOWED_PAGE
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.session_events import MessageAppended, SessionEvent, SessionFollower, TurnEnded
from tests.clocks import Clock

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}


@pytest.fixture
async def hf(clock: Clock, tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with holdfast.open(f"sqlite:///{tmp_path}/a.db", clock=clock) as opened:
        yield opened


async def follow(hf: Holdfast, session: SessionHandle) -> SessionFollower:
    return SessionFollower(hf.store, await session.info(), hf.clock)


def describe(events: list[SessionEvent]) -> list[Any]:
    """Return the names of events, and the numbers of messages."""
    return [event.entry.seq if isinstance(event, MessageAppended) else event.name for event in events]


async def test_turn_is_reported_in_order(hf: Holdfast, clock: Clock) -> None:
    session = await hf.session("s")
    follower = await follow(hf, session)
    assert await follower.look() == []
    async with session.turn("Hello") as turn:
        assert describe(await follower.look()) == ["turn_started", 0]
        assert follower.activity == "running"
        clock.now += 2500
        turn.add("Hi.")
    *events, ended = await follower.look()
    assert describe(events) == ["prompt", 1]
    assert ended == TurnEnded(0, clock.now, 2500)
    assert (await follower.look(), follower.activity) == ([], "idle")


async def test_turn_goes_on_while_a_tool_call_has_no_result(hf: Holdfast) -> None:
    session = await hf.session("s")
    follower = await follow(hf, session)
    await session.append([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [CALL]}])
    assert describe(await follower.look()) == ["turn_started", 0, 1]
    assert follower.activity == "waiting"
    await session.append([{"role": "tool", "tool_call_id": "c1", "content": "found"}])
    assert describe(await follower.look()) == [2, "turn_ended"]
    await session.append([{"role": "assistant", "content": "Here."}])
    assert describe(await follower.look()) == ["turn_started", 3, "turn_ended"]


async def test_crashed_turn_ends_when_its_claim_expires(hf: Holdfast, clock: Clock) -> None:
    session = await hf.session("s")
    follower = await follow(hf, session)
    async with session.turn("Hello") as turn:
        assert describe(await follower.look()) == ["turn_started", 0]
        clock.now += 60_000
        assert describe(await follower.look()) == ["turn_ended"]
        turn.add("late")
    assert describe(await follower.look()) == ["turn_started", "prompt", 1, "turn_ended"]


async def test_last_messages_come_first(hf: Holdfast) -> None:
    session = await hf.session("s")
    for n in range(3):
        async with session.turn(f"question {n}") as turn:
            turn.add("answer")
    for count, events in (
        (0, []),
        (1, ["turn_started", 5, "turn_ended"]),
        (2, ["turn_started", 4, "prompt", 5, "turn_ended"]),
        (3, ["turn_started", 3, "turn_ended", "turn_started", 4, "prompt", 5, "turn_ended"]),
    ):
        follower = await follow(hf, session)
        read = await follower.read_last(count)
        assert describe(read) == events
        assert [event.resumed for event in read if event.name == "turn_started"][:1] == [bool(count % 2)][: len(read)]  # type: ignore[union-attr]
        assert await follower.look() == []
    assert len(await (await follow(hf, session)).read_last(100)) == 3 * 5


async def test_edits_closing_deletion_and_a_new_session_are_reported(hf: Holdfast) -> None:
    session = await hf.session("s")
    await session.append([{"role": "user", "content": str(n)} for n in range(4)])
    follower = await follow(hf, session)
    await hf.close_session(session.ref)
    assert describe(await follower.look()) == ["session_closed"]
    await session.rewind(at_turn=0)
    assert describe(await follower.look()) == []
    await session.append([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}])
    await follower.look()
    await session.rewind(at_turn=0)
    (event,) = await follower.look()
    assert (event.name, getattr(event, "count", None)) == ("messages_retired", 1)
    await hf.remove(session.ref)
    await hf.session("s")
    assert describe(await follower.look()) == ["session_replaced"]
    await hf.remove(session.ref)
    assert describe(await follower.look()) == ["session_deleted"]


async def test_one_look_reads_one_page_and_only_new_messages(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await hf.session("s")
    await session.append([{"role": "user", "content": "old"}] * 300)
    follower = await follow(hf, session)
    reads: list[tuple[int, int]] = []
    read_entries = hf.store.entries

    async def count(ref: Any, *, start: int, stop: int) -> Any:
        found = await read_entries(ref, start=start, stop=stop)
        reads.append((start, len(found)))
        return found

    monkeypatch.setattr(follower._store, "entries", count)  # noqa: SLF001
    assert await follower.look() == []
    await session.append([{"role": "user", "content": "new"}] * (FOLLOWED_PAGE + 1))
    looks = [(await follower.look(), follower.has_more) for _ in range(2)]
    assert [more for _, more in looks] == [True, False]
    assert reads == [(300, FOLLOWED_PAGE), (300 + FOLLOWED_PAGE, 1)]
    assert [one for one in describe([event for events, _ in looks for event in events]) if isinstance(one, int)] == [
        *range(300, 301 + FOLLOWED_PAGE)
    ]
    assert [*await follower.look()] == []


async def test_deletion_between_two_reads_is_reported(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await hf.session("s")
    follower = await follow(hf, session)
    await session.append([{"role": "user", "content": "new"}])
    read_session = hf.store.get

    async def remove_after_read(ref: Any) -> Any:
        found = await read_session(ref)
        monkeypatch.undo()
        await hf.remove(ref)
        return found

    monkeypatch.setattr(follower._store, "get", remove_after_read)  # noqa: SLF001
    assert describe(await follower.look()) == ["session_deleted"]

"""Forks and rewinds: whole turns, nothing lost, and the original unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, SessionExists, SessionNotFound
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.log import Append


def call(id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "find", "arguments": "{}"}}


LOG: list[dict[str, Any]] = [
    {"role": "user", "content": "one", "pinned": True},
    {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
    {"role": "tool", "tool_call_id": "b", "content": "found b"},
    {"role": "tool", "tool_call_id": "a", "content": "found a"},
    {"role": "assistant", "content": "first", "importance": 0.5, "metadata": {"source": "llm"}},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "second"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "third"},
]


@pytest.fixture
async def hf() -> AsyncIterator[holdfast.Holdfast]:
    numbers = iter(range(1_000))
    async with holdfast.open("sqlite://:memory:", new_id=lambda: f"made-{next(numbers)}") as hf:
        yield hf


@pytest.fixture
async def session(hf: holdfast.Holdfast) -> SessionHandle:
    """A session with three turns, the first with a tool round, and with state, metadata and a ttl."""
    await hf.create("s", user_id="ada", state={"step": 3}, metadata={"channel": "web"}, ttl=10**9)
    handle = await hf.session("s", user_id="ada")
    await handle.append(LOG)
    return handle


async def texts(handle: SessionHandle) -> list[Any]:
    return [message["content"] for message in await handle.messages()]


# -- fork --------------------------------------------------------------------


async def test_fork_is_independent_of_the_original(hf: holdfast.Holdfast, session: SessionHandle) -> None:
    """It has the turns up to the given one, the state, and metadata with its origin."""
    before = await hf.export(session.ref, retired=True)
    fork = await session.fork(at_turn=1)
    info = await fork.info()
    assert (fork.id, fork.user_id) == ("made-0", "ada")
    assert await texts(fork) == [message["content"] for message in LOG[:7]]
    assert (info.state, info.ttl, info.usage.calls) == ({"step": 3}, 10**9, 0)
    assert info.metadata == {"channel": "web", "forked_from": {"id": "s", "turn": 1, "seq": 6}}
    await fork.append("elsewhere")
    await fork.update(state={"step": 4})
    assert await hf.export(session.ref, retired=True) == before
    await session.append("here")
    assert (await texts(fork))[-1] == "elsewhere"
    assert await fork.verify() == 8


async def test_fork_without_a_turn_copies_everything(hf: holdfast.Holdfast, session: SessionHandle) -> None:
    """Including pins, importance, turns, times and digests."""
    fork = await hf.fork(session.ref, id="copy")
    ours, theirs = await session.entries(), await fork.entries()
    assert theirs == ours
    assert (await fork.info()).metadata["forked_from"] == {"id": "s", "turn": 2, "seq": 8}


async def test_fork_copies_only_the_live_path(hf: holdfast.Holdfast, session: SessionHandle) -> None:
    """Retired entries are not copied, and sequence numbers start again."""
    await hf.store.append(session.ref, Append(retire_from=5, timestamp=hf.clock()))
    await session.append([{"role": "user", "content": "two again"}, {"role": "assistant", "content": "better"}])
    fork = await session.fork(at_turn=1)
    entries = await fork.entries(retired=True)
    assert [entry.message.text for entry in entries][5:] == ["two again", "better"]
    assert [entry.seq for entry in entries] == list(range(7))
    assert (await fork.info()).metadata["forked_from"] == {"id": "s", "turn": 1, "seq": 10}


async def test_fork_and_rewind_keep_whole_units(hf: holdfast.Holdfast) -> None:
    """Results that answer a call of the last turn are included, whatever their turn id."""
    session = await hf.session("s")
    unit = [{"role": "assistant", "content": None, "tool_calls": [call("a")], "turn_id": 0}]
    late = [{"role": "tool", "tool_call_id": "a", "content": "late", "turn_id": 1}]
    orphan = [{"role": "tool", "tool_call_id": "z", "content": "orphan", "turn_id": 1}]
    await session.append([{"role": "user", "content": "go"}, *unit, *late, *orphan])
    assert await texts(await session.fork(at_turn=0)) == ["go", None, "late"]
    await session.rewind(0)
    assert await texts(session) == ["go", None, "late"]


async def test_erased_message_is_erased_in_the_fork(hf: holdfast.Holdfast, session: SessionHandle) -> None:
    """The chain of digests is valid there too."""
    await hf.erase(session.ref, 4)
    fork = await session.fork()
    assert [entry.digest for entry in await fork.entries()] == [entry.digest for entry in await session.entries()]
    assert (await fork.entries())[4].erased
    assert await fork.verify() == 9


@pytest.mark.parametrize("turn", [3, -1, 1.0, "1", True])
async def test_invalid_turns_are_rejected(hf: holdfast.Holdfast, session: SessionHandle, turn: Any) -> None:
    """By fork and rewind; nothing is created."""
    with pytest.raises(InvalidRequest) as error:
        await session.fork(at_turn=turn, id="x")
    assert error.value.param == "at_turn"
    with pytest.raises(InvalidRequest):
        await session.rewind(turn)
    with pytest.raises(SessionNotFound):
        await hf.store.get(SessionRef("ada", "x"))
    assert (await session.info()).messages == 9


async def test_missing_turn_in_a_gap_is_rejected(hf: holdfast.Holdfast) -> None:
    """A log may skip turn numbers."""
    session = await hf.session("s")
    await session.append(
        [{"role": "user", "content": "a", "turn_id": 2}, {"role": "user", "content": "b", "turn_id": 7}]
    )
    with pytest.raises(InvalidRequest, match="has no turn 5; its last one is 7"):
        await session.fork(at_turn=5)
    assert await texts(await session.fork(at_turn=2)) == ["a"]


async def test_copied_fork_does_not_replace_a_session_created_meanwhile(
    hf: holdfast.Holdfast, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create_another(*_: object, **__: object) -> None:
        await hf.create("taken", user_id="ada")

    monkeypatch.setattr(hf.engine.store, "fork", create_another)
    with pytest.raises(SessionExists):
        await session.fork(id="taken")
    assert await texts(await hf.session("taken", user_id="ada")) == []


async def test_concurrent_forks_to_one_id_create_one_session(hf: holdfast.Holdfast, session: SessionHandle) -> None:
    done = await asyncio.gather(*(session.fork(id="x") for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(one, SessionHandle) for one in done) == 1
    assert sum(isinstance(one, SessionExists) for one in done) == 7


# -- rewind ------------------------------------------------------------------


async def test_rewind_retires_later_messages(session: SessionHandle) -> None:
    """New messages take their place."""
    info = await session.rewind(0)
    assert await texts(session) == [message["content"] for message in LOG[:5]]
    assert (info.messages, info.version, info.state) == (5, 2, {"step": 3})
    await session.append("two, otherwise")
    whole = await session.entries(retired=True)
    assert [entry.retired_by for entry in whole] == [None] * 5 + [9] * 4 + [None]
    assert whole[-1].turn_id == 1
    assert await session.verify() == 10


async def test_rewind_waits_for_the_running_turn(session: SessionHandle) -> None:
    """In its own turn it would wait for itself, so it is rejected."""
    async with session.turn("four"):
        with pytest.raises(InvalidRequest, match="is open in this task"):
            await session.rewind(0)
        rewinding = asyncio.ensure_future(session.rewind(0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not rewinding.done()
    assert (await rewinding).messages == 5


async def test_concurrent_rewinds_and_appends_all_succeed(session: SessionHandle) -> None:
    """The log stays valid."""
    await asyncio.gather(*(session.rewind(0) if at % 3 == 0 else session.append(f"m{at}") for at in range(24)))
    info = await session.info()
    assert info.tail.next_seq == 9 + 16
    assert await session.verify() == 25


async def test_session_continues_after_a_rewind(session: SessionHandle) -> None:
    """The prompt has the live path, not a cached one."""
    async with session.turn("four") as turn:
        turn.add({"role": "assistant", "content": "fourth"})
    await session.rewind(1)
    async with session.turn("another three") as turn:
        told = [message["content"] for message in turn.messages]
    assert told[-3:] == ["two", "second", "another three"]
    assert "three" not in told


async def test_fork_reads_only_what_it_copies(
    hf: holdfast.Holdfast, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a long log: a few small reads and the part that is copied."""
    await session.append([{"role": ("user", "assistant")[at % 2], "content": f"m{at}"} for at in range(3_000)])
    read: list[int] = []
    store, entries = hf.store, hf.store.entries

    async def count_reads(*args: Any, **kwargs: Any) -> Any:
        found = await entries(*args, **kwargs)
        read.append(len(found))
        return found

    monkeypatch.setattr(store, "entries", count_reads, raising=False)
    fork = await session.fork(at_turn=1)
    assert len(await fork.entries()) == 7
    assert len(read) < 20
    assert sum(read) < 150


async def test_fork_at_an_earlier_turn_has_the_state_of_that_turn() -> None:
    """Keys written later are left out, whatever their earlier value."""
    async with holdfast.open("sqlite://:memory:") as hf:
        await hf.create("s", user_id="ada", state={"made": 1, "raised": 1, "same": 1})
        session = await hf.session("s", user_id="ada")
        for turn in range(3):
            await session.append([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
            await session.update(state={f"turn{turn}": turn, "raised": turn, "same": 1})
        states = [(await (await session.fork(at_turn=turn)).info()).state for turn in range(3)]
        assert states[0] == {"made": 1, "same": 1, "turn0": 0}
        assert states[1] == {"made": 1, "same": 1, "turn0": 0, "turn1": 1}
        assert states[2] == (await session.info()).state == (await (await session.fork()).info()).state
        again = await (await session.fork(at_turn=1, id="again")).fork(at_turn=1)
        assert (await again.info()).state == states[1]


@pytest.mark.parametrize("url", ["memory", "file"])
async def test_turn_numbers_of_state_are_not_exported(url: str, tmp_path: Path) -> None:
    """Imported state counts as written in the last turn."""
    place = "sqlite://:memory:" if url == "memory" else f"sqlite:///{tmp_path}/s.db"
    async with holdfast.open(place) as hf:
        await hf.create("s", user_id="ada", state={"k": 1})
        session = await hf.session("s", user_id="ada")
        await session.append(LOG)
        await session.update(state={"late": [1]})
        assert (await session.info()).state == {"k": 1, "late": [1]}
        export = await hf.export(session.ref)
        assert export["state"] == {"k": 1, "late": [1]}
        copy = await hf.import_(export, session_id="copy")
        assert (await hf.fork(copy.session.ref, at_turn=1, id="early")).id == "early"
        early = await hf.session("early", user_id="ada")
        assert (await early.info()).state == {}
        await session.update(state={"k": None, "late": None})
        assert (await session.info()).state == {}

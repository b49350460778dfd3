"""Interrupting a turn that runs, here or on another server: it is stopped first, and those that wait come afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import HeardMismatch, InvalidRequest, TurnInterrupted
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.verify import verify
from tests.service.turns_kit import (
    REF,
    SHARED,
    is_stop_wanted,
    log,
    open_stage,
    renew_claim,
    retry_at_once,
    say,
    start_turn,
    wait_for_waiting,
)
from tests.service.voicing_kit import MEMORY, describe_log, open_session
from tests.stores.servers import place
from tests.waiting import until


async def test_a_turn_that_runs_is_stopped_first() -> None:
    """Its part is in the log, and then shortened to what was heard."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        session = hf.handle(await hf.store.get(REF))
        done = await session.interrupt()
        with pytest.raises(TurnInterrupted):
            await running
        assert (done.stopped, done.interrupted) == (True, True)
        assert await log(hf) == ["a", "re:|"]
        shorter = await session.interrupt("re")
        assert (shorter.stopped, shorter.interrupted) == (False, True)
        assert await describe_log(session) == [(0, "user", "a"), (0, "assistant", "re", "re: ")]
        assert hf.engine.locks.is_empty
        assert (await hf.store.get(REF)).claim is None
        await verify(hf.store, REF)


async def test_what_was_heard_of_a_turn_that_runs() -> None:
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        await hf.handle(await hf.store.get(REF)).interrupt(chars=2)
        with pytest.raises(TurnInterrupted):
            await running
        assert await log(hf) == ["a", "re|"]


async def test_turns_that_wait_come_afterwards() -> None:
    """Whoever interrupts goes before them, and does not end them."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        later = asyncio.create_task(say(hf, "b"))
        await wait_for_waiting(hf, 1, running, later)
        await hf.handle(await hf.store.get(REF)).interrupt()
        assert await later == "re: b"
        await asyncio.wait([running])
        assert await log(hf) == ["a", "re:|", "b", "re: b"]


async def test_nobody_interrupts_an_interruption() -> None:
    """Several at once, and a turn that interrupts: each is done."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        session = hf.handle(await hf.store.get(REF))
        both = [asyncio.create_task(session.interrupt()) for _ in range(2)]
        turn = asyncio.create_task(say(hf, "b", session_queue="interrupt"))
        done = await asyncio.gather(*both)
        assert await turn == "re: b"
        await asyncio.wait([running])
        assert [one.stopped for one in done] == [True, True]
        assert await log(hf) == ["a", "re:|", "b", "re: b"]


async def test_a_turn_that_said_nothing_leaves_nothing() -> None:
    """And the reply before it is not what is meant, unless its turn is named: then the turn that runs is left alone."""
    async with open_stage(MEMORY) as ([hf], stage):
        assert await say(hf, "x") == "re: x"
        session = hf.handle(await hf.store.get(REF))
        for how, error in (({}, None), ({"chars": 0}, None), ({"chars": 5}, None), ({"content": "re"}, HeardMismatch)):
            inside = asyncio.Event()
            quiet = asyncio.create_task(_silent(session, inside))
            await inside.wait()
            if error:
                with pytest.raises(error):
                    await session.interrupt(**how)
            else:
                done = await session.interrupt(**how)
                assert (done.entry, done.interrupted, done.stopped) == (None, False, True)
            await quiet
        assert (await describe_log(session))[1] == (0, "assistant", "re: x")
        running = await start_turn(hf, stage, "y")
        done = await session.interrupt("re", turn_id=0)
        assert (done.stopped, done.interrupted) == (False, True)
        assert (await describe_log(session))[1] == (0, "assistant", "re", "re: x")
        stage.go_on()
        assert await running == "re: y"
        assert (await describe_log(session))[-1][1:] == ("assistant", "re: y")
        await session.verify()


async def _silent(session: SessionHandle, inside: asyncio.Event) -> None:
    """A turn whose model says nothing until it is stopped."""
    async with session.turn("hm") as turn:
        inside.set()
        await until(lambda: turn.interrupted)


async def test_a_block_of_the_library_is_waited_for() -> None:
    """Until it ends; inside of it one would wait for oneself."""
    async with open_session() as session:
        async with session.turn("a") as turn:
            with pytest.raises(InvalidRequest, match="open in this task"):
                await session.interrupt()
            with pytest.raises(InvalidRequest, match="open in this task"):
                await session.speak("x")
            turn.add("A")
        assert [text for _, _, text, *_ in await describe_log(session)] == ["a", "A"]


@SHARED
async def test_a_turn_of_another_server_is_stopped(kind: str, tmp_path: Any) -> None:
    """Its part is stored there, and cut here; then both go on."""
    with place(kind, tmp_path) as url:
        async with open_stage(url, openings=2) as ([one, two], stage):
            retry_at_once(one, two)
            running = await start_turn(one, stage, "a")
            interrupting = asyncio.create_task(two.handle(await two.store.get(REF)).interrupt("re"))
            await until(lambda: is_stop_wanted(one), interrupting)
            await renew_claim(one)
            done = await interrupting
            with pytest.raises(TurnInterrupted):
                await running
            assert (done.stopped, done.interrupted) == (True, True)
            assert await log(two) == ["a", "re|"]
            stage.go_on()
            assert await say(one, "b") == "re: b"
            assert await log(two) == ["a", "re|", "b", "re: b"]
            await verify(one.store, REF)

"""Interrupting a running turn, here or on another server: it is stopped first, and waiting turns follow."""

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
from tests.service.voice_kit import MEMORY, describe_log, open_session
from tests.stores.servers import place
from tests.waits import until


async def test_running_turn_is_stopped_before_it_is_interrupted() -> None:
    """Its partial reply is stored and then shortened to the heard text."""
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


async def test_heard_text_of_a_running_turn_is_kept() -> None:
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        await hf.handle(await hf.store.get(REF)).interrupt(chars=2)
        with pytest.raises(TurnInterrupted):
            await running
        assert await log(hf) == ["a", "re|"]


async def test_waiting_turns_run_after_the_interruption() -> None:
    """The interruption goes first and does not cancel them."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        later = asyncio.create_task(say(hf, "b"))
        await wait_for_waiting(hf, 1, running, later)
        await hf.handle(await hf.store.get(REF)).interrupt()
        assert await later == "re: b"
        await asyncio.wait([running])
        assert await log(hf) == ["a", "re:|", "b", "re: b"]


async def test_interruptions_do_not_interrupt_each_other() -> None:
    """Several at once, and a turn that interrupts: each completes."""
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


async def test_turn_without_output_leaves_nothing_when_interrupted() -> None:
    """The previous reply is not interrupted unless its turn is named; the running turn continues then."""
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
    """Run a turn whose model sends nothing until it is stopped."""
    async with session.turn("hm") as turn:
        inside.set()
        await until(lambda: turn.interrupted)


async def test_interruption_waits_for_a_turn_block_of_the_library() -> None:
    """Inside the block it is an error, since it would wait for itself."""
    async with open_session() as session:
        async with session.turn("a") as turn:
            with pytest.raises(InvalidRequest, match="open in this task"):
                await session.interrupt()
            with pytest.raises(InvalidRequest, match="open in this task"):
                await session.speak("x")
            turn.add("A")
        assert [text for _, _, text, *_ in await describe_log(session)] == ["a", "A"]


@SHARED
async def test_turn_of_another_server_is_stopped(kind: str, tmp_path: Any) -> None:
    """Its partial reply is stored there and shortened here; then both servers continue."""
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

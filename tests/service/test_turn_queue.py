"""One turn of a session at a time, in one process: waiting, rejection, interruption, and the resulting log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import TurnInterrupted
from tests.service.turns_kit import REF, Stage, get_claim, log, open_stage, say, start_turn, wait_for_waiting

MEMORY = "sqlite://:memory:"


# -- waiting -------------------------------------------------------------------


async def test_turns_run_in_order_of_arrival() -> None:
    """Each completes before the next begins."""
    async with open_stage(MEMORY) as ([hf], stage):
        tasks = [await start_turn(hf, stage, "a")]
        for at, text in enumerate("bcde"):
            tasks.append(asyncio.create_task(say(hf, text)))
            await wait_for_waiting(hf, at + 1, *tasks)
        assert stage.asked == ["a"]
        stage.go_on()
        assert await asyncio.gather(*tasks) == [f"re: {text}" for text in "abcde"]
        assert await log(hf) == [said for text in "abcde" for said in (text, f"re: {text}")]
        assert hf.engine.locks.is_empty


# -- rejection -------------------------------------------------------------------


async def test_close_and_rewind_do_not_count_as_turns() -> None:
    """They are neither a reason to reject a turn, nor rejected or interrupted themselves: both wait for each other."""
    async with open_stage(MEMORY, session_queue="reject") as ([hf], stage):
        await say(hf, "a")
        async with hf.engine.lock_between_turns(REF):
            turns = [asyncio.create_task(say(hf, text, session_queue="reject")) for text in "b"]
            await wait_for_waiting(hf, 1, *turns)
        await asyncio.gather(*turns)
        running = await start_turn(hf, stage, "c")
        back = asyncio.create_task((await hf.session("s")).rewind(0))
        await wait_for_waiting(hf, 1, back)
        last = asyncio.create_task(say(hf, "d", session_queue="interrupt"))
        with pytest.raises(TurnInterrupted):
            await running
        await asyncio.gather(back, last)
        assert await log(hf) == ["a", "re: a", "d", "re: d"]


# -- interruption ----------------------------------------------------------------


async def test_each_turn_interrupts_the_one_before() -> None:
    """All messages are in the log, in order; the last turn is answered, then the one that only waited."""
    async with open_stage(MEMORY, session_queue="interrupt") as ([hf], stage):
        stage.held = None
        tasks = [asyncio.create_task(say(hf, "a"))]
        await stage.until("a")
        tasks.append(asyncio.create_task(say(hf, "patient", session_queue="queue")))
        await wait_for_waiting(hf, 1, *tasks)
        tasks += [asyncio.create_task(say(hf, text)) for text in "bcd"]
        await stage.until("d")
        stage.go_on()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        told = [outcome if isinstance(outcome, str) else type(outcome) for outcome in outcomes]
        assert told == [TurnInterrupted, "re: patient", TurnInterrupted, TurnInterrupted, "re: d"]
        assert await log(hf) == ["a", "re:|", "b", "c", "d", "re: d", "patient", "re: patient"]
        assert stage.asked == ["a", "d", "patient"]


async def test_interrupted_turn_completes_its_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is writing its user message or its complete reply."""
    async with open_stage(MEMORY) as ([hf], stage):
        append, writing, go_on = hf.store.append, asyncio.Event(), asyncio.Event()

        async def slow(ref: SessionRef, write: Any) -> Any:
            if write.entries and write.entries[0].message.text in ("a", "re: c"):
                writing.set()
                await go_on.wait()
            return await append(ref, write)

        monkeypatch.setattr(hf.store, "append", slow)
        for text, outcome in (("a", TurnInterrupted), ("c", str)):
            writing.clear()
            go_on.clear()
            first = asyncio.create_task(say(hf, text))
            await writing.wait()
            second = asyncio.create_task(say(hf, "b", session_queue="interrupt"))
            await wait_for_waiting(hf, 1, first, second)
            go_on.set()
            assert type((await asyncio.gather(first, second, return_exceptions=True))[0]) is outcome
        assert await log(hf) == ["a", "b", "re: b", "c", "re: c", "b", "re: b"]
        assert stage.asked == ["b", "c", "b"]


async def test_abandoned_turn_leaves_no_claim() -> None:
    stage = Stage()
    async with open_stage(MEMORY, stage=stage) as ([hf], _):
        running = await start_turn(hf, stage, "a")
        running.cancel()
        await asyncio.wait([running])
        async with hf.engine.lock_between_turns(REF):
            assert await get_claim(hf) is None
        assert hf.engine.locks.is_empty

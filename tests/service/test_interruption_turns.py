"""Interrupting a running turn, here or on another server: it is stopped first, and waiting turns follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import TurnInterrupted
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
from tests.service.voice_kit import MEMORY
from tests.stores.servers import place
from tests.waits import until


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

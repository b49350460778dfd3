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
)
from tests.stores.servers import place
from tests.waits import until


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

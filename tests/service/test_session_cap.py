"""The maximum number of sessions: which one is evicted, with one process, several processes and several tenants."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.clocks import Clock
from tests.service.expiry_kit import MEMORY, _place, life, state, talk

__all__ = ["_place"]


async def test_cap_is_exact_in_one_process(place: str, clock: Clock) -> None:
    """However many sessions are created and reopened concurrently."""
    async with life(place, clock, max_sessions=10) as hf:
        ended: list[str] = []
        again = hf.create if place == MEMORY else partial(talk, hf)  # in memory, no session is left to reopen
        for round_ in range(4):
            names = [f"r{round_}s{number}" for number in range(25)]
            await asyncio.gather(*(hf.create(name) for name in names), *(again(name) for name in ended))
            clock.now += 1
            assert await hf.engine.life.store.active() == 10
            ended = [name for name in names if await state(hf, name) != "active"]
            assert len(ended) >= 15

"""The maximum number of sessions: which one is evicted, with one process, several processes and several tenants."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from holdfast.stores.sessions import NewSession, SessionPatch
from tests.clocks import Clock
from tests.service.expiry_kit import MEMORY, _place, file, get_ended_state, life, ref, state, talk

__all__ = ["_place"]


async def test_update_at_the_cap_evicts_no_session(place: str, clock: Clock) -> None:
    """By message, change or import. mistral.rs lost one of 128 sessions this way."""
    async with life(place, clock, max_sessions=3) as hf:
        for name in "abc":
            await talk(hf, name)
            clock.now += 1
        for _ in range(5):
            await talk(hf, "c")
            await hf.store.update(ref("b"), SessionPatch(metadata={"a": 1}), timestamp=clock.now)
            await hf.store.replace(NewSession(id="a", user_id="default", timestamp=clock.now), [])
            clock.now += 1
        assert await hf.engine.life.store.active() == 3


async def test_ended_sessions_do_not_count_towards_the_cap(place: str, clock: Clock) -> None:
    """Closed, deleted or expired."""
    async with life(place, clock, max_sessions=3, session_ttl=1000) as hf:
        await hf.create("short", ttl=1)
        clock.now += 1
        for name in "ab":
            await talk(hf, name)
            clock.now += 1
        await talk(hf, "c")
        assert [await state(hf, name) for name in ("short", "a", "b", "c")] == [get_ended_state(place), *["active"] * 3]
        await hf.close_session(ref("a"))
        await talk(hf, "d")
        await hf.delete(ref("b"))
        await talk(hf, "e")
        assert [await state(hf, name) for name in "cde"] == ["active"] * 3


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


async def test_sweep_enforces_the_cap_across_servers(tmp_path: Path, clock: Clock) -> None:
    """Between sweeps each server counts only its own sessions."""
    async with life(file(tmp_path), clock, max_sessions=5) as one, life(file(tmp_path), clock, max_sessions=5) as two:
        for hf, name in ((one, "a"), (two, "b")):
            await talk(hf, name)
        for number in range(4):
            for hf in (one, two):
                await talk(hf, f"{id(hf)}-{number}")
                clock.now += 1
        assert await one.engine.life.store.active() > 5
        swept = await one.sweep()
        assert await one.engine.life.store.active() == 5
        assert swept.evicted > 0

"""How many sessions there may be: who goes when one too many comes, of one process, of several, of each tenant."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from holdfast.stores.sessions import NewSession, SessionPatch
from tests.clocks import Clock
from tests.service.life_kit import DAY, MEMORY, Ear, _place, file, life, over, ref, state, talk

__all__ = ["_place"]


async def test_the_fourth_of_three_takes_the_place_of_the_first(place: str, clock: Clock) -> None:
    async with life(place, clock, max_sessions=3) as hf:
        ear = Ear()
        hf.add_hook(ear)
        for name in "abcd":
            await talk(hf, name)
            clock.now += 1
        assert [await state(hf, name) for name in "abcd"] == [over(place), "active", "active", "active"]
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert ear.heard == [("cap", "a")]


async def test_the_one_idle_longest_goes_not_the_oldest(place: str, clock: Clock) -> None:
    """128 sessions at 0 to 127; the first is used again: the second goes."""
    async with life(place, clock, max_sessions=128) as hf:
        for number in range(128):
            await talk(hf, f"s{number}")
            clock.now += 1
        await talk(hf, "s0")
        clock.now += 1
        await talk(hf, "new")
        assert await hf.engine.life.store.active() == 128
        assert (await state(hf, "s0"), await state(hf, "s1"), await state(hf, "s2")) == (
            "active",
            over(place),
            "active",
        )


async def test_an_update_at_the_cap_evicts_nobody(place: str, clock: Clock) -> None:
    """By message, by change, by import: upstream lost one of 128 by that."""
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


async def test_no_cap_is_no_cap(place: str, clock: Clock) -> None:
    async with life(place, clock, max_sessions=0) as hf:
        for number in range(50):
            await talk(hf, f"s{number}")
        assert await hf.engine.life.store.active() == 50


async def test_one_that_opens_again_counts(tmp_path: Path, clock: Clock) -> None:
    """It makes room for itself, and is not the one that goes."""
    async with life(file(tmp_path), clock, max_sessions=2) as hf:
        for name in "abc":
            await talk(hf, name)
            clock.now += 1
        assert await state(hf, "a") == "closed"
        await talk(hf, "a")
        assert [await state(hf, name) for name in "abc"] == ["active", "closed", "active"]


async def test_one_that_ended_leaves_room(place: str, clock: Clock) -> None:
    """Closed, deleted or expired."""
    async with life(place, clock, max_sessions=3, session_ttl=1000) as hf:
        await hf.create("short", ttl=1)
        clock.now += 1
        for name in "ab":
            await talk(hf, name)
            clock.now += 1
        await talk(hf, "c")
        assert [await state(hf, name) for name in ("short", "a", "b", "c")] == [over(place), *["active"] * 3]
        await hf.close_session(ref("a"))
        await talk(hf, "d")
        await hf.delete(ref("b"))
        await talk(hf, "e")
        assert [await state(hf, name) for name in "cde"] == ["active"] * 3


async def test_what_has_expired_goes_before_what_has_not(place: str, clock: Clock) -> None:
    """And for that reason, though a session that is alive was idle for longer."""
    async with life(place, clock, max_sessions=2, session_ttl=DAY) as hf:
        ear = Ear()
        hf.add_hook(ear)
        await talk(hf, "long")
        clock.now += 1
        await hf.create("short", ttl=10)
        clock.now += 10
        await talk(hf, "new")
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert ear.heard == [("ttl", "short")]
        assert await state(hf, "long") == "active"


async def test_the_cap_is_exact_in_one_process(place: str, clock: Clock) -> None:
    """However many come at once, with as many that end and open again."""
    async with life(place, clock, max_sessions=10) as hf:
        ended: list[str] = []
        again = hf.create if place == MEMORY else partial(talk, hf)  # in memory there is nothing left to open
        for round_ in range(4):
            names = [f"r{round_}s{number}" for number in range(25)]
            await asyncio.gather(*(hf.create(name) for name in names), *(again(name) for name in ended))
            clock.now += 1
            assert await hf.engine.life.store.active() == 10
            ended = [name for name in names if await state(hf, name) != "active"]
            assert len(ended) >= 15


async def test_the_cap_holds_for_each_tenant(tmp_path: Path, clock: Clock) -> None:
    async with life(file(tmp_path), clock, max_sessions=2) as hf:
        other = hf.store.for_tenant("other")
        for number in range(3):
            await talk(hf, f"s{number}")
            await other.create(NewSession(id=f"s{number}", user_id="ada", timestamp=clock.now))
            clock.now += 1
        assert (await hf.engine.life.store.active(), await other.active()) == (2, 2)


async def test_several_servers_come_back_to_the_cap_with_a_sweep(tmp_path: Path, clock: Clock) -> None:
    """Between two sweeps each counts for itself."""
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

"""How sessions end: closing, deletion, retention, and the background sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores.sessions import NewSession
from tests.clocks import Clock
from tests.service.expiry_kit import DAY, HOUR, MEMORY, RecordingHook, _place, file, life, ref, rows, talk
from tests.waits import until

__all__ = ["_place"]


# -- close, delete, retention --------------------------------------------------


async def test_close_ends_a_session_once(place: str, clock: Clock) -> None:
    async with life(place, clock) as hf:
        ear = RecordingHook()
        hf.add_hook(ear)
        session = await hf.session("a")
        await session.append("hello")
        clock.now += 5
        closed = await session.close()
        assert (closed.status, closed.ended_at, closed.end_reason) == ("closed", clock.now, "close")
        if place == MEMORY:
            with pytest.raises(SessionNotFound):
                await session.close()
        else:
            clock.now += 5
            assert await session.close() == closed
            await session.append("more")
            assert (await session.info()).status == "active"
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert (ear.heard, ear.texts) == ([("close", "a")], [["hello"]])


async def test_sweep_handles_more_sessions_than_one_page(tmp_path: Path, clock: Clock) -> None:
    async with life(file(tmp_path), clock, session_ttl=HOUR, retention=DAY, max_sessions=0) as hf:
        for number in range(250):
            await hf.create(f"s{number}")
        clock.now += HOUR
        assert (await hf.sweep()).expired == 250
        clock.now += DAY
        assert (await hf.sweep()).deleted == 250
        assert await rows(hf) == {}


# -- in the background ---------------------------------------------------------


async def test_sweeps_run_in_the_background(tmp_path: Path) -> None:
    """The interval follows the shortest ttl, which may become known after the start."""
    clock = Clock()
    async with Holdfast(file(tmp_path), clock=clock, life=LifeSettings()) as hf:
        sweeper = hf.engine.sweeper
        assert sweeper.interval == 21_600
        await hf.create("a", ttl=2000)
        await hf.store.get(ref("a"))
        assert sweeper.interval == 1.0
        clock.now += 2000

        async def swept() -> bool:
            return (await rows(hf))["a"].status != "active"

        await until(swept)


async def test_server_sweeps_all_tenants(tmp_path: Path, clock: Clock) -> None:
    """A library sweeps only its own tenant."""
    async with (
        life(file(tmp_path), clock, session_ttl=1000) as own,
        life(file(tmp_path), clock, session_ttl=1000, all_tenants=True) as server,
    ):
        other = own.store.for_tenant("other")
        await other.create(NewSession(id="a", user_id="ada", timestamp=clock.now))
        await talk(own, "b")
        clock.now += 1000
        assert (await own.sweep()).expired == 1
        assert (await server.sweep()).expired == 1
        assert (await server.sweep()).expired == 0

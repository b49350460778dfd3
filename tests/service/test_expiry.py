"""Session expiry: its settings, expiry on read, and which operations count as use."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import AmbiguousSession, SessionExists
from holdfast.stores.sessions import NewSession
from tests.clocks import Clock
from tests.service.expiry_kit import (
    MEMORY,
    RecordingHook,
    _place,
    file,
    life,
    ref,
)

__all__ = ["_place"]


# -- expiry --------------------------------------------------------------------


async def test_id_of_an_expired_session_is_free_in_memory(clock: Clock) -> None:
    """For creating, importing and looking up."""
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        await hf.create("a", user_id="ada")
        clock.now += 500
        await hf.create("a", user_id="bob")
        with pytest.raises(AmbiguousSession):
            await hf.store.find("a")
        clock.now += 500
        assert (await hf.store.find("a")).user_id == "bob"
        await hf.create("a", user_id="ada")
        with pytest.raises(SessionExists):
            await hf.create("a", user_id="ada")
        clock.now += 1000
        installed = await hf.store.replace(NewSession(id="a", user_id="bob", timestamp=clock.now), [])
        assert installed.version == 0


async def test_use_by_another_server_prevents_expiry(tmp_path: Path, clock: Clock) -> None:
    """This process's copy may be old: expiry depends on the stored row."""
    async with (
        life(file(tmp_path), clock, session_ttl=1000) as one,
        life(file(tmp_path), clock, session_ttl=1000) as two,
    ):
        ear = RecordingHook()
        one.add_hook(ear)
        session = await one.session("a")
        await session.send("hello")
        old = await one.store.get(ref("a"))
        clock.now += 999
        await two.store.touch(ref("a"), timestamp=clock.now)
        clock.now += 500
        assert not await one.engine.life.expire(old)
        await session.send("still here")
        assert (await session.info()).messages == 4
        assert ear.calls == []

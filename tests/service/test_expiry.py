"""Session expiry: its settings, expiry on read, and which operations count as use."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import AmbiguousSession, SessionExists, StaleSession
from holdfast.stores.sessions import NewSession, SessionPatch
from tests.clocks import Clock
from tests.service.expiry_kit import (
    MEMORY,
    RecordingHook,
    _place,
    file,
    life,
    ref,
    rows,
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


async def test_expected_version_of_an_expired_session_still_matches(tmp_path: Path, clock: Clock) -> None:
    """The end that a write causes is not another client's write. An older version is still stale."""
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        session = await hf.session("a")
        await session.append("one")
        clock.now += 1000
        seen = await session.info()
        assert seen.status == "closed"
        with pytest.raises(StaleSession):
            await session.append("two", expect=seen.version - 1)
        assert (await rows(hf))["a"].status == "active", "a refused write ends nothing"
        assert (await session.append("two", expect=seen.version)).reopened
        clock.now += 1000
        seen = await session.info()
        changed = await hf.store.update(
            ref("a"), SessionPatch(metadata={"a": 1}), timestamp=clock.now, expect=seen.version
        )
        assert (changed.status, changed.end_reason) == ("closed", "ttl")


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

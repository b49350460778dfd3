"""Session expiry: its settings, expiry on read, and which operations count as use."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import AmbiguousSession, InvalidRequest, SessionExists, SessionNotFound, StaleSession
from holdfast.lifecycle.expiry import compute_touch_interval
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores.sessions import NewSession, SessionPatch
from tests.clocks import Clock
from tests.service.expiry_kit import (
    DAY,
    MEMORY,
    RecordingHook,
    _place,
    file,
    life,
    ref,
    rows,
    state,
    talk,
)

__all__ = ["_place"]


# -- settings ------------------------------------------------------------------


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


async def test_deleted_session_is_not_recreated_by_a_message(clock: Clock) -> None:
    """Only expiry frees the id for a new session."""
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        session = await hf.session("a")
        await session.delete()
        with pytest.raises(SessionNotFound):
            await session.append("hello")


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


async def test_import_over_an_expired_session_reports_the_old_messages(tmp_path: Path, clock: Clock) -> None:
    """Hooks get the messages of the session that ended, not of the imported one."""
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        ear = RecordingHook()
        hf.add_hook(ear)
        await talk(hf, "a", "old")
        clock.now += 1000
        await hf.store.replace(NewSession(id="a", user_id="default", timestamp=clock.now), [])
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert (ear.heard, ear.texts) == ([("ttl", "a")], [["old"]])
        assert await state(hf, "a") == "active"
        assert await hf.engine.life.store.active() == 1


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


# -- use -----------------------------------------------------------------------


async def test_building_a_context_counts_as_use(place: str, clock: Clock) -> None:
    """At most one use per hundredth of the ttl is written, so a session can expire that much early."""
    async with life(place, clock, session_ttl=1_000_000) as hf:
        await talk(hf, "a")
        session = await hf.session("a")
        clock.now += 9_999
        await session.context()
        assert (await rows(hf))["a"].accessed_at == clock.now - 9_999
        clock.now += 1
        await session.context()
        used = (await rows(hf))["a"].accessed_at
        assert used == clock.now
        clock.now += 999_999
        await session.context()
        assert await state(hf, "a") == "active"


async def test_use_does_not_reopen_an_ended_session(tmp_path: Path, clock: Clock) -> None:
    """A context of an expired session can be built, but that does not reopen it."""
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        await talk(hf, "a")
        clock.now += 1000
        session = await hf.session("a")
        assert (await session.context()).messages
        assert await state(hf, "a") == "closed"
        await hf.sweep()
        assert (await rows(hf))["a"].status == "closed"


def test_touch_interval_is_at_least_a_second() -> None:
    assert [compute_touch_interval(ttl) for ttl in (0, 1000, 100_000, DAY)] == [1000, 1000, 1000, DAY // 100]


def test_open_accepts_strategy_and_budget_only_without_a_roster() -> None:
    hf = holdfast.open("sqlite://:memory:", strategy="token_window", budget=4000)
    assert hf.roster.context == holdfast.settings.ContextSettings("token_window", {"budget": 4000})
    with pytest.raises(InvalidRequest, match="nonsense"):
        holdfast.open("sqlite://:memory:", strategy="nonsense")
    with pytest.raises(InvalidRequest, match="cannot be combined with roster"):
        holdfast.open("sqlite://:memory:", roster=holdfast.Roster(), budget=4000)
    with pytest.raises(TypeError):
        holdfast.open("sqlite://:memory:", stratgey="digest")  # type: ignore[call-arg]


def test_life_settings_and_single_settings_cannot_be_combined() -> None:
    with pytest.raises(InvalidRequest, match="max_sessions cannot be combined with life"):
        holdfast.open("sqlite://:memory:", life=LifeSettings(), max_sessions=3)

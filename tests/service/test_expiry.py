"""Session expiry: its settings, expiry on read, and which operations count as use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import AmbiguousSession, InvalidRequest, SessionExists, SessionNotFound, StaleSession
from holdfast.lifecycle.expiry import compute_touch_interval
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch
from tests.clocks import Clock
from tests.service.expiry_kit import (
    DAY,
    MEMORY,
    RecordingHook,
    _place,
    file,
    get_ended_state,
    life,
    ref,
    rows,
    state,
    talk,
)

__all__ = ["_place"]


# -- settings ------------------------------------------------------------------


async def test_durations_accept_units_seconds_zero_and_none() -> None:
    """`0` and None mean never."""
    hf = holdfast.open(session_ttl="1h30m", max_sessions=5, max_history_turns=50, retention=1.5)
    assert hf.life == LifeSettings(session_ttl=5_400_000, max_sessions=5, max_history_turns=50, retention=1500)
    assert holdfast.open(session_ttl=None, max_sessions=None).life == LifeSettings(session_ttl=0, max_sessions=0)
    assert holdfast.open().life == LifeSettings()
    assert (LifeSettings().session_ttl, LifeSettings().max_sessions) == (DAY, 10_000)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"session_ttl": "soon"}, "session_ttl"),
        ({"session_ttl": "30m1h"}, "session_ttl"),
        ({"session_ttl": -1}, "session_ttl"),
        ({"session_ttl": True}, "session_ttl"),
        ({"session_ttl": float("nan")}, "session_ttl"),
        ({"session_ttl": "36501d"}, "session_ttl"),
        ({"retention": []}, "retention"),
        ({"max_sessions": "many"}, "max_sessions"),
        ({"max_sessions": 1.5}, "max_sessions"),
        ({"max_history_turns": 10_001}, "max_history_turns"),
        ({"life": LifeSettings(), "max_sessions": 5}, "life"),
    ],
)
async def test_invalid_settings_are_rejected(settings: dict[str, Any], param: str) -> None:
    """The error names the wrong parameter."""
    with pytest.raises(InvalidRequest) as refused:
        holdfast.open(**settings)
    assert refused.value.param == param


# -- expiry --------------------------------------------------------------------


async def test_session_expires_to_the_millisecond_even_before_a_sweep(place: str, clock: Clock) -> None:
    """It is alive if and only if idle < ttl, for every kind of read. The row says active until a sweep ends it."""
    async with life(place, clock, session_ttl=1_800_000) as hf:
        await talk(hf, "a")
        clock.now += 1_799_999
        assert await state(hf, "a") == "active"
        assert [one.status for one in (await hf.sessions()).sessions] == ["active"]
        clock.now += 1
        assert await state(hf, "a") == get_ended_state(place)
        closed = (await hf.sessions(status="closed")).sessions
        assert [one.id for one in closed] == ([] if place == MEMORY else ["a"])
        assert (await hf.sessions(status="active")).sessions == ()
        if place != MEMORY:
            seen = await hf.store.get(ref("a"))
            assert (seen.ended_at, seen.end_reason) == (clock.now, "ttl")
            assert (await rows(hf))["a"].status == "active"
            await hf.sweep()
            swept = (await rows(hf))["a"]
            assert (swept.status, swept.ended_at, swept.end_reason) == ("closed", seen.ended_at, "ttl")


async def test_reading_does_not_extend_a_session(place: str, clock: Clock) -> None:
    """Reads in mistral.rs extended it."""
    async with life(place, clock, session_ttl=1000) as hf:
        await talk(hf, "a")
        for _ in range(4):
            clock.now += 249
            session = await hf.session("a")
            await session.info()
            await session.messages()
            await session.export()
            await session.context(at_turn=0)
            await session.context(touch=False)
            await hf.sessions()
        clock.now += 4
        assert await state(hf, "a") == get_ended_state(place)


async def test_expired_session_in_memory_is_not_found_by_any_operation(clock: Clock) -> None:
    """Including those that do not return the session itself."""
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        for ask in ("entries", "compactions", "calls"):
            await talk(hf, "a")
            clock.now += 1000
            with pytest.raises(SessionNotFound):
                await getattr(hf.store, ask)(ref("a"))
        await talk(hf, "a")
        (first, *_) = await hf.store.entries(ref("a"))
        assert len(await hf.store.sightings("default", [first.digest])) == 1
        clock.now += 1000
        assert await hf.store.sightings("default", [first.digest]) == ()
        await talk(hf, "a")
        clock.now += 1000
        for call in (
            hf.store.annotate(ref("a"), 0, pinned=True),
            hf.store.window(ref("a"), None),
            hf.store.media(ref("a"), [b"h" * 32]),
            hf.store.want(ref("a"), "one"),
            hf.store.update(ref("a"), SessionPatch(metadata={"a": 1}), timestamp=clock.now),
            hf.store.append(ref("a"), Append(timestamp=clock.now, state_delta={"a": 1})),
            hf.close_session(ref("a")),
        ):
            with pytest.raises(SessionNotFound):
                await call
        assert not await hf.delete(ref("a"))
        assert await rows(hf) == {}


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


async def test_message_reopens_an_expired_session_or_creates_a_new_one(place: str, clock: Clock) -> None:
    """The old one is ended first, as a sweep would end it, and hooks receive all of it."""
    async with life(place, clock, session_ttl=1000) as hf:
        ear = RecordingHook()
        hf.add_hook(ear)
        session = await hf.session("a", system="Be brief.")
        ways: list[Callable[[], Awaitable[object]]] = [
            lambda: session.send("sent"),
            lambda: session.append("appended"),
            lambda: hf.session("a", system="Be brief."),
            lambda: _run_turn(session),
        ]
        await session.append("first")
        for number, way in enumerate(ways, 1):
            clock.now += 1000
            await way()
            await hf.engine.hook_dispatcher.wait_until_idle()
            expected = number if place == MEMORY or number < 3 else number - 1  # opening a session is not a message
            assert len(ear.heard) == expected, number
        assert set(ear.heard) == {("ttl", "a")}
        info = await session.info()
        assert info.status == "active"
        assert [message.content for message in info.system_messages] == ["Be brief."]
        texts = [message["content"] for message in await session.messages()]
        # A hook gets the session's current state: the message that reopened it may already be in it.
        heard = [text for text in ear.texts[-1] if text != "turned"]
        assert texts == (["turned"] if place == MEMORY else [*heard, "turned"])


async def _run_turn(session: holdfast.SessionHandle) -> None:
    async with session.turn("turned"):
        pass


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


async def test_running_turn_protects_its_session(place: str, clock: Clock) -> None:
    """However long the model takes, the session is not expired, swept or evicted, and the reply is written."""
    async with life(place, clock, session_ttl=1000, max_sessions=1) as hf:
        session = await hf.session("a")
        async with session.turn("think") as turn:
            clock.now += 5000
            await hf.sweep()
            await talk(hf, "b")
            assert await state(hf, "a") == "active"
            turn.add("thought")
        assert [message["content"] for message in await session.messages()] == ["think", "thought"]


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

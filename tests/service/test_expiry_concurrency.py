"""Session expiry with concurrent imports, turns, closes, other servers and cancelled callers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.session import Ending, Session, SessionRef
from holdfast.errors import HoldfastError, SessionExists, SessionNotFound, StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.lifecycle import expiry as life_module
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.wrapper import StoreWrapper
from tests.clocks import Clock
from tests.contract.kit import user
from tests.service.expiry_kit import DAY, HOUR, MEMORY, RecordingHook, file, life, ref, rows, state, talk
from tests.waits import until


def wrap_store(hf: Holdfast, kind: Any) -> Any:
    """Put a wrapper of this class between the expiring store and the database."""
    made = kind(hf.engine.life.store)
    hf.engine.life.store = made
    living: Any = hf.store
    living.inner = made
    return made


# -- replacing what has expired ------------------------------------------------


class _FullStore(StoreWrapper):
    async def replace(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable("no room")


@pytest.mark.parametrize("what", ["invalid", "full"])
async def test_rejected_import_keeps_the_expired_session(tmp_path: Path, clock: Clock, what: str) -> None:
    """It is unchanged, and no hook is called."""
    bad: dict[str, Any] = {"role": "user", "content": "x", "seq": 0}
    if what == "invalid":
        bad["retired_by"] = 99
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        ear = RecordingHook()
        hf.add_hook(ear)
        await talk(hf, "a", "precious")
        clock.now += 5000
        if what == "full":
            wrap_store(hf, _FullStore)
        with pytest.raises(HoldfastError):
            await hf.import_({"object": "session", "schema": 1, "messages": [bad]}, session_id="a", replace=True)
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert (await state(hf, "a"), ear.calls) == ("closed", [])
        assert [entry.message.text for entry in await hf.store.entries(ref("a"))] == ["precious"]


async def test_replaced_session_is_counted_as_ended_once(tmp_path: Path, clock: Clock) -> None:
    """By its reason. The number of active sessions stays the same, and the version continues."""
    async with life(file(tmp_path), clock, session_ttl=1000, max_sessions=1) as hf:
        hf.add_hook(RecordingHook())
        await talk(hf, "a")
        version = (await hf.store.get(ref("a"))).version
        clock.now += 1000
        done = await hf.store.replace(NewSession(id="a", user_id="default", timestamp=clock.now), [])
        assert (done.version, hf.engine.life.ended) == (version + 1, {"ttl": 1})
        await talk(hf, "b")
        assert hf.engine.life.ended == {"ttl": 1, "cap": 1}


async def test_fork_can_use_the_id_of_an_expired_session_in_memory(clock: Clock) -> None:
    """While the session is active, its id is rejected."""
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        await talk(hf, "b", "old")
        clock.now += 999
        await talk(hf, "a", "new")
        with pytest.raises(SessionExists):
            await hf.fork(ref("a"), id="b")
        clock.now += 1
        await hf.fork(ref("a"), id="b")
        assert [entry.message.text for entry in await hf.store.entries(ref("b"))] == ["new"]


# -- other servers -------------------------------------------------------------


async def test_running_turn_protects_its_session_on_other_servers(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its use is recorded periodically until it ends."""
    monkeypatch.setattr(life_module, "LEAST_TOUCH", 1)
    settings = {"session_ttl": 1000}
    async with life(file(tmp_path), clock, **settings) as one, life(file(tmp_path), clock, **settings) as two:

        async def advance(milliseconds: int, name: str) -> None:
            """Advance the clock until the use of the session has been recorded."""
            clock.now += milliseconds

            async def is_recorded() -> bool:
                return (await rows(one))[name].accessed_at == clock.now

            await until(is_recorded)

        async with (await one.session("a")).turn("think") as turn:
            for _ in range(3):
                await advance(900, "a")
                assert (await two.sweep()).expired == 0
            turn.add("thought")
        used = (await rows(one))["a"].accessed_at
        async with (await one.session("b")).turn("think") as turn:
            for _ in range(3):
                await advance(400, "b")
            assert (await rows(one))["a"].accessed_at == used
            assert (await two.sweep()).expired == 1
            turn.add("thought")


async def test_sessions_of_other_servers_are_counted_after_a_minute(tmp_path: Path, clock: Clock) -> None:
    """Without a sweep, when the next session is created."""
    async with life(file(tmp_path), clock, max_sessions=5) as one, life(file(tmp_path), clock, max_sessions=5) as two:
        for number in range(4):
            for hf in (one, two):
                clock.now += 1
                await talk(hf, f"{id(hf)}-{number}")
        assert await one.engine.life.store.active() == 8
        clock.now += 60_000
        await talk(one, "next")
        assert await one.engine.life.store.active() == 5


class _RacingStore(StoreWrapper):
    """Another process uses a session just before this one ends it."""

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        inner: Store = self.inner
        await inner.touch(SessionRef(ending.user_id, ending.session_id), timestamp=ending.due_at)
        return await inner.end(ending, idle_since=idle_since)


@pytest.mark.parametrize("how", ["get", "window", "entries", "append", "update"])
async def test_session_used_concurrently_does_not_expire(clock: Clock, how: str) -> None:
    """The operation that found it expired reads it again."""
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        await talk(hf, "a")
        clock.now += 1000
        wrap_store(hf, _RacingStore)
        calls: dict[str, Any] = {
            "get": lambda: hf.store.get(ref("a")),
            "window": lambda: hf.store.window(ref("a"), None),
            "entries": lambda: hf.store.entries(ref("a")),
            "append": lambda: hf.store.append(ref("a"), Append(entries=[user("b")], timestamp=clock.now)),
            "update": lambda: hf.store.update(ref("a"), SessionPatch(metadata={"k": 1}), timestamp=clock.now),
        }
        found = await calls[how]()
        session = found if isinstance(found, Session) else getattr(found, "session", None)
        assert session is None or (session.status, session.accessed_at > clock.now - 1000) == ("active", True)
        assert await state(hf, "a") == "active"


# -- a close and a turn --------------------------------------------------------


async def test_close_waits_for_the_running_turn(tmp_path: Path, clock: Clock) -> None:
    """Its hooks get the reply, and the reply does not reopen the session."""
    async with life(file(tmp_path), clock) as hf:
        ear = RecordingHook()
        hf.add_hook(ear)
        session = await hf.session("a")
        async with session.turn("think") as turn:
            closing = asyncio.ensure_future(hf.close_session(ref("a")))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not closing.done()
            turn.add("thought")
        assert (await closing).status == "closed"
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert (ear.texts, await state(hf, "a")) == ([["think", "thought"]], "closed")


# -- replays, artifacts, retention ---------------------------------------------


async def test_replayed_append_does_not_count_as_use(tmp_path: Path, clock: Clock) -> None:
    """It returns the session's current state and writes nothing."""
    async with (
        life(file(tmp_path), clock, session_ttl=1000) as one,
        life(file(tmp_path), clock, session_ttl=1000) as hf,
    ):
        await one.create("a")
        write = Append(entries=[user("x")], timestamp=clock.now, idempotency_key="k", fingerprint=b"f" * 16)
        await one.store.append(ref("a"), write)
        ear = RecordingHook(reasons=["shutdown"])
        hf.add_hook(ear)
        again = await hf.store.append(ref("a"), write)
        assert (again.replayed, again.session.status) == (True, "active")
        clock.now += 1000
        again = await hf.store.append(ref("a"), write)
        assert (again.replayed, again.session.status, again.session.end_reason) == (True, "closed", "ttl")
        assert ref("a") not in hf.engine.life._served
    assert ear.calls == []


async def test_artifacts_of_an_expired_session_in_memory_are_not_found(clock: Clock) -> None:
    """The user's own artifacts are kept."""
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        for ask in ("artifacts", "drop_artifacts"):
            await talk(hf, "a")
            clock.now += 1000
            with pytest.raises(SessionNotFound):
                await getattr(hf.store, ask)(ref("a"))
        assert (await hf.store.artifacts(UserRef("default"))).artifacts == ()
        for ask in ("artifact", "artifact_versions"):
            await talk(hf, "a")
            clock.now += 1000
            with pytest.raises(SessionNotFound):
                await getattr(hf.store, ask)(ref("a"), "n")


async def test_retention_starts_at_the_import(tmp_path: Path, clock: Clock) -> None:
    """Even if the session had ended long before."""
    async with life(file(tmp_path), clock, retention=DAY) as hf:
        await talk(hf, "old")
        await hf.close_session(ref("old"))
        saved = await hf.export(ref("old"), retired=True)
        await hf.delete(ref("old"))
        clock.now += 30 * DAY
        await hf.import_(saved)
        assert (await hf.sweep()).deleted == 0
        assert await state(hf, "old") == "closed"
        clock.now += DAY
        assert (await hf.sweep()).deleted == 1


class _SlowEndStore(StoreWrapper):
    """Waits after it has ended a session."""

    ended: asyncio.Event
    go: asyncio.Event

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        did: bool = await self.inner.end(ending, idle_since=idle_since)
        self.ended.set()
        await self.go.wait()
        return did


async def test_cancelled_read_still_deletes_the_expired_session_in_memory(clock: Clock) -> None:
    async with life(MEMORY, clock, session_ttl=1000) as hf:
        await talk(hf, "a")
        clock.now += 1000
        slow = wrap_store(hf, _SlowEndStore)
        slow.ended, slow.go = asyncio.Event(), asyncio.Event()
        looking = asyncio.ensure_future(hf.store.get(ref("a")))
        await slow.ended.wait()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        slow.go.set()
        await hf.engine.life.shut_down()
        assert await slow.inner.tenants() == ()


# -- the first sweep -----------------------------------------------------------


async def test_first_sweep_runs_soon_after_the_start(tmp_path: Path) -> None:
    """So short-lived processes sweep, too."""
    clock = Clock()
    async with life(file(tmp_path), clock, session_ttl=DAY) as before:
        await talk(before, "a")
    clock.now += DAY
    hf = Holdfast(file(tmp_path), clock=clock, life=LifeSettings())
    async with hf:
        await hf.engine.sweeper.close()
        hf.engine.sweeper.pace = msgspec.structs.replace(hf.engine.sweeper.pace, first_sweep_seconds=0.001)
        hf.engine.sweeper.start()
        assert hf.engine.sweeper.interval == 6 * HOUR / 1000

        async def swept() -> bool:
            return (await rows(hf))["a"].status != "active"

        await until(swept)

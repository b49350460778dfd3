"""Session expiry compared with a small reference model, for any order of clock steps, messages, ends, sweeps and restarts."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import SessionExists, SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.lifecycle.expiry import compute_touch_interval
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores import open_store
from holdfast.stores.base import Store
from tests.clocks import Clock
from tests.given_store import HoldfastOn
from tests.service.expiry_kit import MEMORY, RecordingHook, ref, rows, state

T = TypeVar("T")
TTL, CAP = 300_000, 3
names = st.sampled_from(["a", "b", "c", "d", "e"])


class ModelSession:
    """A session as the reference model sees it."""

    def __init__(self, now: int, ttl: int | None) -> None:
        self.used = now
        self.ttl = ttl
        self.texts: list[str] = []
        self.active = True
        self.unnoticed = False
        """Whether it has expired and no write has recorded that yet."""

    def has_expired(self, now: int) -> bool:
        own = TTL if self.ttl is None else self.ttl
        return self.active and own > 0 and now - self.used >= own


class SessionLifecycle(RuleBasedStateMachine):
    """Compare visible sessions and hook calls with the reference model."""

    durable: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        url = f"sqlite:///{Path(self.folder.name)}/s.db" if self.durable else MEMORY
        self.clock, self.ear = Clock(), RecordingHook()
        self.store: Store = self._run(open_store(url, tenant="default"))
        self.hf = self._open()
        self.known: dict[str, ModelSession] = {}
        self.ends: Counter[tuple[str, str]] = Counter()
        self.said = 0

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def _open(self) -> Holdfast:
        life = LifeSettings(session_ttl=TTL, max_sessions=CAP, sweep=False)
        hf = HoldfastOn(self.store, clock=self.clock, life=life)
        hf.add_hook(self.ear)
        self._run(hf.__aenter__())
        return hf

    # -- the model ---------------------------------------------------------

    def _end(self, name: str, reason: str) -> None:
        self.ends[reason, name] += 1
        if self.durable and reason != "delete":
            self.known[name].active = False
        else:
            del self.known[name]

    def _expire_sessions(self) -> None:
        """End the sessions that have expired by now."""
        for name, one in list(self.known.items()):
            if one.has_expired(self.clock.now):
                if self.durable:
                    one.active, one.unnoticed = False, True
                else:
                    self._end(name, "ttl")

    def _record_expiry(self, *names: str) -> None:
        """Record the end of expired sessions, as the next writer does."""
        for name in names or tuple(self.known):
            if name in self.known and self.known[name].unnoticed:
                self.known[name].unnoticed = False
                self._end(name, "ttl")

    def _evict_above_cap(self, new: str) -> None:
        if sum(one.active or one.unnoticed for one in self.known.values()) > CAP:
            self._record_expiry()
        live = sorted((one.used, name) for name, one in self.known.items() if one.active and name != new)
        for _, name in live[: max(0, len(live) + 1 - CAP)]:
            self._end(name, "cap")

    def _tick(self) -> None:
        self.clock.now += 1  # so that no two are idle equally long
        self._expire_sessions()

    # -- what happens ------------------------------------------------------

    @rule(by=st.sampled_from([1, 2_999, 3_000, 100_000, 299_999, 300_000, 900_000]))
    def advance_clock(self, by: int) -> None:
        self.clock.now += by
        self._expire_sessions()

    @rule(name=names, ttl=st.sampled_from([None, 0, 5_000, 600_000]))
    def create(self, name: str, ttl: int | None) -> None:
        self._tick()
        try:
            self._run(self.hf.create(name, ttl=ttl))
        except SessionExists:
            assert name in self.known
            return
        assert name not in self.known
        self.known[name] = ModelSession(self.clock.now, ttl)
        self._evict_above_cap(name)

    @rule(name=names, warm=st.booleans())
    def say(self, name: str, warm: bool) -> None:
        self._tick()
        self.said += 1
        text = f"message {self.said}"
        self._run(self._send(name, text, warm=warm))
        self._record_expiry(name)
        one = self.known.get(name)
        fresh = one is None or not one.active
        one = self.known.setdefault(name, one or ModelSession(self.clock.now, None))
        one.active, one.used = True, self.clock.now
        one.texts.append(text)
        if fresh:
            self._evict_above_cap(name)

    async def _send(self, name: str, text: str, *, warm: bool) -> None:
        session = await self.hf.session(name)
        if not warm:
            self.hf.engine.warm.forget(session.ref)
        async with session.turn(text):
            pass

    @rule(name=names)
    def build_context(self, name: str) -> None:
        self._tick()
        one = self.known.get(name)
        if one is None:
            return
        self._run(self._build_context(name))
        own = TTL if one.ttl is None else one.ttl
        if one.active and own and self.clock.now - one.used >= compute_touch_interval(own):
            one.used = self.clock.now

    async def _build_context(self, name: str) -> None:
        await (await self.hf.session(name)).context()

    @rule(name=names)
    def close(self, name: str) -> None:
        self._tick()
        try:
            closed = self._run(self.hf.close_session(ref(name)))
        except SessionNotFound:
            assert name not in self.known
            return
        assert closed.status == "closed"
        self._record_expiry(name)
        if self.known[name].active:
            self._end(name, "close")

    @rule(name=names)
    def delete(self, name: str) -> None:
        self._tick()
        assert self._run(self.hf.delete(ref(name))) == (name in self.known)
        if name in self.known:
            self._end(name, "delete")

    @rule()
    def sweep(self) -> None:
        self._tick()
        self._run(self.hf.sweep())
        self._record_expiry()
        live = {name for name, one in self.known.items() if one.active}
        assert {name for name, row in self._run(rows(self.hf)).items() if row.status == "active"} == live

    @precondition(lambda self: self.durable)
    @rule()
    def restart(self) -> None:
        self._run(self.hf.close())
        self.hf = self._open()

    # -- what must hold ----------------------------------------------------

    @invariant()
    def visible_sessions_match_the_model(self) -> None:
        self._expire_sessions()
        for name in "abcde":
            one = self.known.get(name)
            expected = "gone" if one is None else "active" if one.active else "closed"
            assert self._run(state(self.hf, name)) == expected, name
        assert sum(one.active for one in self.known.values()) <= CAP
        listed = {session.id: session.status for session in self._run(self.hf.sessions()).sessions}
        assert listed == {name: "active" if one.active else "closed" for name, one in self.known.items()}

    def teardown(self) -> None:
        try:
            self._run(self.hf.sweep())
            self._record_expiry()
            for name, one in self.known.items():
                entries = self._run(self.hf.store.entries(ref(name)))
                assert [entry.message.text for entry in entries] == one.texts
            self._run(self.hf.sweep())
            assert Counter(self.ear.heard) == +self.ends
            assert len(self.ear.calls) == len(self.ear.heard)
        finally:
            self._run(self.hf.close())
            self._run(self.store.close())
            self.runner.close()
            self.folder.cleanup()


class InMemorySessionLifecycle(SessionLifecycle):
    """The same for a store in which an ended session is deleted."""

    durable = False


STEPS = settings(max_examples=max(20, settings().max_examples // 3), stateful_step_count=40)
TestSessionLifecycle = SessionLifecycle.TestCase
TestSessionLifecycle.settings = STEPS
TestInMemorySessionLifecycle = InMemorySessionLifecycle.TestCase
TestInMemorySessionLifecycle.settings = STEPS

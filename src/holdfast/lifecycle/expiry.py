"""End sessions after their ttl, above the maximum number of active sessions, or on request.

A session is active until it has been idle for its ttl, until it is evicted because too many sessions are active, or until it is
ended on request. An expired session looks ended to every reader at once; the first process that notices records in the store that
the session has ended. An ended session keeps its name and its log. A withdrawn session has also given up its name, so that no client
finds it; its data is deleted after all hooks were notified.

`holdfast.lifecycle.expiring_store` applies this to every read and write.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast.background import KeyedRepeater
from holdfast.domain.session import Ending, EndReason, Session, SessionRef, is_unplaced
from holdfast.errors import SessionNotFound, StoreError
from holdfast.hooks.registry import HookRegistry
from holdfast.lifecycle.hook_delivery import HookDispatcher
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import NOTIFIED_SESSIONS, PAGE
from holdfast.stores.base import Store

_log = logging.getLogger("holdfast.life")
LEAST_TOUCH: Final = 1_000
"""Minimum milliseconds between two updates of the stored time at which a session was last used without a write."""
TOUCHES: Final = 100
"""Maximum updates of that time during one ttl. So a session that is only read may end early, by up to ttl / `TOUCHES`."""
_CANDIDATES: Final = 32
"""Number of expired sessions that are ended before others are evicted."""
IDLE: Final = frozenset({"ttl", "cap"})
"""Reasons for which only a session ends that is not in use."""
_SPARE: Final = 8
"""Number of sessions that are read in addition to those that must end, because some cannot be ended."""
_RECOUNTS: Final = 4
_STALE: Final = 10_000
"""Milliseconds after which active sessions are counted again before an eviction, because other processes end sessions too."""
_RECOUNT_INTERVAL: Final = 60_000
"""Milliseconds after which active sessions are counted again even if the known count is within the limit."""
_CACHE_SESSIONS: Final = 10_000
"""Maximum number of sessions whose last use, or whose end, this process remembers."""


def compute_touch_interval(ttl: int) -> int:
    """Return the minimum milliseconds between two updates of the stored last use of a session with this ttl."""
    return max(LEAST_TOUCH, ttl // TOUCHES)


class SessionLifecycle:
    """Ends the sessions of one tenant, and tracks their use in this process.

    Attributes:
        settings: ttl, maximum number of sessions, and retention.
        durable: True if a session that ends is closed; False if it is deleted.
        ended: number of sessions of all tenants that this process has ended, by reason.

    Args:
        store: the tenant's store, without expiry: it shows an expired session as active.
        settings: the attribute `settings`.
        hooks: hooks to notify of ended sessions.
        hook_dispatcher: notifies the hooks.
        clock: returns milliseconds since the epoch.
        forget: called with each ended session, to drop cached data of the session.
    """

    def __init__(
        self,
        store: Store,
        settings: LifeSettings,
        hooks: HookRegistry,
        hook_dispatcher: HookDispatcher,
        clock: Callable[[], int],
        *,
        forget: Callable[[SessionRef], None],
    ) -> None:
        self.store = store
        self.settings = settings
        self.durable = store.durable
        self.ended: Counter[EndReason] = Counter()
        self.shortest = settings.session_ttl
        """Shortest ttl that this process has seen, in milliseconds; 0: no session has a ttl so far."""
        self.on_shorter: Callable[[], None] = _do_nothing
        self.on_end: Callable[[Session], None] = _do_nothing
        """Called with each session of any tenant that ends in this process, or whose name another session takes over."""
        self._hooks = hooks
        self._hook_dispatcher = hook_dispatcher
        self._clock = clock
        self._forget = forget
        self._using: dict[SessionRef, int] = {}
        """Number of running turns by session."""
        self._noting = KeyedRepeater(self._note_use)
        self._served: OrderedDict[SessionRef, None] = OrderedDict()
        self._touched: OrderedDict[SessionRef, int] = OrderedDict()
        self._lapsed: OrderedDict[SessionRef, Session] = OrderedDict()
        self._count: int | None = None
        self._counted_at = 0
        self._changes = 0
        """Number of running writes that may make a session active."""
        self._moves = 0
        """Number of writes that may make a session active and that began since the last count."""
        self._evicting = asyncio.Lock()
        self._adopted: dict[str, SessionLifecycle] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def for_tenant(self, tenant: str) -> SessionLifecycle:
        """Return the lifecycle of another tenant's sessions. Settings, hooks and counts of ended sessions are shared."""
        if tenant == self.store.tenant:
            return self
        if tenant in self._adopted:
            return self._adopted[tenant]
        store = self.store.for_tenant(tenant)
        other = SessionLifecycle(
            store,
            self.settings,
            self._hooks,
            self._hook_dispatcher,
            self._clock,
            forget=_do_nothing,
        )
        other.ended, other.on_end = self.ended, self.on_end
        return other

    def adopt(self, other: SessionLifecycle) -> None:
        """Let `for_tenant` return `other` for its tenant, because `other` knows which sessions are in use, until `release_tenant`."""
        other.ended, other.on_end = self.ended, self.on_end
        other.on_shorter = lambda: self.note_ttl(other.shortest)
        self._adopted[other.store.tenant] = other

    def release_tenant(self, tenant: str) -> None:
        self._adopted.pop(tenant, None)

    # -- expiry ------------------------------------------------------------

    def is_expired(self, session: Session) -> bool:
        """Return True if an active session without a running turn in this process has been idle longer than its ttl."""
        self.note_ttl(session.ttl)
        return not self.settings.still and self._is_overdue(session)

    def _is_overdue(self, session: Session) -> bool:
        return session.is_expired(self._clock(), self.settings.session_ttl) and session.ref not in self._using

    def note_ttl(self, ttl: int | None) -> None:
        """Remember a session's ttl if it is the shortest so far, and then call `on_shorter`."""
        if ttl and not 0 < self.shortest <= ttl:
            self.shortest = ttl
            self.on_shorter()

    def keeps(self, ref: SessionRef) -> bool:
        """Return True if the session is closed when it ends; False if it is deleted."""
        return self.durable and not is_unplaced(ref)

    def get_expiry_filters(self) -> dict[str, int]:
        """Return the arguments `now` and `ttl` with which a store finds expired sessions."""
        return {"now": 0, "ttl": 0} if self.settings.still else {"now": self._clock(), "ttl": self.settings.session_ttl}

    def apply_expiry(self, session: Session) -> Session:
        """Return the session, marked as closed if it has expired. Use this for durable stores only."""
        if not self.is_expired(session):
            return session
        return msgspec.structs.replace(
            session, status="closed", ended_at=self._compute_expiry_time(session), end_reason="ttl"
        )

    def _get_ttl(self, session: Session) -> int:
        return self.settings.session_ttl if session.ttl is None else session.ttl

    def _compute_expiry_time(self, session: Session) -> int:
        return session.accessed_at + self._get_ttl(session)

    def has_hooks_for(self, reason: EndReason) -> bool:
        """Return True if any hook wants to be notified of sessions that end for this reason."""
        return bool(self._hooks.get_names_for(reason))

    def begin_use(self, ref: SessionRef) -> None:
        """Record that a turn of a session begins. Until `end_use`, the session neither expires nor is evicted.

        While the turn runs, the stored time of last use is updated at intervals, so that other processes know. A short turn may end before
        the first update.
        """
        turns = self._using.get(ref, 0)
        self._using[ref] = turns + 1
        if self.shortest and not turns:
            self._noting.begin(ref, compute_touch_interval(self.shortest))

    def end_use(self, ref: SessionRef) -> None:
        """Record that a turn of a session has ended."""
        left = self._using[ref] - 1
        if left:
            self._using[ref] = left
        else:
            del self._using[ref]
            self._noting.stop(ref)

    async def _note_use(self, ref: SessionRef) -> int:  # returns the milliseconds until the next call; 0: no more calls
        try:
            session = await self.store.get(ref)
            await self.record_use(session)
        except SessionNotFound:
            return 0
        except StoreError as exc:
            _log.warning("the use of session %r could not be noted", ref.id, exc_info=exc)
            return LEAST_TOUCH
        own = self._get_ttl(session)
        return compute_touch_interval(own) if own else 0

    def is_in_use(self, ref: SessionRef) -> bool:
        """Return True if a turn of the session is running in this process."""
        return ref in self._using

    async def record_use(self, session: Session) -> None:
        """Update the stored last use of an active session that was read, at most once per `compute_touch_interval`."""
        ref, now, own = session.ref, self._clock(), self._get_ttl(session)
        last = max(session.accessed_at, self._touched.get(ref, 0))
        if (
            not own
            or now - last < compute_touch_interval(own)
            or session.status == "closed"
            or self.is_expired(session)
        ):
            return
        _remember(self._touched, ref, now, _CACHE_SESSIONS)
        await self.store.touch(ref, timestamp=now)

    def record_served(self, ref: SessionRef) -> None:
        """Remember that this process has written to a session. `shut_down` notifies hooks of such sessions."""
        _remember(self._served, ref, None, NOTIFIED_SESSIONS)

    # -- ends --------------------------------------------------------------

    async def end(self, session: Session, reason: EndReason) -> bool:
        """End a session, and notify hooks in the background. Return True if this call ended it.

        With the reasons `ttl` and `cap`, a session that was used after it was read does not end.

        On a durable store the session is closed, otherwise the session is deleted. With the reason `delete`, no client finds the session
        any more on any store, and the session is deleted after all hooks were notified.

        Args:
            session: the current session.
            reason: why it ends.
        """
        if session.damaged and reason != "delete":
            _log.error(
                "session %r of user %r is damaged (%s) and cannot be ended",
                session.id,
                session.user_id,
                session.damaged,
            )
            return False
        ending = self._make_ending(session, reason, withdrawn=reason == "delete" or not self.keeps(session.ref))
        if reason == "delete" and (session.damaged or not ending.hooks):  # hooks need an undamaged session
            ended = await self.store.remove(session.ref) is not None
        else:
            # Of a session that is withdrawn without hooks, two writes are left to do: after only the first one, it could not be found again.
            task = asyncio.ensure_future(self._record_end(ending, session.accessed_at if reason in IDLE else None))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            ended = await asyncio.shield(task)
        if ended:
            self.note_end(session, reason)
        return ended

    async def _record_end(self, ending: Ending, idle_since: int | None) -> bool:
        try:
            ended = await self.store.end(ending, idle_since=idle_since)
        except SessionNotFound:
            return False
        if ended and ending.hooks:
            self._hook_dispatcher.enqueue(self.store, ending)
        elif ended and ending.withdrawn:
            await self.store.remove(ending.ref)
        return ended

    def _make_ending(self, session: Session, reason: EndReason, *, withdrawn: bool) -> Ending:
        now = self._clock()
        return Ending(
            id=f"end_{uuid.uuid4().hex}",
            user_id=session.user_id,
            session_id=session.id,
            identity=session.identity,
            withdrawn=withdrawn,
            reason=reason,
            ended_at=min(now, self._compute_expiry_time(session)) if reason == "ttl" else now,
            due_at=now + self._hook_dispatcher.schedule.claim_ms,
            hooks=self._hooks.get_names_for(reason),
        )

    def note_end(self, session: Session, reason: EndReason) -> None:
        """Drop what this process remembers about a session that has just ended, and count the session in `ended`."""
        ref = session.ref
        self._forget(ref)
        self.on_end(session)
        self._served.pop(ref, None)
        self._touched.pop(ref, None)
        self.ended[reason] += 1
        if session.status == "active":
            self._count_change(ref, -1)
        if not self.keeps(ref) and reason in IDLE:
            _remember(self._lapsed, ref, session, _CACHE_SESSIONS)

    async def expire(self, session: Session) -> bool:
        """End a session that was idle for too long, unless it was or is used meanwhile. Return True if this call ended it."""
        return not self.is_in_use(session.ref) and await self.end(session, "ttl")

    def make_expiry_ending(self, session: Session) -> Ending | None:
        """Return the record for hooks of a session to be replaced. None if it has not expired, or if no hook wants to be notified."""
        is_wanted = self._is_overdue(session) and self.has_hooks_for("ttl")
        return self._make_ending(session, "ttl", withdrawn=True) if is_wanted else None

    def notify_of_end(self, session: Session, ending: Ending) -> None:
        """Notify hooks in the background of an expired session that was replaced, and drop what is remembered about that session."""
        self.note_end(session, ending.reason)
        self._hook_dispatcher.enqueue(self.store, ending)

    async def close(self, ref: SessionRef) -> Session:
        """End a session and return it. An ended session stays unchanged. Raises `SessionNotFound` if the session does not exist."""
        session = (await self.store.get(ref)).require_intact()
        if self.is_expired(session):
            await self.expire(session)
            if not self.keeps(ref):
                raise SessionNotFound(ref.id)
        elif session.status == "active":
            await self.end(session, "close")
        if self.keeps(ref):
            return await self.store.get(ref)
        return msgspec.structs.replace(session, status="closed", ended_at=self._clock(), end_reason="close")

    async def shut_down(self) -> None:
        """Notify hooks with the reason `shutdown` of each session that this process has written to. The sessions do not end."""
        self._noting.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        for ref in tuple(self._served) if self.has_hooks_for("shutdown") else ():
            try:
                session = await self.store.get(ref)
                if session.status == "closed" or self.is_expired(session):
                    continue
                ending = self._make_ending(session, "shutdown", withdrawn=False)
                await self.store.record_ending(ending)
            except SessionNotFound:
                continue
            self._hook_dispatcher.enqueue(self.store, ending)

    def get_lapsed(self, ref: SessionRef) -> Session | None:
        """Return a session that expired or was evicted from a store in memory. None if there is none, or if its name is in use again."""
        return self._lapsed.get(ref)

    # -- the cap -----------------------------------------------------------

    async def ensure_counted(self) -> None:
        """Count the active sessions if their number is unknown. Call this before a session becomes active."""
        if self.settings.max_sessions and self._count is None:
            async with self._evicting:
                if self._count is None:
                    await self._recount()

    @contextmanager
    def note_change(self) -> Iterator[None]:
        """Note that the block writes what may make a session active. A count of active sessions that is taken meanwhile may miss it."""
        self._changes += 1
        self._moves += 1
        try:
            yield
        finally:
            self._changes -= 1

    def adjust_count(self, ref: SessionRef, by: int = 1) -> None:
        """Add `by` to the known number of active sessions, because `ref` has become active or inactive."""
        self._lapsed.pop(ref, None)
        self._count_change(ref, by)

    def _count_change(self, ref: SessionRef, by: int) -> None:
        if self._count is not None and not is_unplaced(ref):
            self._count += by

    async def _recount(self) -> None:
        """Read the number of active sessions from the store, if possible while no write may change that number."""
        self._counted_at = self._clock()
        for _ in range(_RECOUNTS):
            began, self._moves = self._changes, 0
            count = await self.store.active()
            self._count = count
            if not began and not self._moves:
                return
            await asyncio.sleep(0)

    async def evict(self, *, but: SessionRef | None = None, recount: bool = False) -> int:
        """End sessions while too many are active: first expired sessions, then those that have been idle longest.

        Args:
            but: a session that must not be ended.
            recount: True reads the number of active sessions from the store, because other processes create and end sessions too.

        Returns:
            The number of evicted sessions, without expired ones.
        """
        cap = self.settings.max_sessions
        if not cap:
            return 0
        async with self._evicting:
            age = self._clock() - self._counted_at
            old = self._count is None or age >= _RECOUNT_INTERVAL or (self._count > cap and age >= _STALE)
            if recount or old:
                await self._recount()
            if self._count is None or self._count <= cap:
                return 0
            for session in await self.store.idle(now=self._clock(), ttl=self.settings.session_ttl, limit=_CANDIDATES):
                if session.ref != but:
                    await self.expire(session)
            return await self._evict_oldest(cap, but)

    async def _evict_oldest(self, cap: int, but: SessionRef | None) -> int:
        """End the sessions that have been idle longest, and return their number. A session that is used meanwhile is left active."""
        number, spare = 0, _SPARE
        while (surplus := (self._count or 0) - cap) > 0:
            ended = 0
            for session in await self.store.oldest(limit=min(surplus + len(self._using) + spare, PAGE)):
                if session.ref != but and not session.damaged and not self.is_in_use(session.ref) and ended < surplus:
                    ended += await self.end(session, "cap")
            number += ended
            if not ended and spare == PAGE:
                await self._recount()
                break
            spare = _SPARE if ended else PAGE
        return number


def _remember(known: OrderedDict[SessionRef, Any], ref: SessionRef, value: Any, most: int) -> None:
    known[ref] = value
    known.move_to_end(ref)
    if len(known) > most:
        known.popitem(last=False)


def _do_nothing(*_: object) -> None:
    """Ignore all arguments."""

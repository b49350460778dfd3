"""A store wrapper that applies expiry to every read and write, and counts the sessions that become active.

It shows an expired session as closed or, with a store in memory, not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.domain.artifact import Scope
from holdfast.domain.record import RecordOwner
from holdfast.domain.session import NewEntry, Receipt, Session, SessionRef
from holdfast.errors import AmbiguousSession, SessionExists, SessionExpired, SessionNotFound
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended, FoundEntries, KeyedTurn, TurnKey, WindowRows
from holdfast.stores.matching import Sighting
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch
from holdfast.stores.wrapper import StoreWrapper

T = TypeVar("T")
_SESSION_METHODS: Final = frozenset(
    {"annotate", "calls", "compactions", "drop_compaction", "entries", "erase", "rate", "touch", "media", "want"}
    | {"add_artifact", "all_artifacts", "artifact", "artifacts", "artifact_versions", "drop_artifacts"}
    | {"records", "list_records", "record_namespaces", "change_records", "drop_records", "searchable_records"}
)
"""Store methods that act on one session without returning it. For a store in memory, expiry is applied before each call."""
_EXPIRE_BATCH: Final = 100


class ExpiringStore(StoreWrapper):
    """A store wrapper that ends expired sessions when they are read or written.

    On a durable store, an expired session is shown as closed. A write to such a session first records that it has ended, then reopens
    the session. With a store in memory, the first call that finds an expired session ends and deletes the session.

    Args:
        inner: the tenant's store without expiry.
        life: the lifecycle of the tenant's sessions.
    """

    def __init__(self, inner: Store, life: SessionLifecycle) -> None:
        super().__init__(inner)
        self._life = life

    def for_tenant(self, tenant: str) -> Store:
        life = self._life.for_tenant(tenant)
        return ExpiringStore(life.store, life)

    # -- reading -----------------------------------------------------------

    async def get(self, ref: SessionRef) -> Session:
        return await self._resolve_expiry(await self.inner.get(ref))

    async def find(self, session_id: str) -> Session:
        try:
            return await self._resolve_expiry(await self.inner.find(session_id))
        except AmbiguousSession:
            if self._life.durable:
                raise
            await self._expire_all()
            return await self.inner.find(session_id)

    async def list(self, **filters: Any) -> SessionPage:
        """List sessions. This store sets the filters `now` and `ttl`."""
        if not self._life.durable:
            await self._expire_all()
        page = await self.inner.list(**{**filters, **self._life.get_expiry_filters()})
        return msgspec.structs.replace(
            page, sessions=tuple(self._life.apply_expiry(session) for session in page.sessions)
        )

    async def sightings(self, user_id: str, marks: Sequence[bytes], **options: Any) -> tuple[Sighting, ...]:
        if not self._life.durable:
            await self._expire_all()
        return await self.inner.sightings(user_id, marks, **options)

    async def find_turn(self, user_id: str, key: TurnKey) -> KeyedTurn | None:
        if not self._life.durable:
            await self._expire_all()
        return await self.inner.find_turn(user_id, key)

    async def entries_at(
        self, user_id: str, places: Collection[tuple[str, int]], **options: int
    ) -> Mapping[tuple[str, int], FoundEntries]:
        if not self._life.durable:
            await self._expire_all()
        return await self.inner.entries_at(user_id, places, **options)

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        rows = await self.inner.window(ref, view)
        session = await self._resolve_expiry(rows.session)
        if session is rows.session:
            return rows
        if not self._life.keeps(ref):  # the session was used after it was read
            return await self.inner.window(ref, view)
        return msgspec.structs.replace(rows, session=session)

    async def _resolve_expiry(self, session: Session) -> Session:
        """Return the session, as closed if it has expired. With a store in memory, raise `SessionNotFound` if it has expired."""
        if self._life.keeps(session.ref):
            return self._life.apply_expiry(session)
        while self._life.is_expired(session):
            if await self._life.expire(session):
                raise SessionNotFound(session.id)
            session = await self.inner.get(session.ref)  # another call ended it, or it was used after it was read
        return session

    async def _expire_all(self) -> None:
        while found := await self.inner.idle(limit=_EXPIRE_BATCH, **self._life.get_expiry_filters()):
            ended = [await self._life.expire(session) for session in found if self._life.is_expired(session)]
            if not any(ended):
                return

    # -- writing -----------------------------------------------------------

    async def create(self, new: NewSession) -> Session:
        return await self._add_session(new, partial(self.inner.create, new))

    async def fork(self, new: NewSession, source: Session, stop: int) -> Session | None:
        return await self._add_session(new, partial(self.inner.fork, new, source, stop))

    async def _add_session(self, new: NewSession, add: Callable[[], Awaitable[T]]) -> T:
        """Add a session, which `add` returns. In memory, an expired session of the same name ends first."""
        life = self._life
        await life.ensure_counted()
        with life.note_change():
            try:
                added = await add()
            except SessionExists:
                if life.keeps(new.ref) or not life.is_expired(old := await self.inner.get(new.ref)):
                    raise
                await life.expire(old)
                added = await add()
            life.adjust_count(new.ref, int(added is not None))
        life.note_ttl(new.ttl)
        await life.evict(but=new.ref)
        return added

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """Append to a log. If the session has expired and no turn of it is running, end the session first."""
        life = self._life
        if not life.is_in_use(ref) and not life.settings.still:
            write = msgspec.structs.replace(write, ttl=life.settings.session_ttl)
        with life.note_change():
            try:
                appended = await self.inner.append(ref, write)
            except SessionExpired as exc:
                appended = await self._append_to_expired(ref, write, exc.session)
            if not appended.replayed:
                self._note(ref, write, appended)
        if appended.replayed:
            return msgspec.structs.replace(appended, session=await self._resolve_expiry(appended.session))
        if appended.reopened:
            await life.evict(but=ref)
        return appended

    def note_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        super().note_append(ref, write, appended)
        self._note(ref, write, appended)

    def _note(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        if appended.reopened:
            self._life.adjust_count(ref)
            self._life.on_end(appended.session)  # another server may have ended the session
        if write.entries:
            self._life.record_served(ref)

    async def _append_to_expired(self, ref: SessionRef, write: Append, expired: Session) -> Appended:
        ended = await self._life.expire(expired)
        if ended and not self._life.keeps(ref):
            raise SessionNotFound(ref.id)
        # A caller that expects a version has seen the session as closed, so recording the end must not make that version stale.
        expect = write.expect + 1 if ended and write.expect is not None else write.expect
        return await self.inner.append(ref, msgspec.structs.replace(write, expect=expect, ttl=None))

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """Change a session's fields. An expired session is not reopened."""
        old = await self.inner.get(ref)
        if self._life.is_expired(old):
            stale = self._life.durable and expect is not None and expect != old.version
            ended = not stale and await self._life.expire(old)
            if ended and not self._life.keeps(ref):
                raise SessionNotFound(ref.id)
            expect = expect + 1 if ended and expect is not None else expect
        changed = await self.inner.update(ref, patch, timestamp=timestamp, expect=expect)
        return await self._resolve_expiry(changed)

    async def remove(self, ref: SessionRef, **expected: int | None) -> Receipt | None:
        try:
            session: Session | None = await self.get(ref)
        except SessionNotFound:
            session = None
        removed = await self.inner.remove(ref, **expected)
        if removed and session is not None and not ref.withdrawn:
            self._life.note_end(session, "delete")
        return removed

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """Replace a session. If the old session has expired, the same write records its end, and hooks are notified."""
        life = self._life
        await life.ensure_counted()
        try:
            old: Session | None = await (self.inner if life.durable else self).get(new.ref)
        except SessionNotFound:
            old = None
        ending = None if old is None or more.get("fresh") else life.make_expiry_ending(old)
        if ending is not None:
            more["ending"] = ending
        with life.note_change():
            installed = await self.inner.replace(new, entries, **more)
            was, now = old is not None and old.status == "active", installed.session.status == "active"
            if installed.ended and old is not None and ending is not None:
                was = False
                life.notify_of_end(old, ending)
            life.adjust_count(new.ref, now - was)
            if old is not None and old.identity != installed.session.identity:
                life.on_end(old)
        if now and not was:
            await life.evict(but=new.ref)
        return installed

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            method = getattr(self.inner, name)
            if name not in _SESSION_METHODS or self._life.durable:
                return method
            return self._check_session_first(method)

    def _check_session_first(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(ref: Scope | RecordOwner, *args: Any, **kwargs: Any) -> Any:
            if isinstance(ref, SessionRef):
                await self.get(ref)
            return await method(ref, *args, **kwargs)

        return call

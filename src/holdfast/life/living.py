"""The store as it is to be seen: what has expired is closed, or gone; what becomes active is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.domain.artifact import Scope
from holdfast.domain.session import NewEntry, Removed, Session, SessionRef
from holdfast.errors import AmbiguousSession, SessionExists, SessionExpired, SessionNotFound
from holdfast.life.ending import Life
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended, WindowRows
from holdfast.stores.matching import Sighting
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch
from holdfast.stores.wrapper import StoreWrapper

T = TypeVar("T")
_OF_A_SESSION: Final = frozenset(
    {"annotate", "calls", "compactions", "drop_compaction", "entries", "erase", "rate", "touch"}
    | {"media", "want"}
    | {"add_artifact", "artifact", "artifacts", "artifact_versions", "drop_artifacts"}
)
"""Methods that are about one session and do not give it: in memory one that has expired is looked for first."""
_SWEPT: Final = 100


def living(store: Store, life: Life) -> Store:
    """`store`, whose sessions end when it is time; see `LivingStore`."""
    kind: Any = LivingStore  # it is a store by what it passes on, which a type checker cannot see
    made: Store = kind(store, life)
    return made


class LivingStore(StoreWrapper):
    """A store whose sessions end when it is time, whoever asks for them.

    On a durable store one that has expired is seen as closed, and ended when it is written to, which opens it again. In memory
    it is ended by whoever looks for it, and is not there.

    Args:
        inner: the tenant's store as it is.
        life: of that tenant's sessions.
    """

    def __init__(self, inner: Store, life: Life) -> None:
        super().__init__(inner)
        self._life = life

    def for_tenant(self, tenant: str) -> Store:
        """See `Store.for_tenant`."""
        life = self._life.for_tenant(tenant)
        return living(life.store, life)

    # -- reading -----------------------------------------------------------

    async def get(self, ref: SessionRef) -> Session:
        """See `Store.get`."""
        return await self._living(await self.inner.get(ref))

    async def find(self, session_id: str) -> Session:
        """See `Store.find`."""
        try:
            return await self._living(await self.inner.find(session_id))
        except AmbiguousSession:
            if self._life.durable:
                raise
            await self._sweep()
            return await self.inner.find(session_id)

    async def list(self, **filters: Any) -> SessionPage:
        """See `Store.list`: `now` and `ttl` are what they are here."""
        if not self._life.durable:
            await self._sweep()
        page = await self.inner.list(**{**filters, **self._life.when()})
        return msgspec.structs.replace(page, sessions=tuple(self._life.seen(session) for session in page.sessions))

    async def sightings(self, user_id: str, marks: Sequence[bytes], **asked: Any) -> tuple[Sighting, ...]:
        """See `MatchingStore.sightings`."""
        if not self._life.durable:
            await self._sweep()
        return await self.inner.sightings(user_id, marks, **asked)

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """See `Store.window`."""
        rows = await self.inner.window(ref, view)
        session = await self._living(rows.session)
        if session is rows.session:
            return rows
        if not self._life.durable:  # somebody has used it since it was read
            return await self.inner.window(ref, view)
        return msgspec.structs.replace(rows, session=session)

    async def _living(self, session: Session) -> Session:
        """The session as it is to be seen. Raises `SessionNotFound`."""
        if self._life.durable:
            return self._life.seen(session)
        while self._life.expired(session):
            if await self._life.expire(session):
                raise SessionNotFound(session.id)
            session = await self.inner.get(session.ref)  # ended by others, or used since it was read
        return session

    async def _sweep(self) -> None:
        """End all that has expired."""
        while found := await self.inner.idle(limit=_SWEPT, **self._life.when()):
            ended = [await self._life.expire(session) for session in found if self._life.expired(session)]
            if not any(ended):
                return

    # -- writing -----------------------------------------------------------

    async def create(self, new: NewSession) -> Session:
        """See `Store.create`."""
        life = self._life
        await life.counted()
        life.begin_change()
        try:
            session = await self.inner.create(new)
            life.grew(new.ref)
        except SessionExists:
            if life.durable or not life.expired(old := await self.inner.get(new.ref)):
                raise
            await life.expire(old)
            session = await self.inner.create(new)
            life.grew(new.ref)
        finally:
            life.end_change()
        life.heed(new.ttl)
        await life.evict(but=new.ref)
        return session

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store.append`. What has expired is ended first; a turn under way keeps its session."""
        life = self._life
        if not life.in_use(ref) and not life.settings.still:
            write = msgspec.structs.replace(write, ttl=life.settings.session_ttl)
        life.begin_change()
        try:
            appended = await self.inner.append(ref, write)
            if appended.reopened:
                self._count_reopened(ref, appended)
        except SessionExpired as exc:
            appended = await self._reopened(ref, write, exc.session)
            if appended.reopened:
                self._count_reopened(ref, appended)
        finally:
            life.end_change()
        if appended.replayed:
            return msgspec.structs.replace(appended, session=await self._living(appended.session))
        if write.entries:
            life.served(ref)
        if appended.reopened:
            await life.evict(but=ref)
        return appended

    def _count_reopened(self, ref: SessionRef, appended: Appended) -> None:
        self._life.grew(ref)
        self._life.on_over(appended.session)  # it had ended, on whatever server

    async def _reopened(self, ref: SessionRef, write: Append, expired: Session) -> Appended:
        ended = await self._life.expire(expired)
        if ended and not self._life.durable:
            raise SessionNotFound(ref.id)
        # Whoever expects the version that they have seen has seen it closed already.
        expect = write.expect + 1 if ended and write.expect is not None else write.expect
        return await self.inner.append(ref, msgspec.structs.replace(write, expect=expect, ttl=None))

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """See `Store.update`. A change of what has expired does not bring it back."""
        old = await self.inner.get(ref)
        if self._life.expired(old):
            stale = self._life.durable and expect is not None and expect != old.version
            ended = not stale and await self._life.expire(old)
            if ended and not self._life.durable:
                raise SessionNotFound(ref.id)
            expect = expect + 1 if ended and expect is not None else expect
        changed = await self.inner.update(ref, patch, timestamp=timestamp, expect=expect)
        return await self._living(changed)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        """See `Store.remove`."""
        return await self._gone(ref, partial(self.inner.remove, expect=expect, artifacts=artifacts))

    async def _gone(self, ref: SessionRef, remove: Callable[[SessionRef], Awaitable[T]]) -> T:
        """What `remove` says of a session, which is counted no more."""
        try:
            session: Session | None = await self.get(ref)
        except SessionNotFound:
            session = None
        did = await remove(ref)
        if did and session is not None and not ref.withdrawn:
            self._life.over(session, "delete")
        return did

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store.replace`. Of one that has expired the end is told; it ends with the write that takes its place."""
        life = self._life
        await life.counted()
        try:
            old: Session | None = await (self.inner if life.durable else self).get(new.ref)
        except SessionNotFound:
            old = None
        ending = None if old is None or more.get("fresh") else life.replaced(old)
        if ending is not None:
            more["ending"] = ending
        life.begin_change()
        try:
            installed = await self.inner.replace(new, entries, **more)
            was, now = old is not None and old.status == "active", installed.session.status == "active"
            if installed.ended and old is not None and ending is not None:
                was = False
                life.tell(old, ending)
            life.grew(new.ref, now - was)
            if old is not None and old.identity != installed.session.identity:
                life.on_over(old)
        finally:
            life.end_change()
        if now and not was:
            await life.evict(but=new.ref)
        return installed

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            method = getattr(self.inner, name)
            if name not in _OF_A_SESSION or self._life.durable:
                return method
            return self._looked_for(method)

    def _looked_for(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(ref: Scope, *args: Any, **kwargs: Any) -> Any:
            if isinstance(ref, SessionRef):
                await self.get(ref)
            return await method(ref, *args, **kwargs)

        return call

"""The store contract on top of any database: what a driver has to bring is a `Database`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from holdfast.domain.artifact import Scope, UserRef
from holdfast.domain.fact_choices import Choice
from holdfast.domain.session import (
    Ending,
    Entry,
    ModelCall,
    NewEntry,
    Removed,
    Session,
    SessionRef,
    StoredCompaction,
)
from holdfast.domain.state import Change
from holdfast.errors import StoreClosed, StoreCorrupt, StoreUnavailable
from holdfast.limits import ENDING_ERROR_CHARS, LEARNED_BYTES, SIGHTINGS
from holdfast.stores import checks
from holdfast.stores.keys import ApiKey
from holdfast.stores.log import Append, Appended, WindowRows
from holdfast.stores.logic import (
    claims,
    keys,
    lifecycle,
    matching,
    media,
    overlays,
    reads,
    state,
    tenants,
    writes,
)
from holdfast.stores.logic.artifact_store import ArtifactMethods
from holdfast.stores.logic.database import Database
from holdfast.stores.logic.memory_store import MemoryMethods
from holdfast.stores.logic.origin_store import OriginMethods
from holdfast.stores.logic.steps import Steps
from holdfast.stores.matching import Sighting
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch
from holdfast.stores.state import ScopedState

T = TypeVar("T")


_media_of: Final = attrgetter("media")
PING_BYTES: Final = 1 << 20
"""Bytes that `ping` writes after a write was refused: about a turn with a large message."""


class _Writes:
    """What the handles of a database know of its writes.

    Attributes:
        refused: whether one was refused since the last `ping` that was not.
    """

    refused = False


class LogicStore(ArtifactMethods, MemoryMethods, OriginMethods):
    """A handle of one tenant; see `holdfast.stores.base.Store`. It checks, and leaves the rest to the steps."""

    durable = True
    """See `Store.durable`."""

    def __init__(self, database: Database, tenant: str, *, owner: bool) -> None:
        checks.check_id(tenant, "tenant")
        self.tenant = tenant
        self.database = database
        self._owner = owner
        self._closed = False
        self._writes = _Writes()

    def for_tenant(self, tenant: str) -> Self:
        """See `Store.for_tenant`."""
        handle = type(self)(self.database, tenant, owner=False)
        handle._writes = self._writes  # noqa: SLF001 - a handle of the same class
        return handle

    async def create(self, new: NewSession) -> Session:
        """See `Store.create`."""
        checks.check_new_session(new)
        return await self._write(partial(writes.create, self.tenant, new), new.ref, sharing=new.state)

    async def get(self, ref: SessionRef) -> Session:
        """See `Store.get`."""
        checks.check_ref(ref)
        return await self._read(partial(reads.get, self.tenant, ref), single=True, ref=ref)

    async def find(self, session_id: str) -> Session:
        """See `Store.find`."""
        checks.check_id(session_id, "session_id")
        return await self._read(partial(reads.find, self.tenant, session_id), single=True)

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        now: int | None = None,
        ttl: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
    ) -> SessionPage:
        """See `Store.list`."""
        checks.check_limit(limit)
        checks.check_filters(
            {"user_id": user_id, "agent": agent, "status": status, "now": now, "ttl": ttl, "after": after}
        )
        steps = partial(
            reads.list_sessions,
            self.tenant,
            user_id=user_id,
            agent=agent,
            status=status,
            now=now,
            ttl=ttl,
            limit=limit,
            after=after,
            descending=descending,
        )
        return await self._read(steps, single=after is None)

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """See `Store.update`."""
        checks.check_ref(ref)
        checks.check_patch(patch)
        checks.check_int(timestamp, "timestamp")
        steps = partial(writes.update, self.tenant, ref, patch, timestamp, expect)
        return await self._write(steps, ref, sharing=patch.state or None)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        """See `Store.remove`."""
        checks.check_ref(ref)
        steps = partial(writes.remove, self.tenant, ref, expect=expect, holding=artifacts)
        return await self._write(steps, ref, scrub=True)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store.append`."""
        checks.check_ref(ref)
        checks.check_append(write)
        payloads = checks.payloads_of(write.entries)
        named = any(map(_media_of, write.entries))
        light = write.retire_from is None and not write.compactions and not named
        steps = partial(writes.append, self.tenant, ref, write, payloads)
        return await self._write(steps, ref, light=light, sharing=write.state_delta)

    async def replace(
        self,
        new: NewSession,
        entries: Sequence[NewEntry],
        *,
        fresh: bool = False,
        ending: Ending | None = None,
        media: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> Appended:
        """See `Store.replace`."""
        checks.check_new_session(new, past=True)
        checks.check_media(media)
        if ending is not None:
            checks.check_ending(ending, of=new.ref)
        payloads = checks.payloads_of(entries)
        steps = partial(writes.replace, self.tenant, new, entries, payloads, fresh=fresh, ending=ending, media=media)
        return await self._write(steps, new.ref, scrub=not fresh)  # what takes nobody's place removes nothing

    async def want(self, ref: SessionRef, holder: str) -> None:
        """See `Store.want`."""
        checks.check_ref(ref)
        checks.check_id(holder, "holder")
        await self._write(partial(claims.want, self.tenant, ref, holder), ref)

    async def annotate(
        self,
        ref: SessionRef,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Mapping[str, str] | None = None,
        facts: Mapping[int, Choice] | None = None,
    ) -> Entry:
        """See `Store.annotate`."""
        checks.check_ref(ref)
        checks.check_int(seq, "seq")
        checks.check_importance(importance)
        steps = partial(writes.annotate, self.tenant, ref, seq, pinned=pinned, importance=importance)
        return await self._write(partial(steps, refused_by=refused_by, facts=facts), ref)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """See `Store.erase`."""
        checks.check_ref(ref)
        checks.check_int(seq, "seq")
        checks.check_int(tokens, "tokens", none=True, low=0)
        return await self._write(partial(writes.erase, self.tenant, ref, seq, tokens), ref, scrub=True)

    async def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> int:
        """See `Store.rate`."""
        checks.check_ref(ref)
        checks.check_importances(importances)
        return await self._write(partial(writes.rate, self.tenant, ref, importances), ref)

    async def drop_compaction(self, ref: SessionRef, id: int, *, timestamp: int) -> StoredCompaction:  # noqa: A002 - what it is called
        """See `Store.drop_compaction`."""
        checks.check_ref(ref)
        return await self._write(partial(overlays.drop, self.tenant, ref, id, timestamp), ref)

    async def entries(
        self,
        ref: SessionRef,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        descending: bool = False,
        retired: bool = False,
    ) -> tuple[Entry, ...]:
        """See `Store.entries`."""
        checks.check_ref(ref)
        if limit is not None:
            checks.check_limit(limit, lowest=0, highest=None)
        flags = {"descending": descending, "retired": retired}
        return await self._read(
            partial(reads.entries, self.tenant, ref, start=start, stop=stop, limit=limit, **flags), ref=ref
        )

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """See `Store.window`."""
        checks.check_ref(ref)
        return await self._read(partial(reads.window, self.tenant, ref, view), ref=ref)

    async def compactions(
        self, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> tuple[StoredCompaction, ...]:
        """See `Store.compactions`."""
        checks.check_ref(ref)
        return await self._read(partial(reads.compactions, self.tenant, ref, view, live=live), ref=ref)

    async def calls(self, ref: SessionRef, *, limit: int = 100, turn_id: int | None = None) -> tuple[ModelCall, ...]:
        """See `Store.calls`."""
        checks.check_ref(ref)
        checks.check_limit(limit)
        return await self._read(partial(reads.calls, self.tenant, ref, limit, turn_id), ref=ref)

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        """See `Store.touch`."""
        checks.check_ref(ref)
        await self._write(partial(lifecycle.touch, self.tenant, ref, timestamp), ref)

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """See `Store.end`."""
        checks.check_ending(ending)
        ref = SessionRef(ending.user_id, ending.session_id)
        return await self._write(partial(lifecycle.end, self.tenant, ending, idle_since), ref)

    async def record_ending(self, ending: Ending) -> None:
        """See `Store.record_ending`."""
        checks.check_ending(ending)
        ref = SessionRef(ending.user_id, ending.session_id)
        await self._write(partial(lifecycle.record_ending, self.tenant, ending), ref)

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        """See `Store.endings`."""
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.endings, self.tenant, due, limit), single=True)

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """See `Store.endings_of`."""
        checks.check_id(user_id, "user_id")
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.endings_of, self.tenant, user_id, after, limit), single=True)

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        """See `Store.settle`."""
        checks.check_id(ending_id, "ending_id")
        told = None if error is None else error[:ENDING_ERROR_CHARS]
        return await self._write(partial(lifecycle.settle, self.tenant, ending_id, delivered, due_at, told))

    async def forget_ending(self, ending_id: str) -> None:
        """See `Store.forget_ending`."""
        checks.check_id(ending_id, "ending_id")
        await self._write(partial(lifecycle.forget_ending, self.tenant, ending_id))

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        """See `Store.idle`."""
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.idle, self.tenant, now, ttl, limit))

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """See `Store.oldest`."""
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.oldest, self.tenant, limit), single=True)

    async def active(self) -> int:
        """See `Store.active`."""
        return await self._read(partial(lifecycle.active, self.tenant), single=True)

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """See `Store.tenants`."""
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.tenants, after, limit))

    # -- matching and media ----------------------------------------------------

    async def sightings(
        self,
        user_id: str,
        marks: Sequence[bytes],
        *,
        alias: bool = False,
        session: SessionRef | None = None,
        limit: int = 16,
        ends: bool = False,
    ) -> tuple[Sighting, ...]:
        """See `MatchingStore.sightings`."""
        checks.check_marks(user_id, marks, session)
        checks.check_limit(limit, highest=SIGHTINGS)
        if ends:
            return await self._read(partial(matching.endings, self.tenant, user_id, marks, limit))
        steps = partial(matching.sightings, self.tenant, user_id, marks, alias=alias, session=session, limit=limit)
        return await self._read(steps)

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        """See `LogStore.media`."""
        checks.check_ref(ref)
        return await self._read(partial(media.media, self.tenant, ref, hashes), ref=ref)

    # -- shared state ----------------------------------------------------------

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        """See `StateStore.state`."""
        checks.check_state_names(user_id, names or ())
        return await self._read(partial(state.read, self.tenant, user_id, names, known), single=True)

    async def change_state(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        """See `StateStore.change_state`."""
        checks.check_scope_state(user_id, delta, values)
        steps = partial(state.change, self.tenant, user_id, delta, timestamp, expect=expect, values=values)
        return await self._write(steps, UserRef(user_id or ""))

    async def drop_state(self, user_id: str | None) -> int:
        """See `StateStore.drop_state`."""
        checks.check_state_names(user_id, ())
        return await self._write(partial(state.drop, self.tenant, user_id), UserRef(user_id or ""), scrub=True)

    # -- API keys --------------------------------------------------------------

    async def add_key(self, key: ApiKey) -> None:
        """See `KeyStore.add_key`."""
        checks.check_key(key)
        await self._write(partial(keys.add, self.tenant, key))

    async def key_of(self, hash: bytes) -> ApiKey | None:  # noqa: A002 - what it is
        """See `KeyStore.key_of`."""
        checks.check_hash(hash, "hash")
        return await self._read(partial(keys.of_hash, self.tenant, hash), single=True)

    async def keys(self, *, after: str = "", limit: int = 100) -> Sequence[ApiKey]:
        """See `KeyStore.keys`."""
        checks.check_limit(limit)
        return await self._read(partial(keys.keys, self.tenant, after, limit), single=True)

    async def revoke_key(self, key_id: str, *, timestamp: int) -> ApiKey:
        """See `KeyStore.revoke_key`."""
        checks.check_id(key_id, "key_id")
        return await self._write(partial(keys.revoke, self.tenant, key_id, timestamp))

    async def use_key(self, key_id: str, *, timestamp: int) -> None:
        """See `KeyStore.use_key`."""
        checks.check_id(key_id, "key_id")
        await self._write(partial(keys.use, self.tenant, key_id, timestamp))

    # -- what belongs to the tenant --------------------------------------------

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        """See `Store.lease`."""
        checks.check_lease(name, holder, now, until)
        return await self._write(partial(tenants.lease, self.tenant, name, holder, now, until))

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """See `Store.leased_by`."""
        checks.check_id(name, "name")
        return await self._read(partial(tenants.leased_by, self.tenant, name, now), single=True)

    async def release(self, name: str, holder: str) -> None:
        """See `Store.release`."""
        checks.check_id(name, "name")
        checks.check_id(holder, "holder")
        await self._write(partial(tenants.release, self.tenant, name, holder))

    async def learned(self, model: str) -> bytes | None:
        """See `Store.learned`."""
        checks.check_id(model, "model")
        return await self._read(partial(reads.learned, self.tenant, model), single=True)

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        """See `Store.learn`."""
        checks.check_id(model, "model")
        checks.check_size(len(data), "data", LEARNED_BYTES)
        return await self._write(partial(tenants.learn, self.tenant, model, data, timestamp, expect))

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._read(reads.ping, single=True)
        if self._closed:
            raise StoreClosed
        # A disk may have room for a small write after it refused a turn: then that does not show that turns can be stored.
        room = PING_BYTES if self._writes.refused else 0
        await self.database.write(partial(writes.ping, room), scrub=False, queue=None, light=False)
        self._writes.refused = False

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        if self._owner:
            await self.database.close()

    async def _read(self, steps: Callable[[], Steps[T]], *, single: bool = False, ref: SessionRef | None = None) -> T:
        """Run a read. An error about damaged data names `ref`, the session that is read."""
        if self._closed:
            raise StoreClosed
        try:
            return await self.database.read(steps, single=single)
        except StoreCorrupt as exc:
            raise naming(exc, ref) from exc

    async def _write(
        self,
        steps: Callable[[], Steps[T]],
        scope: Scope | None = None,
        *,
        scrub: bool = False,
        light: bool = False,
        sharing: Mapping[str, Change] | UnsetType | None = None,
    ) -> T:
        if self._closed:
            raise StoreClosed
        queue = None if scope is None else (self.tenant, *astuple(scope))
        try:
            if sharing and scope is not None and (behind := self._shared(scope, sharing)):
                return await self.database.write(steps, scrub=scrub, queue=queue, behind=behind)
            return await self.database.write(steps, scrub=scrub, queue=queue, light=light)
        except StoreCorrupt as exc:
            raise naming(exc, scope) from exc
        except StoreUnavailable:
            self._writes.refused = True  # see `ping`
            raise

    async def _queued(self, steps: Callable[[], Steps[T]], queue: Hashable, *, scrub: bool = False) -> T:
        if self._closed:
            raise StoreClosed
        return await self.database.write(steps, scrub=scrub, queue=queue)

    def _shared(self, scope: Scope, delta: Mapping[str, Change]) -> Sequence[Hashable]:
        """The queues of scopes that changes of a session's state reach, besides its own."""
        return [(self.tenant, user_id) for user_id in state.reached(scope.user_id, delta)]


def naming(error: StoreCorrupt, scope: Scope | None) -> StoreCorrupt:
    """Return the error with the session that it is about, if it is about one and does not name it yet."""
    if not isinstance(scope, SessionRef) or error.session_id is not None:
        return error
    return error.naming(scope.user_id, scope.id)

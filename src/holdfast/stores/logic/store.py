"""The store contract for any database that runs named statements. A driver only has to provide a `Database`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.artifact import UserRef
from holdfast.domain.fact_choices import STANDING_FACTS, Choice
from holdfast.domain.history import Past
from holdfast.domain.origins import copy_prefix_origins, get_ranges
from holdfast.domain.record import PutRecord
from holdfast.domain.session import (
    Ending,
    Entry,
    ModelCall,
    NewEntry,
    Receipt,
    Session,
    SessionRef,
    StoredCompaction,
)
from holdfast.domain.state import Change
from holdfast.errors import SessionExists, SessionNotFound, StoreClosed
from holdfast.limits import ENDING_ERROR_CHARS
from holdfast.stores import checks
from holdfast.stores.log import Append, Appended, WindowRows
from holdfast.stores.logic import (
    compactions,
    lifecycle,
    media,
    reads,
    state,
    writes,
)
from holdfast.stores.logic.artifacts import ArtifactMethods
from holdfast.stores.logic.matching import MatchingMethods, add_origins, keep_origins, read_origins
from holdfast.stores.logic.memories import MemoryMethods
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.records import RecordMethods
from holdfast.stores.logic.rows import decode_intact_session
from holdfast.stores.logic.steps import Query, Steps
from holdfast.stores.logic.tenants import DeletionMethods, TenantMethods
from holdfast.stores.logic.writes import insert_session, rewind_tail
from holdfast.stores.record_checks import encode_changes_off_loop
from holdfast.stores.session_changes import install_session, refuse_reshaped
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch
from holdfast.stores.state import ScopedState

_media_of: Final = attrgetter("media")
PING_BYTES: Final = 1 << 20
"""Number of bytes that `ping` writes after a write has failed: about the size of a turn with a large message."""


class LogicStore(ArtifactMethods, MemoryMethods, RecordMethods, MatchingMethods, DeletionMethods, TenantMethods):
    """A store handle of one tenant (`holdfast.stores.base.Store`) on a SQL database.

    Its methods check arguments and run the generators of statements.
    """

    async def create(self, new: NewSession) -> Session:
        checks.check_new_session(new)
        return await self._write(partial(writes.create_session, self.tenant, new), new.ref, sharing=new.state)

    async def get(self, ref: SessionRef) -> Session:
        checks.check_ref(ref)
        return await self._read(partial(reads.read_session, self.tenant, ref), single=True, ref=ref)

    async def find(self, session_id: str) -> Session:
        checks.check_id(session_id, "session_id")
        return await self._read(partial(reads.find_session, self.tenant, session_id), single=True)

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        since: int | None = None,
        until: int | None = None,
        now: int | None = None,
        ttl: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
    ) -> SessionPage:
        checks.check_limit(limit)
        filters: dict[str, Any] = {"user_id": user_id, "agent": agent, "status": status, "since": since, "until": until}
        filters |= {"now": now, "ttl": ttl, "after": after}
        checks.check_filters(filters)
        steps = partial(reads.list_sessions, self.tenant, **filters, limit=limit, descending=descending)
        return await self._read(steps, single=after is None)

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        checks.check_ref(ref)
        checks.check_patch(patch)
        checks.check_int(timestamp, "timestamp")
        steps = partial(writes.update_session, self.tenant, ref, patch, timestamp, expect)
        return await self._write(steps, ref, sharing=patch.state or None)

    async def remove(
        self,
        ref: SessionRef,
        *,
        expect: int | None = None,
        artifacts: int | None = None,
        records: int | None = None,
    ) -> Receipt | None:
        checks.check_ref(ref)
        held = (artifacts, records)
        steps = partial(writes.remove_session, self.tenant, ref, expect=expect, held=held)
        counts, dropped = await self._write(steps, ref, scrub=True)
        dropped = await self._purge_records(dropped)
        return counts and evolve(counts, records=dropped.records, record_bytes=dropped.bytes)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        checks.check_ref(ref)
        checks.check_append(write)
        payloads = checks.encode_payloads(write.entries)
        named = any(map(_media_of, write.entries))
        light = write.retire_from is None and not write.compactions and not write.records and not named
        changes = await encode_changes_off_loop(write.records) if write.records else ()
        steps = partial(writes.append_entries, self.tenant, ref, write, payloads, changes)
        return await self._write(steps, ref, light=light, sharing=write.state_delta)

    async def replace(
        self,
        new: NewSession,
        entries: Sequence[NewEntry],
        *,
        fresh: bool = False,
        ending: Ending | None = None,
        media: Mapping[bytes, bytes] = MappingProxyType({}),
        records: Sequence[PutRecord] = (),
    ) -> Appended:
        checks.check_new_session(new, past=True)
        checks.check_media(media)
        if ending is not None:
            checks.check_ending(ending, of=new.ref)
        payloads = checks.encode_payloads(entries)
        steps = partial(
            writes.replace_session, self.tenant, new, entries, payloads, fresh=fresh, ending=ending, media=media
        )
        steps = partial(steps, records=await encode_changes_off_loop(records, unlimited=True))
        # A session that does not replace another one removes nothing.
        appended, dropped = await self._write(steps, new.ref, scrub=not fresh)
        await self._purge_records(dropped)
        return appended

    async def fork(self, new: NewSession, source: Session, stop: int, *, pins: bool = True) -> Session | None:
        checks.check_new_session(new, past=True)
        checks.check_int(stop, "stop", low=0)
        steps = partial(fork_session, self.tenant, new, source, stop, pins=pins)
        return await self._write(steps, source.ref)

    async def want(self, ref: SessionRef, holder: str) -> None:
        checks.check_ref(ref)
        checks.check_id(holder, "holder")
        await self._write(partial(writes.mark_claim_wanted, self.tenant, ref, holder), ref)

    async def annotate(
        self,
        ref: SessionRef,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Mapping[str, Any] | None = None,
        facts: Mapping[int, Choice] | None = None,
    ) -> Entry:
        checks.check_ref(ref)
        checks.check_int(seq, "seq")
        checks.check_importance(importance)
        steps = partial(writes.annotate_entry, self.tenant, ref, seq, pinned=pinned, importance=importance)
        return await self._write(partial(steps, refused_by=refused_by, facts=facts), ref)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        checks.check_ref(ref)
        checks.check_int(seq, "seq")
        checks.check_int(tokens, "tokens", none=True, low=0)
        return await self._write(partial(writes.erase_entry, self.tenant, ref, seq, tokens), ref, scrub=True)

    async def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> int:
        checks.check_ref(ref)
        checks.check_importances(importances)
        return await self._write(partial(writes.rate_entries, self.tenant, ref, importances), ref)

    async def drop_compaction(self, ref: SessionRef, id: int, *, timestamp: int) -> StoredCompaction:  # noqa: A002 - its name in the API
        checks.check_ref(ref)
        checks.check_int(id, "compaction_id")
        return await self._write(partial(compactions.drop_compaction, self.tenant, ref, id, timestamp), ref)

    async def entries(
        self,
        ref: SessionRef,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        descending: bool = False,
        retired: bool = False,
        notes: bool = False,
    ) -> tuple[Entry, ...]:
        checks.check_ref(ref)
        if limit is not None:
            checks.check_limit(limit, lowest=0, highest=None)
        flags = {"descending": descending, "retired": retired, "notes": notes}
        return await self._read(
            partial(reads.read_entries, self.tenant, ref, start=start, stop=stop, limit=limit, **flags), ref=ref
        )

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        checks.check_ref(ref)
        return await self._read(partial(reads.read_window, self.tenant, ref, view), ref=ref)

    async def compactions(
        self, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> tuple[StoredCompaction, ...]:
        checks.check_ref(ref)
        return await self._read(partial(reads.list_compactions, self.tenant, ref, view, live=live), ref=ref)

    async def calls(
        self,
        ref: SessionRef,
        *,
        limit: int = 100,
        turn_id: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        descending: bool = True,
    ) -> tuple[ModelCall, ...]:
        checks.check_ref(ref)
        checks.check_limit(limit)
        turns = checks.bound_turns(turn_id, start, stop, descending=descending)
        return await self._read(
            partial(reads.list_calls, self.tenant, ref, limit, turns, descending=descending), ref=ref
        )

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        checks.check_ref(ref)
        await self._write(partial(lifecycle.touch_session, self.tenant, ref, timestamp), ref)

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        checks.check_ending(ending)
        ref = SessionRef(ending.user_id, ending.session_id)
        return await self._write(partial(lifecycle.end_session, self.tenant, ending, idle_since), ref)

    async def record_ending(self, ending: Ending) -> None:
        checks.check_ending(ending)
        ref = SessionRef(ending.user_id, ending.session_id)
        await self._write(partial(lifecycle.record_ending, self.tenant, ending), ref)

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.list_due_endings, self.tenant, due, limit), single=True)

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        checks.check_id(user_id, "user_id")
        checks.check_limit(limit)
        return await self._read(
            partial(lifecycle.list_endings_of_user, self.tenant, user_id, after, limit), single=True
        )

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        checks.check_id(ending_id, "ending_id")
        cut = None if error is None else error[:ENDING_ERROR_CHARS]
        return await self._write(partial(lifecycle.settle_ending, self.tenant, ending_id, delivered, due_at, cut))

    async def forget_ending(self, ending_id: str) -> None:
        checks.check_id(ending_id, "ending_id")
        await self._write(partial(lifecycle.forget_ending, self.tenant, ending_id))

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.list_idle, self.tenant, now, ttl, limit))

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        checks.check_limit(limit)
        return await self._read(partial(lifecycle.list_oldest, self.tenant, limit), single=True)

    async def active(self) -> int:
        return await self._read(partial(lifecycle.count_active, self.tenant), single=True)

    # -- matching and media ----------------------------------------------------

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        checks.check_ref(ref)
        return await self._read(partial(media.read_media, self.tenant, ref, hashes), ref=ref)

    # -- shared state ----------------------------------------------------------

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        checks.check_state_names(user_id, names or ())
        return await self._read(partial(state.read_state, self.tenant, user_id, names, known), single=True)

    async def change_state(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        checks.check_scope_state(user_id, delta, values)
        steps = partial(state.change_state, self.tenant, user_id, delta, timestamp, expect=expect, values=values)
        return await self._write(steps, UserRef(user_id or ""))

    async def drop_state(self, user_id: str | None) -> int:
        checks.check_state_names(user_id, ())
        return await self._write(partial(state.drop_state, self.tenant, user_id), UserRef(user_id or ""), scrub=True)

    async def ping(self) -> None:
        await self._read(reads.ping, single=True)
        if self._closed:
            raise StoreClosed
        # A full disk may still accept a small write, which would not prove that turns can be stored.
        room = PING_BYTES if self._writes.refused else 0
        await self.database.write(partial(writes.write_ping, room), scrub=False, queue=None, light=False)
        self._writes.refused = False

    async def close(self) -> None:
        self._closed = True
        if self._owner:
            await self.database.close()


def fork_session(tenant: str, new: NewSession, source: Session, stop: int, *, pins: bool) -> Steps[Session | None]:
    """Create a session with copies of the entries before `stop`. Return None if these cannot be copied without changes.

    Raises:
        SessionNotFound: there is no such session any more.
        SessionExists: there is a session with the name of the new one.
        StaleSession: entries of the session were retired, erased or pinned since `source` was read.
    """
    row = yield from read_session_row(tenant, source.ref)
    parent = decode_intact_session(row)
    if parent.identity != source.identity:
        raise SessionNotFound(source.id)
    refuse_reshaped(parent, source.version)
    if (yield Query("session_get", (tenant, new.id, new.user_id, ""))):
        raise SessionExists(new.id)
    ((count, live, end, size, pinned, chosen),) = yield Query("log_extent", (row[0], stop, STANDING_FACTS.encode()))
    if not count or end != count or (chosen and not pins):
        return None
    _, tail = yield from rewind_tail(row[0], parent.tail, count)
    past = Past(created_at=new.timestamp, updated_at=new.timestamp)
    session = install_session(
        tenant, new, past, None, evolve(tail, next_seq=count), live=int(live or 0), size=int(size or 0)
    )
    pk = yield from insert_session(session)
    for statement in ("log_copy_live", "log_copy_notes", "media_copy", "media_uses_copy"):
        yield Query(statement, (pk, row[0], count))
    if pinned and not pins:
        yield Query("log_unpin", (pk,))
    known = get_ranges((yield from read_origins(tenant, source.ref)), source.identity)
    yield from add_origins(row[0], tenant, source.ref, source.identity, ())
    yield from keep_origins(pk, copy_prefix_origins(known, count, new.identity))
    return session

"""Create, read, list, change, replace and remove sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.history import Past, rebuild_log
from holdfast.domain.messages import encode_payload
from holdfast.domain.origins import copy_prefix_origins, get_ranges
from holdfast.domain.record import PutRecord
from holdfast.domain.session import Ending, NewEntry, Receipt, Session, SessionRef
from holdfast.errors import AmbiguousSession, SessionExists, SessionNotFound
from holdfast.stores import checks
from holdfast.stores.log import Appended
from holdfast.stores.logic.due import note_removed_session
from holdfast.stores.logic.handle import read_session_row, reads, writes
from holdfast.stores.logic.lifecycle import write_end
from holdfast.stores.logic.log import drop_aliases, insert_calls, rewind_tail, save_profile
from holdfast.stores.logic.matching import add_origins, keep_origins, read_origins
from holdfast.stores.logic.media import keep_media, select_new_media
from holdfast.stores.logic.owners import read_owner
from holdfast.stores.logic.records import (
    DroppedRecords,
    EncodedChange,
    RecordStore,
    change_owned,
    drop_owned,
    encode_changes_off_loop,
    make_record_key,
)
from holdfast.stores.logic.rows import (
    ENDLESS,
    decode_intact_session,
    decode_session,
    encode_counters,
    encode_entries,
    encode_profile,
)
from holdfast.stores.logic.state import change_scopes
from holdfast.stores.logic.steps import Many, Query, Row, Steps
from holdfast.stores.matching import make_scope
from holdfast.stores.session_changes import (
    check_version,
    install_session,
    make_session,
    patch_session,
    refuse_other_contents,
    refuse_reshaped,
)
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch

_SESSION_DELETES = (
    "artifacts_delete",
    "entries_delete_live",
    "entries_delete_retired",
    "views_delete",
    "compactions_delete",
    "idempotency_delete",
    "turn_keys_forget",
    "turn_keys_release",
    "calls_delete",
    "prompt_texts_delete",
    "media_uses_delete",
    "media_delete",
    "origins_delete",
    "profile_delete",
    "session_delete",
)


class SessionStore(RecordStore):
    """Create, read, list, change, replace and remove sessions. `holdfast.stores.sessions` describes what all methods promise."""

    async def create(self, new: NewSession) -> Session:
        """Create a session with an empty log. Raises `SessionExists` if a session with this id exists already."""
        checks.check_new_session(new)

        def steps() -> Steps[Session]:
            if (yield Query("session_get", (self.tenant, new.id, new.user_id, ""))):
                raise SessionExists(new.id)
            session = make_session(self.tenant, new)
            yield from change_scopes(self.tenant, new.user_id, new.state, new.timestamp)
            yield from _insert_session(session)
            return session

        return await self._write(steps, new.ref, sharing=new.state)

    @reads(single=True, short=True)
    def get(self, ref: SessionRef) -> Steps[Session]:
        """Return a session without its log. Raises `SessionNotFound` if the session does not exist."""
        checks.check_ref(ref)
        return decode_session((yield from read_session_row(self.tenant, ref)))

    async def find(self, session_id: str) -> Session:
        """Return the session with this id, regardless of the user that it belongs to.

        Raises:
            SessionNotFound: no user has such a session.
            AmbiguousSession: several users have one.
        """
        checks.check_id(session_id, "session_id")
        found = await self._select(decode_session, "session_find", session_id)
        if not found:
            raise SessionNotFound(session_id)
        if len(found) > 1:
            raise AmbiguousSession(session_id)
        return found[0]

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
        unplaced: bool = True,
    ) -> SessionPage:
        """List sessions in order of `updated_at`, then user, then id.

        Args:
            user_id: only sessions of this user.
            agent: only sessions of this agent.
            status: only sessions with this status, `active` or `closed`. If `now` is given, an active session that has expired
                is treated as closed (`Session.is_expired`), although its stored status is still `active`.
            since: only sessions whose `updated_at` is at this time or later, in milliseconds since the epoch.
            until: only sessions whose `updated_at` is before this time.
            now: the current time, in milliseconds since the epoch.
            ttl: milliseconds of idle time after which a session without its own ttl expires.
            limit: maximum number of sessions, 1 to `PAGE`.
            after: return the sessions after this one, at its present position in the list; raises `SessionNotFound` if it is
                gone.
            descending: if True, the newest session comes first.
            unplaced: False leaves out unplaced sessions.
        """
        checks.check_limit(limit)
        filters: dict[str, Any] = {"user_id": user_id, "agent": agent, "status": status, "since": since, "until": until}
        checks.check_filters(filters | {"now": now, "ttl": ttl, "after": after})
        first, end = -ENDLESS if since is None else since, ENDLESS if until is None else until
        name = ("list_newest" if descending else "list_oldest") + ("" if user_id is None else "_of_user")

        def steps() -> Steps[SessionPage]:
            place: Row = (end if descending else first, user_id or "", "")
            if after is not None:
                last = decode_session((yield from read_session_row(self.tenant, after)))
                if first <= last.updated_at < end:
                    place = (last.updated_at, last.user_id if user_id is None else user_id, last.id)
            idle_since = now - ttl if now is not None and ttl else None
            rows = yield Query(
                name, (self.tenant, *place, agent, status, limit + 1, now, idle_since, int(not unplaced))
            )
            found = [session for session in map(decode_session, rows) if first <= session.updated_at < end]
            return SessionPage(tuple(found[:limit]), len(found) > limit)

        return await self._read(steps, single=after is None)

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """Change a session's own fields.

        Raises:
            SessionNotFound: the session does not exist.
            StaleSession: `expect` is given, and the session has another version.
        """
        checks.check_ref(ref)
        checks.check_patch(patch)
        checks.check_int(timestamp, "timestamp")

        def steps() -> Steps[Session]:
            row = yield from read_session_row(self.tenant, ref)
            old = decode_session(row)
            session = patch_session(old, patch, timestamp)
            check_version(old, expect)
            delta = {} if isinstance(patch.state, UnsetType) else patch.state
            yield from change_scopes(self.tenant, old.user_id, delta, timestamp)
            yield Query("session_patch", (row[0], session.version, session.updated_at, session.agent, session.ttl))
            yield from save_profile(row[0], session, old)
            return session

        return await self._write(steps, ref, sharing=patch.state or None)

    async def remove(
        self,
        ref: SessionRef,
        *,
        expect: int | None = None,
        artifacts: int | None = None,
        records: int | None = None,
    ) -> Receipt | None:
        """Delete a session and everything that belongs to it. Return counts of the deleted data, or None if there was no such session.

        Args:
            ref: the session.
            expect: the version that the session must have, else `StaleSession`; None: any.
            artifacts: the number of artifact versions that the session must have, else `Conflict`; None: any.
            records: the version that the session must have as an owner of records (`RecordPage.version`), else `Conflict`; None: any.
        """
        checks.check_ref(ref)
        steps = partial(_remove_session, self.tenant, ref, expect=expect, held=(artifacts, records))
        counts, dropped = await self._write(steps, ref, scrub=True)
        dropped = await self._purge_records(dropped)
        return counts and evolve(counts, records=dropped.records, record_bytes=dropped.bytes)

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
        """Store a whole session. If a session of the same name exists, it is replaced.

        Nothing of the old session stays, but its version continues: a caller that expects an earlier version gets
        `StaleSession`.

        Args:
            new: the session. If `past` is set, times, end, usage and calls are taken from there, but the time of the last use is not
                before `timestamp`.
            entries: the whole log. An `OldEntry` may be retired or erased.
            fresh: if True, raise `SessionExists` if a session of that name exists.
            ending: if given, the old session is withdrawn with this ending instead of being deleted, unless it was used at
                `ended_at` or later.
            media: contents to which the entries refer, by SHA-256.
            records: records of the session, any number. They must not have an expected version.
        """
        checks.check_new_session(new, past=True)
        checks.check_media(media)
        payloads = checks.encode_payloads(entries)
        changes = await encode_changes_off_loop(records, unlimited=True)
        steps = partial(_replace_session, self.tenant, new, entries, payloads, fresh=fresh, ending=ending)
        steps = partial(steps, media=media, records=changes)
        # A session that does not replace another one removes nothing.
        appended, dropped = await self._write(steps, new.ref, scrub=not fresh)
        await self._purge_records(dropped)
        return appended

    async def fork(self, new: NewSession, source: Session, stop: int) -> Session | None:
        """Create a session that begins with copies of the entries before `stop` of another session of the same user.

        The copies have the same `seq` and origins as the entries, and the new session has its own media. Notes are copied. Compactions,
        views, calls and artifacts are not. Nothing is read into this process.

        Args:
            new: the new session, without origins.
            source: the other session, as last read.
            stop: the first `seq` that is not copied.

        Returns:
            The session; None if the store cannot copy these entries as they are, so that the caller must use `replace`. A store may
            always return None. All stores do so if entries before `stop` were retired, because their copies get another `seq`.

        Raises:
            SessionNotFound: `source` does not exist any more.
            SessionExists: there is a session with the name of the new one.
            StaleSession: entries of `source` were retired, erased or pinned since it was read.
        """
        checks.check_new_session(new, past=True)
        checks.check_int(stop, "stop", low=0)
        return await self._write(partial(_fork_session, self.tenant, new, source, stop), source.ref)

    @writes()
    def want(self, ref: SessionRef, holder: str) -> Steps[None]:
        """Mark the session's claim as wanted, which asks its holder to stop.

        Do nothing if the claim does not belong to `holder`.

        Raises:
            SessionNotFound: no such session.
        """
        checks.check_ref(ref)
        row = yield from read_session_row(self.tenant, ref)
        yield Query("claim_want", (row[0], holder))


def _remove_session(
    tenant: str, ref: SessionRef, *, expect: int | None, held: tuple[int | None, int | None]
) -> Steps[tuple[Receipt | None, DroppedRecords]]:
    """Delete a session and all its data.

    Returns:
        Counts of the deleted data without records, or None if there was no session; then the result of deleting its records.

    Args:
        tenant: the tenant.
        ref: the session.
        expect: the version that the session must have, else `StaleSession`; None: any.
        held: the number of artifact versions, and the version as an owner of records, that the session must have, else `Conflict`;
            None: any.
    """
    rows = yield Query("session_get", (tenant, ref.id, ref.user_id, ref.withdrawn))
    if not rows:
        return None, DroppedRecords()
    pk, session = rows[0][0], decode_session(rows[0])
    check_version(session, expect)
    counts = (yield Query("session_holds", (pk,)))[0]
    compactions, views, calls, keys, artifacts, size, media, media_bytes = counts
    refuse_other_contents(ref, artifacts, held[0], "artifact versions")
    owner = yield from read_owner(make_record_key(tenant, ref, pk))
    refuse_other_contents(ref, owner.version if owner else 0, held[1], "changes of records")
    dropped = yield from drop_owned(owner)
    yield from _delete_session(pk)
    yield Query("prompt_texts_of", (tenant, ref.user_id, ref.id, -1))
    yield from note_removed_session(tenant, ref)
    counted = Receipt(
        sessions=1,
        messages=session.messages,
        retired=session.tail.next_seq - session.messages,
        bytes=session.bytes,
        compactions=compactions,
        views=views,
        model_calls=calls,
        idempotency_keys=keys,
        state_keys=len(session.state),
        artifacts=artifacts,
        artifact_bytes=size,
        media=media,
        media_bytes=media_bytes,
    )
    return counted, dropped


def _replace_session(
    tenant: str,
    new: NewSession,
    entries: Sequence[NewEntry],
    payloads: Sequence[bytes],
    *,
    fresh: bool,
    ending: Ending | None,
    media: Mapping[bytes, bytes],
    records: Sequence[EncodedChange],
) -> Steps[tuple[Appended, DroppedRecords]]:
    """Store a whole session. If a session of the same name exists, it is replaced.

    Returns:
        The stored session, and the result of deleting the records of the replaced one.
    """
    past = new.past or Past(created_at=new.timestamp, updated_at=new.timestamp)
    written, tail, live = rebuild_log(entries)
    fresh_media = yield from select_new_media(None, entries, media)
    payloads = [
        encode_payload(one.message) if one.erased else as_sent for one, as_sent in zip(written, payloads, strict=True)
    ]
    rows = yield Query("session_get", (tenant, new.id, new.user_id, ""))
    if rows and fresh:
        raise SessionExists(new.id)
    old = decode_session(rows[0]) if rows else None
    ends = old is not None and ending is not None and old.accessed_at < ending.ended_at
    dropped = DroppedRecords()
    if old is not None and ends and ending is not None:
        yield from write_end(rows[0][0], old, ending)
    elif old is not None:
        dropped = yield from drop_owned((yield from read_owner(make_record_key(tenant, new.ref, rows[0][0]))))
        yield from _delete_session(rows[0][0])
    if old is not None or new.past is not None:  # a backfill does not find a session with an old time by itself
        yield from note_removed_session(tenant, new.ref)
    size = sum(map(len, payloads))
    session = install_session(tenant, new, past, old, tail, live=live, size=size)
    pk = yield from _insert_session(session)
    if written:
        yield Many("entry_insert", encode_entries(pk, written, payloads, make_scope(tenant, new.user_id)))
    yield from keep_media(pk, entries, written, fresh_media, media)
    yield from keep_origins(pk, new.origins)
    if records:
        yield from change_owned(make_record_key(tenant, new.ref, pk), new.ref, records, new.timestamp)
    if past.calls:
        yield from insert_calls(pk, past.calls)
    if session.accessed_at > past.updated_at:
        yield Query("session_used", (pk, session.accessed_at))
    if past.ended_at is not None:
        yield Query("session_end", (pk, session.version, past.ended_at, past.end_reason))
    return Appended(session, drop_aliases(written), session.version, ended=ends), dropped


def _fork_session(tenant: str, new: NewSession, source: Session, stop: int) -> Steps[Session | None]:
    """Create a session with copies of the entries before `stop`. Return None if these cannot be copied without changes.

    Raises:
        SessionNotFound: there is no such session any more.
        SessionExists: there is a session with the name of the new one.
        StaleSession: entries of the session were retired, erased or pinned since `source` was read.
    """
    row = yield from read_session_row(tenant, source.ref, source.identity)
    parent = decode_intact_session(row)
    refuse_reshaped(parent, source.version)
    if (yield Query("session_get", (tenant, new.id, new.user_id, ""))):
        raise SessionExists(new.id)
    ((count, live, end, size),) = yield Query("log_extent", (row[0], stop))
    if not count or end != count:
        return None
    _, tail = yield from rewind_tail(row[0], parent.tail, count)
    past = Past(created_at=new.timestamp, updated_at=new.timestamp)
    session = install_session(
        tenant, new, past, None, evolve(tail, next_seq=count), live=int(live or 0), size=int(size or 0)
    )
    pk = yield from _insert_session(session)
    for statement in ("log_copy_live", "log_copy_notes", "media_copy", "media_uses_copy"):
        yield Query(statement, (pk, row[0], count))
    known = get_ranges((yield from read_origins(tenant, source.ref)), source.identity)
    yield from add_origins(row[0], tenant, source.ref, source.identity, ())
    yield from keep_origins(pk, copy_prefix_origins(known, count, new.identity))
    return session


def _insert_session(session: Session) -> Steps[int]:
    """Insert the rows of a session without a log, and return its primary key."""
    names = (session.tenant, session.user_id, session.id, session.agent)
    times = (session.version, session.created_at, session.updated_at, session.status, session.ttl)
    rows = yield Query("session_insert", (*names, *times, *encode_counters(session), session.identity))
    pk: int = rows[0][0]
    large = encode_profile(session)
    if large is not None:
        yield Query("profile_put", (pk, *large))
    return pk


def _delete_session(pk: int) -> Steps[None]:
    for name in _SESSION_DELETES:
        yield Query(name, (pk,))

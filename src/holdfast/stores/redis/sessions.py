"""Create, read, change, replace, remove and list sessions, in Redis.

Each session is a hash, and is a member of the sorted sets from which lists are read. A page of a list is found by rank, so the time
to read a page does not depend on its position in the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.history import Past, rebuild_log
from holdfast.domain.messages import encode_payload
from holdfast.domain.record import PutRecord
from holdfast.domain.session import Claim, Ending, NewEntry, RemovalCounts, Session, SessionRef
from holdfast.errors import AmbiguousSession, SessionExists, SessionNotFound
from holdfast.stores import checks
from holdfast.stores.log import Appended
from holdfast.stores.record_checks import encode_changes_off_loop
from holdfast.stores.redis import lifecycle, matching, state
from holdfast.stores.redis.artifacts import decode_member, make_versions_command, release_contents
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import (
    Handle,
    load_sessions,
    read_transaction,
    resolve_session_keys,
    write_transaction,
)
from holdfast.stores.redis.keys import ScopeKeys, decode_names, encode_name
from holdfast.stores.redis.log import write_calls, write_entries
from holdfast.stores.redis.matching import store_origins
from holdfast.stores.redis.media import compute_totals, load_media_uses, store_media
from holdfast.stores.redis.owned_records import count_records, unlist_expiring, write_record_changes
from holdfast.stores.redis.records import build_session
from holdfast.stores.session_changes import (
    check_version,
    install_session,
    make_session,
    patch_session,
    refuse_other_contents,
)
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch

PAGE: Final = 500
"""Minimum number of members that are read at once from a list if filters may leave out some of them."""
SCAN_MEMBERS: Final = 5000
"""Number of members that one run of a script checks. The limit keeps the script from blocking other clients for long."""
_Place = tuple[bytes, float]
"""A member of a list of sessions, and its score, the time of the session's last change."""


def _resolve_new_keys(handle: Handle, new: NewSession) -> ScopeKeys:
    return resolve_session_keys(handle, new.ref)


class SessionMethods(Handle):
    """The methods of `holdfast.stores.sessions.SessionStore`."""

    @write_transaction(_resolve_new_keys)
    async def create(self, tx: Transaction, new: NewSession) -> Session:
        checks.check_new_session(new)
        session = make_session(self.tenant, new)
        await tx.read()
        if tx.record is not None:
            raise SessionExists(new.id)
        await state.share_changes(tx, new.state)
        tx.insert_session(session)
        matching.mark_end(tx, None, session.tail.digest)
        return session

    @read_transaction(resolve_session_keys)
    async def get(self, tx: Transaction, ref: SessionRef) -> Session:
        return (await tx.read_session())[0]

    @read_transaction()
    async def find(self, tx: Transaction, session_id: str) -> Session:
        checks.check_id(session_id, "session_id")
        begin, key = encode_name(session_id), (await self._tidy()).named
        command = (b"ZRANGEBYLEX", key, b"[" + begin, b"(" + begin + b"\xff", b"LIMIT", 0, 2)
        (members,) = await tx.read(command)
        refs = [SessionRef(user_id, id_) for id_, user_id in map(decode_names, members)]
        found = await load_sessions(tx, [self._make_session_keys(ref) for ref in refs])
        if not found:
            raise SessionNotFound(session_id)
        if len(found) > 1:
            raise AmbiguousSession(session_id)
        return found[0]

    @read_transaction()
    async def list(
        self,
        tx: Transaction,
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
        filters = {"user_id": user_id, "agent": agent, "status": status, "now": now, "ttl": ttl, "after": after}
        checks.check_filters(filters | {"since": since, "until": until})
        tenant = await self._tidy()
        last = None if after is None else await self.get(after)
        idle_since = now - ttl if now is not None and ttl else None
        key = tenant.recent if user_id is None else self._make_scope_keys(user_id).recent
        times = ["" if time is None else time for time in (now, idle_since)]
        by_status = None if user_id is not None else status
        pages = _Pages(self, tx, key, by_status, times, limit + 1, descending)
        found: dict[SessionRef, Session] = {}
        ends = (until, since) if descending else (since, until)
        async for session in pages.iterate(last, *ends, filtered=agent is not None or status is not None):
            if agent is not None and session.agent != agent:
                continue
            if not (since is None or session.updated_at >= since) or not (until is None or session.updated_at < until):
                continue  # it was written to after its place was read
            if status is None or _compute_status(session, now, idle_since) == status:
                found.setdefault(session.ref, session)  # a session that was used meanwhile may appear again
            if len(found) > limit:
                break
        return SessionPage(tuple(found.values())[:limit], len(found) > limit)

    @write_transaction(resolve_session_keys)
    async def update(
        self, tx: Transaction, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        checks.check_patch(patch)
        checks.check_int(timestamp, "timestamp")
        old, _ = await tx.read_session()
        after = patch_session(old, patch, timestamp)
        check_version(old, expect)
        await state.share_changes(tx, None if isinstance(patch.state, UnsetType) else patch.state)
        tx.save_session(after, profile=True)
        return after

    async def remove(
        self,
        ref: SessionRef,
        *,
        expect: int | None = None,
        artifacts: int | None = None,
        records: int | None = None,
    ) -> RemovalCounts | None:
        removed = await self._remove(ref, expect=expect, artifacts=artifacts, records=records)
        await unlist_expiring(self, SessionRef(ref.user_id, ref.id))
        return removed

    @write_transaction(resolve_session_keys)
    async def _remove(
        self,
        tx: Transaction,
        ref: SessionRef,
        *,
        expect: int | None,
        artifacts: int | None,
        records: int | None,
    ) -> RemovalCounts | None:
        await tx.read()
        if tx.record is None:
            return None
        session, _ = await tx.read_session()
        check_version(session, expect)
        keys = tx.keys
        counted: list[Command] = [(b"HLEN", keys.compactions), (b"HLEN", keys.views), (b"ZCARD", keys.calls)]
        commands = (*counted, (b"HLEN", keys.keyed), (b"HGETALL", keys.media_uses), make_versions_command(keys))
        compactions, views, calls, keyed, uses, members = await tx.read(*commands)
        artifact_versions = [decode_member(member) for member in members]
        refuse_other_contents(ref, len(artifact_versions), artifacts, "artifact versions")
        media_count, media_bytes = compute_totals(uses)
        record_count, record_bytes, record_version = await count_records(tx)
        refuse_other_contents(ref, record_version, records, "changes of records")
        delete_session(tx, members)
        return RemovalCounts(
            messages=session.messages,
            retired=session.tail.next_seq - session.messages,
            bytes=session.bytes,
            compactions=compactions,
            views=views,
            model_calls=calls,
            idempotency_keys=keyed,
            state_keys=len(session.state),
            artifacts=len(artifact_versions),
            artifact_bytes=sum(one.size for one in artifact_versions),
            media=media_count,
            media_bytes=media_bytes,
            records=record_count,
            record_bytes=record_bytes,
        )

    @write_transaction(_resolve_new_keys)
    async def replace(
        self,
        tx: Transaction,
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
        past = new.past or Past(created_at=new.timestamp, updated_at=new.timestamp)
        written, tail, live = rebuild_log(entries)
        uses = await load_media_uses(tx, entries, media, install=True)
        payloads = [
            encode_payload(one.message) if one.erased else as_sent
            for one, as_sent in zip(written, payloads, strict=True)
        ]
        await tx.read()
        if tx.record is not None and fresh:
            raise SessionExists(new.id)
        old = None if tx.record is None else build_session(tx.record, tx.profile)
        ends = old is not None and ending is not None and old.accessed_at < ending.ended_at
        if old is not None:
            if ends and ending is not None:
                lifecycle.end_session(tx, old, ending)
            else:
                members = (
                    (await tx.read(make_versions_command(tx.keys)))[0] if tx.record and tx.record.artifacts else ()
                )
                delete_session(tx, members)
        size = sum(map(len, payloads))
        session = install_session(tx.keys.tenant, new, past, old, tail, live=live, size=size)
        tx.insert_session(session)
        matching.mark_end(tx, None, tail.digest)
        write_entries(tx, written, payloads)
        store_media(tx, entries, written, uses, media)
        store_origins(tx, new.origins)
        write_calls(tx, past.calls)
        if records:
            changes = await encode_changes_off_loop(records, unlimited=True)
            await write_record_changes(tx, changes, new.timestamp, fresh=True)
        stored = tuple(entry if entry.alias is None else evolve(entry, alias=None) for entry in written)
        return Appended(session, stored, session.version, ended=ends)

    @write_transaction(resolve_session_keys)
    async def want(self, tx: Transaction, ref: SessionRef, holder: str) -> None:
        checks.check_id(holder, "holder")
        session, _ = await tx.read_session()
        if session.claim is not None and session.claim.holder == holder and not session.claim.wanted:
            tx.save_session(evolve(session, claim=Claim(holder, session.claim.until, wanted=True)))


def delete_session(tx: Transaction, members: Sequence[bytes]) -> None:
    """Delete the session that a transaction writes to, with all data of the session.

    Args:
        tx: the write.
        members: the members of the sorted set of the session's artifact versions.
    """
    keys = tx.keys
    release_contents(tx, members)
    for key in (*keys.dependents, keys.head):
        tx.queue("UNLINK", key)
    tx.queue("HDEL", keys.shared, keys.field)
    lifecycle.remove_marks(tx)
    tx.record = tx.profile = None


# -- lists ---------------------------------------------------------------------


class _Pages(NamedTuple):
    """Reads the sessions of a list in pages.

    Attributes:
        key: key of the sorted set of sessions.
        by_status: the requested status, if the tenant's indexes can select sessions by it.
    """

    handle: Handle
    tx: Transaction
    key: bytes
    by_status: str | None
    times: Sequence[int | str]
    limit: int
    descending: bool

    async def iterate(self, last: Session | None, start: int | None, end: int | None, *, filtered: bool) -> Any:
        """Yield the sessions that follow `last` in the list. `last` may have changed its position or been deleted since it was read.

        A session that is written to meanwhile may be yielded again at its new place, or left out if it is descending. No other is left out.

        Args:
            last: the session; None: the beginning of the list.
            start: the time at which the list begins: the earliest, or if it is descending, the first that is too late. None: any time.
            end: the time at which it ends: the first that is too late, or if it is descending, the earliest. None: any time.
        """
        begin = 0 if last is None else await self._find_rank_after(_encode_member(last), last.updated_at)
        if start is not None:
            ends = (start, b"+inf") if self.descending else (b"-inf", b"(%d" % start)
            begin = max(begin, (await self.tx.read((b"ZCOUNT", self.key, *ends)))[0])
        while True:
            found, reached = await self._read_page(begin, max(self.limit, PAGE) if filtered else self.limit)
            inside = [member for member, score in found if end is None or self._is_before_end(score, end)]
            keys = [self.handle.database.keys.session(self.handle.tenant, *decode_names(member)) for member in inside]
            for session in await load_sessions(self.tx, keys):
                yield session
            if reached is None or len(inside) < len(found):
                return
            # Other sessions may have been deleted or written to meanwhile, so the rank is not counted on.
            begin = await self._find_rank_after(*reached)

    def _is_before_end(self, score: float, end: int) -> bool:
        """Return True if a session with this score may be in the list. Large times are rounded in scores."""
        return score >= float(end) if self.descending else score <= float(end)

    async def _read_page(self, begin: int, size: int) -> tuple[list[_Place], _Place | None]:
        """Return the places of the sessions on a page, and the last place that was read; None: the list ends with the page."""
        if self.by_status is not None:
            tenant = self.handle.database.keys.tenant(self.handle.tenant)
            others = (Key(tenant.idle), Key(tenant.owned), Key(tenant.expiring))
            limits = (self.limit, SCAN_MEMBERS, int(self.descending))
            command: Command = (b"list_by_status", self.key, *others, begin, *limits, self.by_status, *self.times)
            ((reached, found),) = await self.tx.read(command)
            return _decode_places(found), _decode_places(reached)[0] if reached else None
        name = b"ZREVRANGE" if self.descending else b"ZRANGE"
        (found,) = await self.tx.read((name, self.key, begin, begin + size - 1, b"WITHSCORES"))
        places = _decode_places(found)
        return places, None if len(places) < size else places[-1]

    async def _find_rank_after(self, member: bytes, score: float) -> int:
        """Return the rank after a session. If it is no longer at its place in the list, return the rank at which it would be inserted there.

        Args:
            member: the session's member of the sorted set.
            score: the session's score, which is a time in milliseconds.
        """
        rank = b"ZREVRANK" if self.descending else b"ZRANK"
        stored, found = await self.tx.read((b"ZSCORE", self.key, member), (rank, self.key, member))
        if stored is not None and float(stored) == float(score):
            return int(found) + 1
        end, command = (b"+inf", b"ZREVRANGE") if self.descending else (b"-inf", b"ZRANGE")
        ends = (b"(%d" % score, end) if self.descending else (end, b"(%d" % score)
        equal = b"%d" % score
        begin, same = await self.tx.read((b"ZCOUNT", self.key, *ends), (b"ZCOUNT", self.key, equal, equal))
        low, high = begin, begin + same
        while low < high:
            middle = (low + high) // 2
            (others,) = await self.tx.read((command, self.key, middle, middle))
            is_before = bool(others) and (others[0] > member) == self.descending  # the list may have become shorter
            low, high = (middle + 1, high) if is_before else (low, middle)
        return int(low)


def _decode_places(flat: Sequence[bytes]) -> list[_Place]:
    """Return the places in a reply of members and scores, which alternate."""
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def _encode_member(session: Session) -> bytes:
    return encode_name(session.user_id) + encode_name(session.id) + encode_name("")


def _compute_status(session: Session, now: int | None, idle_since: int | None) -> str:
    """Return the status that lists show for a session. An expired session is shown as `closed`, even if its stored status is `active`.

    Args:
        session: the session.
        now: the current time, in milliseconds since the epoch; None: sessions with their own `ttl` do not expire.
        idle_since: a session without its own `ttl` has expired if it was last used at this time or earlier; None: it has not.
    """
    if session.status != "active":
        return session.status
    if session.ttl:
        return "closed" if now is not None and session.accessed_at + session.ttl <= now else "active"
    idle = session.ttl is None and idle_since is not None and session.accessed_at <= idle_since
    return "closed" if idle else "active"

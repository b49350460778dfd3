"""A small store for a trial of docs/stores.md: sessions and their logs in a plain folder, one file a session.

Each write reads the file, works out the session after it, and puts a new file in its place. It has no media, compactions and
shared state, and one process at a time may use it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.history import continue_log
from holdfast.domain.log import erase_content, rewind
from holdfast.domain.messages import GENESIS
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef, Tail
from holdfast.domain.state import merge_delta
from holdfast.errors import (
    AmbiguousSession,
    EntryNotFound,
    IdempotencyConflict,
    InvalidRequest,
    SessionExists,
    SessionNotFound,
    StaleSession,
    StoreClosed,
)
from holdfast.stores import checks
from holdfast.stores.log import Append, Appended, SavedView, WindowRows
from holdfast.stores.session_changes import count_messages
from holdfast.stores.sessions import NewSession, SessionPage, SessionPatch


class Record(msgspec.Struct):
    """All that is kept of a session."""

    session: Session
    entries: list[Entry] = []
    calls: list[ModelCall] = []
    keys: dict[str, tuple[bytes, int, int, int]] = {}
    """By idempotency key: fingerprint, version, first entry, how many."""
    views: dict[str, SavedView] = {}


class FolderStore:
    """The sessions of one tenant; see `holdfast.stores.sessions.SessionStore` and `holdfast.stores.log.LogStore`."""

    durable = True

    def __init__(self, folder: Path, tenant: str) -> None:
        checks.check_id(tenant, "tenant")
        self.tenant = tenant
        self._folder = folder
        self._closed = False

    def for_tenant(self, tenant: str) -> FolderStore:
        """See `Store.for_tenant`."""
        return FolderStore(self._folder, tenant)

    async def close(self) -> None:
        """See `TenantStore.close`."""
        self._closed = True

    # -- files ---------------------------------------------------------------

    def _path(self, ref: SessionRef) -> Path:
        checks.check_ref(ref)
        if self._closed:
            raise StoreClosed
        name = hashlib.sha256(msgspec.json.encode([self.tenant, ref.user_id, ref.id])).hexdigest()
        return self._folder / f"{name}.session"

    def _load(self, ref: SessionRef) -> Record:
        try:
            return msgspec.msgpack.decode(self._path(ref).read_bytes(), type=Record)
        except FileNotFoundError:
            raise SessionNotFound(ref.id) from None

    def _save(self, record: Record) -> None:
        path = self._path(record.session.ref)
        try:
            data = msgspec.msgpack.encode(record)
        except OverflowError as exc:
            raise InvalidRequest("a number does not fit into 64 bits") from exc
        with path.with_suffix(".new").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").replace(path)

    def _all(self) -> Iterator[Session]:
        if self._closed:
            raise StoreClosed
        for path in self._folder.glob("*.session"):
            session = msgspec.msgpack.decode(path.read_bytes(), type=Record).session
            if session.tenant == self.tenant:
                yield session

    # -- sessions ------------------------------------------------------------

    async def create(self, new: NewSession) -> Session:
        """See `SessionStore.create`."""
        checks.check_new_session(new)
        if self._path(new.ref).exists():
            raise SessionExists(new.id)
        fields = {name: getattr(new, name) for name in ("user_id", "id", "agent", "identity", "metadata", "ttl")}
        fields |= dict.fromkeys(("created_at", "updated_at", "accessed_at"), new.timestamp)
        state = merge_delta({}, new.state)
        session = Session(
            tenant=self.tenant,
            system_messages=new.system_messages,
            state=state,
            state_turns=dict.fromkeys(state, -1),
            tail=Tail(),
            **fields,
        )
        self._save(Record(session))
        return session

    async def get(self, ref: SessionRef) -> Session:
        """See `SessionStore.get`."""
        return self._load(ref).session

    async def find(self, session_id: str) -> Session:
        """See `SessionStore.find`."""
        checks.check_id(session_id, "session_id")
        found = [session for session in self._all() if session.id == session_id]
        if len(found) != 1:
            raise AmbiguousSession(session_id) if found else SessionNotFound(session_id)
        return found[0]

    async def list(
        self, *, limit: int = 20, after: SessionRef | None = None, descending: bool = True, **filters: Any
    ) -> SessionPage:
        """See `SessionStore.list`."""
        checks.check_limit(limit)
        names = ("user_id", "agent", "status", "since", "until", "now", "ttl")
        asked = {**dict.fromkeys(names), **filters, "after": after}
        checks.check_filters(asked)
        named = {name: asked[name] for name in ("user_id", "agent", "status") if asked[name] is not None}
        place = _place(self._load(after).session) if after is not None else None
        found = sorted((one for one in self._all() if _fits(one, named, asked)), key=_place, reverse=descending)
        if place is not None:
            found = [one for one in found if (_place(one) < place if descending else _place(one) > place)]
        return SessionPage(tuple(found[:limit]), len(found) > limit)

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """See `SessionStore.update`."""
        checks.check_patch(patch)
        record = self._load(ref)
        old = _check_version(record, expect)
        given = {name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not UNSET}
        given["state"] = merge_delta(old.state, given.get("state", {}))
        record.session = evolve(old, version=old.version + 1, updated_at=timestamp, accessed_at=timestamp, **given)
        self._save(record)
        return record.session

    async def remove(self, ref: SessionRef) -> Session | None:
        """See `SessionStore.remove`; this one returns the session."""
        try:
            session = self._load(ref).session
        except SessionNotFound:
            return None
        self._path(ref).unlink()
        return session

    # -- the log -------------------------------------------------------------

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `LogStore.append`."""
        checks.check_append(write)
        payloads = checks.encode_payloads(write.entries)
        record = self._load(ref)
        if write.idempotency_key in record.keys:
            return _replay(record, write)
        session, start = _check_version(record, write.expect), record.session.tail.next_seq
        tail, gone = session.tail, 0
        if write.retire_from is not None and (gone := _retire(record, write.retire_from)):
            tail = _tail_of(record, tail)
        written, tail = continue_log(tail, write.entries)
        record.entries += written
        record.calls += write.calls
        usage = session.usage
        for call in write.calls:
            usage = usage.add(call)
        if write.entries or write.calls or write.state_delta or gone:
            session = evolve(
                session,
                version=session.version + 1,
                updated_at=write.timestamp,
                accessed_at=write.timestamp,
                messages=session.messages + count_messages(written) - gone,
                bytes=session.bytes + sum(map(len, payloads)),
                usage=usage,
                state=merge_delta(session.state, write.state_delta or {}),
                tail=tail,
            )
        record.session = evolve(session, reshaped=session.version) if gone else session
        record.views |= write.views or {}
        if write.idempotency_key is not None:
            record.keys[write.idempotency_key] = (write.fingerprint, session.version, start, len(written))
        self._save(record)
        return Appended(record.session, tuple(evolve(one, alias=None) for one in written), session.version, start)

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
        """See `LogStore.entries`."""
        if limit is not None:
            checks.check_limit(limit, lowest=0, highest=None)
        entries = self._load(ref).entries[start:stop]
        found = [
            evolve(one, alias=None)
            for one in entries
            if retired or one.retired_by is None or (notes and one.replaced_by is None)
        ]
        return tuple((found[::-1] if descending else found)[:limit])

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """See `LogStore.window`."""
        record = self._load(ref)
        saved = record.views.get(view or "")
        live = [one for one in record.entries if one.retired_by is None]
        head = tuple(one for one in live if saved and one.seq in saved.keep)
        return WindowRows(
            record.session, saved, head, tuple(one for one in live if not saved or one.seq >= saved.frontier)
        )

    async def annotate(
        self, ref: SessionRef, seq: int, *, pinned: bool | None = None, importance: float | UnsetType | None = UNSET
    ) -> Entry:
        """See `LogStore.annotate`."""
        checks.check_importance(importance)
        record = self._load(ref)
        old = _entry(record, ref, seq)
        return self._change(
            record,
            evolve(
                old,
                pinned=old.pinned if pinned is None else pinned,
                importance=old.importance if isinstance(importance, UnsetType) else importance,
            ),
        )

    async def erase(self, ref: SessionRef, seq: int) -> Entry:
        """See `LogStore.erase`; the old count of tokens stays."""
        record = self._load(ref)
        old = _entry(record, ref, seq)
        return self._change(record, evolve(old, message=erase_content(old.message), metadata=None, erased=True))

    def _change(self, record: Record, entry: Entry) -> Entry:
        record.entries[entry.seq] = entry
        record.session = evolve(record.session, version=record.session.version + 1)
        record.views.clear()
        self._save(record)
        return entry

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
        """See `LogStore.calls`."""
        checks.check_limit(limit)
        turns = checks.bound_turns(turn_id, start, stop, descending=descending)
        found = self._load(ref).calls
        if turns is not None:
            found = sorted((call for call in found if call.turn_id in range(*turns)), key=lambda call: call.turn_id)
        return tuple((found[::-1] if descending else found)[:limit])


def _place(session: Session) -> tuple[int, bytes, bytes]:
    return session.updated_at, session.user_id.encode(), session.id.encode()


def _fits(session: Session, named: dict[str, Any], asked: dict[str, Any]) -> bool:
    ended = asked["now"] is not None and session.is_expired(asked["now"], asked["ttl"])
    fields = {"user_id": session.user_id, "agent": session.agent, "status": "closed" if ended else session.status}
    since, until = asked["since"], asked["until"]
    in_time = (since is None or session.updated_at >= since) and (until is None or session.updated_at < until)
    return in_time and all(fields[name] == value for name, value in named.items())


def _check_version(record: Record, expect: int | None) -> Session:
    session = record.session
    if expect not in (None, session.version):
        raise StaleSession(session.id, expected=expect or 0, version=session.version)
    return session


def _entry(record: Record, ref: SessionRef, seq: int) -> Entry:
    if not 0 <= seq < len(record.entries):
        raise EntryNotFound(ref.id, seq)
    return evolve(record.entries[seq], alias=None)


def _replay(record: Record, write: Append) -> Appended:
    fingerprint, version, first, count = record.keys[str(write.idempotency_key)]
    if fingerprint != write.fingerprint:
        raise IdempotencyConflict(str(write.idempotency_key))
    entries = tuple(evolve(one, alias=None) for one in record.entries[first : first + count])
    return Appended(record.session, entries, version, first, replayed=True)


def _retire(record: Record, before: int) -> int:
    """Retire the live entries from `before` on; how many there were."""
    following = record.session.tail.next_seq
    gone = [one for one in record.entries[before:] if one.retired_by is None]
    notes = [one for one in record.entries[before:] if one.is_note and one.replaced_by is None]
    for one in (*gone, *notes):
        record.entries[one.seq] = evolve(one, retired_by=following)
    if gone:
        record.views.clear()
    return len(gone)


def _tail_of(record: Record, tail: Tail) -> Tail:
    """The tail of the live path, some of which was just retired."""
    live = [one for one in record.entries if one.retired_by is None]
    begin = next((at for at in range(len(live) - 1, -1, -1) if live[at].kind != "result"), 0)
    digest = next((one.digest for one in reversed(live) if one.message.visible), GENESIS)
    anchor = tail.anchor if tail.anchor is not None and live and tail.anchor <= live[-1].seq else None
    return rewind(tail, live[begin:], digest=digest, anchor=anchor)

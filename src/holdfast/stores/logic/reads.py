"""Read sessions, logs and compactions. The functions are generators of statements, see `steps`.

A store runs each of them in one transaction.
"""

from __future__ import annotations

from holdfast.domain.session import Entry, ModelCall, Session, SessionRef, StoredCompaction
from holdfast.errors import AmbiguousSession, SessionNotFound
from holdfast.stores.log import SavedView, WindowRows
from holdfast.stores.logic.rows import (
    ENDLESS,
    UNDECODABLE,
    decode_call,
    decode_compaction,
    decode_entry,
    decode_intact_session,
    decode_seqs,
    decode_session,
    encode_array,
)
from holdfast.stores.logic.steps import Query, Row, Steps
from holdfast.stores.sessions import SessionPage


def read_session_row(tenant: str, ref: SessionRef) -> Steps[Row]:
    """Return the session's row. Raises `SessionNotFound` if the session does not exist."""
    rows = yield Query("session_get", (tenant, ref.id, ref.user_id, ref.withdrawn))
    if not rows:
        raise SessionNotFound(ref.id)
    return rows[0]


def read_session(tenant: str, ref: SessionRef) -> Steps[Session]:
    """Return a session without its log."""
    return decode_session((yield from read_session_row(tenant, ref)))


def find_session(tenant: str, session_id: str) -> Steps[Session]:
    """Return the session that has this id, whichever user it belongs to.

    Raises:
        SessionNotFound: no session has this id.
        AmbiguousSession: sessions of several users have this id.
    """
    rows = yield Query("session_find", (tenant, session_id))
    if not rows:
        raise SessionNotFound(session_id)
    if len(rows) > 1:
        raise AmbiguousSession(session_id)
    return decode_session(rows[0])


def list_sessions(
    tenant: str,
    *,
    user_id: str | None,
    agent: str | None,
    status: str | None,
    since: int | None,
    until: int | None,
    now: int | None,
    ttl: int | None,
    limit: int,
    after: SessionRef | None,
    descending: bool,
) -> Steps[SessionPage]:
    """List sessions in order of `updated_at`, then user, then id."""
    first, end = -ENDLESS if since is None else since, ENDLESS if until is None else until
    place: Row = (end if descending else first, user_id or "", "")
    if after is not None:
        last = decode_session((yield from read_session_row(tenant, after)))
        if first <= last.updated_at < end:
            place = (last.updated_at, last.user_id if user_id is None else user_id, last.id)
    name = ("list_newest" if descending else "list_oldest") + ("" if user_id is None else "_of_user")
    idle_since = now - ttl if now is not None and ttl else None
    rows = yield Query(name, (tenant, *place, agent, status, limit + 1, now, idle_since))
    found = [session for session in map(decode_session, rows) if first <= session.updated_at < end]
    return SessionPage(tuple(found[:limit]), len(found) > limit)


def read_entries(
    tenant: str,
    ref: SessionRef,
    *,
    start: int,
    stop: int | None,
    limit: int | None,
    descending: bool,
    retired: bool,
    notes: bool,
) -> Steps[tuple[Entry, ...]]:
    """Return entries of a log in order of `seq`."""
    row = yield from read_session_row(tenant, ref)
    name = ("log" if retired else "noted" if notes else "live") + ("_backward" if descending else "_forward")
    bounds = (start, ENDLESS if stop is None else stop, ENDLESS if limit is None else limit)
    rows = yield Query(name, (row[0], *bounds))
    return tuple(decode_entry(found) for found in rows)


def read_window(tenant: str, ref: SessionRef, view: str | None) -> Steps[WindowRows]:
    """Return everything that is needed to build a working set."""
    row = yield from read_session_row(tenant, ref)
    session, pk = decode_intact_session(row), row[0]
    saved, compaction = (yield from _read_view(pk, view)) if view is not None else (None, None)
    head = (yield Query("entries_among", (pk, encode_array(saved.keep)))) if saved and saved.keep else ()
    rows = yield Query("live_forward", (pk, saved.frontier if saved else 0, ENDLESS, ENDLESS))
    kept, live = (tuple(decode_entry(found) for found in some) for some in (head, rows))
    return WindowRows(session, saved, kept, live, compaction)


def _read_view(pk: int, view: str) -> Steps[tuple[SavedView | None, StoredCompaction | None]]:
    frontier, state, kept, *compaction = (yield Query("view_get", (pk, view)))[0]
    try:
        saved = None if frontier is None else SavedView(frontier, state, decode_seqs(kept))
    except UNDECODABLE:  # a view is derived data: it is rebuilt from the log
        saved = None
    return saved, None if compaction[0] is None else decode_compaction(compaction)


def list_compactions(
    tenant: str, ref: SessionRef, view: str | None, *, live: bool
) -> Steps[tuple[StoredCompaction, ...]]:
    """Return compactions of a session in order of id."""
    row = yield from read_session_row(tenant, ref)
    rows = yield Query("compactions_list", (row[0], view, 1 if live else 0))
    return tuple(decode_compaction(found) for found in rows)


def list_calls(
    tenant: str, ref: SessionRef, limit: int, turns: tuple[int, int] | None, *, descending: bool
) -> Steps[tuple[ModelCall, ...]]:
    """Return a session's recorded model calls: the newest ones, or those from one turn up to another (exclusive)."""
    row = yield from read_session_row(tenant, ref)
    if turns is None:
        rows = yield Query("calls_newest", (row[0], limit))
    else:
        rows = yield Query("calls_backward" if descending else "calls_forward", (row[0], *turns, limit))
    return tuple(decode_call(found) for found in rows)


def ping() -> Steps[None]:
    """Run a statement to check that the database can be reached."""
    yield Query("ping", ())

"""What each read asks. A store runs the steps of one read in one transaction."""

from __future__ import annotations

from holdfast.domain.session import Entry, ModelCall, Session, SessionRef, StoredCompaction
from holdfast.errors import AmbiguousSession, SessionNotFound
from holdfast.stores.log import SavedView, WindowRows
from holdfast.stores.logic.rows import (
    ENDLESS,
    UNDECODABLE,
    array_of,
    call_of,
    compaction_of,
    decode_seqs,
    entry_of,
    intact_session_of,
    session_of,
)
from holdfast.stores.logic.steps import Query, Row, Steps
from holdfast.stores.sessions import SessionPage


def session_row(tenant: str, ref: SessionRef) -> Steps[Row]:
    """The session's row; raises `SessionNotFound`."""
    rows = yield Query("session_get", (tenant, ref.id, ref.user_id, ref.withdrawn))
    if not rows:
        raise SessionNotFound(ref.id)
    return rows[0]


def get(tenant: str, ref: SessionRef) -> Steps[Session]:
    """See `Store.get`."""
    return session_of((yield from session_row(tenant, ref)))


def find(tenant: str, session_id: str) -> Steps[Session]:
    """See `Store.find`."""
    rows = yield Query("session_find", (tenant, session_id))
    if not rows:
        raise SessionNotFound(session_id)
    if len(rows) > 1:
        raise AmbiguousSession(session_id)
    return session_of(rows[0])


def list_sessions(
    tenant: str,
    *,
    user_id: str | None,
    agent: str | None,
    status: str | None,
    now: int | None,
    ttl: int | None,
    limit: int,
    after: SessionRef | None,
    descending: bool,
) -> Steps[SessionPage]:
    """See `Store.list`."""
    place: Row = (ENDLESS, user_id or "", "") if descending else (-ENDLESS, user_id or "", "")
    if after is not None:
        last = session_of((yield from session_row(tenant, after)))
        place = (last.updated_at, last.user_id if user_id is None else user_id, last.id)
    name = ("list_newest" if descending else "list_oldest") + ("" if user_id is None else "_of_user")
    idle_since = now - ttl if now is not None and ttl else None
    rows = yield Query(name, (tenant, *place, agent, status, limit + 1, now, idle_since))
    return SessionPage(tuple(session_of(row) for row in rows[:limit]), len(rows) > limit)


def entries(
    tenant: str, ref: SessionRef, *, start: int, stop: int | None, limit: int | None, descending: bool, retired: bool
) -> Steps[tuple[Entry, ...]]:
    """See `Store.entries`."""
    row = yield from session_row(tenant, ref)
    name = ("log" if retired else "live") + ("_backward" if descending else "_forward")
    bounds = (start, ENDLESS if stop is None else stop, ENDLESS if limit is None else limit)
    rows = yield Query(name, (row[0], *bounds))
    return tuple(entry_of(found) for found in rows)


def window(tenant: str, ref: SessionRef, view: str | None) -> Steps[WindowRows]:
    """See `Store.window`."""
    row = yield from session_row(tenant, ref)
    session, pk = intact_session_of(row), row[0]
    saved, compaction = (yield from _view(pk, view)) if view is not None else (None, None)
    head = (yield Query("entries_among", (pk, array_of(saved.keep)))) if saved and saved.keep else ()
    rows = yield Query("live_forward", (pk, saved.frontier if saved else 0, ENDLESS, ENDLESS))
    kept, live = (tuple(entry_of(found) for found in some) for some in (head, rows))
    return WindowRows(session, saved, kept, live, compaction)


def _view(pk: int, view: str) -> Steps[tuple[SavedView | None, StoredCompaction | None]]:
    frontier, state, kept, *compaction = (yield Query("view_get", (pk, view)))[0]
    try:
        saved = None if frontier is None else SavedView(frontier, state, decode_seqs(kept))
    except UNDECODABLE:  # a view is derived: it is built again from the log
        saved = None
    return saved, None if compaction[0] is None else compaction_of(compaction)


def compactions(tenant: str, ref: SessionRef, view: str | None, *, live: bool) -> Steps[tuple[StoredCompaction, ...]]:
    """See `Store.compactions`."""
    row = yield from session_row(tenant, ref)
    rows = yield Query("compactions_list", (row[0], view, 1 if live else 0))
    return tuple(compaction_of(found) for found in rows)


def calls(tenant: str, ref: SessionRef, limit: int, turn_id: int | None) -> Steps[tuple[ModelCall, ...]]:
    """See `Store.calls`."""
    row = yield from session_row(tenant, ref)
    if turn_id is None:
        rows = yield Query("calls_newest", (row[0], limit))
    else:
        rows = yield Query("calls_of_turn", (row[0], limit, turn_id))
    return tuple(call_of(found) for found in rows)


def ping() -> Steps[None]:
    """Anything that reaches the database."""
    yield Query("ping", ())

"""Record when sessions are used and when they end, and which hooks were notified. The functions are generators of statements."""

from __future__ import annotations

from msgspec.structs import replace as evolve

from holdfast.domain.session import Ending, Session, SessionRef
from holdfast.errors import EndingNotFound
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.rows import decode_ending, decode_session, encode_ending
from holdfast.stores.logic.steps import Query, Steps


def touch_session(tenant: str, ref: SessionRef, timestamp: int) -> Steps[None]:
    """Record that a session was used, without a write."""
    row = yield from read_session_row(tenant, ref)
    yield Query("session_used", (row[0], timestamp))


def end_session(tenant: str, ending: Ending, idle_since: int | None) -> Steps[bool]:
    """Close a session, or withdraw it so that its name is free; return True if this call did so."""
    row = yield from read_session_row(tenant, SessionRef(ending.user_id, ending.session_id))
    pk, session = row[0], decode_session(row)
    if idle_since is not None and session.accessed_at > idle_since:
        return False
    if session.status == "closed" and not ending.withdrawn:
        return False
    yield from write_end(pk, session, ending)
    return True


def write_end(pk: int, session: Session, ending: Ending) -> Steps[None]:
    """Close or withdraw a session, as `ending` says. If hooks must be notified, also record the ending."""
    ended = (pk, session.version + 1, ending.ended_at, ending.reason)
    yield Query("session_withdraw", (*ended, ending.id)) if ending.withdrawn else Query("session_end", ended)
    if ending.hooks:
        yield Query("ending_insert", encode_ending(session.tenant, evolve(ending, identity=session.identity)))


def record_ending(tenant: str, ending: Ending) -> Steps[None]:
    """Record an ending that hooks must be notified of, without ending the session."""
    session = decode_session((yield from read_session_row(tenant, SessionRef(ending.user_id, ending.session_id))))
    yield Query("ending_insert", encode_ending(tenant, evolve(ending, identity=session.identity)))


def list_due_endings(tenant: str, due: int, limit: int) -> Steps[tuple[Ending, ...]]:
    """Return recorded endings whose `due_at` is at most `due`."""
    rows = yield Query("endings_due", (tenant, due, limit))
    return tuple(decode_ending(row) for row in rows)


def list_endings_of_user(tenant: str, user_id: str, after: str, limit: int) -> Steps[tuple[Ending, ...]]:
    """Return recorded endings of a user's sessions, with ids after `after`."""
    rows = yield Query("endings_of_user", (tenant, user_id, after, limit))
    return tuple(decode_ending(row) for row in rows)


def settle_ending(
    tenant: str, ending_id: str, delivered: str | None, due_at: int | None, error: str | None
) -> Steps[Ending]:
    """Record the result of notifying a hook; return the updated ending. Raises `EndingNotFound` if the ending does not exist."""
    rows = yield Query("ending_get", (tenant, ending_id))
    if not rows:
        raise EndingNotFound(ending_id)
    old = decode_ending(rows[0])
    ending = evolve(
        old,
        due_at=old.due_at if due_at is None else due_at,
        attempts=old.attempts + (error is not None),
        hooks=tuple(hook for hook in old.hooks if hook != delivered),
        error=error,
    )
    *_, hooks, _ = encode_ending(tenant, ending)
    yield Query("ending_put", (tenant, ending.id, ending.due_at, ending.attempts, hooks, ending.error))
    return ending


def forget_ending(tenant: str, ending_id: str) -> Steps[None]:
    """Delete a recorded ending."""
    yield Query("ending_delete", (tenant, ending_id))


def list_idle(tenant: str, now: int, ttl: int | None, limit: int) -> Steps[tuple[Session, ...]]:
    """Return active sessions that have expired."""
    rows = list((yield Query("sessions_expired", (tenant, now, limit))))
    if ttl:
        rows += yield Query("sessions_idle", (tenant, now - ttl, limit))
    return tuple(decode_session(row) for row in rows[:limit])


def list_oldest(tenant: str, limit: int) -> Steps[tuple[Session, ...]]:
    """Return active sessions, the least recently used first."""
    rows = yield Query("sessions_oldest", (tenant, limit))
    return tuple(decode_session(row) for row in rows)


def count_active(tenant: str) -> Steps[int]:
    """Count active sessions."""
    rows = yield Query("sessions_active", (tenant,))
    count: int = rows[0][0]
    return count

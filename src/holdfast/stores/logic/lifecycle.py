"""What becomes of sessions: use without a write, ends, and the hooks that are to be told of them."""

from __future__ import annotations

from msgspec.structs import replace as evolve

from holdfast.domain.session import Ending, Session, SessionRef
from holdfast.errors import EndingNotFound
from holdfast.stores.logic.reads import session_row
from holdfast.stores.logic.rows import ending_of, ending_row, session_of
from holdfast.stores.logic.steps import Query, Steps


def touch(tenant: str, ref: SessionRef, timestamp: int) -> Steps[None]:
    """See `Store.touch`."""
    row = yield from session_row(tenant, ref)
    yield Query("session_used", (row[0], timestamp))


def end(tenant: str, ending: Ending, idle_since: int | None) -> Steps[bool]:
    """See `Store.end`."""
    row = yield from session_row(tenant, SessionRef(ending.user_id, ending.session_id))
    pk, session = row[0], session_of(row)
    if idle_since is not None and session.accessed_at > idle_since:
        return False
    if session.status == "closed" and not ending.withdrawn:
        return False
    yield from put_end(pk, session, ending)
    return True


def put_end(pk: int, session: Session, ending: Ending) -> Steps[None]:
    """A session ends, and what is to be told of it is recorded."""
    ended = (pk, session.version + 1, ending.ended_at, ending.reason)
    yield Query("session_withdraw", (*ended, ending.id)) if ending.withdrawn else Query("session_end", ended)
    if ending.hooks:
        yield Query("ending_insert", ending_row(session.tenant, evolve(ending, identity=session.identity)))


def record_ending(tenant: str, ending: Ending) -> Steps[None]:
    """See `Store.record_ending`."""
    session = session_of((yield from session_row(tenant, SessionRef(ending.user_id, ending.session_id))))
    yield Query("ending_insert", ending_row(tenant, evolve(ending, identity=session.identity)))


def endings(tenant: str, due: int, limit: int) -> Steps[tuple[Ending, ...]]:
    """See `Store.endings`."""
    rows = yield Query("endings_due", (tenant, due, limit))
    return tuple(ending_of(row) for row in rows)


def endings_of(tenant: str, user_id: str, after: str, limit: int) -> Steps[tuple[Ending, ...]]:
    """See `Store.endings_of`."""
    rows = yield Query("endings_of_user", (tenant, user_id, after, limit))
    return tuple(ending_of(row) for row in rows)


def settle(tenant: str, ending_id: str, delivered: str | None, due_at: int | None, error: str | None) -> Steps[Ending]:
    """See `Store.settle`."""
    rows = yield Query("ending_get", (tenant, ending_id))
    if not rows:
        raise EndingNotFound(ending_id)
    old = ending_of(rows[0])
    ending = evolve(
        old,
        due_at=old.due_at if due_at is None else due_at,
        attempts=old.attempts + (error is not None),
        hooks=tuple(hook for hook in old.hooks if hook != delivered),
        error=error,
    )
    *_, hooks, _ = ending_row(tenant, ending)
    yield Query("ending_put", (tenant, ending.id, ending.due_at, ending.attempts, hooks, ending.error))
    return ending


def forget_ending(tenant: str, ending_id: str) -> Steps[None]:
    """See `Store.forget_ending`."""
    yield Query("ending_delete", (tenant, ending_id))


def idle(tenant: str, now: int, ttl: int | None, limit: int) -> Steps[tuple[Session, ...]]:
    """See `Store.idle`."""
    rows = list((yield Query("sessions_expired", (tenant, now, limit))))
    if ttl:
        rows += yield Query("sessions_idle", (tenant, now - ttl, limit))
    return tuple(session_of(row) for row in rows[:limit])


def oldest(tenant: str, limit: int) -> Steps[tuple[Session, ...]]:
    """See `Store.oldest`."""
    rows = yield Query("sessions_oldest", (tenant, limit))
    return tuple(session_of(row) for row in rows)


def active(tenant: str) -> Steps[int]:
    """See `Store.active`."""
    rows = yield Query("sessions_active", (tenant,))
    count: int = rows[0][0]
    return count

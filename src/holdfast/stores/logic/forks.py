"""Copy the beginning of a session's log to a new session. The functions are generators of statements, see `steps`.

The database copies the rows itself: their number does not change how many statements run, or how much is read.
"""

from __future__ import annotations

from msgspec.structs import replace as evolve

from holdfast.domain.fact_choices import STANDING_FACTS
from holdfast.domain.history import Past
from holdfast.domain.origins import copy_prefix_origins, get_ranges
from holdfast.domain.session import Session
from holdfast.errors import SessionExists, SessionNotFound
from holdfast.stores.logic.matching import add_origins, keep_origins, read_origins
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.rows import decode_intact_session
from holdfast.stores.logic.steps import Query, Steps
from holdfast.stores.logic.writes import insert_session, rewind_tail
from holdfast.stores.session_changes import install_session, refuse_reshaped
from holdfast.stores.sessions import NewSession


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

"""Live updates of a session's pages."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.domain.objects import Count
from holdfast.domain.session import Session
from holdfast.errors import SessionNotFound
from holdfast.server.http import Call
from holdfast.server.inspector.frame import InspectorState
from holdfast.server.inspector.session_frame import SESSION, SessionPageQuery
from holdfast.server.replies import Reply
from holdfast.server.routes import TEXT, Routes

routes = Routes("inspector")


class EventsQuery(SessionPageQuery, kw_only=True):
    """Query parameters of live updates."""

    since: Count | None = None
    """Number of messages that the page shows; default: those that there are now."""


class LogMark(NamedTuple):
    """A mark that changes with every change of a session's log, and with no other write."""

    messages: int
    """Number of messages, with retired ones."""
    reshaped: int
    """Version at which earlier messages were last changed."""


@routes.add("GET", f"{SESSION}/events", "read", answer={"text/event-stream": TEXT})
async def follow_session(call: Call, query: EventsQuery) -> Reply:
    """Send an event with the number of new messages whenever the log of a session changes, until the session is deleted."""
    session = await call.get_session()
    state: InspectorState = call.request.app.state.inspector
    mark = _make_mark(session)

    async def read_mark() -> LogMark | None:
        try:
            found = await call.hf.store.get(session.ref)
        except SessionNotFound:
            return None
        return _make_mark(found) if found.identity == session.identity else None

    seen = mark if query.since is None else mark._replace(messages=query.since)
    # An earlier message may have changed, so something is always new.
    return state.live.watch(read_mark, seen=seen, count=lambda old, new: max(1, new.messages - old.messages))


def _make_mark(session: Session) -> LogMark:
    return LogMark(session.tail.next_seq, session.reshaped)

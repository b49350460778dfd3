"""Export, close or delete several sessions at once. Closing and deleting first show what would change, and ask for confirmation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.session import Session, SessionRef
from holdfast.durations import format_utc
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.limits import SORTED_SESSIONS
from holdfast.server.http import Call
from holdfast.server.inspector.access import check_path
from holdfast.server.inspector.actions import check_form
from holdfast.server.inspector.frame import HTML, render
from holdfast.server.inspector.rest import call_rest, make_path, open_rest
from holdfast.server.inspector.session_frame import check_content
from holdfast.server.inspector.session_list import SessionListQuery, make_filters
from holdfast.server.permissions import permit
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes, read_query
from holdfast.sessions.session_list import find_state

routes = Routes("inspector", lenient=True)
_PATH: Final = "/v1/sessions/{session_id}"
_NAMED: Final = 20
"""Sessions and failures that a page names. It counts all."""
_FILTERS: Final = ("user_id", "agent", "status", "since", "until")


class Operation(NamedTuple):
    """A change of sessions."""

    title: str
    verb: str
    done: str
    warning: str


OPERATIONS: Final[Mapping[str, Operation]] = {
    "close": Operation(
        "Close sessions",
        "Close",
        "closed",
        "Closed sessions are kept. The next message opens a session again.",
    ),
    "delete": Operation(
        "Delete sessions",
        "Delete",
        "deleted",
        "Deleted sessions are gone for good, with their messages, state and artifacts.",
    ),
}


class Failure(NamedTuple):
    """A session that could not be changed."""

    ref: SessionRef
    reason: str


@routes.add("POST", "/inspect/bulk", "read", answer=HTML)
async def change_sessions(call: Call) -> Reply:
    """Export sessions, show what a change of sessions would do, or do it."""
    form = await call.read_form()
    check_form(call, form)
    name = form.get("operation", [""])[0]
    sessions, has_more = await _select_sessions(call, form)
    if not sessions:
        raise InvalidRequest(
            "no session is selected: select some, or choose all that match the filter", param="session"
        )
    if name == "export":
        check_content(call)
        return _export(call, sessions)
    if name not in OPERATIONS:
        raise InvalidRequest(f"unknown operation {name[:80]!r}", param="operation")
    permit(call.request.scope, "write")
    operation, back = OPERATIONS[name], check_path(form.get("next", ["/inspect/sessions"])[0])
    values: dict[str, Any] = {"operation": operation, "name": name, "back": back, "named": _NAMED}
    if "confirmed" in form:
        failures = await _run(call, name, sessions)
        values |= {"failures": failures, "changed": len(sessions) - len(failures)}
        return await render(call, "bulk_done.html", title=operation.title, **values)
    values |= {
        "sessions": sessions,
        "has_more": has_more,
        "highest": SORTED_SESSIONS,
        "busy": sum(find_state(call.hf.engine, session) == "busy" for session in sessions),
    }
    return await render(call, "bulk_confirm.html", title=operation.title, **values)


async def _select_sessions(call: Call, form: Mapping[str, list[str]]) -> tuple[Sequence[Session], bool]:
    """Return the sessions that a form names, or that match its filter, and whether more match. Sessions that are gone are left out."""
    if form.get("scope") == ["all"]:
        given = {name: form[name][0] for name in _FILTERS if form.get(name, [""])[0]}
        filters = make_filters(call, read_query(given, SessionListQuery))
        page = await call.hf.sessions(**filters, limit=SORTED_SESSIONS)
        return page.sessions, page.has_more
    refs = [_parse_ref(call, text) for text in form.get("session", [])]
    if len(refs) > SORTED_SESSIONS:
        raise InvalidRequest(f"at most {SORTED_SESSIONS} sessions can be selected", param="session")
    sessions = []
    for ref in dict.fromkeys(refs):
        try:
            sessions.append(await call.hf.store.get(ref))
        except SessionNotFound:
            continue
    return sessions, False


def _parse_ref(call: Call, text: str) -> SessionRef:
    try:
        user_id, session_id = msgspec.json.decode(text, type=tuple[str, str])
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"{text[:80]!r} does not name a session", param="session") from exc
    return SessionRef(call.get_owner_or_default(user_id), session_id)


async def _run(call: Call, action: str, sessions: Sequence[Session]) -> list[Failure]:
    """Close or delete sessions. Return those that could not be changed.

    Sessions with a running turn are left unchanged, because the route would wait for the end of the turn.
    """
    failures = []
    for session in sessions:
        if find_state(call.hf.engine, session) == "busy":
            failures.append(Failure(session.ref, "a turn of the session is running; try again after it"))
            continue
        path = make_path(_PATH, session_id=session.id)
        method, path = ("DELETE", path) if action == "delete" else ("POST", f"{path}/close")
        status, answer = await call_rest(call, method, path, query={"user_id": session.user_id})
        if status >= 400 and answer["error"]["code"] != "session_not_found":
            failures.append(Failure(session.ref, answer["error"]["message"]))
    return failures


def _export(call: Call, sessions: Sequence[Session]) -> Reply:
    """Return sessions as a file with one export per line, in the format of `GET /v1/sessions/{session_id}`."""
    day = format_utc(call.hf.clock())[:10]
    headers = {
        "content-type": "application/x-ndjson",
        "content-disposition": f'attachment; filename="sessions-{day}.jsonl"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Reply(_write_lines(call, sessions), headers=headers)


async def _write_lines(call: Call, sessions: Sequence[Session]) -> AsyncGenerator[bytes, None]:
    for session in sessions:
        path, query = make_path(_PATH, session_id=session.id), {"user_id": session.user_id, "retired": "true"}
        answer = await open_rest(call, "GET", path, query=query)
        data = await answer.read()
        if answer.status == 200:  # it may have been deleted meanwhile
            yield data + b"\n"

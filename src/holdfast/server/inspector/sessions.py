"""The list of sessions: filters, sorting, pages, search in messages, and changes of several sessions at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.objects import Count
from holdfast.domain.session import Session, SessionRef
from holdfast.durations import format_utc
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound
from holdfast.limits import QUERY_CHARS, SORTED_SESSIONS
from holdfast.search.queries import SearchResults
from holdfast.server.http import Call
from holdfast.server.inspector.access import check_path
from holdfast.server.inspector.actions import read_form, run_route
from holdfast.server.inspector.frame import HTML, Pages, Values, check_content, render
from holdfast.server.permissions import permit
from holdfast.server.replies import Reply
from holdfast.server.routes import Order, read_query
from holdfast.server.sessions import SessionSelection, make_filters
from holdfast.sessions.session_list import SortKey, find_state, sort_sessions, summarize_sessions

routes = Pages()
_LISTED: Final = 25
"""Sessions on a page."""
_FOUND: Final = 20
"""Hits on a page of a search."""
_USERS: Final = 5
"""Users whose messages a search without a user covers: those of the sessions that were used last."""
_FOUND_EACH: Final = 5
"""Hits for each of these users."""
COLUMNS: Final[tuple[tuple[str, SortKey | None, bool], ...]] = (
    ("session", None, False),
    ("user, agent", None, False),
    ("state", None, False),
    ("last activity", "updated_at", False),
    ("turns", "turns", True),
    ("log tokens", "tokens", True),
    ("tokens sent", "sent_tokens", True),
    ("last prompt", None, True),
    ("cached", "cached_share", True),
    ("summaries", None, True),
    ("expires", None, False),
)
"""Title of each column, the key by which it sorts, and whether it has numbers."""


class SessionListQuery(SessionSelection, kw_only=True):
    """Query parameters of the list of sessions. For a search, `after` is its cursor."""

    notice: str | None = None
    """See `frame.PageQuery`."""
    q: str | None = None
    """Words that messages contain."""
    sort: SortKey = "updated_at"
    order: Order = "desc"
    start: Count = 0
    """Sessions before this page, if they are sorted by another column than the last use."""


@routes.page("/inspect/sessions", "read", "session_list.html", "Sessions")
async def show_sessions(call: Call, query: SessionListQuery) -> Values:
    """Return a page of the list of sessions, or of the messages that a search found."""
    words = (query.q or "").strip()
    if len(words) > QUERY_CHARS:
        raise InvalidRequest(f"q must have at most {QUERY_CHARS:,} characters", param="q")
    filters = make_filters(call, query)
    has_index = call.hf.index is not None
    if words:
        check_content(call)  # searching for words would reveal them
    values: dict[str, Any] = {"found": None, "listed": None, "coverage": ""}
    if not words:
        values["listed"] = await _list_sessions(call, query, filters)
    elif has_index:
        values["found"], values["coverage"] = await _search(call, query, words, filters)
    return {
        "words": words,
        "has_index": has_index,
        "owner": call.get_owner(None),
        "agents": sorted(call.hf.roster.agents),
        "columns": COLUMNS,
        "highest": SORTED_SESSIONS,
        **values,
    }


async def _list_sessions(call: Call, query: SessionListQuery, filters: dict[str, Any]) -> dict[str, Any]:
    """Return a page of the list: its rows, the parameters of the next page, and whether only the newest sessions were sorted."""
    engine, descending = call.hf.engine, query.order == "desc"
    if query.sort == "updated_at":
        page = await call.hf.sessions(**filters, limit=_LISTED, after=_find_place(call, query), descending=descending)
        rows = await summarize_sessions(engine, page.sessions)
        last = page.sessions[-1] if page.has_more else None
        return {"rows": rows, "more": last and {"after": last.id, "after_user": last.user_id}, "is_partial": False}
    ordered, is_partial = await sort_sessions(engine, query.sort, descending=descending, unplaced=False, **filters)
    end = query.start + _LISTED
    rows = await summarize_sessions(engine, ordered[query.start : end])
    return {"rows": rows, "more": {"start": end} if end < len(ordered) else None, "is_partial": is_partial}


def _find_place(call: Call, query: SessionListQuery) -> SessionRef | None:
    """Return the session after which the page begins; None: the beginning of the list."""
    if query.after is None:
        return None
    return SessionRef(call.get_owner_or_default(query.after_user or query.user_id), query.after)


# -- search ------------------------------------------------------------------------


async def _search(
    call: Call, query: SessionListQuery, words: str, filters: dict[str, Any]
) -> tuple[list[tuple[str, SearchResults]], str]:
    """Return the hits of a search, and which users it covered: without a user, those of the sessions that were used last."""
    user = filters["user_id"]
    more = {name: filters[name] for name in ("agent", "since", "until")}
    if user is not None:
        return [(user, await call.hf.search(words, user, limit=_FOUND, after=query.after, **more))], ""
    newest = await call.hf.sessions(limit=SORTED_SESSIONS)
    known = list(dict.fromkeys(session.user_id for session in newest.sessions))
    users = known[:_USERS]
    limit = _FOUND if len(users) == 1 else _FOUND_EACH
    found = await asyncio.gather(*(call.hf.search(words, one, limit=limit, **more) for one in users))
    coverage = ""
    if len(known) > _USERS or newest.has_more:
        coverage = f"the {len(users)} of {len(known)}{' or more' if newest.has_more else ''} users who were active last"
    return [(one, results) for one, results in zip(users, found, strict=True) if results.hits], coverage


# -- changes of several sessions -----------------------------------------------------

_NAMED: Final = 20
"""Sessions and failures that a page names. It counts all."""
_FILTERS: Final = ("user_id", "agent", "status", "since", "until")


OPERATIONS: Final = ("close", "delete")
"""Changes of several sessions."""


@routes.add("POST", "/inspect/bulk", "read", answer=HTML, lenient=True)
async def change_sessions(call: Call) -> Reply:
    """Export sessions, show what a change of sessions would do, or do it."""
    form = await read_form(call)
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
    back, title = check_path(form.get("next", ["/inspect/sessions"])[0]), f"{name.capitalize()} sessions"
    values: dict[str, Any] = {"title": title, "name": name, "back": back, "named": _NAMED}
    if "confirmed" in form:
        failures = await _run(call, name, sessions)
        return await render(call, "bulk_done.html", failures=failures, changed=len(sessions) - len(failures), **values)
    return await render(
        call,
        "bulk_confirm.html",
        sessions=sessions,
        has_more=has_more,
        busy=sum(find_state(call.hf.engine, session) == "busy" for session in sessions),
        **values,
    )


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


async def _run(call: Call, action: str, sessions: Sequence[Session]) -> list[tuple[SessionRef, str]]:
    """Close or delete sessions. Return those that could not be changed, with the reasons.

    Sessions with a running turn are left unchanged, because the change would wait for the end of the turn.
    """
    failures = []
    for session in sessions:
        if find_state(call.hf.engine, session) == "busy":
            failures.append((session.ref, "a turn of the session is running; try again after it"))
            continue
        try:
            await (call.hf.remove(session.ref) if action == "delete" else call.hf.close_session(session.ref))
        except SessionNotFound:
            continue
        except HoldfastError as exc:
            failures.append((session.ref, exc.public_message))
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
        path, query = {"session_id": session.id}, {"user_id": session.user_id, "retired": True}
        try:
            yield await run_route(call, "GET /v1/sessions/{session_id}", path, query) + b"\n"
        except HoldfastError:  # it may have been deleted meanwhile
            continue

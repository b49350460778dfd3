"""The list of sessions: filters, sorting and pages, and search in what their messages say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from holdfast.domain.objects import Count, NonEmpty
from holdfast.domain.session import Session, SessionRef
from holdfast.errors import InvalidRequest
from holdfast.limits import QUERY_CHARS, SORTED_SESSIONS
from holdfast.search.queries import SearchHit, SearchResults
from holdfast.server.http import Call
from holdfast.server.inspector.frame import HTML, PageQuery, render
from holdfast.server.inspector.session_frame import check_content
from holdfast.server.replies import Reply
from holdfast.server.routes import Order, Routes
from holdfast.server.search import Moment
from holdfast.sessions.session_list import SessionSummary, SortKey, sort_sessions, summarize_sessions
from holdfast.wire.strict_json import parse_time

routes = Routes("inspector")
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


class SessionListQuery(PageQuery, kw_only=True):
    """Query parameters of the list of sessions."""

    q: str | None = None
    """Words that messages contain."""
    user_id: NonEmpty | None = None
    agent: NonEmpty | None = None
    status: Literal["active", "closed"] | None = None
    since: Moment | None = None
    """Only sessions that were used at this time or later."""
    until: Moment | None = None
    """Only sessions that were last used before this time."""
    sort: SortKey = "updated_at"
    order: Order = "desc"
    after: NonEmpty | None = None
    """Id of the last session of the previous page, or the cursor of a search."""
    after_user: NonEmpty | None = None
    """User of that session."""
    start: Count = 0
    """Sessions before this page, if they are sorted by another column than the last use."""


class Rows(NamedTuple):
    """One page of sessions."""

    rows: list[SessionSummary]
    next: dict[str, Any] | None
    """Query parameters of the next page; None: this is the last one."""
    is_partial: bool = False
    """True if only the newest sessions were sorted, and there are more."""


class Found(NamedTuple):
    """The hits among the messages of one user."""

    user_id: str
    results: SearchResults

    def locate(self, hit: SearchHit) -> SessionRef:
        """Return the session of a hit."""
        return SessionRef(self.user_id, hit.session_id)


@routes.add("GET", "/inspect/sessions", "read", answer=HTML)
async def show_sessions(call: Call, query: SessionListQuery) -> Reply:
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
    return await render(
        call,
        "session_list.html",
        title="Sessions",
        query=query,
        words=words,
        has_index=has_index,
        owner=call.get_owner(None),
        agents=sorted(call.hf.roster.agents),
        columns=COLUMNS,
        highest=SORTED_SESSIONS,
        **values,
    )


def make_filters(call: Call, query: SessionListQuery) -> dict[str, Any]:
    """Return the filters of a list of sessions that the caller may see, for `Store.list`."""
    return {
        "user_id": call.get_owner(query.user_id),
        "agent": query.agent,
        "status": query.status,
        "since": None if query.since is None else parse_time(query.since, "since"),
        "until": None if query.until is None else parse_time(query.until, "until"),
    }


async def _list_sessions(call: Call, query: SessionListQuery, filters: dict[str, Any]) -> Rows:
    engine, is_partial = call.hf.engine, False
    descending = query.order == "desc"
    following: dict[str, Any] | None = None
    sessions: Sequence[Session]
    if query.sort == "updated_at":
        page = await call.hf.sessions(**filters, limit=_LISTED, after=_find_place(call, query), descending=descending)
        sessions = page.sessions
        if page.has_more:
            following = {"after": sessions[-1].id, "after_user": sessions[-1].user_id}
    else:
        ordered, is_partial = await sort_sessions(engine, query.sort, descending=descending, **filters)
        end = query.start + _LISTED
        sessions = ordered[query.start : end]
        if end < len(ordered):
            following = {"start": end}
    return Rows(await summarize_sessions(engine, sessions), following, is_partial)


def _find_place(call: Call, query: SessionListQuery) -> SessionRef | None:
    """Return the session after which the page begins; None: the beginning of the list."""
    if query.after is None:
        return None
    return SessionRef(call.get_owner_or_default(query.after_user or query.user_id), query.after)


# -- search ------------------------------------------------------------------------


async def _search(call: Call, query: SessionListQuery, words: str, filters: dict[str, Any]) -> tuple[list[Found], str]:
    """Return the hits of a search, and which users it covered: without a user, those of the sessions that were used last."""
    user = filters["user_id"]
    more = {name: filters[name] for name in ("agent", "since", "until")}
    if user is not None:
        return [Found(user, await call.hf.search(words, user, limit=_FOUND, after=query.after, **more))], ""
    newest = await call.hf.sessions(limit=SORTED_SESSIONS)
    known = list(dict.fromkeys(session.user_id for session in newest.sessions))
    users = known[:_USERS]
    limit = _FOUND if len(users) == 1 else _FOUND_EACH
    found = await asyncio.gather(*(call.hf.search(words, one, limit=limit, **more) for one in users))
    coverage = ""
    if len(known) > _USERS or newest.has_more:
        coverage = f"the {len(users)} of {len(known)}{' or more' if newest.has_more else ''} users who were active last"
    return [Found(one, results) for one, results in zip(users, found, strict=True) if results.hits], coverage

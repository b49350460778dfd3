"""Pages about retention: the rules, what each would do now, and the journal of deletions with their receipts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.domain.objects import Id, NonEmpty
from holdfast.durations import format_duration
from holdfast.server.http import Call
from holdfast.server.inspector.frame import HTML, PageQuery, make_url, render
from holdfast.server.inspector.rest import read_rest
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.server.status import read_retention

routes = Routes("inspector")
_LISTED: Final = 50
"""Deletions on a page."""
_BYTES: Final = ("bytes", "artifact_bytes", "media_bytes", "record_bytes")
"""Counts of a receipt that are sizes."""


class DeletionsQuery(PageQuery, kw_only=True):
    """Query parameters of the journal of deletions."""

    user_id: Id | None = None
    session_id: Id | None = None
    after: NonEmpty | None = None
    """Id of the last deletion on the page before."""


@routes.add("GET", "/inspect/retention", "shared admin", answer=HTML)
async def show_retention(call: Call, query: PageQuery) -> Reply:
    """Return the rules that end and delete sessions, and what each of them would do now."""
    found = msgspec.to_builtins(await read_retention(call))
    rules = [
        _describe_rule("sessions.ttl", "Idle sessions end after", found["session_ttl"], found["expired"]),
        _describe_rule(
            "sessions.max_sessions", "Active sessions, at most", found["max_sessions"], found["surplus"], is_time=False
        ),
        _describe_rule(
            "storage.sessions.retention", "Closed sessions are deleted after", found["retention"], found["retired"]
        ),
    ]
    return await render(call, "retention.html", title="Retention", found=found, rules=rules)


def _describe_rule(name: str, title: str, value: int, due: dict[str, Any], *, is_time: bool = True) -> dict[str, Any]:
    """Return a rule for the page: its key in the configuration, its value as text, and the sessions to which it applies now."""
    text = format_duration(value / 1000) if is_time else f"{value:,}"
    return {"name": name, "title": title, "value": text if value else "", "due": due}


@routes.add("GET", "/inspect/deletions", "shared admin", answer=HTML)
async def show_deletions(call: Call, query: DeletionsQuery) -> Reply:
    """Return the journal of deletions with their receipts, newest first."""
    given = {"user_id": query.user_id, "session_id": query.session_id}
    if query.session_id is not None and query.user_id is None:
        given["user_id"] = "default"
    found = await read_rest(call, "/v1/deletions", limit=_LISTED, after=query.after, **given)
    after = found["last_id"] if found["has_more"] else None
    receipts = [
        [(name.replace("_", " "), count, name in _BYTES) for name, count in one["receipt"].items() if count]
        for one in found["data"]
    ]
    return await render(
        call,
        "deletions.html",
        title="Deletions",
        query=query,
        deletions=list(zip(found["data"], receipts, strict=True)),
        next_url=make_url("/inspect/deletions", **given, after=after) if after else "",
        first_url=make_url("/inspect/deletions", **given) if query.after else None,
    )

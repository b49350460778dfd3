"""The REST API over past conversations: search."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.limits import QUERY_CHARS, SEARCH_NEIGHBOURS, SEARCH_RESULTS
from holdfast.recall.base import SEARCH_MODES
from holdfast.search.asking import SEARCH_ROLES, zone_named
from holdfast.search.results import SearchHit
from holdfast.server.http import Call
from holdfast.server.replies import Reply, listed
from holdfast.wire.times import moment_of

PAGE: Final = 10
"""Hits of a page unless the request says otherwise."""


async def search(call: Call) -> Reply:
    """Search what was said in a user's sessions. What the question names of a time ("yesterday") narrows it."""
    query = call.text("q")
    if query is None:
        raise InvalidRequest("q is missing: what is looked for", param="q")
    if not query.strip() or len(query) > QUERY_CHARS:
        raise InvalidRequest(f"q must have 1 to {QUERY_CHARS:,} characters, not white space alone", param="q")
    zone = call.text("tz") or "UTC"
    found = await call.hf.search(
        query,
        call.owner_or_default(call.text("user_id")),
        mode=call.choice("mode", "", "", *SEARCH_MODES) or None,  # type: ignore[arg-type]  # one of these
        limit=call.number("limit", PAGE, 1, SEARCH_RESULTS),
        after=call.text("after"),
        session_id=call.text("session_id"),
        agent=call.text("agent"),
        role=call.choice("role", "", "", *SEARCH_ROLES) or None,
        since=_moment(call, "since", zone),
        until=_moment(call, "until", zone),
        time=call.choice("time", "auto", "auto", "filter", "off"),  # type: ignore[arg-type]  # one of these
        tz=zone,
        neighbours=call.number("neighbours", 0, 0, SEARCH_NEIGHBOURS),
        session_level=call.choice("level", "message", "message", "session") == "session",
        rerank=call.choice("rerank", "true", "true", "false") == "true",
    )
    since, until = found.range
    told: dict[str, Any] = {"mode": found.mode, "range": {"since": since, "until": until}, "notes": list(found.notes)}
    return Reply(listed([hit_to(hit) for hit in found.hits], has_more=found.has_more, **told))


def hit_to(hit: SearchHit) -> dict[str, Any]:
    """A hit as the API tells it; its `id` is what a next page is asked for with."""
    told: dict[str, Any] = msgspec.to_builtins(hit)
    near = {"before": told.pop("before"), "after": told.pop("after")}
    return {"id": told.pop("cursor"), "object": "search.hit", **told, "neighbours": near}


def _moment(call: Call, name: str, zone: str) -> int | None:
    given = call.text(name)
    return None if given is None else moment_of(given, name, zone_named(zone))

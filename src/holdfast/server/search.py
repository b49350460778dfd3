"""REST API for searching past conversations, and for the status of the index."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.domain.objects import Answer, Id, Page, Request, Time, json_schema, make_object
from holdfast.errors import InvalidRequest
from holdfast.limits import QUERY_CHARS, SEARCH_NEIGHBOURS, SEARCH_RESULTS
from holdfast.recall.base import SearchMode
from holdfast.search.queries import FoundMessage, SearchHit, SearchNeighbour, parse_search_zone
from holdfast.server.http import Call
from holdfast.server.routes import Routes
from holdfast.wire.strict_json import parse_time

routes = Routes("search")
Role = Literal["user", "assistant", "tool"]
Moment = Annotated[str, json_schema(description="milliseconds since the epoch, a date, or date and time (RFC 3339)")]


class SearchQuery(Request, kw_only=True):
    """Query parameters of a search."""

    q: Annotated[
        str,
        json_schema(description=f"search query in plain words; at most {QUERY_CHARS:,} characters", minLength=1),
    ]
    user_id: Id | None = None
    """User whose sessions are searched; default: `default`."""
    mode: SearchMode | None = None
    """Kind of search; default: the best kind that the index supports."""
    limit: Annotated[
        int, json_schema(description="maximum number of hits; default 10", minimum=1, maximum=SEARCH_RESULTS)
    ] = 10
    after: str | None = None
    """`last_id` of the previous page, after which this page begins."""
    session_id: Id | None = None
    """Only messages in this session."""
    agent: str | None = None
    """Only messages of this agent."""
    role: Role | None = None
    """Only messages with this role. Tool results are found only with `tool`."""
    since: Moment | None = None
    """Only messages from this time on: milliseconds since the epoch, a date, or date and time (RFC 3339)."""
    until: Moment | None = None
    """Only messages before this time."""
    time: Literal["auto", "filter", "off"] = "auto"
    """Effect of a time that the query names. `auto`: messages from or about that time come first; `filter`: only messages from that time
    are found; `off`: its words are ordinary words."""
    tz: str = "UTC"
    """IANA time zone of dates in the query, `since` and `until`; default: `UTC`."""
    neighbours: Annotated[
        int,
        json_schema(
            description="messages to return before and after each hit; default 0", minimum=0, maximum=SEARCH_NEIGHBOURS
        ),
    ] = 0
    level: Literal["message", "session"] = "message"
    """`message`: all hits; `session`: only the best hit of each session."""
    rerank: bool = True
    """False: do not use the reranker."""


class Neighbours(Answer):
    """Messages before and after a hit."""

    before: tuple[SearchNeighbour, ...]
    after: tuple[SearchNeighbour, ...]


class SearchHitObject(FoundMessage, frozen=True, kw_only=True):
    """A message that the search found."""

    id: str
    """Cursor of the hit. Pass it as `after` to get the hits after this one."""
    object: Literal["search.hit"] = "search.hit"
    neighbours: Neighbours

    @classmethod
    def from_hit(cls, hit: SearchHit) -> SearchHitObject:
        """Convert a hit of the index to its JSON object."""
        return make_object(cls, hit, id=hit.cursor, neighbours=make_object(Neighbours, hit))


class TimeRange(Answer):
    """Time range that was searched. It comes from `since`, `until` and the query."""

    since: Time | None
    until: Time | None


class SearchResults(Page[SearchHitObject, str], kw_only=True):
    """A page of hits, best first."""

    mode: SearchMode
    """Kind of search that was used."""
    range: TimeRange
    notes: list[str]
    """Notes on how the search that was done differs from the requested search."""


@routes.add("GET", "/v1/search", "read", error_statuses=(404, 502))
async def search(call: Call, query: SearchQuery) -> SearchResults:
    """Search the messages of a user.

    If the query names a time, such as "yesterday", messages from that time come first; see `time`. A query that names only a time finds
    all messages of that time.
    """
    if not query.q.strip() or len(query.q) > QUERY_CHARS:
        raise InvalidRequest(f"q must have 1 to {QUERY_CHARS:,} characters and not only white space", param="q")
    given = msgspec.structs.asdict(query)
    zone = parse_search_zone(query.tz)
    for name in ("since", "until"):
        given[name] = None if given[name] is None else parse_time(given[name], name, zone)
    given["user_id"] = call.get_owner_or_default(query.user_id)
    words, level = given.pop("q"), given.pop("level")
    found = await call.hf.search(words, **given, session_level=level == "session")
    hits = [SearchHitObject.from_hit(hit) for hit in found.hits]
    notes = list(found.notes)
    return SearchResults.of(hits, has_more=found.has_more, mode=found.mode, range=TimeRange(*found.range), notes=notes)

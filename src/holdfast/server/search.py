"""The REST API over past conversations: search, and how the index is doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.indexes.rebuild import IndexReport
from holdfast.limits import QUERY_CHARS, SEARCH_NEIGHBOURS, SEARCH_RESULTS
from holdfast.recall.base import SearchMode
from holdfast.search.queries import SearchHit, SearchNeighbour, zone_named
from holdfast.server.http import Call
from holdfast.server.routes import STORE, Routes
from holdfast.wire.objects import Answer, Count, Id, JsonObject, Page, Request, Time, json_schema
from holdfast.wire.parsing import moment_of

routes = Routes("search")
Role = Literal["user", "assistant", "tool"]
Moment = Annotated[
    str, json_schema(description="milliseconds since the epoch, a date, or date and time as RFC 3339 has them")
]


class SearchQuery(Request, kw_only=True):
    """Parameters of a search."""

    q: Annotated[
        str,
        json_schema(description=f"what is looked for, in plain words; at most {QUERY_CHARS:,} characters", minLength=1),
    ]
    user_id: Id | None = None
    """Whose sessions; without it the user `default`'s."""
    mode: SearchMode | None = None
    """What is searched by; what the index is for unless given."""
    limit: Annotated[
        int, json_schema(description="most hits of the page; 10 unless given", minimum=1, maximum=SEARCH_RESULTS)
    ] = 10
    after: str | None = None
    """The `last_id` of the page before."""
    session_id: Id | None = None
    """Only in this session."""
    agent: str | None = None
    """Only what this agent said."""
    role: Role | None = None
    """Only what was said so; results of tools are found with `tool` alone."""
    since: Moment | None = None
    """Only from then on: milliseconds since the epoch, a date, or date and time as RFC 3339 has them."""
    until: Moment | None = None
    """Only before then."""
    time: Literal["auto", "filter", "off"] = "auto"
    """`filter`: only what was said at the time that the question asks for; `off`: times are words like others."""
    tz: str = "UTC"
    """The time zone (IANA) that days begin in; `UTC` unless given."""
    neighbours: Annotated[
        int,
        json_schema(
            description="messages before and after each hit; 0 unless given", minimum=0, maximum=SEARCH_NEIGHBOURS
        ),
    ] = 0
    level: Literal["message", "session"] = "message"
    """`session`: only the best hit of each session."""
    rerank: bool = True
    """`false`: the reranker, if there is one, is not asked."""


class Neighbours(Answer):
    """Messages around a hit, as many as were asked for."""

    before: tuple[SearchNeighbour, ...]
    after: tuple[SearchNeighbour, ...]


class SearchHitObject(Answer, kw_only=True):
    """A message that answers."""

    id: str
    """Names the hit in this search: give it as `after` for what comes after it."""
    object: Literal["search.hit"] = "search.hit"
    session_id: Id
    seq: Count
    """The message's place in its session."""
    turn_id: Count
    """The turn that it belongs to."""
    role: Annotated[str, json_schema(enum=["user", "assistant", "tool"])]
    agent: str | None
    """Which agent said it."""
    name: str | None
    """Who spoke, where several do."""
    timestamp: Time
    score: float
    """The higher, the better, within one search; 0 where only a time was asked for."""
    parts: Mapping[str, float]
    """What the score is made of: `own`, `neighbours`, `session`, `traits`, `keyword`, `vector`; `similarity` is the cosine of the message
    and the question; `rerank` is the score of the reranker, which is not part of `score`."""
    snippet: str
    """The part of the message that answers best, white space made single."""
    highlights: tuple[tuple[Count, ...], ...]
    """Start and stop of each word that was asked for, in characters (code points) of `snippet`."""
    position: Annotated[int, json_schema(minimum=1)]
    """Its rank over all pages, from 1."""
    neighbours: Neighbours

    @classmethod
    def from_hit(cls, hit: SearchHit) -> SearchHitObject:
        """Show a hit."""
        return cls.from_fields(hit, id=hit.cursor, neighbours=Neighbours.from_fields(hit))


class TimeRange(Answer):
    """The time that was searched: filters and what the question names, together."""

    since: Time | None
    until: Time | None


class SearchResults(Page[SearchHitObject, str], kw_only=True):
    """A page of hits, best first."""

    mode: SearchMode
    """What was searched by."""
    range: TimeRange
    notes: list[str]
    """What was otherwise than asked for."""


@routes.add("GET", "/v1/search", "read", fails=(*STORE, 404, 502))
async def search(call: Call, query: SearchQuery) -> SearchResults:
    """Search what was said in a user's sessions. What the question names of a time ("yesterday") narrows it."""
    if not query.q.strip() or len(query.q) > QUERY_CHARS:
        raise InvalidRequest(f"q must have 1 to {QUERY_CHARS:,} characters, not white space alone", param="q")
    found = await call.hf.search(
        query.q,
        call.owner_or_default(query.user_id),
        mode=query.mode,
        limit=query.limit,
        after=query.after,
        session_id=query.session_id,
        agent=query.agent,
        role=query.role,
        since=_moment(query.since, "since", query.tz),
        until=_moment(query.until, "until", query.tz),
        time=query.time,
        tz=query.tz,
        neighbours=query.neighbours,
        session_level=query.level == "session",
        rerank=query.rerank,
    )
    hits = [SearchHitObject.from_hit(hit) for hit in found.hits]
    notes = list(found.notes)
    return SearchResults.of(hits, has_more=found.has_more, mode=found.mode, range=TimeRange(*found.range), notes=notes)


def _moment(given: str | None, name: str, zone: str) -> int | None:
    return None if given is None else moment_of(given, name, zone_named(zone))


# -- the index -------------------------------------------------------------------


class Index(IndexReport, frozen=True, kw_only=True):
    """How the index is doing."""

    object: Literal["index"] = "index"
    enabled: Literal[True] = True


class NoIndex(Answer, kw_only=True):
    """The index is switched off."""

    object: Literal["index"] = "index"
    enabled: Literal[False] = False


@routes.add("GET", "/v1/index", "shared", fails=STORE, answer=(Index, NoIndex))
async def index_status(call: Call) -> JsonObject | NoIndex:
    """What the tenant's index has, and how far it is behind; without one, that it is switched off."""
    index = call.hf.index
    if index is None:
        return NoIndex()
    found: dict[str, Any] = msgspec.to_builtins(await index.status())
    return {"object": "index", "enabled": True, **found}

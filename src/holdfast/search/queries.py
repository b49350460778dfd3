"""What a search accepts and returns: filters and form, hits with their snippets and neighbours, pages and cursors. Pure.

A cursor holds the place of the last hit in the order of the ranking, and the moment of the first page: "yesterday" stays the same day,
and later messages do not appear. It is no secret and grants nothing: only the request says whose messages are searched.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from datetime import tzinfo
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest
from holdfast.limits import (
    INDEX_FRESH_SECONDS,
    QUERY_CHARS,
    SEARCH_NEIGHBOURS,
    SEARCH_RESULTS,
    SEARCH_SNIPPET_CHARS,
    SEARCH_VECTOR_SECONDS,
)
from holdfast.numbers import check_whole
from holdfast.recall.base import SEARCH_MODES, SearchMode
from holdfast.recall.questions import zone_of
from holdfast.stores.checks import check_id

SEARCH_ROLES: Final = ("user", "assistant", "tool")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a search is for, beside its words. See `Sessions.search` for what each means."""

    mode: SearchMode | None = None
    limit: int = 10
    after: str | None = None
    session_id: str | None = None
    not_session: str | None = None
    agent: str | None = None
    role: str | None = None
    since: int | None = None
    until: int | None = None
    time: Literal["auto", "filter", "off"] = "auto"
    """What a time in the query does: what was said then, or about it, goes first; nothing else is found; nothing."""
    zone: str = "UTC"
    neighbours: int = 0
    session_level: bool = False
    width: int = SEARCH_SNIPPET_CHARS
    """Characters of a snippet."""
    fresh: float = INDEX_FRESH_SECONDS
    """Seconds to wait for what the user has just said to be in the index."""
    known: SessionRef | None = None
    """The session of a turn, which has its newest messages: nobody waits for these, nor for many other sessions."""
    bare: bool = False
    """Whether nothing but what was said is wanted: no highlights, no cursors, nor whether there is more."""
    least: float = 0.0
    """Part of the best hit's score that a hit has to have."""
    sure: bool = False
    """Whether nothing is wanted unless something surely answers; see `Ranking.answers`. For what a model is given."""
    rerank: Literal["on", "off", "prompt"] = "on"
    """Whether the reranker, if there is one, orders the best hits; `prompt`: only if it is for prompts, and in less time."""
    patience: float = SEARCH_VECTOR_SECONDS
    """Seconds to wait for the vector of the query."""

    def bound(self, tenant: str, user_id: str, query: str) -> dict[str, Any]:
        """All that the order and the filters of a search depend on."""
        own = ("mode", "session_id", "not_session", "agent", "role", "since", "until", "time", "zone", "session_level")
        plain = {"rerank": self.rerank} if self.rerank != "on" else {}
        return {**{name: getattr(self, name) for name in own}, **plain, "of": [tenant, user_id, query]}


def check(user_id: Any, query: Any, asked: Asked) -> None:
    """Refuse what cannot be asked, before anything is looked up. Raises `InvalidRequest`."""
    _check_id(user_id, "user_id")
    for name in ("session_id", "agent"):
        if getattr(asked, name) is not None:
            _check_id(getattr(asked, name), name)
    if not isinstance(query, str):
        raise InvalidRequest(f"query must be a string, not {type(query).__name__}", param="query")
    if not query.strip():
        raise InvalidRequest("query is empty: say what is looked for", param="query")
    if len(query) > QUERY_CHARS:
        raise InvalidRequest(f"query has {len(query):,} characters; at most {QUERY_CHARS:,} are taken", param="query")
    for name, known in (
        ("mode", (None, *SEARCH_MODES)),
        ("role", (None, *SEARCH_ROLES)),
        ("time", ("auto", "filter", "off")),
    ):
        if (value := getattr(asked, name)) not in known:
            told = ", ".join(filter(None, known))
            raise InvalidRequest(f"{name} must be one of {told}, not {value!r:.80}", param=name)
    check_whole(asked.limit, "limit", 1, SEARCH_RESULTS)
    check_whole(asked.neighbours, "neighbours", 0, SEARCH_NEIGHBOURS)
    if not isinstance(asked.after, str | None):
        raise InvalidRequest(f"after must be a cursor, not {type(asked.after).__name__}", param="after")
    _check_times(asked)


def _check_times(asked: Asked) -> None:
    for name in ("since", "until"):
        if (value := getattr(asked, name)) is not None:
            check_whole(value, name, -(2**53), 2**53)
    if asked.since is not None and asked.until is not None and asked.since >= asked.until:
        raise InvalidRequest("until must be later than since; a date stands for its beginning", param="until")
    zone_named(asked.zone)


def zone_named(name: Any) -> tzinfo:
    """The time zone of that name. Raises `InvalidRequest`."""
    if not isinstance(name, str):
        raise InvalidRequest(f"tz must be the name of a time zone, not {type(name).__name__}", param="tz")
    try:
        return zone_of(name)
    except InvalidRequest as exc:
        raise InvalidRequest(str(exc), param="tz") from exc


def _check_id(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", param=name)
    check_id(value, name)


_KEY: Final = b"holdfast search cursor 1"
_CHECK_BYTES: Final = 12
_LONGEST: Final = 4_500


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a page ends: in the order of the ranking, or within the hits that a reranker has put in another order."""

    score: float
    """Of the hit; in the midst of reranked hits of the one of them that is last in the order of the ranking."""
    at: int
    session: str
    seq: int
    position: int
    """Of the hit, from 1 on the first page."""
    now: int
    """When the first page was asked for: milliseconds since the epoch."""
    newest: int
    """When the newest of all hits was said, as far as they were known then: clocks may differ."""
    reranked: bytes = b""
    """Reranked hits that are still to come before the ranking goes on, in their order; see `holdfast.search.ranked_search`."""

    @property
    def key(self) -> tuple[float, int, str, int]:
        """What orders hits: the better, the newer, then by session and place."""
        return order_of(self.score, self.at, self.session, self.seq)


def order_of(score: float, at: int, session: str, seq: int) -> tuple[float, int, str, int]:
    """The key by which hits are in order, best first."""
    return -score, -at, session, seq


def cursor_of(place: Place, asked: Any) -> str:
    """A place as an opaque text.

    Args:
        place: the place.
        asked: all that the search depends on, as JSON has it: a page of another search cannot be continued with it.
    """
    said = msgspec.json.encode(place)
    return urlsafe_b64encode(_check(said, asked) + said).rstrip(b"=").decode()


def place_in(cursor: str, asked: Any) -> Place:
    """The place that a cursor names. Raises `InvalidRequest` for one that was not given for this very search."""
    if len(cursor) <= _LONGEST:
        try:
            data = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            said = data[_CHECK_BYTES:]
            if data[:_CHECK_BYTES] == _check(said, asked):
                return msgspec.json.decode(said, type=Place)
        except (BadBase64, UnicodeEncodeError, msgspec.MsgspecError):
            pass
    message = "after is no cursor of this search: give the `cursor` (over HTTP `last_id`) of the page before, with the same query, filters and user"
    raise InvalidRequest(message, param="after")


def _check(said: bytes, asked: Any) -> bytes:
    about = msgspec.json.encode(asked, order="sorted")
    digest = hashlib.blake2b(key=_KEY, digest_size=_CHECK_BYTES)
    digest.update(len(about).to_bytes(8) + about + said)
    return digest.digest()


class SearchNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A message before or behind a hit."""

    seq: int
    turn_id: int
    role: str
    agent: str | None
    name: str | None
    timestamp: int
    text: str


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that answers."""

    session_id: str
    seq: int
    turn_id: int
    role: str
    agent: str | None
    name: str | None
    """Who spoke, where several do."""
    timestamp: int
    score: float
    """The higher, the better; comparable within one search only. 0 where only a time was asked for."""
    parts: dict[str, float]
    """What the score is made of: `own`, `neighbours`, `session`, `traits`, `keyword`, `vector`; `similarity` is the cosine.

    `rerank` is the score of the reranker: it decides the order, and is not part of `score`."""
    snippet: str
    highlights: tuple[tuple[int, int], ...]
    """Start and stop of each word that was asked for, in characters of `snippet`."""
    position: int
    """Its rank, from 1, over all pages."""
    cursor: str = ""
    """Names this hit of this search: given as `after`, the page begins behind it."""
    before: tuple[SearchNeighbour, ...] = ()
    after: tuple[SearchNeighbour, ...] = ()

    @property
    def id(self) -> str:
        """Names it: `session#seq`."""
        return f"{self.session_id}#{self.seq}"


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """A page of hits."""

    hits: tuple[SearchHit, ...]
    mode: SearchMode
    """What was searched by."""
    has_more: bool = False
    cursor: str | None = None
    """Give it as `after` for the next page; None: there is none."""
    range: tuple[int | None, int | None] = (None, None)
    """The time that was searched, filters and time expressions together: from the one until before the other, in milliseconds."""
    notes: tuple[str, ...] = ()
    """What was otherwise than asked for: `keyword only: there is no embedder`."""

"""The options of a search, its results (hits with snippets and neighbours), and cursors for the next page. Pure functions.

A cursor contains the position of a hit in the ranking, and the time at which the first page was made. So "yesterday" means the
same day on all pages, and messages that were written after the first page do not appear. A cursor is not a secret and gives no
access: the user whose messages are searched comes from the request only.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Sequence
from datetime import tzinfo
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.domain.objects import Count, Id, Time, json_schema
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
from holdfast.recall.questions import parse_zone
from holdfast.stores.checks import check_id

SEARCH_ROLES: Final = ("user", "assistant", "tool")


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a search. Options without a description here are described in `Sessions.search`."""

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
    """The effect of a time in the query. `auto`: messages from this time, or about it, rank first. `filter`: only messages from
    this time are found. `off`: a time has no effect.
    """
    zone: str = "UTC"
    neighbours: int = 0
    session_level: bool = False
    width: int = SEARCH_SNIPPET_CHARS
    """Maximum number of characters of a snippet."""
    fresh: float = INDEX_FRESH_SECONDS
    """Maximum number of seconds to wait until the user's latest messages are in the index."""
    known: SessionRef | None = None
    """The session of the turn that searches. The search does not wait until this session's latest messages are indexed, because
    they are in the prompt already. If many sessions of the user wait to be indexed, the search waits for none of them.
    """
    bare: bool = False
    """True if only the texts of the hits are needed: no highlights, no cursors, no `has_more`."""
    least: float = 0.0
    """Minimum score of a hit, as a fraction of the best hit's score."""
    sure: bool = False
    """True to return no hits unless at least one of them surely answers the query (`Ranking.has_answer`). Used if the hits are
    shown to a model.
    """
    rerank: bool = True
    """True: the reranker, if one is configured, reorders the best hits."""
    patience: float = SEARCH_VECTOR_SECONDS
    """Maximum number of seconds to wait for the vector of the query."""

    def make_cursor_binding(self, tenant: str, user_id: str, query: str) -> dict[str, Any]:
        """Return all values that determine the hits and their order. A cursor is valid only for a search with the same values."""
        own = (
            "mode",
            "session_id",
            "not_session",
            "agent",
            "role",
            "since",
            "until",
            "time",
            "zone",
            "session_level",
            "rerank",
        )
        return {**{name: getattr(self, name) for name in own}, "of": [tenant, user_id, query]}


def check_search(user_id: Any, query: Any, options: SearchOptions) -> None:
    """Check the arguments of a search.

    Raises:
        InvalidRequest: an argument is invalid.
    """
    _check_id(user_id, "user_id")
    for name in ("session_id", "agent"):
        if getattr(options, name) is not None:
            _check_id(getattr(options, name), name)
    if not isinstance(query, str):
        raise InvalidRequest(f"query must be a string, not {type(query).__name__}", param="query")
    check_question(query, options.mode, options.limit)
    _check_choice(options.role, "role", (None, *SEARCH_ROLES))
    _check_choice(options.time, "time", ("auto", "filter", "off"))
    check_whole(options.neighbours, "neighbours", 0, SEARCH_NEIGHBOURS)
    if not isinstance(options.after, str | None):
        raise InvalidRequest(f"after must be a cursor, not {type(options.after).__name__}", param="after")
    _check_times(options)


def check_question(query: str, mode: Any, limit: Any) -> None:
    """Check what searches of conversations and of records have in common. Raises `InvalidRequest`."""
    if not query.strip():
        raise InvalidRequest("query is empty: say what to search for", param="query")
    if len(query) > QUERY_CHARS:
        raise InvalidRequest(f"query has {len(query):,} characters; at most {QUERY_CHARS:,} are allowed", param="query")
    _check_choice(mode, "mode", (None, *SEARCH_MODES))
    check_whole(limit, "limit", 1, SEARCH_RESULTS)


def _check_choice(value: Any, name: str, known: Sequence[str | None]) -> None:
    if value not in known:
        allowed = ", ".join(filter(None, known))
        raise InvalidRequest(f"{name} must be one of {allowed}, not {value!r:.80}", param=name)


def _check_times(options: SearchOptions) -> None:
    for name in ("since", "until"):
        if (value := getattr(options, name)) is not None:
            check_whole(value, name, -(2**53), 2**53)
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise InvalidRequest("until must be later than since; a date stands for its beginning", param="until")
    parse_search_zone(options.zone)


def parse_search_zone(name: Any) -> tzinfo:
    """Return the time zone with an IANA name.

    Raises:
        InvalidRequest: there is no time zone with this name.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"tz must be the name of a time zone, not {type(name).__name__}", param="tz")
    try:
        return parse_zone(name)
    except InvalidRequest as exc:
        raise InvalidRequest(str(exc), param="tz") from exc


def _check_id(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", param=name)
    check_id(value, name)


_KEY: Final = b"holdfast search cursor 1"
_CHECK_BYTES: Final = 12
_LONGEST: Final = 4_500


class PagePosition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The position of a hit, after which the next page begins.

    `score`, `at`, `session` and `seq` are the values of this hit, with one exception: if a reranker has reordered the hit, they
    are the values of the reordered hit that is last in the ranking.
    """

    score: float
    at: int
    """Time of the message, in milliseconds since the epoch."""
    session: str
    seq: int
    position: int
    """The number of the hit over all pages, from 1."""
    now: int
    """The time at which the first page was made, in milliseconds since the epoch."""
    newest: int
    """The time of the newest hit that was known for the first page, in milliseconds since the epoch. It is needed because clocks
    may differ.
    """
    reranked: bytes = b""
    """The hits that follow this hit in the reranker's order, encoded; see `holdfast.search.ranked_search`. The ranking continues
    after these hits.
    """

    @property
    def key(self) -> tuple[float, int, str, int]:
        """The values by which the position is compared with hits; see `make_order_key`."""
        return make_order_key(self.score, self.at, self.session, self.seq)


def make_order_key(score: float, at: int, session: str, seq: int) -> tuple[float, int, str, int]:
    """Return the values by which hits are sorted: score (best first), time (newest first), session, and `seq`."""
    return -score, -at, session, seq


def encode_cursor(place: PagePosition, binding: Any) -> str:
    """Encode a position as an opaque cursor.

    Args:
        place: the position.
        binding: all values that determine the results of the search, as JSON. The cursor is valid only with the same values.
    """
    data = msgspec.json.encode(place)
    return urlsafe_b64encode(_sign(data, binding) + data).rstrip(b"=").decode()


def decode_cursor(cursor: str, binding: Any) -> PagePosition:
    """Return the position that a cursor contains.

    Raises:
        InvalidRequest: the cursor was not made with the same `binding`.
    """
    if len(cursor) <= _LONGEST:
        try:
            data = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            signature, position = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
            if signature == _sign(position, binding):
                return msgspec.json.decode(position, type=PagePosition)
        except (BadBase64, UnicodeEncodeError, msgspec.MsgspecError):
            pass
    message = "after is not a cursor of this search: give the previous page's `cursor` (over HTTP `last_id`), with the same query, filters and user"
    raise InvalidRequest(message, param="after")


def _sign(data: bytes, binding: Any) -> bytes:
    about = msgspec.json.encode(binding, order="sorted")
    digest = hashlib.blake2b(key=_KEY, digest_size=_CHECK_BYTES)
    digest.update(len(about).to_bytes(8) + about + data)
    return digest.digest()


class SearchNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A message before or after a hit, as part of the hit's context."""

    seq: int
    turn_id: int
    role: str
    agent: str | None
    name: str | None
    timestamp: int
    text: str


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a search found, as the library and the REST API show it."""

    session_id: Id
    seq: Count
    """Number of the message in its session."""
    turn_id: Count
    """Number of the message's turn."""
    role: Annotated[str, json_schema(enum=["user", "assistant", "tool"])]
    agent: str | None
    """Agent that wrote the message."""
    name: str | None
    """Name of the speaker, if the session has several."""
    timestamp: Time
    score: float
    """Relevance; higher is better. Scores of different searches cannot be compared. 0 if the query names only a time."""
    parts: dict[str, float]
    """Parts of the score: `own`, `neighbours`, `session`, `traits`, `keyword` and `vector`. `similarity` is the cosine of message and
    query. `rerank` is the reranker's score, which is not part of `score`."""
    snippet: str
    """Part of the message that matches best. Each run of white space is one space."""
    highlights: tuple[tuple[Count, ...], ...]
    """Start and stop of each matching word, in characters (code points) of `snippet`."""
    position: Annotated[int, json_schema(minimum=1)]
    """Rank of the hit, counted over all pages, from 1."""


class SearchHit(FoundMessage, frozen=True, kw_only=True):
    """A message that a search found, with its neighbours."""

    cursor: str = ""
    """Cursor of this hit: as `after` in the same search, it returns the hits after this one."""
    before: tuple[SearchNeighbour, ...] = ()
    after: tuple[SearchNeighbour, ...] = ()

    @property
    def id(self) -> str:
        """The hit's identifier, `session#seq`."""
        return f"{self.session_id}#{self.seq}"


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """A page of hits."""

    hits: tuple[SearchHit, ...]
    mode: SearchMode
    """The search mode that was used."""
    has_more: bool = False
    cursor: str | None = None
    """Cursor of the next page, for the argument `after`. None: this is the last page."""
    range: tuple[int | None, int | None] = (None, None)
    """The period that was searched, according to the filters and the query: start (included) and stop (excluded), in milliseconds
    since the epoch. None: no bound.
    """
    notes: tuple[str, ...] = ()
    """Ways in which the search differs from the request, such as `keyword only: there is no embedder`."""

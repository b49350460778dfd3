"""What a search can be asked: its filters and its form, and what is refused before anything is looked up."""

from __future__ import annotations

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
from holdfast.recall.times import zone_of
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

"""The API's objects about memories, as JSON Schema, and what its lists take."""

from __future__ import annotations

from typing import Any, Final

from holdfast.domain.memory import ORIGINS, STATUSES, TYPES
from holdfast.limits import (
    MEMORY_CHARS,
    MEMORY_SOURCES,
    MEMORY_TAG_CHARS,
    MEMORY_TAGS,
    PAGE,
    RECALLED_MEMORIES,
)
from holdfast.recall.base import SEARCH_MODES
from holdfast.server.shapes import ID, TIME, Schema, array, asked, free, nullable, page, query, record, ref, text, whole

_ID: Final = text("`mem_` and 32 hexadecimal digits")
_SHARE: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 1}


def _one_of(words: tuple[str, ...], about: str) -> Schema:
    return {"type": "string", "enum": list(words), "description": about}


_TYPE: Final = _one_of(TYPES, "what kind of fact")
_ORIGIN: Final = _one_of(ORIGINS, "where its words come from; the least trusted of them")
_SCOPE: Final = _one_of(("user", "agent", "app"), "whose it is")
_TAGS: Final = array(
    text(f"at most {MEMORY_TAG_CHARS} characters", minLength=1),
    description=f"words that it is found by, at most {MEMORY_TAGS}",
)
_SOURCES: Final = array(ref("MemorySource"), description=f"at most {MEMORY_SOURCES}")
_CHANGEABLE: Final[dict[str, Schema]] = {
    "content": text(f"what it says, at most {MEMORY_CHARS} characters", minLength=1),
    "type": _TYPE,
    "tags": _TAGS,
    "importance": {**_SHARE, "description": "as whoever remembers it says; 0.5 unless given"},
    "valid_from": nullable(whole("milliseconds since the epoch, from when on it holds")),
    "valid_until": nullable(whole("until when")),
    "metadata": free("anything"),
}
_MEMORY: Final[dict[str, Any]] = {
    "object": {"const": "memory"},
    "id": _ID,
    "scope": _SCOPE,
    "user_id": nullable(text("whose, of a user's")),
    "agent": nullable(text("whose, of an agent's; else which agent remembered it")),
    **_CHANGEABLE,
    "origin": _ORIGIN,
    "trust": {**_SHARE, "description": "the least of its sources'"},
    "status": _one_of(STATUSES, "`quarantined`: held for review; `superseded`: another one stands in its place"),
    "sources": _SOURCES,
    "created_at": TIME,
    "updated_at": TIME,
    "supersedes": array(_ID, description="in whose place it stands"),
    "superseded_by": nullable(_ID),
    "promoted_at": nullable(TIME),
    "reviewed_at": nullable(TIME),
    "version": whole("for `If-Match`"),
}
_MADE: Final[dict[str, Schema]] = {
    "outcome": _one_of(
        ("new", "merged", "superseded"), "`merged`: it was there already; `superseded`: it stands in place of others"
    ),
    "similar": array(ref("Memory"), description="those that are alike, and stay as they are"),
}
_FOUND: Final[dict[str, Schema]] = {
    "score": {**_SHARE, "description": "with `q`: how well it answers"},
    "parts": {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "description": "what the score is made of: `keyword`, `vector`, `relevance`, `recency`, `standing`",
    },
    "age": whole("milliseconds since it was last said"),
}
_LIST: Final = page("FoundMemory", nullable(_ID))

MEMORY_COMPONENTS: Final[dict[str, Schema]] = {
    "MemorySource": record(
        "Messages that a memory was made from.",
        {
            "session_id": ID,
            "user_id": ID,
            "seqs": array(whole(), description="which messages; none: it is not known"),
            "origin": _ORIGIN,
        },
        optional=("user_id", "seqs", "origin"),
    ),
    "Memory": record("What is remembered across sessions.", _MEMORY),
    "RememberedMemory": record("What became of something that was to be remembered.", {**_MEMORY, **_MADE}),
    "FoundMemory": record("A memory in a list.", {**_MEMORY, **_FOUND}, optional=tuple(_FOUND)),
    "MemoryList": {
        **_LIST,
        "properties": {
            **_LIST["properties"],
            "mode": _one_of(SEARCH_MODES, "with `q`: what was looked for by"),
            "note": text("why that is another way than was asked for"),
        },
    },
    "NewMemory": asked(
        "Something to remember.",
        {
            **_CHANGEABLE,
            "user_id": nullable(
                text("whose; unset: the key's user, else the agent's memory, else the user `default`'s")
            ),
            "agent": nullable(text("whose, or which agent remembers it for the user")),
            "scope": _SCOPE,
            "origin": _ORIGIN,
            "sources": nullable(_SOURCES),
            "supersedes": nullable(
                array(
                    _ID,
                    description="memories of the same owner that it replaces; it is kept next to them where it is held for review, or trusted less",
                )
            ),
        },
        "content",
    ),
    "MemoryChanges": asked("What is to change; what is left out stays.", {**_CHANGEABLE, "origin": _ORIGIN}),
    "MemoryReview": asked("A decision.", {"decision": _one_of(("accept", "reject"), "what becomes of it")}, "decision"),
    "ForgottenMemories": record(
        "They are gone.",
        {
            "object": {"const": "memory"},
            "id": _ID,
            "source_session": ID,
            "deleted": {"const": True},
            "memories": whole("how many, with those that it stood in place of"),
        },
        optional=("id", "source_session"),
    ),
}


MEMORY_USER: Final = query("user_id", ID, "whose; without it the key's user, else `default`")
MEMORY_PARAMETERS: Final = (
    query("q", text(minLength=1), "a question: those that answer it, best first"),
    MEMORY_USER,
    query("agent", ID, "with `q`: this agent's, too; else only those that this agent remembered"),
    query("scope", _SCOPE, "only the user's, the agent's, or the app's"),
    query("type", _TYPE, "only of this type"),
    query("tag", text(), "only with this tag"),
    query("status", {"type": "string", "enum": list(STATUSES)}, "only these; with `q` `active` or `quarantined`"),
    query("mode", {"type": "string", "enum": list(SEARCH_MODES)}, "with `q`: what is looked for by"),
    query("min_score", text(), "with `q`: only from this score on, 0 to 1"),
    query(
        "limit",
        whole(low=1, maximum=PAGE),
        f"most of the page, 20 unless given; with `q` {RECALLED_MEMORIES} at most, 5 unless given",
    ),
    query("after", _ID, "without `q`: the `last_id` of the page before"),
    query("order", {"type": "string", "enum": ["asc", "desc"]}, "without `q`: oldest or newest first"),
)
SOURCE_PARAMETERS: Final = (
    MEMORY_USER,
    query("source_session", ID, "the session; required"),
    query("source_seq", whole(), "only what comes from this message of it"),
)

"""The API's objects about dreams, as JSON Schema, and what the diary takes."""

from __future__ import annotations

from typing import Any, Final, get_args

from holdfast.consolidation.promotion import Verdict
from holdfast.consolidation.proposals import Status
from holdfast.limits import DIARY_PAGE
from holdfast.server.shapes import (
    ID,
    TIME,
    Schema,
    array,
    asked,
    boolean,
    nullable,
    page,
    query,
    record,
    ref,
    text,
    whole,
)

_ID: Final = text("`mem_` and 32 hexadecimal digits")
_SHARE: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 1}
_SCOPE: Final[Schema] = {"type": "string", "enum": ["user", "agent", "app"], "description": "whose memories"}
_WHOSE: Final[dict[str, Schema]] = {
    "user_id": nullable(text("whose; unset: the key's user, else the agent, else the user `default`")),
    "agent": nullable(text("an agent's own memories")),
    "scope": _SCOPE,
}
_FIGURES: Final = ("frequency", "relevance", "recency", "diversity", "consolidation")
_CANDIDATE: Final[dict[str, Schema]] = {
    "memory_id": _ID,
    "content": nullable(text("what it says; null: it is forgotten")),
    "verdict": {"type": "string", "enum": list(get_args(Verdict)), "description": "what became of it"},
    "score": _SHARE,
    "gates": array(text(), description="why it is not promoted: what it has, and what it needs"),
    "recalls": whole("those that count"),
    "queries": whole("really distinct questions among them"),
    "days": whole("distinct days (UTC) among them"),
    **dict.fromkeys(_FIGURES, _SHARE),
}
_DREAM: Final[dict[str, Any]] = {
    "object": {"const": "dream"},
    "scope": _SCOPE,
    "user_id": nullable(text("whose, of a user's")),
    "agent": nullable(text("whose, of an agent's")),
    "verdicts": {"type": "object", "additionalProperties": whole(), "description": "how many of each"},
    "candidates": array(ref("DreamCandidate"), description="the best first, at most 200"),
    "themes": array(ref("DreamTheme"), description="what was recalled the day before"),
    "proposals": array(ref("DreamProposal"), description="merges that wait for a review"),
    "model": {"anyOf": [ref("DreamModel"), {"type": "null"}]},
}
DREAM_COMPONENTS: Final[dict[str, Schema]] = {
    "DreamCandidate": record("What a sweep makes of a memory.", _CANDIDATE),
    "DreamTheme": record(
        "Memories that were recalled and are about the same.",
        {
            "terms": array(text(), description="words that they share, of those that are not forgotten"),
            "memory_ids": array(_ID),
            "size": whole("how many they were"),
            "recalls": whole("of all of them"),
        },
    ),
    "DreamProposal": record(
        "A merge that a model proposes.",
        {
            "memory_id": _ID,
            "merges": array(_ID, description="in whose place it would stand"),
            "content": nullable(text("what it would say; null: it is forgotten")),
            "status": nullable(text("`quarantined`: it waits for a review; null: it is forgotten")),
        },
    ),
    "DreamModel": record(
        "What came of asking a model for merges.",
        {
            "status": {"type": "string", "enum": list(get_args(Status)), "description": "see docs/dreams.md"},
            "code": nullable(text("why it failed")),
            "memories": whole("how many it was asked about"),
            "prompt_tokens": whole("as the model reported them"),
            "completion_tokens": whole("as the model reported them"),
        },
    ),
    "Dream": record(
        "A sweep.",
        {
            **_DREAM,
            "dry_run": boolean("nothing was written, because that was asked for"),
            "written": boolean("whether anything was"),
            "promotions": whole("how many it promoted, or would have"),
        },
    ),
    "DiaryEntry": record("A sweep that was.", {**_DREAM, "id": ID, "at": TIME}),
    "Diary": page("DiaryEntry", nullable(ID)),
    "DreamRequest": asked("Whose memories.", {**_WHOSE, "dry_run": boolean("write nothing")}),
}


DIARY_PARAMETERS: Final = (
    query("user_id", ID, "whose; without it the key's user, else the agent, else `default`"),
    query("agent", ID, "an agent's own"),
    query("scope", _SCOPE, "the user's, the agent's, or the app's"),
    query("limit", whole(low=1, maximum=DIARY_PAGE), "most sweeps, 20 unless given"),
)

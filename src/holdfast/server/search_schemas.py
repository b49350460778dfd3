"""The API's objects about search, as JSON Schema."""

from __future__ import annotations

from typing import Final

from holdfast.limits import QUERY_CHARS, SEARCH_NEIGHBOURS, SEARCH_RESULTS
from holdfast.recall.base import SEARCH_MODES
from holdfast.search.asking import SEARCH_ROLES
from holdfast.server.shapes import ID, TIME, Schema, array, boolean, nullable, query, record, ref, text, whole

_ROLE: Final[Schema] = {"type": "string", "enum": list(SEARCH_ROLES)}
_NUMBER: Final[Schema] = {"type": "number"}
_SAID: Final[dict[str, Schema]] = {
    "seq": whole("the message's place in its session"),
    "turn_id": whole("the turn that it belongs to"),
    "role": _ROLE,
    "agent": nullable(text("which agent said it")),
    "name": nullable(text("who spoke, where several do")),
    "timestamp": TIME,
}
_CURSOR: Final = nullable(text("of a hit of this very search: as `after` it gives what comes behind"))

SEARCH_COMPONENTS: Final[dict[str, Schema]] = {
    "SearchNeighbour": record("A message before or behind a hit.", {**_SAID, "text": text()}),
    "SearchHit": record(
        "A message that answers.",
        {
            "id": text("names the hit in this search: give it as `after` for what comes behind it"),
            "object": {"const": "search.hit"},
            "session_id": ID,
            **_SAID,
            "score": {
                **_NUMBER,
                "description": "the higher, the better, within one search; 0 where only a time was asked for",
            },
            "parts": {
                "type": "object",
                "additionalProperties": _NUMBER,
                "description": "what the score is made of: `own`, `neighbours`, `session`, `traits`, `keyword`, `vector`;"
                " `similarity` is the cosine of the message and the question; `rerank` is the score of the reranker, which is not part of `score`",
            },
            "snippet": text("the part of the message that answers best, white space made single"),
            "highlights": array(
                array(whole(), minItems=2),
                description="start and stop of each word that was asked for, in characters (code points) of `snippet`",
            ),
            "position": whole("its rank over all pages, from 1", 1),
            "neighbours": record(
                "Messages around it, as many as were asked for.",
                {"before": array(ref("SearchNeighbour")), "after": array(ref("SearchNeighbour"))},
            ),
        },
    ),
    "SearchResults": record(
        "A page of hits, best first.",
        {
            "object": {"const": "list"},
            "data": array(ref("SearchHit")),
            "has_more": boolean("there are hits behind the last one"),
            "first_id": _CURSOR,
            "last_id": _CURSOR,
            "mode": {"type": "string", "enum": list(SEARCH_MODES), "description": "what was searched by"},
            "range": record(
                "The time that was searched: filters and what the question names, together.",
                {"since": nullable(TIME), "until": nullable(TIME)},
            ),
            "notes": array(text(), description="what was otherwise than asked for"),
        },
    ),
}


_MOMENT: Final = text("milliseconds since the epoch, a date, or date and time as RFC 3339 has them")
SEARCH_PARAMETERS: Final = (
    query(
        "q", text(minLength=1), f"what is looked for, in plain words; at most {QUERY_CHARS:,} characters", required=True
    ),
    query("user_id", ID, "whose sessions; without it the user `default`'s"),
    query(
        "mode",
        {"type": "string", "enum": list(SEARCH_MODES)},
        "what is searched by; what the index is for unless given",
    ),
    query("limit", whole(low=1, maximum=SEARCH_RESULTS), "most hits of the page; 10 unless given"),
    query("after", text(), "the `last_id` of the page before"),
    query("session_id", ID, "only in this session"),
    query("agent", text(), "only what this agent said"),
    query("role", _ROLE, "only what was said so; results of tools are found with `tool` alone"),
    query("since", _MOMENT, "only from then on"),
    query("until", _MOMENT, "only before then"),
    query(
        "time",
        {"type": "string", "enum": ["auto", "filter", "off"]},
        "`filter`: only what was said at the time that the question asks for; `off`: times are words like others",
    ),
    query("tz", text(), "the time zone (IANA) that days begin in; `UTC` unless given"),
    query("neighbours", whole(maximum=SEARCH_NEIGHBOURS), "messages before and behind each hit; 0 unless given"),
    query("level", {"type": "string", "enum": ["message", "session"]}, "`session`: only the best hit of each session"),
    query(
        "rerank", {"type": "string", "enum": ["true", "false"]}, "`false`: the reranker, if there is one, is not asked"
    ),
)

"""Explanations of messages, as JSON Schema."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.context.presence import State
from holdfast.domain.session import CompactionKind
from holdfast.limits import EXPLAIN_EXCERPTS, EXPLAIN_MATCHES, EXPLAIN_QUERY_CHARS, EXPLAIN_TEXT_CHARS
from holdfast.server.context_schemas import DECISIONS
from holdfast.server.shapes import ID, TIME, Schema, array, boolean, nullable, query, record, ref, text, whole
from holdfast.sessions.explanation import RemedyKind
from holdfast.sessions.message_explanations import MATCHES

_BLOCKS: Final = (
    "`system`, `task`, `pins`, `head`, `tail`, `current`, `introduction`, `recalled`, or a compaction's kind"
)

EXPLANATION_COMPONENTS: Final[dict[str, Schema]] = {
    "Explanation": record(
        "A prompt in short, and what it has of some messages.",
        {
            "object": {"const": "explanation"},
            "session_id": ID,
            "turn": nullable(whole("whose last prompt it is; null: the prompt that would be built now")),
            "exact": {
                "type": ["boolean", "null"],
                "description": "for a turn: whether the prompt was rebuilt as it was sent; null: no call of the turn is recorded",
            },
            "strategy": text(),
            "tokens": whole("of the conversation"),
            "budget": whole("tokens that the conversation may have"),
            "frontier": whole("seq of the first message that is sent for being recent"),
            "compactions": array(ref("CompactionSize")),
            "messages": array(ref("MessageExplanation"), description="newest first"),
            "has_more": boolean("there may be more messages further back"),
            "before": nullable(whole("give it as `before` for these; null: there are none")),
        },
    ),
    "CompactionSize": record(
        "A compaction of the prompt, and how much it stands for.",
        {
            "kind": text(f"{', '.join(f'`{kind}`' for kind in get_args(CompactionKind))}, …"),
            "first": whole("seq of the first message it stands for"),
            "last": whole("seq of the last"),
            "tokens": whole("of the compaction"),
            "source_tokens": whole("of the messages that it stands for, as stored"),
        },
    ),
    "MessageExplanation": record(
        "What became of one message.",
        {
            "seq": whole("the message's place in its session"),
            "turn_id": whole("the turn that it belongs to"),
            "role": text(),
            "timestamp": TIME,
            "tokens": whole("of the message, as stored"),
            "text": text(f"its first {EXPLAIN_TEXT_CHARS} characters; empty if it was erased"),
            "state": {"type": "string", "enum": list(get_args(State)), "description": "how it is in the prompt"},
            "decision": {"type": "string", "enum": [*DECISIONS, "retired", "erased", "later"]},
            "reason": text("why"),
            "block": nullable(text(f"where the message itself is: {_BLOCKS}; null if it is not sent as a message")),
            "excerpts": array(
                record("Words of it.", {"block": text(_BLOCKS), "words": text("as they are in the prompt")}),
                description=f"if it is there in part: its words, the first {EXPLAIN_EXCERPTS} pieces",
            ),
            "departure": {
                "anyOf": [ref("Departure"), {"type": "null"}],
                "description": "when it left; null if it is there, never was there whole, or no recorded call tells",
            },
            "remedies": array(ref("Remedy"), description="what would bring it back"),
            "redacted": boolean("secrets in it were replaced before it was stored"),
        },
    ),
    "Departure": record(
        "The first recorded prompt that no longer had the message whole.",
        {"turn_id": whole(), "timestamp": TIME, "reason": text("what changed")},
    ),
    "Remedy": record(
        "Something that would bring a message back.",
        {
            "kind": {"type": "string", "enum": list(get_args(RemedyKind))},
            "text": text("what to do"),
            "budget": nullable(
                whole("of `budget`: tokens that were tried and are enough; null: how many is not known")
            ),
        },
    ),
}

EXPLANATION_PARAMETERS: Final = (
    query("seq", whole(), "the message"),
    query(
        "q",
        text(minLength=1),
        f"words that messages contain, instead of `seq`; at most {EXPLAIN_QUERY_CHARS} characters",
    ),
    query("turn", whole(), "the prompt of that turn's last model call; without it the one that would be built now"),
    query("before", whole(), "with `q`: only messages before this seq; `before` of the page before"),
    query("limit", whole(low=1, maximum=EXPLAIN_MATCHES), f"with `q`: most messages; {MATCHES} unless given"),
    query("agent", text(), "an agent of the configuration: whose prompt it is"),
    query("model", text(), "the same, for a model"),
)

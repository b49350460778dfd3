"""Working sets and compactions, as JSON Schema: what is asked for, and how it is told."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.context.dialects import DIALECTS
from holdfast.context.settings import CLEARING, STRATEGIES, Key
from holdfast.domain.session import CompactionKind, CompactionStatus
from holdfast.server.shapes import (
    ID,
    SYSTEM,
    TIME,
    TOOLS,
    Schema,
    array,
    asked,
    boolean,
    free,
    nullable,
    page,
    record,
    ref,
    text,
    whole,
)


def _strategy_key(key: Key) -> Schema:
    about = {"description": key.about}
    match key.kind:
        case "integer":
            return {"type": ["integer", "null"], "minimum": key.low, **about}
        case "share":
            return {"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1, **about}
        case "texts":
            return {"type": ["array", "null"], "items": text(), **about}
        case "flag" | "switch":
            switch: Schema = {"enum": ["auto", "on", "off", True, False, None]}
            return {**(switch if key.kind == "switch" else {"type": ["boolean", "null"]}), **about}
        case "clearing":
            inner = {
                name: _strategy_key(value) for name, value in STRATEGIES[CLEARING].keys.items() if name != "budget"
            }
            keys = {"type": "object", "properties": inner, "additionalProperties": False}
            return {"anyOf": [keys, {"type": ["boolean", "null"]}], **about}
        case _:
            return {"type": ["string", "null"], **about}


def strategy_fields() -> dict[str, Schema]:
    """`strategy` and the keys of all strategies."""
    lines = "; ".join(f"`{name}`: {strategy.about}" for name, strategy in STRATEGIES.items())
    keys = {key: _strategy_key(value) for strategy in STRATEGIES.values() for key, value in strategy.keys.items()}
    return {"strategy": {"type": ["string", "null"], "enum": [*STRATEGIES, None], "description": lines}, **keys}


WORKING_SET: Final = {
    "tokens": whole("of the conversation: what a strategy's budget limits"),
    "total_tokens": whole("of all that is sent"),
    "budget": whole("tokens that the conversation could use"),
}
KEPT: Final = {"type": "object", "additionalProperties": whole(), "description": "tokens by decision"}
RECALLED: Final = record(
    "What was recalled in it; what was said or remembered stands in the prompt alone.",
    {
        "ids": array(text(), description="`session#seq` of messages, ids of memories"),
        "tokens": whole("of the message that tells it"),
        "missed": array(text(), description="why something was not recalled that might have been"),
    },
    optional=("ids", "tokens", "missed"),
)
DECISIONS: Final = ["kept", "pinned", "anchored", "cut", "cleared", "compacted", "evicted", "refused"]
_FACT_ID: Final = text("`message.sentence`, within its session")
_FACT: Final = {
    "object": {"const": "fact"},
    "session_id": ID,
    "id": _FACT_ID,
    "seq": whole("of its message"),
    "text": text("the sentence, as the user wrote it"),
    "at": TIME,
    "pinned": boolean("it comes before all others in the block"),
    "dropped": boolean("it never appears in the block"),
}
_IN_PROMPT: Final = {
    "source": {
        "type": ["string", "null"],
        "enum": ["block", "message", None],
        "description": "where the prompt has it: in the block, or in its message, which is still sent; null: in neither",
    },
    "in_prompt": boolean("`source` is not null"),
    "corrected_by": nullable(text("id of the later fact that corrects it")),
}

_COMPACTION: Final[dict[str, Schema]] = {
    "id": {"type": ["integer", "null"], "minimum": 1, "description": "null of what was not stored"},
    "object": {"const": "compaction"},
    "session_id": ID,
    "status": {
        "type": "string",
        "enum": [*get_args(CompactionStatus), "preview"],
        "description": "`live`: it is sent; `superseded`: a later one includes it; `dropped`: it was taken away; `dead`: an entry of"
        " its range was retired or erased; `failed`: nothing came of it; `preview`: it was not stored",
    },
    "kind": {"type": "string", "enum": list(get_args(CompactionKind))},
    "first": whole("seq of the first message it stands for"),
    "last": whole("seq of the last"),
    "text": text("the summary; empty of a failed one, and when a message of the range was erased"),
    "tokens": whole("of the message it is sent as, by the model's count"),
    "source_tokens": whole("of what it was made from, o200k, the summary before included"),
    "model": nullable(text("who wrote it")),
    "created_at": TIME,
    "lost_identifiers": array(text(), description="identifiers of its range that stand nowhere any more: the first 50"),
    "lost": whole("how many there are"),
    "error": nullable(text("why it failed")),
    "usage": record("What writing it took.", {"prompt_tokens": whole(), "completion_tokens": whole()}),
}
_SUMMARY_KEYS: Final = ("budget", "threshold", "target", "summarizer_llm", "prompt")

OVERHEAD: Final = record(
    "Tokens that a call costs beside what is said in the conversation.",
    {
        "system": whole("of the system prompt"),
        "tools": whole("of the tools' schemas"),
        "introduction": whole("of the promoted memories that the session was told"),
        "recalled": whole("of the block of what is recalled"),
    },
)

CONTEXT_COMPONENTS: Final[dict[str, Schema]] = {
    "ContextRequest": asked(
        "What to build a working set for; unset: as the session's agent would.",
        {
            **strategy_fields(),
            "model": nullable(text("whose window and tokenizer count")),
            "agent": nullable(text("an agent of the configuration")),
            "dialect": {
                "type": ["string", "null"],
                "enum": [*DIALECTS, None],
                "description": "whose messages to make; unset: `openai`",
            },
            "at_turn": nullable(whole("as the model saw the session at its last call in that turn")),
            "tools": nullable(TOOLS),
            "system_messages": SYSTEM,
            "explain": nullable(boolean("with `decisions` and `build`")),
            "touch": nullable(
                boolean(
                    "whether the session is in use by that, so that it does not expire: true unless given; looking back with"
                    " `at_turn`, or for an explanation, never is"
                )
            ),
        },
    ),
    "Context": record(
        "A working set.",
        {
            "object": {"const": "context"},
            "session_id": ID,
            "version": whole("the session's"),
            "messages": array(
                {"anyOf": [ref("Message"), ref("AnthropicMessage"), ref("GeminiContent")]},
                description="ready to send: for `openai` with the system prompt first; Anthropic's `messages`; Gemini's `contents`",
            ),
            "system": {
                "anyOf": [array(free("a block, as Anthropic has it")), free("Gemini's `systemInstruction`")],
                "description": "the system prompt, where there is one: Anthropic's `system` or Gemini's `systemInstruction`",
            },
            **WORKING_SET,
            "counted": record(
                "How many tokens all that is sent has, and how far that can be trusted.",
                {
                    "tokens": whole("as the provider counts them, as far as that is known"),
                    "how": {"type": "string", "enum": ["exact", "estimate", "calibrated", "provider"]},
                    "margin": {
                        "type": "number",
                        "description": "share of them that is kept free, because the count may be too low",
                    },
                },
            ),
            "hash": text("equal for equal log, policy and budget"),
            "sent_hash": text(
                "with `at_turn`: the hash recorded with the call; equal to `hash` where this is what was sent"
            ),
            "decisions": array(ref("Decision"), description="what became of each entry; with `explain`"),
            "build": ref("Build"),
        },
        optional=("decisions", "system", "build", "sent_hash"),
    ),
    "Build": record(
        "How a working set came about; with `explain`.",
        {
            "policy": free("`strategy` and its keys, defaults included: asked for again, they build the same"),
            "budget": free(
                "tokens: the model's window shared out, the room of the conversation, what is used, how it was counted"
            ),
            "overhead": OVERHEAD,
            "recalled": RECALLED,
            "frontier": whole("seq of the first entry that is sent for being recent"),
            "compactions": array(
                free("`kind`, `from`, `to`, `tokens`, `source_tokens` of the messages that it stands for")
            ),
            "prefix": free(
                "compared with the prompt that was sent last: `messages` in common, `before` (its messages), `whole`, and "
                "`broken`: the first message that differs, its seq, and why"
            ),
            "hash": text("as above"),
            "summaries": free(
                "of `summary_buffer`: the id of the one that is `live`, and `failed`: `error`, `attempts`, `retry_at`"
            ),
        },
        optional=("recalled", "summaries"),
    ),
    "AnthropicMessage": record(
        "A turn as Anthropic has it.",
        {
            "role": {"type": "string", "enum": ["user", "assistant"]},
            "content": array(free("a block, as Anthropic has it")),
        },
    ),
    "GeminiContent": record(
        "A turn as Gemini has it.",
        {"role": {"type": "string", "enum": ["user", "model"]}, "parts": array(free("a part, as Gemini has it"))},
    ),
    "Decision": record(
        "A run of entries with the same fate.",
        {
            "from": whole("seq of the first"),
            "to": whole("seq of the last"),
            "decision": {"type": "string", "enum": DECISIONS},
            "reason": text("why"),
            "tokens": whole("what they take in the log; for what is cut, what is sent of them"),
        },
    ),
    "CompactionRequest": asked(
        "How to make it; unset: as the session's agent would. The keys hold for this one alone.",
        {
            "preview": nullable(boolean("store nothing")),
            "wait": nullable(boolean("false: answer at once; it is made in the background")),
            "agent": nullable(text("an agent of the configuration: whose view it is laid over")),
            "model": nullable(text("the same, for a model")),
            "strategy": {"type": ["string", "null"], "enum": ["summary_buffer", None]},
            **{name: _strategy_key(STRATEGIES["summary_buffer"].keys[name]) for name in _SUMMARY_KEYS},
        },
    ),
    "Compaction": record("A summary, or an attempt at one.", _COMPACTION),
    "PendingCompaction": record(
        "One that is being made.",
        {"id": {"type": "null"}, "object": {"const": "compaction"}, "session_id": ID, "status": {"const": "pending"}},
    ),
    "DroppedCompaction": record("One that was taken away.", {**_COMPACTION, "deleted": {"const": True}}),
    "Fact": record("A statement of the user.", {**_FACT, **_IN_PROMPT}),
    "FactList": page("Fact", nullable(_FACT_ID), version=whole("the session's")),
    "ChosenFact": record("A statement of the user, as it is pinned or dropped now.", _FACT),
    "FactChange": asked(
        "What is to change; one of both.",
        {
            "pinned": nullable(boolean("it comes before all others in the block; false undoes it")),
            "dropped": nullable(boolean("it never appears in the block; false undoes it")),
        },
    ),
    "CompactionList": page("Compaction", nullable(whole("a compaction's id", 1))),
}

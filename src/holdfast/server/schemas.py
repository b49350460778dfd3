"""The API's objects, as JSON Schema: what is sent and what is answered, each field with what it means."""

from __future__ import annotations

from typing import Any, Final, get_args

from holdfast import limits
from holdfast.context.dialects import DIALECTS
from holdfast.context.settings import CLEARING, STRATEGIES, Key
from holdfast.messages import ROLES
from holdfast.session import CompactionKind, CompactionStatus

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, **more: Any) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items, **more}


def text(about: str = "", **more: Any) -> Schema:
    """A string."""
    return {"type": "string", **({"description": about} if about else {}), **more}


def whole(about: str = "", low: int | None = 0, **more: Any) -> Schema:
    """A whole number."""
    least = {} if low is None else {"minimum": low}
    return {"type": "integer", **least, **({"description": about} if about else {}), **more}


def boolean(about: str = "") -> Schema:
    """True or false."""
    return {"type": "boolean", **({"description": about} if about else {})}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def free(about: str) -> Schema:
    """An object of any fields."""
    return {"type": "object", "additionalProperties": True, "description": about}


def record(about: str, fields: dict[str, Schema], *, optional: tuple[str, ...] = (), more: bool = False) -> Schema:
    """An object of these fields; all but the `optional` ones are there, and others only if `more` says so."""
    required = [name for name in fields if name not in optional]
    return {
        "type": "object",
        "description": about,
        "properties": fields,
        **({"required": required} if required else {}),
        "additionalProperties": more,
    }


def asked(about: str, fields: dict[str, Schema], *required: str, more: bool = False) -> Schema:
    """An object that is sent: nothing is required but what is named."""
    return record(about, fields, optional=tuple(name for name in fields if name not in required), more=more)


ID: Final = text("1 to 512 bytes of any Unicode", minLength=1)
_TTL: Final = nullable(whole("milliseconds of idleness after which the session ends; null: the server's setting", 1))
_STATE: Final = free(f"free, at most {limits.STATE_BYTES} bytes")
_METADATA: Final = free(f"free, at most {limits.METADATA_BYTES} bytes")
_TIME: Final = whole("milliseconds since the epoch")
SYSTEM: Final[Schema] = {
    "description": f"the system prompt: messages, texts, or one text; at most {limits.SYSTEM_BYTES} bytes",
    "anyOf": [text(), array({"anyOf": [text(), ref("Message")]}), {"type": "null"}],
}
TOOLS: Final = array(free("a tool's schema, as the model takes it"))

# -- messages ----------------------------------------------------------------

_MESSAGE: Final[dict[str, Schema]] = {
    "role": {"type": "string", "enum": list(ROLES)},
    "content": {
        "description": "text, parts, or null; only an assistant's may be left out",
        "anyOf": [text(), array(ref("Part")), {"type": "null"}],
    },
    "name": nullable(text()),
    "tool_calls": {"anyOf": [array(ref("ToolCall")), {"type": "null"}], "description": "an assistant's"},
    "tool_call_id": nullable(text("of a tool message: the call it answers")),
}
_OWN: Final[dict[str, Schema]] = {
    "timestamp": _TIME,
    "turn_id": whole("which turn it belongs to"),
    "agent": text("who wrote it"),
    "metadata": _METADATA,
    "pinned": boolean("never leaves the working set"),
    "importance": {"type": "number", "minimum": 0, "maximum": 1},
}
_UNKNOWN: Final = "Fields that are not named here are kept, and come back as they were sent."
_ENTRY: Final[dict[str, Schema]] = {
    "seq": whole("place in the log: from 0, gapless"),
    **_MESSAGE,
    **_OWN,
    "tokens": whole("the message's, o200k"),
    "retired_by": whole("seq of what took its place; only in answers with retired entries"),
}
_ENTRY_OPTIONAL: Final = tuple(name for name in _ENTRY if name not in ("seq", "turn_id", "role", "timestamp", "tokens"))

# -- sessions ----------------------------------------------------------------

_SESSION: Final[dict[str, Schema]] = {
    "id": ID,
    "object": {"const": "session"},
    "user_id": ID,
    "agent": nullable(text("who answers; null: the default")),
    "status": {"type": "string", "enum": ["active", "closed"]},
    "version": whole("grows by one with every write to the session"),
    "created_at": _TIME,
    "updated_at": _TIME,
    "ttl": _TTL,
    "turns": whole("how many there were"),
    "message_count": whole("live messages"),
    "tokens": whole("of the live messages, o200k"),
    "bytes": whole("of all messages, retired ones too"),
    "usage": ref("SessionUsage"),
    "system_messages": array(ref("Message")),
    "state": _STATE,
    "metadata": _METADATA,
}
SESSION_FIELDS: Final[dict[str, Schema]] = {
    "id": text("unset: a new one is made", minLength=1),
    "user_id": text("whose session; unset: `default`", minLength=1),
    "agent": nullable(text("an agent of the configuration")),
    "system_messages": SYSTEM,
    "state": {**_STATE, "type": ["object", "null"]},
    "metadata": {**_METADATA, "type": ["object", "null"]},
    "ttl": _TTL,
}


def page(items: str, ends: Schema, **more: Schema) -> Schema:
    """A list in OpenAI's shape."""
    fields: dict[str, Schema] = {
        "object": {"const": "list"},
        "data": array(ref(items)),
        "has_more": boolean("there are items behind the last one"),
        "first_id": ends,
        "last_id": {**ends, "description": "give it as `after` for the next page"},
    }
    return record("A page.", {**fields, **more})


def _strategy_key(key: Key) -> Schema:
    about = {"description": key.about}
    match key.kind:
        case "integer":
            return {"type": ["integer", "null"], "minimum": key.low, **about}
        case "share":
            return {"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1, **about}
        case "texts":
            return {"type": ["array", "null"], "items": text(), **about}
        case "flag":
            return {"type": ["boolean", "null"], **about}
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


_WORKING_SET: Final = {
    "tokens": whole("of the conversation: what a strategy's budget limits"),
    "total_tokens": whole("of all that is sent"),
    "budget": whole("tokens that the conversation could use"),
}
_KEPT: Final = {"type": "object", "additionalProperties": whole(), "description": "tokens by decision"}
_DECISIONS: Final = ["kept", "pinned", "anchored", "cut", "cleared", "compacted", "evicted"]
_RELATIONS: Final = ["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced"]
_CHAT_OUT: Final = {
    "session_id": text("of a request to this gateway: the session; in a stream, in the chunks behind the last word"),
    "session": ref("TurnSummary"),
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
    "created_at": _TIME,
    "lost_identifiers": array(text(), description="identifiers of its range that stand nowhere any more: the first 50"),
    "lost": whole("how many there are"),
    "error": nullable(text("why it failed")),
    "usage": record("What writing it took.", {"prompt_tokens": whole(), "completion_tokens": whole()}),
}
_SUMMARY_KEYS: Final = ("budget", "threshold", "target", "summarizer_llm", "prompt")
_OPENAI: Final = {
    "id": text(),
    "created": whole(),
    "model": text(),
    "usage": {"anyOf": [free("tokens, as the model reports them"), {"type": "null"}]},
    "system_fingerprint": nullable(text()),
    "service_tier": nullable(text()),
}
_CHOICE: Final = {
    "index": whole(),
    "finish_reason": nullable(text()),
    "logprobs": {"anyOf": [free("as the model gives them"), {"type": "null"}]},
}

COMPONENTS: Final[dict[str, Schema]] = {
    "Error": record(
        "Every error has this shape.",
        {
            "error": record(
                "What is wrong.",
                {
                    "message": text("in words: what is wrong, and what would be right"),
                    "type": text("`invalid_request_error`, `rate_limit_error` or `server_error`"),
                    "param": nullable(text("the field, parameter or header that is meant")),
                    "code": nullable(text("a word for programs")),
                },
            )
        },
    ),
    "Part": record(
        f"One part of a content: `text`, or media passed through whole. {_UNKNOWN}",
        {"type": text(), "text": text(), "refusal": text()},
        optional=("text", "refusal"),
        more=True,
    ),
    "ToolCall": record(
        f"One tool call. {_UNKNOWN}",
        {
            "id": text(),
            "type": text("`function`, or `custom`"),
            "function": record("The call.", {"name": text(), "arguments": text("a JSON text")}, more=True),
            "custom": record("The call of a custom tool.", {"name": text(), "input": text()}, more=True),
        },
        optional=("type", "function", "custom"),
        more=True,
    ),
    "Message": asked(f"A Chat Completions message. {_UNKNOWN}", _MESSAGE, "role", more=True),
    "NewMessage": asked(
        f"A message to be written to a log, with what Holdfast should know of it. {_UNKNOWN}",
        {**_MESSAGE, **_OWN},
        "role",
        more=True,
    ),
    "Entry": record(
        f"A message in a log, with all that is known of it. {_UNKNOWN}", _ENTRY, optional=_ENTRY_OPTIONAL, more=True
    ),
    "ErasedEntry": record(
        "What stays of an erased message.",
        {**_ENTRY, "deleted": {"const": True}},
        optional=_ENTRY_OPTIONAL,
        more=True,
    ),
    "EntryList": page("Entry", nullable(whole("seq")), version=whole("the session's")),
    "SessionUsage": record(
        "Sums over the session's model calls.",
        {name: whole() for name in ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")},
    ),
    "Session": record("A session without its log.", _SESSION),
    "SessionList": page("Session", nullable(text("a session's id"))),
    "SessionExport": record(
        "A session whole, as `PUT /v1/sessions/{session_id}` takes it.",
        {
            **_SESSION,
            "messages": array(ref("Entry")),
            "images": array(free("not used yet")),
            "videos": array(free("not used yet")),
        },
    ),
    "SessionImport": asked(
        "An export, a recording, or bare messages. Leading system messages are the session's, unless `system_messages`"
        " is given. Fields that are not named here are passed over.",
        {**SESSION_FIELDS, "messages": array(ref("NewMessage"))},
        "messages",
        more=True,
    ),
    "NewSession": asked("A session to be made.", SESSION_FIELDS),
    "SessionChanges": asked(
        "What is to change: `state` key by key, null deletes; the others as a whole.",
        {name: SESSION_FIELDS[name] for name in ("agent", "system_messages", "state", "metadata", "ttl")},
    ),
    "NewMessages": asked(
        "Messages to be written, all or none.", {"messages": array(ref("NewMessage"), minItems=1)}, "messages"
    ),
    "Annotation": asked(
        "What is to change.",
        {"pinned": nullable(boolean("never leaves the working set")), "importance": nullable(_OWN["importance"])},
    ),
    "Deleted": record("It is gone.", {"id": ID, "object": {"const": "session"}, "deleted": {"const": True}}),
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
                "anyOf": [array(ref("Part")), free("Gemini's `systemInstruction`")],
                "description": "the system prompt, where there is one: Anthropic's `system` or Gemini's `systemInstruction`",
            },
            **_WORKING_SET,
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
            "policy": free("`strategy`, and what is not its default"),
            "budget": free(
                "tokens: the model's window shared out, the room of the conversation, what is used, how it was counted"
            ),
            "frontier": whole("seq of the first entry that is sent for being recent"),
            "compactions": array(free("`kind`, `from`, `to`, `tokens`")),
            "prefix": free(
                "compared with the prompt that was sent last: `messages` in common, `before` (its messages), `whole`, and "
                "`broken`: the first message that differs, its seq, and why"
            ),
            "hash": text("as above"),
            "summaries": free(
                "of `summary_buffer`: the id of the one that is `live`, and `failed`: `error`, `attempts`, `retry_at`"
            ),
        },
        optional=("summaries",),
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
            "decision": {"type": "string", "enum": _DECISIONS},
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
    "CompactionList": page("Compaction", nullable(whole("a compaction's id", 1))),
    "VoiceRecord": record(
        "What was said, as voice agents keep it.",
        {
            "role": {"type": "string", "enum": ["user", "assistant"]},
            "content": text(),
            "turn_id": whole(),
            "timestamp": _TIME,
            "metadata": _METADATA,
        },
    ),
    "History": {
        "description": "`contents`, or with `view=plain` `messages`.",
        "anyOf": [
            record("The voice form.", {"contents": array(ref("VoiceRecord"))}),
            record(
                "The plain form.",
                {"messages": array(record("Role and content alone.", {"role": text(), "content": text()}))},
            ),
        ],
    },
    "ShortSession": record(
        "A session in the short form.",
        {"id": ID, "agent": nullable(text()), "updated_at": text("RFC 3339, UTC", format="date-time")},
    ),
    "ShortSessions": record("Sessions in the short form.", {"sessions": array(ref("ShortSession"))}),
    "ShortSessionWhole": record(
        "A session in the short form, with its messages.",
        {
            "id": ID,
            "agent": nullable(text()),
            "updated_at": text("RFC 3339, UTC", format="date-time"),
            "messages": array(ref("Message")),
            "state": _STATE,
        },
    ),
    "ModelList": record(
        "Names that a request's `model` may have.",
        {
            "object": {"const": "list"},
            "data": array(
                record(
                    "An agent or a model.",
                    {
                        "id": text(),
                        "object": {"const": "model"},
                        "created": whole(),
                        "owned_by": text("`holdfast-agent`, or the model's name upstream"),
                    },
                )
            ),
        },
    ),
    "Health": record("It is well.", {"status": text("`ok` or `ready`"), "version": text("Holdfast's")}),
    "Home": record("Where to go.", {n: text() for n in ("name", "version", "chat", "sessions", "api", "docs")}),
    "ChatRequest": asked(
        "OpenAI's Chat Completions request, with fields of Holdfast's own; all others travel to the model as they are.",
        {
            "model": nullable(text("an agent, an llm, or a model's name")),
            "messages": array(ref("Message"), minItems=1),
            "stream": nullable(boolean("answer as server-sent events")),
            "stream_options": nullable(free("`include_usage`: usage in the last chunk")),
            "tools": nullable(TOOLS),
            "n": nullable(whole("choices; the first one is stored", 1, maximum=128)),
            "max_tokens": nullable(whole("of the reply", 1)),
            "max_completion_tokens": nullable(whole("of the reply", 1)),
            "user": nullable(text("whose session; unset: `default`")),
            "session_id": nullable(text("also as header X-Session-Id; without one a session is made")),
            "session_mode": {
                "type": ["string", "null"],
                "enum": ["auto", "transcript", "delta", None],
                "description": "how the messages relate to the log",
            },
            "session_match": {"type": ["string", "null"], "enum": ["on", "off", None], "description": "not used yet"},
            "agent": nullable(text("an agent of the configuration")),
        },
        "messages",
        more=True,
    ),
    "ChatCompletion": record(
        "OpenAI's answer, with the session in it.",
        {
            **_OPENAI,
            "object": {"const": "chat.completion"},
            "choices": array(record("A reply.", {**_CHOICE, "message": ref("Message")}, optional=("logprobs",))),
            **_CHAT_OUT,
        },
        optional=("usage", "system_fingerprint", "service_tier"),
        more=True,
    ),
    "ChatChunk": record(
        "One event of a stream. The last ones have the session in them; then `[DONE]`. An error behind the first chunk"
        " is an event in the shape of `Error`.",
        {
            **_OPENAI,
            "object": {"const": "chat.completion.chunk"},
            "choices": array(
                record("A piece of a reply.", {**_CHOICE, "delta": free("what is new")}, optional=("logprobs",))
            ),
            **_CHAT_OUT,
        },
        optional=("usage", "system_fingerprint", "service_tier", "session_id", "session"),
        more=True,
    ),
    "TurnSummary": record(
        "What the request did to the session.",
        {
            "turn": whole("of the session, from 0", None),
            "version": whole("the session's"),
            "reconciled": {"type": "string", "enum": _RELATIONS, "description": "what the messages were to the log"},
            "working_set": record(
                "What the model was sent.",
                {**_WORKING_SET, "messages": whole("how many"), "kept": _KEPT},
            ),
        },
        optional=("reconciled", "working_set"),
    ),
}

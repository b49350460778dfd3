"""The API's objects, as JSON Schema: what is sent and what is answered, each field with what it means."""

from __future__ import annotations

from typing import Final

from holdfast import limits
from holdfast.domain.messages import ROLES
from holdfast.server.artifact_schemas import ARTIFACT_COMPONENTS
from holdfast.server.context_schemas import CONTEXT_COMPONENTS, KEPT, OVERHEAD, RECALLED, WORKING_SET
from holdfast.server.dream_schemas import DREAM_COMPONENTS
from holdfast.server.explanation_schemas import EXPLANATION_COMPONENTS
from holdfast.server.index_schemas import INDEX_COMPONENTS
from holdfast.server.memory_schemas import MEMORY_COMPONENTS
from holdfast.server.messages_schemas import MESSAGES_COMPONENTS
from holdfast.server.moving_schemas import EXPORT, MOVING_COMPONENTS, PAST, SCHEMA_VERSION
from holdfast.server.search_schemas import SEARCH_COMPONENTS
from holdfast.server.shapes import (
    ID,
    SESSION_ASKED,
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
from holdfast.server.state_schemas import STATE_COMPONENTS
from holdfast.server.voice_schemas import VOICE_COMPONENTS
from holdfast.server.workspace_schemas import WORKSPACE_COMPONENTS

_TTL: Final = nullable(
    whole("milliseconds of idleness after which the session ends; 0: never; null: the server's setting")
)
_STATE: Final = free(f"free, at most {limits.STATE_BYTES} bytes")
_METADATA: Final = free(f"free, at most {limits.METADATA_BYTES} bytes")

_NOT_ANSWERED: Final = record(
    "A model that did not answer.",
    {
        "model": text("its name here"),
        "code": text("of the error; `passed_over`: it was not asked, since it failed lately"),
        "status": nullable(whole("that its provider gave")),
    },
)

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
    "timestamp": TIME,
    "turn_id": whole("which turn it belongs to"),
    "agent": text("who wrote it"),
    "metadata": {
        **_METADATA,
        "description": f"free, at most {limits.METADATA_BYTES} bytes; of a voice record `source`, `interrupted`,"
        " `interrupt_timestamp` and `original` are checked",
    },
    "pinned": boolean("never leaves the working set"),
    "importance": {"type": "number", "minimum": 0, "maximum": 1},
}
_UNKNOWN: Final = "Fields that are not named here are kept, and come back as they were sent."
_COPIES: Final = array(
    record("The same message in a session that shared it.", {"session_id": text(), "seq": whole()}),
    description="where else it was erased: forks of the session, and sessions that it is a fork of",
)
_ENTRY: Final[dict[str, Schema]] = {
    "seq": whole("place in the log: from 0, gapless"),
    **_MESSAGE,
    **_OWN,
    "tokens": whole("the message's, o200k"),
    "retired_by": whole("seq of what took its place; only in answers with retired entries"),
    "erased": {"const": True, "description": "its content was erased"},
    "digest": text("of an erased one, in an export with `digests`: what stands for what it said, hexadecimal"),
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
    "created_at": TIME,
    "updated_at": TIME,
    **PAST,
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
_DAMAGED: Final[dict[str, Schema]] = {
    "damaged": array(
        text(), description="only of a damaged session: fields that cannot be decoded; they are empty here"
    )
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


_CARRY_OVER: Final = asked(
    "An earlier session that the new one is to know of, by one more system message; its metadata say `carried_from`.",
    {
        "session_id": text("the earlier one; it may have ended", minLength=1),
        "user_id": nullable(text("whose; unset: the new session's user. Another's needs an admin key without a user")),
        "form": {
            "type": ["string", "null"],
            "enum": ["summary", "content", None],
            "description": "`summary` (unset): by a model, or the digest; `content`: its last messages",
        },
        "tokens": {
            "type": ["integer", "null"],
            "minimum": limits.CARRIED_TOKENS_LEAST,
            "maximum": limits.CARRIED_TOKENS,
            "description": "the most that is carried over; unset: 2000",
        },
        "prefix": nullable(text(f"the words before it, at most {limits.CARRIED_PREFIX_CHARS} characters")),
    },
    "session_id",
)
_BESIDE: Final[Schema] = {"anyOf": [free("names its message by `seq`, or has frames"), text("base64")]}
_RELATIONS: Final = ["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced", "forked"]
_CHAT_OUT: Final = {
    "session_id": text("of a request to this gateway: the session; in a stream, in the chunks behind the last word"),
    "session": ref("TurnSummary"),
}
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
    **CONTEXT_COMPONENTS,
    **EXPLANATION_COMPONENTS,
    **ARTIFACT_COMPONENTS,
    **MESSAGES_COMPONENTS,
    **MOVING_COMPONENTS,
    **STATE_COMPONENTS,
    **VOICE_COMPONENTS,
    **WORKSPACE_COMPONENTS,
    **SEARCH_COMPONENTS,
    **INDEX_COMPONENTS,
    **MEMORY_COMPONENTS,
    **DREAM_COMPONENTS,
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
            "function": record(
                "The call, unless `type` is `custom`.",
                {"name": text(), "arguments": text("a JSON text; empty if it is left out")},
                optional=("arguments",),
                more=True,
            ),
            "custom": record(
                "The call of a custom tool. Without `type: custom` it is an unknown field.",
                {"name": text(), "input": text()},
                optional=("name", "input"),
                more=True,
            ),
        },
        optional=("type", "function", "custom"),
        more=True,
    ),
    "Message": asked(f"A Chat Completions message. {_UNKNOWN}", _MESSAGE, "role", more=True),
    "ChatMessage": asked(
        f"A Chat Completions message; of a voice record also when it was said, in which turn, and how. {_UNKNOWN}",
        {**_MESSAGE, **{name: _OWN[name] for name in ("timestamp", "turn_id", "metadata")}},
        "role",
        more=True,
    ),
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
        {**_ENTRY, "deleted": {"const": True}, "copies": _COPIES},
        optional=_ENTRY_OPTIONAL,
        more=True,
    ),
    "EntryList": page("Entry", nullable(whole("seq")), version=whole("the session's")),
    "SessionUsage": record(
        "Sums over the session's model calls.",
        {name: whole() for name in ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")},
    ),
    "Session": record("A session without its log.", {**_SESSION, **_DAMAGED}, optional=tuple(_DAMAGED)),
    "SessionList": page("Session", nullable(text("a session's id"))),
    "ImportedSession": record(
        "A session without its log, as it is after an import.",
        {**_SESSION, "imported": boolean("false: it was there already, just so")},
    ),
    "RewoundSession": record(
        "A session without its log, as it is after going back.",
        {**_SESSION, "retired": whole("how many messages left the live path")},
    ),
    "SessionExport": record(
        "A session whole, as `PUT /v1/sessions/{session_id}` takes it.",
        {"schema": SCHEMA_VERSION, **_SESSION, **EXPORT},
        optional=("calls",),
    ),
    "SessionImport": asked(
        "An export, a recording, or bare messages. Leading system messages are the session's, unless `system_messages`"
        " is given. Fields that are not named here are passed over.",
        {
            "schema": nullable(SCHEMA_VERSION),
            **SESSION_FIELDS,
            **{name: {"description": "of an export, with `schema`: when and why it ended"} for name in PAST},
            "messages": array(ref("NewMessage")),
            "contents": array(ref("NewMessage"), description="the same list, as voice records name it"),
            "images": array(_BESIDE, description="of an export; or as mistral.rs has them, one for each placeholder"),
            "videos": array(_BESIDE, description="the same"),
        },
        more=True,
    ),
    "NewSession": asked(
        "A session to be made.",
        {
            **SESSION_FIELDS,
            "carry_over": {
                "description": "an earlier session that this one is to know of: its id, or more",
                "anyOf": [text(minLength=1), ref("CarryOver"), {"type": "null"}],
            },
        },
    ),
    "CarryOver": _CARRY_OVER,
    "SessionChanges": asked(
        "What is to change: `state` key by key, null deletes; the others as a whole.",
        {name: SESSION_FIELDS[name] for name in ("agent", "system_messages", "state", "metadata", "ttl")},
    ),
    "NewMessages": asked(
        "Messages to be written, all or none, under one of the two names.",
        {name: array(ref("NewMessage"), minItems=1) for name in ("messages", "contents")},
    ),
    "Annotation": asked(
        "What is to change.",
        {
            "pinned": nullable(boolean("never leaves the working set")),
            "importance": nullable(_OWN["importance"]),
            "refused_by": nullable(
                array(text(), description="names of the upstreams whose prompts leave the message out")
            ),
        },
    ),
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
                        "description": text("what an agent is for"),
                    },
                    optional=("description",),
                )
            ),
        },
    ),
    "AnthropicModelList": record(
        "The same for whoever names an `anthropic-version`.",
        {
            "data": array(
                record(
                    "An agent or a model.",
                    {
                        "type": {"const": "model"},
                        "id": text(),
                        "display_name": text("`agent …`, or the model's name upstream"),
                        "created_at": text("not known", format="date-time"),
                        "lifecycle": {"const": "active"},
                    },
                )
            ),
            "has_more": boolean("there are more"),
            "first_id": nullable(text()),
            "last_id": nullable(text("give it as `after_id` for the next page")),
        },
    ),
    "Health": record("It is well.", {"status": text("`ok` or `ready`"), "version": text("Holdfast's")}),
    "Home": record(
        "Where to go.", {n: text() for n in ("name", "version", "chat", "messages", "sessions", "api", "docs")}
    ),
    "ChatRequest": asked(
        "OpenAI's Chat Completions request, with fields of Holdfast's own; all others travel to the model as they are.",
        {
            "model": nullable(text("an agent, an llm, or a model's name")),
            "messages": array(
                ref("ChatMessage"), description="with a session_id it may be empty: what was said last is answered"
            ),
            "contents": array(ref("ChatMessage"), description="the same list, as voice records name it"),
            "stream": nullable(boolean("answer as server-sent events")),
            "stream_options": nullable(free("`include_usage`: usage in the last chunk")),
            "tools": nullable(TOOLS),
            "n": nullable(whole("choices; the first one is stored", 1, maximum=128)),
            "max_tokens": nullable(whole("of the reply", 1)),
            "max_completion_tokens": nullable(whole("of the reply", 1)),
            "user": nullable(text("whose session it is")),
            "safety_identifier": nullable(text("whose session it is, where `user` does not say")),
            **SESSION_ASKED,
            "agent": nullable(text("an agent of the configuration")),
        },
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
            "agent": text("who answered, where an agent did: the one that was asked, or one below it"),
            "reconciled": {"type": "string", "enum": _RELATIONS, "description": "what the messages were to the log"},
            "edited_at": whole("seq of the first message that was replaced or taken back"),
            "interrupted": boolean("in a stream: another turn ended this reply before its end"),
            "working_set": record(
                "What the model was sent.",
                {**WORKING_SET, "messages": whole("how many"), "kept": KEPT},
            ),
            "overhead": OVERHEAD,
            "recalled": RECALLED,
            "warnings": array(
                record(
                    "What went through, and is probably not what the client meant.",
                    {
                        "code": text("a word for programs"),
                        "message": text("what happened, and what to do about it"),
                        "param": text("the field or header that is meant"),
                    },
                    optional=("param",),
                )
            ),
            "artifacts": array(
                record(
                    "An artifact that the reply is about: its turn saved it, or it names it.",
                    {"name": text("its name"), "version": whole("from 0", None)},
                )
            ),
            "failure": record(
                "Where no model answered, and the agent's failure message stands in place of a reply.",
                {"code": text("of the error"), "message": text("what happened")},
            ),
            "upstream": record(
                "Where another model was asked to answer.",
                {"model": text("whose answer it is, by its name here"), "failed": array(_NOT_ANSWERED)},
                optional=("model",),
            ),
        },
        optional=(
            "agent",
            "reconciled",
            "edited_at",
            "interrupted",
            "working_set",
            "overhead",
            "recalled",
            "warnings",
            "artifacts",
            "failure",
            "upstream",
        ),
    ),
}

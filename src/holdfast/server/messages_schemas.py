"""What `POST /v1/messages` and its neighbours take and answer, as JSON Schema: Anthropic's shapes, with the session in them."""

from __future__ import annotations

from typing import Final

from holdfast.server.shapes import (
    SESSION_ASKED,
    Schema,
    array,
    asked,
    boolean,
    free,
    nullable,
    record,
    ref,
    text,
    whole,
)

_CONTENT: Final[Schema] = {
    "description": "text, or blocks; a block of an unknown type is kept as it is",
    "anyOf": [text(), array(ref("AnthropicBlock"))],
}
_SYSTEM: Final[Schema] = {
    "description": "the system prompt: text, or text blocks",
    "anyOf": [text(), array(ref("AnthropicBlock")), {"type": "null"}],
}
_USAGE: Final = free("tokens: `input_tokens` without those read from a cache or written to one, `output_tokens`, …")
_MESSAGE: Final = record(
    "A message of the conversation; a voice record has `timestamp`, `turn_id` and `metadata`, too.",
    {"role": {"type": "string", "enum": ["user", "assistant", "system"]}, "content": _CONTENT},
    more=True,
)
_REQUEST: Final[dict[str, Schema]] = {
    "model": nullable(text("an agent, an llm, or a model's name")),
    "messages": array(_MESSAGE, description="with a session_id it may be empty: what was said last is answered"),
    "contents": array(_MESSAGE, description="the same list, as voice records name it"),
    "system": _SYSTEM,
    "tools": nullable(array(free("a tool with `name` and `input_schema`, or one that Anthropic knows by its `type`"))),
    "tool_choice": nullable(free("`{type: auto | any | none}`, or `{type: tool, name}`")),
    "max_tokens": nullable(whole("of the reply; unset: the model's own limit", 1)),
    "agent": nullable(text("an agent of the configuration")),
}
_OWN: Final[dict[str, Schema]] = {
    "stream": nullable(boolean("answer as server-sent events")),
    "stop_sequences": nullable(array(text())),
    "metadata": nullable(free("`user_id`: whose session; unset: `default`")),
    **SESSION_ASKED,
}
_OF_BLOCKS: Final[dict[str, Schema]] = {
    "text": text("of text"),
    "citations": {"description": "of text", "anyOf": [array(free("what it goes back to")), {"type": "null"}]},
    "thinking": text("of thinking"),
    "signature": text("of thinking: without it Anthropic does not take it back"),
    "data": text("of redacted_thinking: sealed"),
    "id": text("of a call"),
    "name": text("of a call: the tool's"),
    "input": free("of a call: its arguments"),
}
_OF_EVENTS: Final[dict[str, Schema]] = {
    "message": free("of message_start: the reply without its content"),
    "index": whole("of content_block_…: which block"),
    "content_block": ref("AnthropicReplyBlock"),
    "delta": free("what is new: of a block, or of the message its end"),
    "usage": _USAGE,
}
_TOLD: Final = {"session_id": text("the session"), "session": ref("TurnSummary")}

MESSAGES_COMPONENTS: Final[dict[str, Schema]] = {
    "MessagesRequest": asked(
        "Anthropic's request, with fields of Holdfast's own; all others travel to an Anthropic model as they are.",
        {**_REQUEST, **_OWN},
        more=True,
    ),
    "CountRequest": asked(
        "Anthropic's request to count tokens: what a prompt with just these messages would have.",
        _REQUEST,
        more=True,
    ),
    "TokenCount": record(
        "Tokens of what the request holds; nothing of a session.",
        {
            "input_tokens": whole(),
            "counted": free("the same, `how` it is known, and the `margin` that is kept free for it"),
        },
    ),
    "AnthropicBlock": record(
        "A content block: text, image, document, tool_use, tool_result, thinking, …",
        {"type": text()},
        more=True,
    ),
    "AnthropicReplyBlock": record(
        "A content block of a reply.", {"type": text(), **_OF_BLOCKS}, optional=tuple(_OF_BLOCKS), more=True
    ),
    "MessagesReply": record(
        "Anthropic's answer, with the session in it.",
        {
            "id": text(),
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": text(),
            "content": array(ref("AnthropicReplyBlock")),
            "stop_reason": text("`end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, `pause_turn`, `refusal`, …"),
            "stop_sequence": nullable(text()),
            "usage": _USAGE,
            **_TOLD,
        },
        more=True,
    ),
    "AnthropicEvent": record(
        "One event of a stream, of the name that is its `type`. `message_delta` has the session in it; an error behind the first"
        " event is an event in the shape of `AnthropicError`.",
        {"type": text(), **_OF_EVENTS, **_TOLD},
        optional=(*_OF_EVENTS, "session_id", "session"),
        more=True,
    ),
    "AnthropicError": record(
        "Every error has this shape, where Anthropic's API is spoken.",
        {
            "type": {"const": "error"},
            "error": record(
                "What is wrong.",
                {
                    "type": text("`invalid_request_error`, `not_found_error`, `overloaded_error`, …, by the status"),
                    "message": text("in words: what is wrong, and what would be right"),
                    "param": nullable(text("the field, parameter or header that is meant")),
                    "details": record("For programs.", {"error_code": nullable(text("a word"))}),
                },
            ),
            "request_id": nullable(text("as in the header `request-id`")),
        },
    ),
}

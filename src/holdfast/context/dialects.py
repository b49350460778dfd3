"""Adapt a conversation to the requirements of one provider's dialect that other providers do not have.

Logs and windows do not depend on dialects. A working set is adapted when it is built, always in the same way, so that the beginning of the
prompt stays the same from call to call. This module adds every text that a dialect needs, so that its tokens are counted;
`holdfast.models.codecs.messages` and `holdfast.models.codecs.gemini` then only convert messages to the provider's format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from operator import is_
from typing import Any, Literal, get_args

import msgspec

from holdfast.context.escaping import format_tag
from holdfast.context.units import EMPTY, add_label, is_blank, make_distinct_id, with_id
from holdfast.domain.medium import KINDS
from holdfast.domain.messages import REASONING_PARTS, SERVER_TOOL_PARTS, SYSTEM_ROLES, Message, Part, ToolCall
from holdfast.domain.provider_items import DETAILS, is_provider_compaction, list_details
from holdfast.errors import InvalidRequest

THINKING = REASONING_PARTS
"""Types of content parts that contain reasoning."""
Vendor = Literal["anthropic", "gemini"]
_FORMATS: dict[str, Vendor] = {"anthropic-claude-v1": "anthropic", "google-gemini-v1": "gemini"}
"""Values of `format` in OpenRouter's reasoning details, with their vendors. A detail without `format` is from Anthropic, which was the
first vendor with such details."""


class Thought(msgspec.Struct, frozen=True, gc=False):
    """One piece of reasoning in a reply."""

    text: str = ""
    vendor: Vendor | None = None
    """The provider that accepts `signature` and `sealed`; None if no provider does."""
    signature: str | None = None
    sealed: str | None = None
    """The encrypted reasoning; None if the reasoning is not encrypted."""
    call_id: str | None = None
    """Id of the tool call to which encrypted reasoning belongs; None if there is none."""

    def is_signed_by(self, vendor: Vendor) -> bool:
        """Return True if `vendor` accepts this reasoning as its own."""
        return self.vendor == vendor and bool(self.signature or self.sealed)


def parse_thoughts(message: Message) -> list[Thought]:
    """Return the reasoning of `message`, from its content parts or, if these contain none, from one other field.

    Only one of them is read, because clients that send reasoning in several fields repeat the same text.
    """
    content = message.content if isinstance(message.content, tuple) else ()
    parts = [parse_thought(part) for part in content if part.type in THINKING]
    return parts or parse_field_thoughts(message)


def drop_thoughts(message: Message) -> Message:
    """Return a message of the assistant without its reasoning. A provider's compaction items are not reasoning, and stay."""
    content = message.content
    if isinstance(content, tuple):
        content = tuple(part for part in content if part.type not in THINKING) or (None if message.tool_calls else "")
    extra = {name: value for name, value in message.extra.items() if name not in _THOUGHT_FIELDS}
    if items := [one for one in list_details(message.extra) if is_provider_compaction(one["item"])]:
        extra[DETAILS] = items
    return message.evolve(content=content, extra=extra)


_THOUGHT_FIELDS = frozenset(
    {"thinking_blocks", "content_blocks", "reasoning_details", "reasoning_content", "reasoning"}
)
"""Fields of a message that contain reasoning. `content_blocks` repeats the content next to it."""


def parse_field_thoughts(message: Message) -> list[Thought]:
    """Return the reasoning in a field of `message` other than its content; empty if the content contains reasoning."""
    if isinstance(message.content, tuple) and any(part.type in THINKING for part in message.content):
        return []
    extra = message.extra
    made = [_parse_block(item) for item in _list_objects(extra.get("thinking_blocks"))]
    made = made or [_parse_detail(item) for item in _list_objects(extra.get("reasoning_details"))]
    made = [thought for thought in made if thought.text or thought.signature or thought.sealed]
    if any(thought.text or thought.vendor for thought in made):
        return made
    texts = (extra.get(name) for name in ("reasoning_content", "reasoning"))
    return next(([Thought(text)] for text in texts if isinstance(text, str) and text.strip()), made)


def parse_thought(part: Part) -> Thought:
    """Return the reasoning in a content part, whose type must be in `THINKING`."""
    return _parse_block({"type": part.type, **part.extra})


def find_signature(fields: Mapping[str, Any]) -> str | None:
    """Return Google's thought signature from the fields of a message, part or call; None if there is none."""
    nested: list[Any] = [fields]
    if isinstance(of_google := fields.get("extra_content"), Mapping):
        nested.append(of_google.get("google"))
    nested.append(fields.get("provider_specific_fields"))
    for place in nested:
        for name in ("thoughtSignature", "thought_signature"):
            if isinstance(place, Mapping) and (signature := _to_text(place.get(name))):
                return signature
    return None


def find_call_signature(call: ToolCall) -> str | None:
    """Return Google's thought signature of a tool call; None if there is none."""
    return find_signature(call.extra) or find_signature(call.function_extra)


def _parse_block(block: Mapping[str, Any]) -> Thought:
    if block.get("type") == "redacted_thinking":
        return Thought(vendor="anthropic", sealed=_to_text(block.get("data")))
    return Thought(_to_text(block.get("thinking")) or "", "anthropic", _to_text(block.get("signature")))


def _parse_detail(detail: Mapping[str, Any]) -> Thought:
    form = detail.get("format")
    vendor = _FORMATS.get(form) if isinstance(form, str) else "anthropic"
    if detail.get("type") == "reasoning.encrypted":
        return Thought(vendor=vendor, sealed=_to_text(detail.get("data")), call_id=_to_text(detail.get("id")))
    text = _to_text(detail.get("text")) or _to_text(detail.get("summary")) or ""
    return Thought(text, vendor, _to_text(detail.get("signature")))


def _list_objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


Dialect = Literal["openai", "anthropic", "gemini"]
DIALECTS: tuple[str, ...] = get_args(Dialect)
OPENING = "[the conversation begins with the assistant]"
"""User message that is added before the conversation if the assistant begins it and the dialect requires the user to begin."""
CLOSING = "[continue]"
"""User message that is added after the conversation if the assistant ends it and the dialect requires the user to end. Also added between
two replies that must not be merged."""
SYSTEM_NOTE = "[a system message at this place of the conversation{tag}]\n"
"""Prefix of a system message inside the conversation, for dialects that accept system messages only at the beginning."""
UNKNOWN_PART = "[a part of type {type}]\n{json}"
"""Text that replaces a content part that the dialect does not support."""
RECEIVED = "[received]"
"""Assistant message that is added between tool results and a user message, for dialects in which turns must alternate."""
RESERVE = 48
"""Tokens of a window that are reserved for messages that `adapt_messages` may add. With them the window rarely has to be shrunk again."""

MEDIA_PARTS = frozenset(KINDS)
"""Types of media parts that `holdfast.wire.openai` parses."""
_NATIVE_IN: dict[str, frozenset[str]] = {
    **dict.fromkeys(SERVER_TOOL_PARTS, frozenset({"assistant"})),
    "search_result": frozenset({"user", "tool"}),
    "container_upload": frozenset({"user", "assistant"}),
    "tool_reference": frozenset({"tool"}),
    "browser_state": frozenset({"tool"}),
}
"""Block types that only Anthropic has, with the roles of the messages in which Anthropic accepts them."""
NATIVE_PARTS = frozenset(_NATIVE_IN)
"""Block types that only Anthropic has. They are sent to Anthropic unchanged."""
_ID = re.compile(r"[^a-zA-Z0-9_-]")
TOOL_NAME_LENGTH = 128
FUNCTION_NAME_LENGTH = 64
_NAME_SIGNS = frozenset("_-.:")
"""Maximum characters of a tool's name for Anthropic."""
_ID_LENGTH = 56
"""Maximum characters of a tool-call id without its numeric suffix. With the suffix, an id has at most 64 characters, which Bedrock requires."""


_OPENED = Message(role="user", content=OPENING)
_GO_ON = Message(role="user", content=CLOSING)
_RECEIVED = Message(role="assistant", content=RECEIVED)


def is_added(message: Message) -> bool:
    """Return True if `adapt_messages` added this message object. A client's message with the same text is not recognised as added."""
    return message is _OPENED or message is _GO_ON or message is _RECEIVED


def check_dialect(dialect: str) -> Dialect:
    """Return `dialect` unchanged if it is known.

    Raises:
        InvalidRequest: the dialect is unknown.
    """
    if dialect not in DIALECTS:
        raise InvalidRequest(f"dialect {dialect!r} is unknown; known: {', '.join(DIALECTS)}", param="dialect")
    return dialect  # type: ignore[return-value]  # just checked


def adapt_messages(messages: Sequence[Message], dialect: Dialect, marker: str = "") -> list[Message]:
    """Return a conversation in the form that `dialect` requires.

    OpenAI accepts every conversation unchanged. Anthropic and Gemini have these requirements:

    - The user begins and ends the conversation, and system messages come first.
    - No user message is empty.
    - Arguments of a tool call are a JSON object.
    - The types of all content parts are known.
    - Each tool-call id occurs once in the prompt.

    Anthropic also requires that an assistant's turn begins with its signed reasoning.

    Args:
        messages: the conversation, without the system prompt.
        dialect: the provider's dialect.
        marker: the session's marker, for labels of system messages inside the conversation; see `holdfast.context.escaping`.
    """
    if dialect == "openai":
        return list(messages)
    front = len(messages) - len(list(dropwhile(lambda message: message.role in SYSTEM_ROLES, messages)))
    if 0 < front < len(messages):  # leading system messages are sent as part of the system prompt
        return [*messages[:front], *adapt_messages(messages[front:], dialect, marker)]
    adapted = [
        _replace_unsupported(_without_system_role(message, marker), dialect)
        for message in _with_distinct_ids(messages, dialect)
    ]
    return list(_separate_turns(adapted, dialect))


# -- arguments ---------------------------------------------------------------


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a tool call as an object, which Anthropic and Gemini require. No part of `text` is lost.

    Empty text becomes an empty object. If `text` is not a JSON object, or parsing would change it, the object has the text under
    `arguments`.
    """
    if not text.strip():
        return {}
    decoded = _parse_object(text)
    return {"arguments": text} if decoded is None else decoded


def _parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that `text` contains; None if it contains none, or one that changes when it is decoded and encoded."""
    try:
        decoded = _decoder.decode(text)
        msgspec.json.encode(decoded)  # refuses lone surrogates
    except (ValueError, OverflowError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is not finite, which JSON does not allow")
    return number


_decoder = json.JSONDecoder(object_pairs_hook=_build_object, parse_float=_parse_finite, parse_constant=_parse_finite)


def with_object_arguments(call: ToolCall) -> ToolCall:
    """Return `call` with its arguments as a JSON object; the same `ToolCall` if they already are one."""
    made = parse_arguments(call.arguments)
    if made and "arguments" in made and made["arguments"] == call.arguments:
        return msgspec.structs.replace(call, arguments=msgspec.json.encode(made).decode())
    return call if made or call.arguments.strip() else msgspec.structs.replace(call, arguments="{}")


# -- words -------------------------------------------------------------------


def _replace_unsupported(message: Message, dialect: Dialect) -> Message:
    """Return `message` with replacements for contents that `dialect` does not support.

    Unsupported parts are converted to text. Empty content of a user message is replaced by `EMPTY`. Tool-call arguments are converted
    to JSON objects.
    """
    content = message.content
    if isinstance(content, tuple) and any(_is_unsupported(part, message.role, dialect) for part in content):
        content = tuple(
            _to_text_part(part) if _is_unsupported(part, message.role, dialect) else part for part in content
        )
    if message.role == "user" and is_blank(content):
        content = EMPTY
    calls = tuple(map(with_object_arguments, message.tool_calls)) if message.tool_calls else ()
    if content is message.content and all(map(is_, calls, message.tool_calls)):
        return message
    return message.evolve(content=content, tool_calls=calls)


def _is_unsupported(part: Part, role: str, dialect: Dialect) -> bool:
    if part.text is not None or part.type in MEDIA_PARTS:
        return False
    if part.type in THINKING:
        return role != "assistant"
    return dialect != "anthropic" or role not in _NATIVE_IN.get(part.type, ())


def _to_text_part(part: Part) -> Part:
    return Part("text", UNKNOWN_PART.format(type=part.type, json=msgspec.json.encode(part.extra).decode()))


def _without_system_role(message: Message, marker: str) -> Message:
    if message.role not in SYSTEM_ROLES:
        return message
    return message.evolve(role="user", content=add_label(message.content, SYSTEM_NOTE.format(tag=format_tag(marker))))


def _is_signed(message: Message, vendor: Vendor) -> bool:
    return any(thought.is_signed_by(vendor) for thought in parse_thoughts(message))


def _separate_turns(messages: Sequence[Message], dialect: Dialect) -> Iterator[Message]:
    """Yield the messages with those between them that the dialect requires.

    The user begins and ends. Gemini's turns must alternate, and Gemini ignores other parts in the same turn as tool results. Anthropic
    treats consecutive replies as one turn, and requires that a turn with signed reasoning begins with that reasoning.
    """
    before = ""
    for message in messages:
        if message.role == "assistant" and not before:
            yield _OPENED
        elif dialect == "gemini" and before == "tool" and message.role == "user":
            yield _RECEIVED
        elif dialect == "anthropic" and before == message.role == "assistant" and _is_signed(message, dialect):
            yield _GO_ON
        yield message
        before = message.role
    if before == "assistant":
        yield _GO_ON


# -- ids ---------------------------------------------------------------------


def _with_distinct_ids(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """Return the messages with distinct tool-call ids.

    Some recorded conversations use an id several times. The second call with an id gets a numeric suffix. The results after that call get the
    same suffix.
    """
    used: set[str] = set()
    renamed: dict[str, str] = {}
    adapted = []
    for message in messages:
        if message.tool_calls:
            renamed = {call.id: make_distinct_id(_sanitize_id(call.id, dialect), used) for call in message.tool_calls}
            calls = tuple(with_id(call, renamed[call.id]) for call in message.tool_calls)
            adapted.append(message if all(map(is_, calls, message.tool_calls)) else message.evolve(tool_calls=calls))
        elif message.role == "tool" and (known := str(message.tool_call_id)) != renamed[known]:
            adapted.append(message.evolve(tool_call_id=renamed[known]))
        else:
            adapted.append(message)
    return adapted


def _sanitize_id(call_id: str, dialect: Dialect) -> str:
    """Return `call_id` with the characters and the length that the dialect accepts."""
    return _ID.sub("_", call_id)[:_ID_LENGTH] or "call" if dialect == "anthropic" else call_id


def to_tool_name(name: str) -> str:
    """Convert the name of a tool to one that Anthropic accepts: invalid characters are replaced by `_`, and a long name is shortened."""
    return _ID.sub("_", name)[:TOOL_NAME_LENGTH] or "tool"


def to_function_name(name: str) -> str:
    """Convert the name of a function to one that Gemini accepts: invalid characters are replaced by `_`, and a long name is shortened."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in _NAME_SIGNS) else "_" for sign in name)
    starts = plain[:1].isalpha() or plain[:1] == "_"
    return (plain if starts else f"_{plain}")[:FUNCTION_NAME_LENGTH]

"""The parts of messages that only some APIs have, and their forms: reasoning, arguments of calls, and names of tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from holdfast.domain.messages import REASONING_PARTS, Message, Part, ToolCall
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
_ID = re.compile(r"[^a-zA-Z0-9_-]")
TOOL_NAME_LENGTH = 128
"""Maximum characters of a tool's name for Anthropic."""
FUNCTION_NAME_LENGTH = 64
_NAME_SIGNS = frozenset("_-.:")


def check_dialect(dialect: str) -> Dialect:
    """Return `dialect` unchanged if it is known.

    Raises:
        InvalidRequest: the dialect is unknown.
    """
    if dialect not in DIALECTS:
        raise InvalidRequest(f"dialect {dialect!r} is unknown; known: {', '.join(DIALECTS)}", param="dialect")
    return dialect  # type: ignore[return-value]  # just checked


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


# -- names ------------------------------------------------------------------


def to_tool_name(name: str) -> str:
    """Convert the name of a tool to one that Anthropic accepts: invalid characters are replaced by `_`, and a long name is shortened."""
    return _ID.sub("_", name)[:TOOL_NAME_LENGTH] or "tool"


def to_function_name(name: str) -> str:
    """Convert the name of a function to one that Gemini accepts: invalid characters are replaced by `_`, and a long name is shortened."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in _NAME_SIGNS) else "_" for sign in name)
    starts = plain[:1].isalpha() or plain[:1] == "_"
    return (plain if starts else f"_{plain}")[:FUNCTION_NAME_LENGTH]

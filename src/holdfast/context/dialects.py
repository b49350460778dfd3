"""What each provider's dialect wants of a conversation beyond what holds for all of them.

The log and the window know nothing of it: a working set is adapted when it leaves, in the same way each time, so that
the bytes before the frontier stay the same. Everything that a dialect adds in words is added here, where it is counted;
`holdfast.wire.anthropic` and `holdfast.wire.gemini` then only write it in the provider's own shape.
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
from holdfast.context.units import EMPTY, add_label, is_blank, make_distinct_id
from holdfast.domain.medium import KINDS
from holdfast.domain.messages import REASONING_PARTS, SERVER_TOOL_PARTS, SYSTEM_ROLES, Message, Part, ToolCall
from holdfast.errors import InvalidRequest

THINKING = REASONING_PARTS
"""Types of the parts that hold reasoning."""
Vendor = Literal["anthropic", "gemini"]
_FORMATS: dict[str, Vendor] = {"anthropic-claude-v1": "anthropic", "google-gemini-v1": "gemini"}
"""OpenRouter's `format` of a detail; one without it is Anthropic's, the first that had any."""


class Thought(msgspec.Struct, frozen=True, gc=False):
    """One piece of reasoning."""

    text: str = ""
    vendor: Vendor | None = None
    """Who takes `signature` and `sealed` back."""
    signature: str | None = None
    sealed: str | None = None
    """The encrypted reasoning itself, where there is no text, or a signature alone."""
    call_id: str | None = None
    """The call that a sealed piece belongs to."""

    def is_signed_by(self, vendor: Vendor) -> bool:
        """Whether `vendor` takes it back as its own reasoning."""
        return self.vendor == vendor and bool(self.signature or self.sealed)


def parse_thoughts(message: Message) -> list[Thought]:
    """The reasoning of `message`, of one source: clients that send several send the same text several times."""
    content = message.content if isinstance(message.content, tuple) else ()
    parts = [parse_thought(part) for part in content if part.type in THINKING]
    return parts or parse_field_thoughts(message)


def parse_field_thoughts(message: Message) -> list[Thought]:
    """The reasoning that stands in fields of `message`; none where its content has some."""
    if isinstance(message.content, tuple) and any(part.type in THINKING for part in message.content):
        return []
    extra = message.extra
    made = [_parse_block(item) for item in _list_objects(extra.get("thinking_blocks"))]
    made = made or [_parse_detail(item) for item in _list_objects(extra.get("reasoning_details"))]
    made = [thought for thought in made if thought.text or thought.signature or thought.sealed]
    if made:
        return made
    texts = (extra.get(name) for name in ("reasoning_content", "reasoning"))
    return next(([Thought(text)] for text in texts if isinstance(text, str) and text.strip()), [])


def parse_thought(part: Part) -> Thought:
    """The reasoning in a part of a type in `THINKING`."""
    return _parse_block({"type": part.type, **part.extra})


def find_signature(fields: Mapping[str, Any]) -> str | None:
    """Google's signature in the fields of a message, part or call."""
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
    """Google's signature on a call."""
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
"""Stands first where a dialect wants the user to begin and the assistant did."""
CLOSING = "[continue]"
"""Stands last where a dialect wants the user to end and the assistant did, and where two replies must not become one."""
SYSTEM_NOTE = "[a system message at this place of the conversation{tag}]\n"
"""Before a system message inside the conversation, where a dialect knows them only in front."""
UNKNOWN_PART = "[a part of type {type}]\n{json}"
"""A part that only its sender knows, as text."""
RECEIVED = "[received]"
"""Stands for the model where a dialect wants turns to alternate and the user speaks behind results of tools."""
RESERVE = 48
"""Tokens that a window leaves free for what `adapt_messages` may add, so that it seldom has to be made smaller for that."""

MEDIA_PARTS = frozenset(KINDS)
"""Types of parts that `holdfast.wire.openai` reads."""
_NATIVE_IN: dict[str, frozenset[str]] = {
    **dict.fromkeys(SERVER_TOOL_PARTS, frozenset({"assistant"})),
    "search_result": frozenset({"user", "tool"}),
    "container_upload": frozenset({"user", "assistant"}),
    "tool_reference": frozenset({"tool"}),
    "browser_state": frozenset({"tool"}),
}
"""The roles of the messages that Anthropic takes its own blocks in."""
NATIVE_PARTS = frozenset(_NATIVE_IN)
"""Anthropic's own blocks, which leave for Anthropic as they came."""
_ID = re.compile(r"[^a-zA-Z0-9_-]")
_ID_LENGTH = 56
"""Characters of an id before a number: with it 64, the most that Bedrock takes."""


_OPENED = Message(role="user", content=OPENING)
_GO_ON = Message(role="user", content=CLOSING)
_RECEIVED = Message(role="assistant", content=RECEIVED)


def is_added(message: Message) -> bool:
    """Whether a message of `adapt_messages` was put there for the dialect's sake: known by what it is, not by what it says."""
    return message is _OPENED or message is _GO_ON or message is _RECEIVED


def check_dialect(dialect: str) -> Dialect:
    """`dialect` if it is one; `InvalidRequest` otherwise."""
    if dialect not in DIALECTS:
        raise InvalidRequest(f"dialect {dialect!r} is unknown; known: {', '.join(DIALECTS)}", param="dialect")
    return dialect  # type: ignore[return-value]  # just checked


def adapt_messages(messages: Sequence[Message], dialect: Dialect, marker: str = "") -> list[Message]:
    """The conversation, without the system prompt, as `dialect` takes it.

    OpenAI takes it as it is. Anthropic and Gemini want the user to begin and to end, system messages in front only, no
    user message without a word, arguments that are a JSON object, parts of known types, and tool-call ids that no other
    call of the prompt has. Anthropic wants an assistant's turn to begin with its signed reasoning.

    Args:
        messages: as they are.
        dialect: the provider's.
        marker: the session's, for notes on whose words something is; see `holdfast.context.escaping`.
    """
    if dialect == "openai":
        return list(messages)
    front = len(messages) - len(list(dropwhile(lambda message: message.role in SYSTEM_ROLES, messages)))
    if 0 < front < len(messages):  # they belong to the system prompt, and are sent as part of it
        return [*messages[:front], *adapt_messages(messages[front:], dialect, marker)]
    told = [
        _replace_unsupported(_without_system_role(message, marker), dialect)
        for message in _with_distinct_ids(messages, dialect)
    ]
    if dialect == "anthropic":
        told = list(_separate_replies(told))
    if dialect == "gemini":
        told = list(_alternate_turns(told))
    if told and told[0].role == "assistant":
        told.insert(0, _OPENED)
    if told and told[-1].role == "assistant":
        told.append(_GO_ON)
    return told


# -- arguments ---------------------------------------------------------------


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call as the object that Anthropic and Gemini want, with every word of `text` in it.

    No arguments are an empty object; what is no JSON object, or would lose something as one, stands in it as text.
    """
    if not text.strip():
        return {}
    decoded = _parse_object(text)
    return {"arguments": text} if decoded is None else decoded


def _parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, if all of it survives being read and written again."""
    try:
        decoded = _decoder.decode(text)
        msgspec.json.encode(decoded)  # refuses lone surrogates
    except (ValueError, OverflowError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice")
    return made


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("no JSON number")
    return number


_decoder = json.JSONDecoder(object_pairs_hook=_build_object, parse_float=_parse_finite, parse_constant=_parse_finite)


def _with_object_arguments(call: ToolCall) -> ToolCall:
    """`call` as its arguments will be written, where that is not as they are."""
    made = parse_arguments(call.arguments)
    if made and "arguments" in made and made["arguments"] == call.arguments:
        return msgspec.structs.replace(call, arguments=msgspec.json.encode(made).decode())
    return call if made or call.arguments.strip() else msgspec.structs.replace(call, arguments="{}")


# -- words -------------------------------------------------------------------


def _replace_unsupported(message: Message, dialect: Dialect) -> Message:
    """`message` with everything in it that `dialect` has no place for as text."""
    content = message.content
    if isinstance(content, tuple) and any(_is_unsupported(part, message.role, dialect) for part in content):
        content = tuple(
            _to_text_part(part) if _is_unsupported(part, message.role, dialect) else part for part in content
        )
    if message.role == "user" and is_blank(content):
        content = EMPTY
    calls = tuple(map(_with_object_arguments, message.tool_calls)) if message.tool_calls else ()
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


def _alternate_turns(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, with a word of the model between results and a user message behind them.

    Gemini's turns alternate, and results of calls stand alone in theirs: other parts next to them are overlooked.
    """
    role = ""
    for message in messages:
        if role == "tool" and message.role == "user":
            yield _RECEIVED
        yield message
        role = message.role


def _separate_replies(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, with a word of the user before a reply with signed reasoning that follows another reply.

    Two replies in a row are one turn to Anthropic, and a turn with signed reasoning must begin with it.
    """
    role = ""
    for message in messages:
        if role == message.role == "assistant" and any(t.is_signed_by("anthropic") for t in parse_thoughts(message)):
            yield _GO_ON
        yield message
        role = message.role


# -- ids ---------------------------------------------------------------------


def _with_distinct_ids(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """Recordings reuse tool-call ids; a second use gets a number, and so do its results, which follow it directly."""
    used: set[str] = set()
    renamed: dict[str, str] = {}
    told = []
    for message in messages:
        if message.tool_calls:
            renamed = {call.id: make_distinct_id(_sanitize_id(call.id, dialect), used) for call in message.tool_calls}
        told.append(_with_ids(message, renamed))
    return told


def _sanitize_id(call_id: str, dialect: Dialect) -> str:
    """`call_id` in the characters that Anthropic takes."""
    return _ID.sub("_", call_id)[:_ID_LENGTH] or "call" if dialect == "anthropic" else call_id


def _with_ids(message: Message, renamed: Mapping[str, str]) -> Message:
    """`message` with the ids of its calls, or of the call it answers, as in `renamed`."""
    if message.tool_calls:
        if all(renamed[call.id] == call.id for call in message.tool_calls):
            return message
        calls = tuple(msgspec.structs.replace(call, id=renamed[call.id]) for call in message.tool_calls)
        return message.evolve(tool_calls=calls)
    if message.role == "tool" and (known := str(message.tool_call_id)) != renamed[known]:
        return message.evolve(tool_call_id=renamed[known])
    return message

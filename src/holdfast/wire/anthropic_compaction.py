"""Anthropic's compaction: the edit `compact_20260112`, the field `compaction`, and the blocks that stand for older messages.

Follows the API reference, "Compaction". A block has the text of the summary in `content`, and in `signature` a reference; see
`holdfast.models.codecs.responses.ids`. An Anthropic model gets edit, field and blocks unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.messages import Message, Part
from holdfast.errors import InvalidRequest
from holdfast.numbers import check_whole

COMPACT: Final = "compact_20260112"
COMPACTION: Final = "compaction"
"""Name of the request field that asks for a summary, type of the blocks, and the stop reason of a reply that ends with one."""
_TRIGGER: Final = 150_000
"""Anthropic's default of `trigger`, in tokens."""
_MOST: Final = 2**31
_KEYS: Final = frozenset({"type", "trigger", "instructions", "pause_after_compaction"})


class CompactionWish(NamedTuple):
    """When a request wants its conversation to be compacted."""

    trigger: int | None
    """Number of tokens of the prompt above which it is compacted; None: at once, and no model answers."""
    instructions: str | None
    """Instructions for the summary; None: the default ones."""
    pauses: bool
    """True: after a compaction no model answers."""


def parse_compact_edit(edit: Mapping[str, Any], where: str) -> CompactionWish:
    """Parse an edit of type `compact_20260112`.

    Raises:
        InvalidRequest: the edit is not valid. The error names the place.
    """
    if unknown := sorted(edit.keys() - _KEYS):
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r:.80}", param=where)
    trigger, pauses = edit.get("trigger"), edit.get("pause_after_compaction")
    value = _TRIGGER
    if trigger is not None:
        if not isinstance(trigger, Mapping) or trigger.get("type") != "input_tokens":
            message = f"{where}.trigger must be an object with type input_tokens and a value"
            raise InvalidRequest(message, param=f"{where}.trigger")
        check_whole(trigger.get("value"), f"{where}.trigger.value", 1, _MOST)
        value = trigger["value"]
    if not isinstance(pauses, bool | None):
        message = f"{where}.pause_after_compaction must be true or false"
        raise InvalidRequest(message, param=f"{where}.pause_after_compaction")
    return CompactionWish(value, _parse_instructions(edit, where), bool(pauses))


def parse_summarize(given: Any) -> CompactionWish | None:
    """Parse the field `compaction`; return None if the request has none.

    Raises:
        InvalidRequest: the field is not valid. The error names the place.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping) or given.get("type") != "summarize":
        message = f"{COMPACTION} must be an object with the type summarize"
        raise InvalidRequest(message, param=COMPACTION)
    if unknown := sorted(given.keys() - {"type", "instructions"}):
        raise InvalidRequest(f"{COMPACTION} has the unknown key {unknown[0]!r:.80}", param=COMPACTION)
    return CompactionWish(None, _parse_instructions(given, COMPACTION), pauses=True)


def _parse_instructions(given: Mapping[str, Any], where: str) -> str | None:
    text = given.get("instructions")
    if not isinstance(text, str | None):
        raise InvalidRequest(f"{where}.instructions must be a string", param=f"{where}.instructions")
    return text if text and text.strip() else None


# -- blocks ------------------------------------------------------------------------


class FoundBlock(NamedTuple):
    """The newest compaction block of a request."""

    text: str
    signature: str | None
    after: list[Message]
    """The messages after the block, beginning with the rest of its own message."""


def has_blocks(messages: Sequence[Message]) -> bool:
    """Return True if a message has a compaction block."""
    return any(map(_is_block, (part for message in messages for part in message.media)))


def find_block(messages: Sequence[Message]) -> FoundBlock | None:
    """Return the newest compaction block that has a text; None if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        content = messages[at].content
        parts = content if isinstance(content, tuple) else ()
        for number in range(len(parts) - 1, -1, -1):
            text, signature = (parts[number].extra.get(name) for name in ("content", "signature"))
            if _is_block(parts[number]) and isinstance(text, str) and text:
                rest = _with_parts(messages[at], parts[number + 1 :])
                after = [rest] if rest.content is not None or rest.tool_calls else []
                after += drop_blocks(messages[at + 1 :])
                return FoundBlock(text, signature if isinstance(signature, str) else None, after)
    return None


def drop_blocks(messages: Sequence[Message]) -> list[Message]:
    """Return messages without compaction blocks. A message with nothing else is left out."""
    made = []
    for message in messages:
        if isinstance(message.content, tuple) and any(map(_is_block, message.content)):
            message = _with_parts(message, [part for part in message.content if not _is_block(part)])  # noqa: PLW2901
            if message.content is None and not message.tool_calls:
                continue
        made.append(message)
    return made


def _is_block(part: Part) -> bool:
    return part.type == COMPACTION


def _with_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return a message with these parts as its content: one text if they are nothing else, None if there are none."""
    if all(part.type == "text" and not part.extra for part in parts):
        return message.evolve(content="".join(part.text or "" for part in parts) or None)
    return message.evolve(content=tuple(parts))


def make_block(text: str | None, signature: str) -> dict[str, Any]:
    """Return a compaction block."""
    return {"type": COMPACTION, "content": text, "encrypted_content": None, "signature": signature}


def make_iterations(compaction: Mapping[str, Any], message: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return `usage.iterations`: the usage of the compaction, and of the message if a model answered. Both are in Anthropic's format."""
    listed = [(COMPACTION, compaction), *([] if message is None else [("message", message)])]
    zero = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    names = ("input_tokens", "output_tokens", "cache_creation", *zero)
    return [
        {"type": kind, **zero, **{name: usage[name] for name in names if usage.get(name) is not None}}
        for kind, usage in listed
    ]

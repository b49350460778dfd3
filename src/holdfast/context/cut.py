"""Cutting one message at its middle, marked, so that what must be in a working set fits.

The head and the tail of a text stay, the marker between them says how much is missing and where the whole is. What is
cut of a message: its texts; of an assistant message with tool calls also the strings inside the arguments, which stay
the JSON they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.messages import Message, Part, ToolCall

MIN_CUT = 128
"""Tokens below which no message is cut."""
MARKER = "\n[… {missing} of {size} characters cut here; the whole is message {seq} of the session …]\n"
STUB = "[original task: {text}]"
"""What stands for a task anchor that takes more than a quarter of the room (seed 001)."""
_MEDIA_MARKER = "[a part of type {type} is left out here; it is in message {seq} of the session]"
_LONG_ARGUMENT = 200
"""Characters from which a string inside arguments may be cut."""


class Count(Protocol):
    """Counts tokens for one model; `holdfast.tokens` has the counters."""

    def text(self, text: str) -> int:
        """Tokens of a text alone."""
        ...

    def message(self, message: Message) -> int:
        """Tokens of a message as the provider counts it."""
        ...


def cut(message: Message, tokens: int, *, seq: int, count: Count) -> Message:
    """`message` in at most `tokens` tokens where its texts allow that; otherwise as small as they do.

    Deterministic. A message that fits already is returned as it is.
    """
    if count.message(message) <= tokens:
        return message
    return _largest(lambda share: _shrunk(message, share, seq), tokens, count)


def stub(message: Message, tokens: int, *, seq: int, count: Count) -> Message:
    """The task anchor as a marked stub: `[original task: …]`, in at most `tokens` tokens where that can be."""

    def stubbed(share: float) -> Message:
        return Message(role=message.role, content=STUB.format(text=_cut_text(message.text, share, seq)))

    return _largest(stubbed, tokens, count)


def _largest(made: Callable[[float], Message], tokens: int, count: Count) -> Message:
    """The largest of a family of messages, `made(share of the text kept)`, that fits; ten halvings are exact enough."""
    low, high = 0.0, 1.0
    best = made(0.0)
    for _ in range(10):
        share = (low + high) / 2
        candidate = made(share)
        if count.message(candidate) <= tokens:
            low, best = share, candidate
        else:
            high = share
    return best


def _shrunk(message: Message, share: float, seq: int) -> Message:
    calls = tuple(_shrunk_call(call, share, seq) for call in message.tool_calls)
    content = message.content
    if isinstance(content, str):
        return message.evolve(content=_cut_text(content, share, seq), tool_calls=calls, extra=_kept_extra(message))
    if isinstance(content, tuple):
        parts = tuple(_shrunk_part(part, share, seq) for part in content)
        return message.evolve(content=parts, tool_calls=calls, extra=_kept_extra(message))
    return message.evolve(tool_calls=calls, extra=_kept_extra(message))


def _kept_extra(message: Message) -> dict[str, Any]:
    """Unknown fields cannot be cut and may be long (reasoning): a cut message leaves its texts among them out."""
    return {key: value for key, value in message.extra.items() if len(str(value)) <= _LONG_ARGUMENT}


def _shrunk_part(part: Part, share: float, seq: int) -> Part:
    if part.text is None:
        return Part("text", _MEDIA_MARKER.format(type=part.type, seq=seq))
    return msgspec.structs.replace(part, text=_cut_text(part.text, share, seq))


def _shrunk_call(call: ToolCall, share: float, seq: int) -> ToolCall:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return call if len(call.arguments) <= _LONG_ARGUMENT else _wrapped_call(call, share, seq)
    shrunk = msgspec.json.encode(_shrunk_value(arguments, share, seq)).decode()
    return msgspec.structs.replace(call, arguments=shrunk) if len(shrunk) < len(call.arguments) else call


def _wrapped_call(call: ToolCall, share: float, seq: int) -> ToolCall:
    """Arguments that are no JSON cannot be cut inside; they become an object that holds their cut text."""
    text = msgspec.json.encode({"arguments": _cut_text(call.arguments, share, seq)}).decode()
    return msgspec.structs.replace(call, arguments=text)


def _shrunk_value(value: Any, share: float, seq: int) -> Any:
    if isinstance(value, str):
        return _cut_text(value, share, seq) if len(value) > _LONG_ARGUMENT else value
    if isinstance(value, list):
        return [_shrunk_value(item, share, seq) for item in value]
    if isinstance(value, dict):
        return {key: _shrunk_value(item, share, seq) for key, item in value.items()}
    return value


def _cut_text(text: str, share: float, seq: int) -> str:
    """The head (two thirds of what is kept) and the tail of `text`, or all of it where the marker would not save anything."""
    kept = int(len(text) * share)
    head = kept * 2 // 3
    tail = kept - head
    marker = MARKER.format(missing=len(text) - kept, size=len(text), seq=seq)
    shorter = text[:head] + marker + (text[len(text) - tail :] if tail else "")
    return shorter if len(shorter) < len(text) else text

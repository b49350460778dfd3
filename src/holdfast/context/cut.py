"""Cutting one message at its middle, marked, so that what must be in a working set fits.

The head and the tail of a text stay, the marker between them says how much is missing and where the whole is. What is
cut of a message: its texts; of an assistant message with tool calls also the strings inside the arguments, which stay
the JSON they were unless that saves too little. Media and long fields without a name here cannot be shortened: they are
left out, and a text in their place says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.domain.artifact import LOADER, result_name
from holdfast.domain.messages import Content, Message, Part, ToolCall

MIN_CUT = 128
"""Tokens below which no message is cut; see `least` for where there are fewer."""
LEAST_CUT, FLOOR = 32, 8
"""Where what is cut out is told elsewhere, the floor is this part of the room, and never below so many tokens, most of which
are the marker: three messages of `MIN_CUT` fill a room of 512, and nothing could be told of what was cut out of them."""
USERS_LEAST = 48
"""The floor for what a person says, which nothing else tells as well."""
MARKER = "\n[… {missing} of {size} characters cut, {whole} …]\n"
STUB = "[original task: {text}]"
"""What stands for a task anchor that takes more than a quarter of the room (seed 001)."""
STUB_LEAST = 66
"""Characters of the task that a stub keeps."""
_MEDIA_MARKER = "[a part of type {type} is left out here; it is in {whole}]"
_FIELDS_MARKER = "[left out here: {names}; the whole is {whole}]"
_WHOLE = "message {seq} of the session"
"""Where the whole of a message is."""
_LOADABLE = LOADER + '("{name}")'
"""Where the whole of a result is, for whoever can load it back."""
_LONG = 200
"""Characters up to which a string inside arguments, or a field of a message that is not its text, is never cut."""
_LONG_CALL = 110
"""Characters up to which the arguments of a call are never cut: their cut would be about as long."""
_CLOSE_ENOUGH = 0.97
"""Part of the tokens allowed that ends the search for the largest cut."""
_HALVINGS = 24


class Count(Protocol):
    """Counts tokens for one model; `holdfast.tokens` has the counters."""

    def text(self, text: str) -> int:
        """Tokens of a text alone."""

    def message(self, message: Message) -> int:
        """Tokens of a message as the provider counts it."""


def least(room: int) -> int:
    """Tokens below which no message is cut in a room of `room` tokens, if what is cut out is told elsewhere."""
    return max(LEAST_CUT, min(MIN_CUT, room // FLOOR))


def cut(message: Message, tokens: int, *, seq: int, count: Count, loads: bool = False) -> Message:
    """`message` in at most `tokens` tokens where that can be; otherwise as small as it gets.

    Deterministic. A message that fits already is returned as it is; a user's is never cut below `USERS_LEAST`.

    Args:
        message: as it is.
        tokens: see above.
        seq: of its entry.
        count: the model's.
        loads: whether the model can load a tool's result back: then the marker in one says how.
    """
    if message.role == "user":
        tokens = max(tokens, USERS_LEAST)
    if count.message(message) <= tokens:
        return message
    whole = loadable(seq) if loads and message.role == "tool" else _WHOLE.format(seq=seq)
    lean = _lean(message, whole)
    return _first_fitting(
        (
            lambda share: _shrunk(message, share, whole, _strings_cut),
            lambda share: lean(_shrunk(message, share, whole, _strings_cut)),
            lambda share: lean(_shrunk(message, share, whole, _text_cut)),
        ),
        tokens,
        count,
    )


def stub(message: Message, tokens: int, *, seq: int, count: Count) -> Message:
    """The task anchor as a marked stub: `[original task: …]`, in at most `tokens` tokens; like `cut` in all else.

    It keeps `STUB_LEAST` characters, whatever they take: with fewer the task cannot be told from another one.
    """
    if count.message(message) <= tokens:
        return message
    whole = _WHOLE.format(seq=seq)
    lean = _lean(message, whole)

    least = min(1.0, STUB_LEAST / max(1, len(message.text)))

    def stubbed(share: float) -> Message:
        text = STUB.format(text=_cut_text(message.text, max(share, least), whole))
        return message.evolve(content=(Part("text", text), *message.media) if message.media else text)

    return _first_fitting((stubbed, lambda share: lean(stubbed(share))), tokens, count)


def loadable(seq: int) -> str:
    """How a model loads the result of a tool back that entry `seq` has."""
    return _LOADABLE.format(name=result_name(seq))


_Made = Callable[[float], Message]
"""A family of ever larger messages, by the share of the text that is kept."""


def _first_fitting(families: Sequence[_Made], tokens: int, count: Count) -> Message:
    """The largest message that fits, of the first family that has one; else the smallest of all."""
    smallest: list[Message] = []
    for made in families:
        candidate = _largest(made, tokens, count)
        if count.message(candidate) <= tokens:
            return candidate
        smallest.append(candidate)
    return min(smallest, key=count.message)


def _largest(made: _Made, tokens: int, count: Count) -> Message:
    """The largest of a family that fits, or nearly; `made(0.0)` where none does."""
    low, high = 0.0, 1.0
    best = made(low)
    if count.message(best) > tokens:
        return best
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        candidate = made(share)
        size = count.message(candidate)
        if size > tokens:
            high = share
            continue
        low, best = share, candidate
        if size >= tokens * _CLOSE_ENOUGH:
            break
    return best


# -- what is left out ----------------------------------------------------------


def _lean(message: Message, whole: str) -> Callable[[Message], Message]:
    """What makes a shortened `message` leaner still: media and long fields (reasoning, say) become words that name them."""
    long = {key for key, value in message.extra.items() if len(str(value)) > _LONG}
    note = _FIELDS_MARKER.format(names=", ".join(sorted(long)), whole=whole) if long else ""

    def leaner(shortened: Message) -> Message:
        content = shortened.content
        if isinstance(content, tuple):
            content = tuple(_told(part, whole) for part in content)
        extra = {key: value for key, value in shortened.extra.items() if key not in long}
        return shortened.evolve(content=_noted(content, note) if note else content, extra=extra)

    return leaner


def _told(part: Part, whole: str) -> Part:
    """A part in words."""
    return part if part.text is not None else Part("text", _MEDIA_MARKER.format(type=part.type, whole=whole))


def _noted(content: Content, note: str) -> Content:
    if isinstance(content, tuple):
        return (*content, Part("text", note))
    return f"{content}\n{note}" if isinstance(content, str) and content else note


# -- what is cut ---------------------------------------------------------------

_CutArguments = Callable[[str, float, str], str]


def _shrunk(message: Message, share: float, whole: str, arguments: _CutArguments) -> Message:
    calls = tuple(_shrunk_call(call, share, whole, arguments) for call in message.tool_calls)
    content = message.content
    if isinstance(content, str):
        content = _cut_text(content, share, whole)
    elif isinstance(content, tuple):
        content = tuple(_shrunk_part(part, share, whole) for part in content)
    return message.evolve(content=content, tool_calls=calls)


def _shrunk_part(part: Part, share: float, whole: str) -> Part:
    return part if part.text is None else msgspec.structs.replace(part, text=_cut_text(part.text, share, whole))


def _shrunk_call(call: ToolCall, share: float, whole: str, arguments: _CutArguments) -> ToolCall:
    if len(call.arguments) <= _LONG_CALL:
        return call
    shorter = arguments(call.arguments, share, whole)
    return msgspec.structs.replace(call, arguments=shorter) if len(shorter) < len(call.arguments) else call


def _strings_cut(arguments: str, share: float, whole: str) -> str:
    """Arguments with the long strings in them cut: the JSON they were, without white space."""
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _text_cut(arguments, share, whole)
    return msgspec.json.encode(_shrunk_value(decoded, share, whole)).decode()


def _text_cut(arguments: str, share: float, whole: str) -> str:
    """An object that holds the cut text of arguments: where they are no JSON, or many short values."""
    return msgspec.json.encode({"arguments": _cut_text(arguments, share, whole)}).decode()


def _shrunk_value(value: Any, share: float, whole: str) -> Any:
    if isinstance(value, str):
        return _cut_text(value, share, whole) if len(value) > _LONG else value
    if isinstance(value, list):
        return [_shrunk_value(item, share, whole) for item in value]
    if isinstance(value, dict):
        return {key: _shrunk_value(item, share, whole) for key, item in value.items()}
    return value


def _cut_text(text: str, share: float, whole: str) -> str:
    """The head (two thirds of what is kept) and the tail of `text`, or all of it where the marker would not save anything."""
    kept = int(len(text) * share)
    head = kept * 2 // 3
    tail = kept - head
    marker = MARKER.format(missing=len(text) - kept, size=len(text), whole=whole)
    shorter = text[:head] + marker + (text[len(text) - tail :] if tail else "")
    return shorter if len(shorter) < len(text) else text

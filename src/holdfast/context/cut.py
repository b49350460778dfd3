"""Shorten one message by cutting the middle of its texts, so that a message that must be sent fits into a working set.

The beginning and the end of a text are kept. A note between them says how much is missing and where the complete text is. In tool calls,
the strings inside the arguments are shortened too. Shortened arguments remain valid JSON, with a first key that says that they were cut.
Media and long unknown fields cannot be shortened. They are replaced by a text that names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from holdfast.context.escaping import escape_lines, escape_name, format_tag
from holdfast.domain.artifact import LOADER, format_result_name
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.domain.provider_items import DETAILS
from holdfast.limits import DEPTH

MIN_CUT = 128
"""Minimum size of a cut message, in tokens. Strategies with a digest use a smaller one for small token limits; see `compute_cut_floor`."""
LEAST_CUT, FLOOR = 32, 8
"""If the strategy has a digest, which repeats the facts that were cut, a cut message has at least 1/`FLOOR` of the window's token limit.

This minimum is never less than `LEAST_CUT` tokens, most of which are the note, and never more than `MIN_CUT`. If it were always `MIN_CUT`,
three cut messages would leave no space for the digest in a window of 512 tokens."""
USERS_LEAST = 48
"""Minimum size of a cut user message, in tokens, even if other messages may be cut to `LEAST_CUT`. A digest repeats a user's words less
completely."""
NOTE = "\n[… {missing} of {size} characters cut, {whole} …]\n"
_CUT_KEY = "[cut, see {whole}]"
"""First key in the arguments of a shortened call. It contains the session's marker, so that the model cannot take the key for an argument
of the tool, and does not repeat the call with the shortened arguments."""
STUB = "[original task{tag}: {text}]"
"""Format of a shortened task anchor (the user's first message)."""
STUB_LEAST = 66
"""Minimum number of characters of the task that a shortened task anchor contains."""
_MEDIA_NOTE = "[a part of type {type} is left out here; it is in {whole}]"
_FIELDS_NOTE = "[left out here: {names}; the whole is {whole}]"
_WHOLE = "message {seq} of the session"
"""The part of a note that says where the complete message is."""
_LOADABLE = LOADER + '("{name}")'
"""The part of a note that says where the complete result is, for a model that has the tool to load it."""
_LONG = 200
"""Strings inside arguments, and fields other than the text, are never cut if they have at most this many characters."""
_LONG_CALL = 110
"""Arguments of a call are never cut if they have at most this many characters: the shortened form would be about as long."""
_CLOSE_ENOUGH = 0.97
"""The search for the largest shortened message ends when a message takes at least this fraction of the allowed tokens."""
_HALVINGS, _BY_LINE, _GROWTH = 24, 6, 4
"""Limits of the search for the fraction of a text that fits.

- `_HALVINGS`: maximum number of fractions that are tried.
- `_BY_LINE`: number of tries with linear interpolation before bisection begins.
- `_GROWTH`: largest factor from one fraction to the next, until one is too large.
"""
_AIM, _EDGE, _NO_SHARE = 0.985, 0.02, 1e-7
"""Parameters of the interpolation.

- `_AIM`: fraction of the allowed tokens at which it aims.
- `_EDGE`: minimum distance from both ends of the interval, as a fraction of the interval.
- `_NO_SHARE`: length of an interval at which the search ends.
"""
_SURE_CHARS = 2
"""Characters per allowed token in the first cut that is tried. Most texts have more characters per token, so this cut nearly always
fits."""


count_piece = cast(
    "Callable[[TokenCounter, str], int]", lru_cache(maxsize=4_096)(lambda count, piece: count.text(piece))
)
"""Return the tokens of a line or a statement. Cached, because consecutive digests have most lines in common."""


def compute_cut_floor(room: int) -> int:
    """Return the minimum size of a cut message, in tokens, for a strategy with a digest and a window of `room` tokens."""
    return max(LEAST_CUT, min(MIN_CUT, room // FLOOR))


def cut(
    message: Message,
    tokens: int,
    *,
    seq: int,
    count: TokenCounter,
    loads: bool = False,
    marker: str = "",
    keeps_item: bool = False,
) -> Message:
    """Return `message` shortened to `tokens` tokens if possible, otherwise as short as possible.

    The result is deterministic. A message that already fits is returned unchanged. The limit of a user message is at least `USERS_LEAST`.

    Args:
        message: the complete message.
        tokens: the limit.
        seq: `seq` of the message's entry.
        count: the token counter.
        loads: True if the model has a tool to load tool results. The note in a shortened tool result then names the call.
        marker: the session's marker; see `holdfast.context.escaping`.
        keeps_item: True if the message has a compaction item of the provider that must stay whole.
    """
    if message.role == "user":
        tokens = max(tokens, USERS_LEAST)
    if count.message(message) <= tokens:
        return message
    whole = (format_loader_call(seq) if loads and message.role == "tool" else _WHOLE.format(seq=seq)) + format_tag(
        marker
    )
    lean = _make_stripper(message, whole, keep={DETAILS} if keeps_item else ())
    return _find_fitting(
        (
            lambda share: _shrink(message, share, whole, _cut_strings),
            lambda share: lean(_shrink(message, share, whole, _cut_strings)),
            lambda share: lean(_shrink(message, share, whole, _cut_as_text)),
        ),
        tokens,
        count,
    )


def make_stub(message: Message, tokens: int, *, seq: int, count: TokenCounter, marker: str = "") -> Message:
    """Return the task anchor shortened to at most `tokens` tokens, in the form `[original task: …]`. The arguments are those of `cut`.

    A message that already fits is returned unchanged. At least `STUB_LEAST` characters of the task are kept, even if they exceed the limit,
    because fewer would not distinguish two tasks.
    """
    if count.message(message) <= tokens:
        return message
    whole = _WHOLE.format(seq=seq)  # without the marker: the stub begins with it
    lean = _make_stripper(message, whole)
    task = escape_lines(message.text, marker)
    least = min(1.0, STUB_LEAST / max(1, len(task)))

    def shrink(share: float) -> Message:
        text = STUB.format(text=_cut_text(task, max(share, least), whole), tag=format_tag(marker))
        return message.evolve(content=(Part("text", text), *message.media) if message.media else text)

    return _find_fitting((shrink, lambda share: lean(shrink(share))), tokens, count)


def format_loader_call(seq: int) -> str:
    """Return the text of the tool call with which a model loads the complete tool result of entry `seq`."""
    return _LOADABLE.format(name=format_result_name(seq))


_Made = Callable[[float], Message]
"""A function that returns a message with a given fraction of its text. A larger fraction never gives a smaller message."""


def _find_fitting(families: Sequence[_Made], tokens: int, count: TokenCounter) -> Message:
    """Try functions in order, and return the largest message that fits, made by the first function that can make one that fits.

    If no function can, return the smallest message that any of them makes.

    Args:
        families: functions that shorten the message in different ways, the preferred one first.
        tokens: the limit.
        count: the token counter.
    """
    smallest: list[Message] = []
    for made in families:
        candidate = _find_largest(made, tokens, count)
        if count.message(candidate) <= tokens:
            return candidate
        smallest.append(candidate)
    return min(smallest, key=count.message)


def _find_largest(made: _Made, tokens: int, count: TokenCounter) -> Message:
    """Return approximately the largest message that `made` returns and that fits. If none fits, return `made(0.0)`.

    The first fraction tried is small, because counting the tokens of megabytes of text is slow. The next fractions are found by linear
    interpolation between counted messages. If that does not converge soon, bisection continues.
    """
    best = made(0.0)
    low, low_size = 0.0, count.message(best)
    if low_size > tokens:
        return best
    least = low_size
    halvings = _HALVINGS
    while halvings > 1 and len(made(0.5**halvings).text) < tokens * _SURE_CHARS:
        halvings -= 1
    share, high, high_size = 0.5**halvings, 1.0, 0
    for tried in range(_HALVINGS):
        candidate = made(share)
        size = count.message(candidate)
        if size > tokens:
            high, high_size = share, size
        else:
            low, low_size, best = share, size, candidate
        if low == 1.0 or high - low < _NO_SHARE or low_size >= tokens * _CLOSE_ENOUGH:
            break
        if not high_size:
            slope = (low_size - least) / low
            share = min(1.0, _GROWTH * low, low + (tokens * _AIM - low_size) / slope if slope else 1.0)
        elif tried > _BY_LINE:
            share = (low + high) / 2
        else:
            edge = (high - low) * _EDGE
            aim = low + (tokens * _AIM - low_size) * (high - low) / (high_size - low_size)
            share = min(max(aim, low + edge), high - edge)
    return best


# -- leaving parts out ----------------------------------------------------------


def _make_stripper(message: Message, whole: str, *, keep: Collection[str] = ()) -> Callable[[Message], Message]:
    """Return a function that takes a shortened `message` and replaces its media and long fields, such as reasoning, by texts naming them.

    Args:
        message: the complete message.
        whole: the part of a note that says where the complete message is.
        keep: fields that stay, however long they are.
    """
    long = {key for key, value in message.extra.items() if key not in keep and len(str(value)) > _LONG}
    note = _FIELDS_NOTE.format(names=", ".join(map(escape_name, sorted(long))), whole=whole) if long else ""

    def strip(shortened: Message) -> Message:
        content = shortened.content
        if isinstance(content, tuple):
            content = tuple(_describe_part(part, whole) for part in content)
        extra = {key: value for key, value in shortened.extra.items() if key not in long}
        return shortened.evolve(content=_append_note(content, note) if note else content, extra=extra)

    return strip


def _describe_part(part: Part, whole: str) -> Part:
    """Return a text that names and replaces a media part; a text part is returned unchanged."""
    return part if part.text is not None else Part("text", _MEDIA_NOTE.format(type=escape_name(part.type), whole=whole))


def _append_note(content: Content, note: str) -> Content:
    if isinstance(content, tuple):
        return (*content, Part("text", note))
    return f"{content}\n{note}" if isinstance(content, str) and content else note


# -- cutting texts -------------------------------------------------------------

_CutArguments = Callable[[str, float, str], str]


def _shrink(message: Message, share: float, whole: str, arguments: _CutArguments) -> Message:
    calls = tuple(_shrink_call(call, share, whole, arguments) for call in message.tool_calls)
    content = message.content
    if isinstance(content, str):
        content = _cut_text(content, share, whole)
    elif isinstance(content, tuple):
        content = tuple(_shrink_part(part, share, whole) for part in content)
    return message.evolve(content=content, tool_calls=calls)


def _shrink_part(part: Part, share: float, whole: str) -> Part:
    return part if part.text is None else msgspec.structs.replace(part, text=_cut_text(part.text, share, whole))


def _shrink_call(call: ToolCall, share: float, whole: str, arguments: _CutArguments) -> ToolCall:
    if len(call.arguments) <= _LONG_CALL:
        return call
    shorter = arguments(call.arguments, share, whole)
    return msgspec.structs.replace(call, arguments=shorter) if len(shorter) < len(call.arguments) else call


def _cut_strings(arguments: str, share: float, whole: str) -> str:
    """Return arguments with long strings cut, as compact JSON. The added key `_CUT_KEY` makes tools reject them."""
    try:
        shorter = _shrink_value(msgspec.json.decode(arguments), share, whole, DEPTH)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _cut_as_text(arguments, share, whole)
    key = _CUT_KEY.format(whole=whole)
    return msgspec.json.encode({key: "", **shorter} if isinstance(shorter, dict) else {key: shorter}).decode()


def _cut_as_text(arguments: str, share: float, whole: str) -> str:
    """Return a JSON object that contains a call's arguments as one cut text.

    Used if they are not JSON, are nested too deeply, or have too many short values.
    """
    text = _cut_text(arguments, share, whole) if int(len(arguments) * share) else ""
    return msgspec.json.encode({_CUT_KEY.format(whole=whole): text}).decode()


def _shrink_value(value: Any, share: float, whole: str, depth: int) -> Any:
    """Return `value` with long strings cut.

    Raises:
        ValueError: the value is nested more than `depth` deep.
    """
    if isinstance(value, str):
        return _cut_text(value, share, whole) if len(value) > _LONG else value
    if isinstance(value, list | dict) and not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_shrink_value(item, share, whole, depth - 1) for item in value]
    if isinstance(value, dict):
        return {key: _shrink_value(item, share, whole, depth - 1) for key, item in value.items()}
    return value


def _cut_text(text: str, share: float, whole: str) -> str:
    """Return `text` with its middle replaced by a note. If the result would not be shorter, return `text` unchanged.

    Args:
        text: the text.
        share: fraction of the text to keep, two thirds of it from the beginning and one third from the end.
        whole: the part of the note that says where the complete text is.
    """
    kept = int(len(text) * share)
    head = kept * 2 // 3
    tail = kept - head
    note = NOTE.format(missing=len(text) - kept, size=len(text), whole=whole)
    shorter = text[:head] + note + (text[len(text) - tail :] if tail else "")
    return shorter if len(shorter) < len(text) else text

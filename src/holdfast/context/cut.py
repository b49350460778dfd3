"""Shortens a message by cutting its middle, with a visible note, so that required messages fit into a working set.

The head and the tail of a text are kept; the note between them says how much is missing and where the whole text is. The texts of a message are
shortened, and in an assistant message with tool calls also the strings inside the arguments. Arguments stay JSON, and their first key says
that they were cut. Media and long unknown fields cannot be shortened: they are replaced by a text that names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import msgspec

from holdfast.context.escaping import escape_lines, escape_name, format_tag
from holdfast.domain.artifact import LOADER, format_result_name
from holdfast.domain.messages import Content, Message, Part, ToolCall

MIN_CUT = 128
"""Tokens below which no message is cut; see `compute_cut_floor` for small rooms."""
LEAST_CUT, FLOOR = 32, 8
"""If a digest repeats what was cut, the floor is this fraction (1/`FLOOR`) of the room, and at least `LEAST_CUT` tokens, most of which are the
note. With `MIN_CUT`, three messages would fill a room of 512 tokens and leave no room for the digest."""
USERS_LEAST = 48
"""The floor for user messages, which no digest repeats as well."""
NOTE = "\n[… {missing} of {size} characters cut, {whole} …]\n"
_CUT_KEY = "[cut, see {whole}]"
"""First key in the arguments of a call that was cut. It contains the session's marker, so a model cannot take it for an argument of the tool,
and no tool call with shortened arguments can be repeated by mistake."""
STUB = "[original task{tag}: {text}]"
"""Replaces a task anchor (the user's original task) that takes more than a quarter of the room."""
STUB_LEAST = 66
"""Least characters of the task in a stub."""
_MEDIA_NOTE = "[a part of type {type} is left out here; it is in {whole}]"
_FIELDS_NOTE = "[left out here: {names}; the whole is {whole}]"
_WHOLE = "message {seq} of the session"
"""Where the whole message is."""
_LOADABLE = LOADER + '("{name}")'
"""The part of the note that says how to load the whole result, for a model that can."""
_LONG = 200
"""Longest string inside arguments, or field other than the text, that is never cut, in characters."""
_LONG_CALL = 110
"""Longest arguments of a call that are never cut, in characters: the shortened form would be about as long."""
_CLOSE_ENOUGH = 0.97
"""The search for the largest shortened message ends when one takes this share of the allowed tokens."""
_HALVINGS, _BY_LINE, _GROWTH = 24, 6, 4
"""Most shares that are tried, how many of them by linear interpolation, and the largest ratio of a share to the previous one."""
_AIM, _EDGE, _NO_SHARE = 0.985, 0.02, 1e-7
"""Share of the allowed tokens that interpolation aims at; its least distance from both ends of the interval; and the smallest interval."""
_SURE_CHARS = 2
"""Characters per allowed token of the first cut that is tried. Most texts have more, so the first count is rarely too high."""


class Count(Protocol):
    """Counts tokens for one model; `holdfast.tokens` has the implementations."""

    def text(self, text: str) -> int:
        """Return the tokens of a text."""

    def message(self, message: Message) -> int:
        """Return the tokens of a message as the provider counts it."""


class ModelCount(Count, Protocol):
    """A token counter with the properties that building a prompt needs; `holdfast.tokens` has the implementations."""

    @property
    def name(self) -> str:
        """Name of the counter, as shown by `explain`."""

    @property
    def exact(self) -> bool:
        """True if the model's own tokenizer counts."""

    @property
    def margin(self) -> float:
        """Relative error bound of an estimate, already included in its counts; 0.0 if exact."""

    @property
    def factor(self) -> float:
        """Stored (o200k) counts times this are an upper bound of the counter's counts for ordinary text; 1.0 for o200k itself."""

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of tool schemas."""


def _count_text(count: Count, piece: str) -> int:
    return count.text(piece)


count_piece = cast("Callable[[Count, str], int]", lru_cache(maxsize=4_096)(_count_text))
"""Return the tokens of a line or a statement. Cached, because most lines of one step are needed again in the next."""


def compute_cut_floor(room: int) -> int:
    """Return the tokens below which no message is cut in a room of `room` tokens, if a digest repeats what was cut."""
    return max(LEAST_CUT, min(MIN_CUT, room // FLOOR))


def cut(message: Message, tokens: int, *, seq: int, count: Count, loads: bool = False, marker: str = "") -> Message:
    """Return `message` shortened to `tokens` tokens if possible, otherwise as short as possible.

    The result is deterministic. A message that already fits is returned unchanged. A user message is never cut below `USERS_LEAST` tokens.

    Args:
        message: the whole message.
        tokens: the limit.
        seq: `seq` of its entry.
        count: the model's counter.
        loads: whether the model can load a tool result again. If so, the note in a tool result says how.
        marker: the session's marker; see `holdfast.context.escaping`.
    """
    if message.role == "user":
        tokens = max(tokens, USERS_LEAST)
    if count.message(message) <= tokens:
        return message
    whole = (format_loader_call(seq) if loads and message.role == "tool" else _WHOLE.format(seq=seq)) + format_tag(
        marker
    )
    lean = _make_stripper(message, whole)
    return _find_fitting(
        (
            lambda share: _shrink(message, share, whole, _cut_strings),
            lambda share: lean(_shrink(message, share, whole, _cut_strings)),
            lambda share: lean(_shrink(message, share, whole, _cut_as_text)),
        ),
        tokens,
        count,
    )


def make_stub(message: Message, tokens: int, *, seq: int, count: Count, marker: str = "") -> Message:
    """Return the task anchor as a marked stub, `[original task: …]`, of at most `tokens` tokens; otherwise like `cut`.

    At least `STUB_LEAST` characters are kept, even if they exceed the limit: a shorter stub would not distinguish two tasks.
    """
    if count.message(message) <= tokens:
        return message
    whole = _WHOLE.format(seq=seq)  # without the marker, which the stub begins with; escaped text contains no such note
    lean = _make_stripper(message, whole)
    task = escape_lines(message.text, marker)
    least = min(1.0, STUB_LEAST / max(1, len(task)))

    def shrink(share: float) -> Message:
        text = STUB.format(text=_cut_text(task, max(share, least), whole), tag=format_tag(marker))
        return message.evolve(content=(Part("text", text), *message.media) if message.media else text)

    return _find_fitting((shrink, lambda share: lean(shrink(share))), tokens, count)


def format_loader_call(seq: int) -> str:
    """Return the call with which a model loads the tool result of entry `seq`."""
    return _LOADABLE.format(name=format_result_name(seq))


_Made = Callable[[float], Message]
"""Returns a message with the given share of the text: the larger the share, the larger the message."""


def _find_fitting(families: Sequence[_Made], tokens: int, count: Count) -> Message:
    """Return the largest message that fits, from the first family that has one; otherwise the smallest of all."""
    smallest: list[Message] = []
    for made in families:
        candidate = _find_largest(made, tokens, count)
        if count.message(candidate) <= tokens:
            return candidate
        smallest.append(candidate)
    return min(smallest, key=count.message)


def _find_largest(made: _Made, tokens: int, count: Count) -> Message:
    """Return the largest message of a family that fits, approximately; `made(0.0)` if none does.

    The first share is small, because counting the tokens of megabytes of text is slow. Each further share is found by linear interpolation
    between the counted points; if that does not converge soon, by bisection.
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


def _make_stripper(message: Message, whole: str) -> Callable[[Message], Message]:
    """Return a function that replaces the media and long fields (such as reasoning) of a shortened `message` by texts that name them."""
    long = {key for key, value in message.extra.items() if len(str(value)) > _LONG}
    note = _FIELDS_NOTE.format(names=", ".join(map(escape_name, sorted(long))), whole=whole) if long else ""

    def strip(shortened: Message) -> Message:
        content = shortened.content
        if isinstance(content, tuple):
            content = tuple(_describe_part(part, whole) for part in content)
        extra = {key: value for key, value in shortened.extra.items() if key not in long}
        return shortened.evolve(content=_append_note(content, note) if note else content, extra=extra)

    return strip


def _describe_part(part: Part, whole: str) -> Part:
    """Return a text that replaces a part other than text."""
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
    """Return arguments with their long strings cut, as compact JSON that no tool accepts as a call."""
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _cut_as_text(arguments, share, whole)
    shorter, key = _shrink_value(decoded, share, whole), _CUT_KEY.format(whole=whole)
    return msgspec.json.encode({key: "", **shorter} if isinstance(shorter, dict) else {key: shorter}).decode()


def _cut_as_text(arguments: str, share: float, whole: str) -> str:
    """Return an object with the cut text of arguments that are not JSON or have many short values."""
    text = _cut_text(arguments, share, whole) if int(len(arguments) * share) else ""
    return msgspec.json.encode({_CUT_KEY.format(whole=whole): text}).decode()


def _shrink_value(value: Any, share: float, whole: str) -> Any:
    if isinstance(value, str):
        return _cut_text(value, share, whole) if len(value) > _LONG else value
    if isinstance(value, list):
        return [_shrink_value(item, share, whole) for item in value]
    if isinstance(value, dict):
        return {key: _shrink_value(item, share, whole) for key, item in value.items()}
    return value


def _cut_text(text: str, share: float, whole: str) -> str:
    """Return the head (two thirds of what is kept) and the tail of `text`; all of it if the note would save nothing."""
    kept = int(len(text) * share)
    head = kept * 2 // 3
    tail = kept - head
    note = NOTE.format(missing=len(text) - kept, size=len(text), whole=whole)
    shorter = text[:head] + note + (text[len(text) - tail :] if tail else "")
    return shorter if len(shorter) < len(text) else text

"""Cutting one message at its middle, marked, so that what must be in a working set fits.

The head and the tail of a text stay, the note between them says how much is missing and where the whole is. What is
cut of a message: its texts; of an assistant message with tool calls also the strings inside the arguments, which stay
JSON, under a first key that says they are cut. Media and long fields without a name here cannot be shortened: they are
left out, and a text in their place says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import msgspec

from holdfast.context.escaping import escape_lines, escape_name, format_tag
from holdfast.domain.artifact import LOADER, result_name
from holdfast.domain.messages import Content, Message, Part, ToolCall

MIN_CUT = 128
"""Tokens below which no message is cut; see `compute_cut_floor` for where there are fewer."""
LEAST_CUT, FLOOR = 32, 8
"""Where what is cut out is told elsewhere, the floor is this part of the room, and never below so many tokens, most of which
are the note: three messages of `MIN_CUT` fill a room of 512, and nothing could be told of what was cut out of them."""
USERS_LEAST = 48
"""The floor for what a person says, which nothing else tells as well."""
NOTE = "\n[… {missing} of {size} characters cut, {whole} …]\n"
_CUT_KEY = "[cut, see {whole}]"
"""First key in the arguments of a call that is sent cut: it carries the session's marker, so a model cannot take it for one
that a tool has, and what no longer holds the whole is not repeated as a call."""
STUB = "[original task{tag}: {text}]"
"""What stands for a task anchor that takes more than a quarter of the room."""
STUB_LEAST = 66
"""Characters of the task that a stub keeps."""
_MEDIA_NOTE = "[a part of type {type} is left out here; it is in {whole}]"
_FIELDS_NOTE = "[left out here: {names}; the whole is {whole}]"
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
_HALVINGS, _BY_LINE, _GROWTH = 24, 6, 4
"""Shares that are tried at most, those of them that are found by a line, and how much larger the next one is at most."""
_AIM, _EDGE, _NO_SHARE = 0.985, 0.02, 1e-7
"""Part of the tokens allowed that a line is asked for; how near to the ends of what is possible it may point; and what is no difference."""
_SURE_CHARS = 2
"""Characters for each token allowed up to which a cut is tried first: less than most texts have, so that little is counted in vain."""


class Count(Protocol):
    """Counts tokens for one model; `holdfast.tokens` has the counters."""

    def text(self, text: str) -> int:
        """Tokens of a text alone."""

    def message(self, message: Message) -> int:
        """Tokens of a message as the provider counts it."""


class ModelCount(Count, Protocol):
    """A counter as building needs it; `holdfast.tokens` has them."""

    @property
    def name(self) -> str:
        """Name of the counter, as `explain` shows it."""

    @property
    def exact(self) -> bool:
        """True if the model's own tokenizer counts."""

    @property
    def margin(self) -> float:
        """The error bound of an estimate, which its counts have on top already; 0.0 when exact."""

    @property
    def factor(self) -> float:
        """Stored (o200k) counts times this bound the counter's for ordinary text; 1.0 for o200k itself."""

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of tool schemas."""


def _count_text(count: Count, piece: str) -> int:
    return count.text(piece)


count_piece = cast("Callable[[Count, str], int]", lru_cache(maxsize=4_096)(_count_text))
"""Return the tokens of a line or a statement: most of those of one step come again in the next."""


def compute_cut_floor(room: int) -> int:
    """Tokens below which no message is cut in a room of `room` tokens, if what is cut out is told elsewhere."""
    return max(LEAST_CUT, min(MIN_CUT, room // FLOOR))


def cut(message: Message, tokens: int, *, seq: int, count: Count, loads: bool = False, marker: str = "") -> Message:
    """`message` in at most `tokens` tokens where that can be; otherwise as small as it gets.

    Deterministic. A message that fits already is returned as it is; a user's is never cut below `USERS_LEAST`.

    Args:
        message: as it is.
        tokens: see above.
        seq: of its entry.
        count: the model's.
        loads: whether the model can load a tool's result back: then the note in one says how.
        marker: the session's; see `holdfast.context.escaping`.
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
    """The task anchor as a marked stub: `[original task: …]`, in at most `tokens` tokens; like `cut` in all else.

    It keeps `STUB_LEAST` characters, whatever they take: with fewer the task cannot be told from another one.
    """
    if count.message(message) <= tokens:
        return message
    whole = _WHOLE.format(
        seq=seq
    )  # without the marker, which the stub begins with: the text in it has no note like ours
    lean = _make_stripper(message, whole)
    task = escape_lines(message.text, marker)
    least = min(1.0, STUB_LEAST / max(1, len(task)))

    def stubbed(share: float) -> Message:
        text = STUB.format(text=_cut_text(task, max(share, least), whole), tag=format_tag(marker))
        return message.evolve(content=(Part("text", text), *message.media) if message.media else text)

    return _find_fitting((stubbed, lambda share: lean(stubbed(share))), tokens, count)


def format_loader_call(seq: int) -> str:
    """How a model loads the result of a tool back that entry `seq` has."""
    return _LOADABLE.format(name=result_name(seq))


_Made = Callable[[float], Message]
"""A family of ever larger messages, by the share of the text that is kept."""


def _find_fitting(families: Sequence[_Made], tokens: int, count: Count) -> Message:
    """The largest message that fits, of the first family that has one; else the smallest of all."""
    smallest: list[Message] = []
    for made in families:
        candidate = _find_largest(made, tokens, count)
        if count.message(candidate) <= tokens:
            return candidate
        smallest.append(candidate)
    return min(smallest, key=count.message)


def _find_largest(made: _Made, tokens: int, count: Count) -> Message:
    """Return the largest of a family that fits, or nearly; `made(0.0)` where none does.

    The first share that is tried is a small one: of a message of megabytes each larger one would take megabytes to count. From there on
    the next share is where a line through what was counted meets what is allowed, or the middle where that does not end soon.
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


# -- what is left out ----------------------------------------------------------


def _make_stripper(message: Message, whole: str) -> Callable[[Message], Message]:
    """What makes a shortened `message` leaner still: media and long fields (reasoning, say) become words that name them."""
    long = {key for key, value in message.extra.items() if len(str(value)) > _LONG}
    note = _FIELDS_NOTE.format(names=", ".join(map(escape_name, sorted(long))), whole=whole) if long else ""

    def leaner(shortened: Message) -> Message:
        content = shortened.content
        if isinstance(content, tuple):
            content = tuple(_describe_part(part, whole) for part in content)
        extra = {key: value for key, value in shortened.extra.items() if key not in long}
        return shortened.evolve(content=_append_note(content, note) if note else content, extra=extra)

    return leaner


def _describe_part(part: Part, whole: str) -> Part:
    """A part in words."""
    return part if part.text is not None else Part("text", _MEDIA_NOTE.format(type=escape_name(part.type), whole=whole))


def _append_note(content: Content, note: str) -> Content:
    if isinstance(content, tuple):
        return (*content, Part("text", note))
    return f"{content}\n{note}" if isinstance(content, str) and content else note


# -- what is cut ---------------------------------------------------------------

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
    """Return arguments with the long strings in them cut, as JSON without white space that no tool takes for a call."""
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _cut_as_text(arguments, share, whole)
    shorter, key = _shrink_value(decoded, share, whole), _CUT_KEY.format(whole=whole)
    return msgspec.json.encode({key: "", **shorter} if isinstance(shorter, dict) else {key: shorter}).decode()


def _cut_as_text(arguments: str, share: float, whole: str) -> str:
    """Return an object that holds the cut text of arguments: where they are no JSON, or many short values."""
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
    """The head (two thirds of what is kept) and the tail of `text`, or all of it where the note would not save anything."""
    kept = int(len(text) * share)
    head = kept * 2 // 3
    tail = kept - head
    note = NOTE.format(missing=len(text) - kept, size=len(text), whole=whole)
    shorter = text[:head] + note + (text[len(text) - tail :] if tail else "")
    return shorter if len(shorter) < len(text) else text

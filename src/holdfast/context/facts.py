"""Facts: what a digest keeps of a unit, read out of it without a model.

A source (a tool call with its result, something the user said, something the assistant said) becomes a `Line`: a
handle that names it and the facts in it, each with the key or phrase it came with. Any text is data here: nothing is
executed, and nothing in it can change what is extracted from another source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.context.units import Unit
from holdfast.messages import Message, ToolCall

MAX_LEAVES = 400
"""Most facts read out of one result: the first ones of a longer one."""
MAX_VALUE = 160
"""Longest value kept, in characters; a longer text is split into sentences first."""
MAX_DEPTH = 12


class Fact(msgspec.Struct, array_like=True):
    """One value with the key it came with."""

    key: str
    value: str
    group: int
    """Facts of one object in a list share a group: they are told together."""
    weight: float
    mentions: int = 0
    """How often later messages used the value."""
    was: str | None = None
    """The value it had before, when the same source told another one."""


class Line(msgspec.Struct, array_like=True):
    """One source and what is kept of it."""

    handle: str
    seq: int
    """The source's place in the log; the newest one, when the same source was asked again."""
    facts: list[Fact]
    weight: float


_WORD = re.compile(r"[^\s\"'`,;:!?()\[\]{}<>|*]+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+")
_INSTRUCTION = re.compile(
    r"\b(always|never|must|don'?t|do not|only|instead|prefer|remember|actually|not|want|need|would like|please)\b", re.I
)
_BULLET = re.compile(r"^[\s\-*#>\d.)]+(?=\S)")


def words_of(text: str) -> Iterator[str]:
    """The words of `text` that may be values: what stands between white space and punctuation."""
    for match in _WORD.finditer(text):
        word = match.group().strip(".-_/\\#~")
        if word:
            yield word


def weight_of(value: str) -> float:
    """How likely an agent comes back for `value`: identifiers before dates before numbers before words."""
    digits = sum(character.isdigit() for character in value)
    if _DATE.search(value):
        return 2.0
    if digits and any(character.isalpha() for character in value):
        return 1.0 if ":" in value else 3.0
    if "@" in value or "/" in value or "_" in value:
        return 2.0
    if digits >= 4:
        return 2.0
    if digits:
        return 0.8
    return 1.2 if value[:1].isupper() else 0.6


def lines_of(unit: Unit) -> list[Line]:
    """What `unit` says, a line a source, in order."""
    first = unit.entries[0]
    if first.kind == "calls":
        return _call_lines(unit)
    if first.kind == "result":
        return [_line("late result", first.seq, _result_facts(first.message.text), 1.0)]
    return _said(first.message, first.seq)


# -- tool calls --------------------------------------------------------------


def _call_lines(unit: Unit) -> list[Line]:
    first = unit.entries[0]
    results: dict[str, list[Message]] = {}
    for entry in unit.entries[1:]:
        results.setdefault(str(entry.message.tool_call_id), []).append(entry.message)
    lines = _said(first.message, first.seq)
    for call in first.message.tool_calls:
        answers = results.get(call.id) or [Message(role="tool", content="")]
        lines.append(_call_line(call, answers.pop(0).text, first.seq))
    return lines


def _call_line(call: ToolCall, result: str, seq: int) -> Line:
    arguments = _decoded(call.arguments)
    short, rest = _split_arguments(arguments)
    facts = list(_leaves(rest, "")) if rest else []
    facts += _result_facts(result)
    return _line(f"{call.name}({', '.join(short)})", seq, facts, 2.0)


def _split_arguments(arguments: Any) -> tuple[list[str], dict[str, Any]]:
    """Short scalar arguments, which name what was asked about; and all others."""
    short: list[str] = []
    rest: dict[str, Any] = {}
    if not isinstance(arguments, dict):
        text = str(arguments or "")
        return ([text], {}) if 0 < len(text) <= 40 else ([], {"input": text} if text else {})
    for key, value in arguments.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) <= 40:
            short.append(str(value))
        elif value not in (None, "", [], {}):
            rest[key] = value
    return short, rest


def _result_facts(text: str) -> list[Fact]:
    decoded = _decoded(text)
    if isinstance(decoded, dict | list):
        return list(_leaves(decoded, ""))
    return [Fact("", sentence, at, _prose_weight(sentence)) for at, sentence in enumerate(_sentences(text))][:MAX_LEAVES]


def _decoded(text: str) -> Any:
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return text
    try:
        return msgspec.json.decode(stripped)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def _leaves(value: Any, key: str) -> Iterator[Fact]:
    """The scalars inside `value` with the keys they stand under; objects in lists are a group each."""
    counter = iter(range(10**6))
    found = 0
    for fact in _walk(value, key, next(counter), counter, 0):
        yield fact
        found += 1
        if found >= MAX_LEAVES:
            return


def _walk(value: Any, key: str, group: int, counter: Iterator[int], depth: int) -> Iterator[Fact]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        yield from _walk_object(value, key, group, counter, depth)
    elif isinstance(value, list):
        for item in value:
            inner = next(counter) if isinstance(item, dict | list) else group
            yield from _walk(item, key, inner, counter, depth + 1)
    elif value is not None and value != "":
        yield from _scalar(value, key, group)


def _walk_object(value: dict[str, Any], key: str, group: int, counter: Iterator[int], depth: int) -> Iterator[Fact]:
    for name, item in value.items():
        if isinstance(item, dict) and any(character.isdigit() for character in name):
            # An object keyed by identifiers: the key is a value of its own.
            inner = next(counter)
            yield Fact(key, name, inner, weight_of(name))
            item = {field: field_value for field, field_value in item.items() if field_value != name}
            yield from _walk(item, name, inner, counter, depth + 1)
        elif isinstance(item, dict):
            yield from _walk(item, name, next(counter), counter, depth + 1)
        else:
            yield from _walk(item, name, group, counter, depth + 1)


def _scalar(value: Any, key: str, group: int) -> Iterator[Fact]:
    if isinstance(value, bool):
        yield Fact(key, "yes" if value else "no", group, 0.3)
        return
    text = str(value)
    if len(text) <= MAX_VALUE:
        yield Fact(key, text, group, weight_of(text) * (0.5 if isinstance(value, int | float) and len(text) < 4 else 1.0))
        return
    for sentence in _sentences(text):
        yield Fact(key, sentence, group, _prose_weight(sentence))


# -- prose -------------------------------------------------------------------


def _said(message: Message, seq: int) -> list[Line]:
    handle = {"user": "user said", "assistant": "assistant said"}.get(message.role, message.role)
    base = {"user": 3.0, "assistant": 0.7}.get(message.role, 2.0)
    facts = []
    for at, sentence in enumerate(_sentences(message.text)):
        weight = _prose_weight(sentence)
        if message.role == "user" and _INSTRUCTION.search(sentence):
            weight += 0.5
        facts.append(Fact("", sentence, at, weight))
    return [_line(handle, seq, facts[:MAX_LEAVES], base)] if facts else []


def _sentences(text: str) -> list[str]:
    pieces = (_BULLET.sub("", piece).strip() for piece in _SENTENCE.split(text))
    return [part for piece in pieces if piece for part in _pieces(piece)]


def _pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most `MAX_VALUE` characters, cut at white space where there is some."""
    while len(text) > MAX_VALUE:
        at = text.rfind(" ", MAX_VALUE // 2, MAX_VALUE)
        at = at if at > 0 else MAX_VALUE
        yield text[:at].strip()
        text = text[at:].strip()
    if text:
        yield text


def _prose_weight(sentence: str) -> float:
    """A sentence is worth its best values, a little more for each further one."""
    weights = sorted((weight_of(word) for word in words_of(sentence)), reverse=True)
    return sum(weight / (at + 1) for at, weight in enumerate(weights[:4])) / 1.5 if weights else 0.1


def _line(handle: str, seq: int, facts: list[Fact], weight: float) -> Line:
    return Line(handle, seq, facts, weight)

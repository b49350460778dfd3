"""Facts: what a digest keeps of a unit, read out of it without a model.

A source (a tool call with its result, something the user said, something the assistant said) becomes a `Line`: a
handle that names it and the facts in it, each with the key or phrase it came with. Any text is data here: nothing is
executed, and nothing in it can change what is extracted from another source. What decides is the form of a value
(identifier, date, number, word) and where it stands, never what it is about.
"""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about)

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count as counting
from itertools import islice
from typing import Any, Literal

import msgspec

from holdfast.context.units import Unit
from holdfast.messages import Message, ToolCall

MAX_LEAVES = 400
"""Most facts read out of one source: the first ones of a longer one."""
MAX_VALUE = 160
"""Longest value kept, in characters; a longer text is split into sentences first."""
MAX_TEXT = 40_000
"""Characters read of one text: of a longer one the head and the tail."""
IDENTIFIER, NUMBERED, DATE, PATH, PHRASE, DIGITS, LONG_DATE, NAME, SHORT, TIME, WORD = (
    3.0,
    2.5,
    2.0,
    2.0,
    1.6,
    1.3,
    1.2,
    0.65,
    0.8,
    0.7,
    0.6,
)
"""What a value's form promises. Scanned on half of the recorded sessions, by task, and on made-up ones of other kinds."""
MAX_DEPTH = 12
MAX_KEY = 40
HANDLE = 48
"""Characters of arguments that name a call; the others are facts of it."""
FIRST_NAME, NAME_HEAD = 100, 24
"""Longest first argument that names a call whole, a command or an address say; and how much of a longer one does."""
OUTCOME, OUTCOME_MORE = 60, 1.0
"""Characters of a result that is all outcome: "saved", a new id, a refusal; and what it weighs more for that."""
FAILURE, TRIED = 400, 3.0
"""Characters of a result that may be nothing but an error; and what it and the arguments that led to it weigh more: what
failed is tried again, nearly the same, or must not be."""
LEAST_NAME = 4
"""Characters from which a word with digits is an identifier: `s3` or `1st` hardly names anything."""
LONG_NUMBER = 7
"""Digits from which a number in a text is an identifier: of an account, a telephone, an article."""

Kind = Literal["call", "user", "assistant", "other"]


class Fact(msgspec.Struct, array_like=True, gc=False):
    """One value with the key it came with."""

    key: str
    value: str
    group: int
    """Facts of one object share a group: they are told together. 0 is the source itself, others are rows in it."""
    weight: float
    """How likely an agent comes back for a value of this form."""
    used: int = 0
    """How often other messages said the value."""
    last: int = -1
    """Where it was said last."""
    was: str | None = None
    """The value it had before, when the same source told another one."""
    prose: bool = False
    """A sentence: worth what the values in it are worth."""
    firm: bool = False
    """Told for what it says, whatever of it is told elsewhere: an error, the outcome of an action, an answer."""


class Line(msgspec.Struct, array_like=True, gc=False):
    """One source and what is kept of it."""

    handle: str
    key: str
    """Equal for the same question asked again; unique for what was said."""
    seq: int
    """The source's place in the log; the newest one, when the same source was asked again."""
    kind: Kind
    facts: list[Fact]
    names: list[str] = []
    """The arguments in the handle: what the facts belong to."""
    asked: list[str] = []
    """Names of all arguments of a call, nested ones too."""
    last: int = -1
    """Where one of the names was said last."""


# -- the form of a value -----------------------------------------------------

_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f"
"""Scripts that put no spaces between words, and Hangul, whose particles stick to what they follow."""
_WORD = re.compile(rf"(?:[^\W{_DENSE}]|[@#$€£¥%+/\\.:~=&_-])+|[{_DENSE}]+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\d{1,4}年\d{1,2}月")
_TIME = re.compile(r"[+-]?\d{1,2}:\d{2}(?::\d{2})?(?:[+-]\d+)?")
_NUMBERED_ITEM = r"(?<!\s\d\.)(?<!\s\d\d\.)(?<!^\d\.)(?<!^\d\d\.)"
"""Not behind the number of an item of a list."""
_SENTENCE = re.compile(rf"(?<=[.!?؟।…]){_NUMBERED_ITEM}\s+|(?<=[。！？])|[\n\r\u2028\u2029]+")
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_PAIR = re.compile(r"([^\W\d][\w ./()#-]{0,39}?)(?::\s+|\s=\s+|：\s*)(?=\S)")
_ERROR = re.compile(
    r"\b(?:errors?|failed|failure|exception|traceback|denied|forbidden|not found|invalid|unable|timed? ?out|refused)\b"
    r"|\berreur|\bfehler|ошибк|错误|失敗|失败|エラー|오류|خطأ",
    re.IGNORECASE,
)
COLONS = (":", "：")
QUESTION = ("?", "？", "؟", "՞", "።", "፧")
"""What ends a title over what follows, and a question, in some scripts."""
_EDGE = ".-/\\#~:=+&"


def words_of(text: str) -> tuple[str, ...]:
    """The words of `text` that may be values: what stands between white space and punctuation.

    Cached for what is as short as a value: it is looked at when it is weighed, noted, and chosen.
    """
    return _short_words(text) if len(text) <= MAX_VALUE else _words(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple([word for found in _WORD.findall(text) if (word := found.strip(_EDGE))])


_short_words = lru_cache(maxsize=8_192)(_words)


@lru_cache(maxsize=32_768)
def weight_of(value: str) -> float:
    """How likely an agent comes back for `value`: identifiers before dates before numbers before words.

    Cached: most words of a conversation are words it had before.
    """
    if len(value) > 64:
        return PATH if "/" in value and len(value) <= MAX_VALUE and " " not in value else 0.2
    if _DATE.match(value):
        return DATE if len(value) <= 10 else LONG_DATE
    digits = sum(map(str.isdigit, value))
    if digits:
        return _weight_with_digits(value, digits)
    if any(mark in value for mark in "@_/\\"):
        return PATH
    return NAME if value[:1].isupper() else WORD


def _weight_with_digits(value: str, digits: int) -> float:
    if _TIME.fullmatch(value):
        return TIME
    if any(map(str.isalpha, value)):
        return IDENTIFIER if " " not in value and len(value) >= LEAST_NAME else PHRASE
    if any(mark in value for mark in "@_/\\"):
        return PATH
    if digits >= LONG_NUMBER and "." not in value:
        return NUMBERED
    return DIGITS if digits >= 4 else SHORT


def prose_weight(sentence: str) -> float:
    """A sentence is worth its best values, a little more for each further one; a title over what follows, nearly nothing."""
    weights = sorted(map(weight_of, words_of(sentence)), reverse=True)
    if not weights or (sentence.endswith(COLONS) and len(weights) < 6):
        return 0.1
    return round(sum(weight / (at + 1) for at, weight in enumerate(weights[:6])) / 1.5, 2)


# -- a unit ------------------------------------------------------------------


def lines_of(unit: Unit) -> list[Line]:
    """What `unit` says, a line a source, in order."""
    first = unit.entries[0]
    if first.kind == "calls":
        return _call_lines(unit)
    if first.kind == "result":
        facts = _numbered(_result_facts(first.message.text))
        return [Line("late result", f"late#{first.seq}", first.seq, "other", facts)] if facts else []
    return _said(first.message, first.seq)


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
    names, rest = _split_arguments(arguments)
    name = _clean(call.name)[:64]
    handle = f"{name}({', '.join(names) or _headed(rest)})"
    given = list(_leaves(rest))
    above = max((fact.group for fact in given), default=0)
    told = _told(result, above)
    if len(result) <= FAILURE and _ERROR.search(result):
        for fact in (*given, *(fact for fact in told if fact.firm)):
            fact.weight *= TRIED
    facts = _numbered((*given, *told))
    key = (
        handle
        if not rest
        else f"{handle}#{hashlib.blake2b(call.arguments.encode(errors='replace'), digest_size=6).hexdigest()}"
    )
    return Line(handle, key, seq, "call", facts, names, _asked(arguments))


def _told(result: str, above: int) -> list[Fact]:
    """Facts of a result, their rows numbered on from `above`: rows of an answer are not those of the question."""
    facts = list(islice(_result_facts(result), MAX_LEAVES))
    for fact in facts:
        fact.group += above if fact.group else 0
        if len(result) <= OUTCOME:
            fact.weight += OUTCOME_MORE
            fact.firm = True
    return facts


def _split_arguments(arguments: Any) -> tuple[list[str], Any]:
    """The first short scalar arguments, which name what was asked about; and all others."""
    if not isinstance(arguments, dict):
        return [], {"input": arguments} if arguments else {}
    names: list[str] = []
    rest: dict[str, Any] = {}
    free = HANDLE
    for key, value in arguments.items():
        text = _clean(value) if isinstance(value, str) else ""
        if text and (len(text) <= min(free, MAX_KEY) or (not names and len(text) <= FIRST_NAME)):
            names.append(text)
            free -= len(text) + 2
        elif value not in (None, "", [], {}):
            rest[key] = value
    return names, rest


def _headed(rest: Any) -> str:
    """The head of the first text among `rest`: a handle that says nothing would name nothing."""
    first = next((value for value in rest.values() if isinstance(value, str)), "") if isinstance(rest, dict) else ""
    text = _clean(first[:MAX_TEXT])
    return f"{text[:NAME_HEAD]}…" if len(text) > NAME_HEAD else text


def asked_of(arguments: str) -> list[str]:
    """The names of a call's arguments, nested ones too."""
    return _asked(_decoded(arguments))


def _asked(arguments: Any) -> list[str]:
    """The names of arguments, nested ones too: what tools of this session want to know."""
    found: dict[str, None] = {}
    todo = [arguments]
    while todo and len(found) < MAX_KEY:
        value = todo.pop()
        if isinstance(value, dict):
            found.update(dict.fromkeys(_clean(name)[:MAX_KEY] for name in islice(value, MAX_KEY)))
            todo += islice(value.values(), MAX_KEY)
        elif isinstance(value, list):
            todo += value[:4]
    return list(found)


def _said(message: Message, seq: int) -> list[Line]:
    facts = _numbered(islice(_text_facts(message.text, said=True), MAX_LEAVES))
    if not facts:
        return []
    kind: Kind = "user" if message.role == "user" else "assistant" if message.role == "assistant" else "other"
    handle = f"{_clean(message.role)[:20]} said"
    return [Line(handle, f"{handle}#{seq}", seq, kind, facts)]


def _numbered(facts: Iterable[Fact]) -> list[Fact]:
    """Each fact once a group."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for fact in islice(facts, MAX_LEAVES):
        identity = (fact.key, fact.value, fact.group)
        if identity not in seen:
            seen.add(identity)
            kept.append(fact)
    return kept


# -- structured results ------------------------------------------------------


class _Number(str):
    """A JSON number as it was written: `12.50` stays `12.50`."""

    __slots__ = ()


def _decoded(text: str) -> Any:
    stripped = text.strip()
    if stripped[:1] not in {"{", "["}:
        return text
    try:
        return json.loads(stripped, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return text


def _result_facts(text: str) -> Iterator[Fact]:
    decoded = _decoded(text)
    if isinstance(decoded, dict | list):
        return _leaves(decoded)
    return _text_facts(text, said=False)


def _leaves(value: Any) -> Iterator[Fact]:
    """The scalars inside `value` with the keys they stand under; objects in lists are a row each."""
    return islice(_walk(value, "", 0, counting(1), 0), MAX_LEAVES)


def _walk(value: Any, key: str, group: int, counter: Iterator[int], depth: int) -> Iterator[Fact]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        yield from _walk_object(value, group, counter, depth)
    elif isinstance(value, list):
        for item in value:
            inner = next(counter) if isinstance(item, dict | list) else group
            yield from _walk(item, key, inner, counter, depth + 1)
    elif value is not None and value != "":
        yield from _scalar(value, key, group)


def _walk_object(value: dict[str, Any], group: int, counter: Iterator[int], depth: int) -> Iterator[Fact]:
    """An object's scalars before what is nested in it, whatever their order: they say what it is."""
    nested = {name: item for name, item in value.items() if isinstance(item, dict)}
    shared = Counter(field for item in nested.values() for field in islice(item, MAX_LEAVES))
    for name, item in value.items():
        if not isinstance(item, dict | list):
            yield from _walk(item, _clean(name)[:MAX_KEY], group, counter, depth + 1)
    for name, item in value.items():
        label = _clean(name)[:MAX_KEY]
        if isinstance(item, list):
            yield from _walk(item, label, group, counter, depth + 1)
        elif isinstance(item, dict) and _names_row(name, len(nested)):
            row = next(counter)
            yield Fact("", label, row, weight_of(label))
            inner = {
                field: inside for field, inside in item.items() if not (isinstance(inside, str) and inside in name)
            }
            yield from _walk(inner, label, row, counter, depth + 1)
        elif isinstance(item, dict):
            prefix = f"{label}." if any(shared[field] > 1 or field in value for field in islice(item, 20)) else ""
            for fact in _walk(item, label, group, counter, depth + 1):
                fact.key = prefix + fact.key
                yield fact


def _names_row(name: str, siblings: int) -> bool:
    """Whether an object's key is a value of its own: an identifier, or one of many like objects."""
    return siblings > 8 or any(map(str.isdigit, name))


def _scalar(value: Any, key: str, group: int) -> Iterator[Fact]:
    if isinstance(value, bool):
        yield Fact(key, "true" if value else "false", group, 0.3)
        return
    text = _clean(str(value)[:MAX_TEXT])
    if not text:
        return
    if isinstance(value, _Number):
        # Amounts and measures, however many digits they have: an identifier of digits only is a string in most JSON.
        yield Fact(key, text[:MAX_VALUE], group, min(DIGITS, weight_of(text)) * (0.5 if len(text) < 4 else 1.0))
    elif len(text) <= MAX_VALUE and text.count(" ") < 6:
        yield Fact(key, text, group, weight_of(text) + (1.0 if _ERROR.search(text) else 0.0))
    else:
        for fact in _text_facts(str(value), said=False):
            fact.key, fact.group = fact.key or key, group
            yield fact


# -- texts -------------------------------------------------------------------


def _text_facts(text: str, *, said: bool) -> Iterator[Fact]:
    """What a text says: rows where it is a table, pairs where a line is `key: value`, else its sentences."""
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]
    rows = None if said else _table(text)
    if rows is not None:
        yield from rows
        return
    counter = counting(1)
    for sentence in _sentences(text):
        pair = _PAIR.match(sentence)
        error = 1.5 if not said and _ERROR.search(sentence) else 0.0
        if pair and len(sentence) - pair.end() <= 80 and pair[1].count(" ") < 4 and "://" not in sentence[:16]:
            value = sentence[pair.end() :].strip()
            yield Fact(
                pair[1].strip(),
                value,
                0 if not said else next(counter),
                prose_weight(value) + error,
                prose=True,
                firm=error > 0,
            )
        else:
            yield Fact("", sentence, next(counter), prose_weight(sentence) + error, prose=True, firm=error > 0)


def _sentences(text: str) -> Iterator[str]:
    for raw in _SENTENCE.split(text):
        piece = _clean(raw).replace("**", "").replace("`", "")
        bullet = _BULLET.match(piece)
        yield from _pieces(piece[bullet.end() :].strip() if bullet else piece)


def _pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most `MAX_VALUE` characters, cut at white space where there is some."""
    at = 0
    while len(text) - at > MAX_VALUE:
        space = text.rfind(" ", at + MAX_VALUE // 2, at + MAX_VALUE)
        until = space if space > 0 else at + MAX_VALUE
        yield text[at:until].strip()
        at = until
    if text[at:].strip():
        yield text[at:].strip()


def _table(text: str) -> Iterator[Fact] | None:
    """The rows of a table (Markdown, CSV, TSV) as facts keyed by its header; None for any other text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 3:
        return None
    for mark in ("|", "\t", ";", ","):
        columns = lines[0].count(mark)
        if columns and all(line.count(mark) == columns for line in lines[1:12]):
            if mark != "|" and not _is_header(lines[0].split(mark), 2 if mark == "\t" else 3):
                continue
            return _rows([line.strip(mark if mark == "|" else "").split(mark) for line in lines], dashes=mark == "|")
    return None


def _is_header(cells: list[str], least: int) -> bool:
    """Whether the first line of what looks like a table names columns: in logs and code, too, lines have equal commas."""
    names = [cell.strip("\"' ") for cell in cells]
    return len(names) >= least and not any(
        not name or len(name) > MAX_KEY or name[0].isdigit() or "/" in name or ": " in name or name[-1] in ".;{"
        for name in names
    )


def _rows(cells: list[list[str]], *, dashes: bool) -> Iterator[Fact]:
    names = [_clean(name).strip("*\"' ")[:MAX_KEY] for name in cells[0]]
    for number, row in enumerate(cells[1:], 1):
        if dashes and all(not cell.strip(" :-") for cell in row):
            continue
        for name, cell in zip(names, row, strict=False):
            value = _clean(cell).strip("\"'")[:MAX_VALUE]
            if value:
                yield Fact(name, value, number, weight_of(value), prose=" " in value)


def _clean(text: str) -> str:
    """`text` on one line, and such that it can be encoded: a line of a digest is one source, whatever the source says."""
    flat = " ".join(text.split())
    return flat if flat.isascii() else flat.encode("utf-8", "replace").decode()

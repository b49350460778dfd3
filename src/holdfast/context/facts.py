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
from itertools import count as counting
from itertools import islice
from typing import Any, Literal

import msgspec

from holdfast.context.units import Unit
from holdfast.context.values import (
    DIGITS,
    IDENTIFIER,
    MAX_KEY,
    MAX_VALUE,
    NAME,
    WORD,
    clean,
    cost_of,
    label_of,
    prose_weight,
    tells_error,
    weight_of,
    weight_under,
)
from holdfast.messages import Message, ToolCall

MAX_LEAVES = 400
"""Most facts read out of one source: the first ones of a longer one."""
MAX_TEXT = 40_000
"""Characters read of one text: of a longer one the head and the tail."""
MAX_DEPTH = 12
HANDLE = 48
"""Characters of arguments that name a call; the others are facts of it."""
FIRST_NAME, NAME_HEAD = 100, 24
"""Longest first argument that names a call whole, a command or an address say; and how much of a longer one does."""
OUTCOME, OUTCOME_MORE = 60, 1.0
"""Characters of a result that is all outcome: "saved", a new id, a refusal; and what it weighs more for that."""
FAILURE, TRIED = 400, 3.0
"""Characters of a result that may be nothing but an error; and what it and the arguments that led to it weigh more: what
failed is tried again, nearly the same, or must not be."""

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
    again: bool = False
    """Told by an earlier source already, which is where it is looked for first."""
    cost: float = 4.0
    """About how many tokens it takes; see `priced`."""


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
    cost: float = 6.0
    """About how many tokens the handle takes."""


def priced(fact: Fact) -> None:
    """Work out what a fact costs to tell: once, for it is asked at every step."""
    key = cost_of(fact.key) if fact.key and not fact.group else 0.0
    fact.cost = round(1.5 + cost_of(fact.value) + key, 1)


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
    name = clean(call.name)[:64]
    handle = f"{name}({', '.join(names) or _headed(rest)})"
    given = _leaves(rest)
    above = max((fact.group for fact in given), default=0)
    told = _told(result, above)
    if len(result) <= FAILURE and tells_error(result):
        for fact in (*given, *(fact for fact in told if fact.firm)):
            fact.weight *= TRIED
    facts = _numbered((*given, *told))
    key = handle if not rest else f"{handle}#{_hash(call.arguments)}"
    return Line(handle, key, seq, "call", facts, names, _asked(arguments), cost=2.0 + round(cost_of(handle), 1))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def _told(result: str, above: int) -> list[Fact]:
    """Facts of a result, their rows numbered on from `above`: rows of an answer are not those of the question."""
    facts = _result_facts(result)
    outcome = len(result) <= OUTCOME
    if above or outcome:
        for fact in facts:
            fact.group += above if fact.group else 0
            if outcome:
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
        text = clean(value) if isinstance(value, str) else ""
        if text and (len(text) <= min(free, MAX_KEY) or (not names and len(text) <= FIRST_NAME)):
            names.append(text)
            free -= len(text) + 2
        elif value not in (None, "", [], {}):
            rest[key] = value
    return names, rest


def _headed(rest: Any) -> str:
    """The head of the first text among `rest`: a handle that says nothing would name nothing."""
    first = next((value for value in rest.values() if isinstance(value, str)), "") if isinstance(rest, dict) else ""
    text = clean(first[:MAX_TEXT])
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
            found.update(dict.fromkeys(map(label_of, islice(value, MAX_KEY))))
            todo += islice(value.values(), MAX_KEY)
        elif isinstance(value, list):
            todo += value[:4]
    return list(found)


def _said(message: Message, seq: int) -> list[Line]:
    facts = _numbered(islice(_text_facts(message.text, said=True), MAX_LEAVES))
    if not facts:
        return []
    kind: Kind = "user" if message.role == "user" else "assistant" if message.role == "assistant" else "other"
    handle = f"{clean(message.role)[:20]} said"
    return [Line(handle, f"{handle}#{seq}", seq, kind, facts, cost=2.0 + round(cost_of(handle), 1))]


def _numbered(facts: Iterable[Fact]) -> list[Fact]:
    """Each fact once a group."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for fact in islice(facts, MAX_LEAVES):
        identity = (fact.key, fact.value, fact.group)
        if identity not in seen:
            seen.add(identity)
            priced(fact)
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


def _result_facts(text: str) -> list[Fact]:
    decoded = _decoded(text)
    if isinstance(decoded, dict | list):
        return _leaves(decoded)
    return list(islice(_text_facts(text, said=False), MAX_LEAVES))


def _leaves(value: Any) -> list[Fact]:
    """The scalars inside `value` with the keys they stand under; objects in lists are a row each."""
    leaves = _Leaves()
    leaves.walk(value, "", 0, 0)
    return _alike(leaves.found[:MAX_LEAVES])


def _alike(facts: list[Fact]) -> list[Fact]:
    """With words as identifiers where as many others under their key are: of the codes in a list some have no digit."""
    forms: dict[tuple[str, int], list[Fact]] = {}
    for fact in facts:
        if fact.weight in (NAME, WORD, IDENTIFIER) and fact.value.isalnum():
            forms.setdefault((fact.key, len(fact.value)), []).append(fact)
    for like in forms.values():
        known = sum(fact.weight == IDENTIFIER for fact in like)
        if known * 2 >= len(like) > known:
            for fact in like:
                fact.weight = IDENTIFIER
    return facts


class _Leaves:
    """A walk through what was decoded, into one list; it ends when that is long enough."""

    def __init__(self) -> None:
        self.found: list[Fact] = []
        self.rows = 0

    def walk(self, value: Any, key: str, group: int, depth: int) -> None:
        if depth > MAX_DEPTH or len(self.found) >= MAX_LEAVES:
            return
        if isinstance(value, dict):
            self._object(value, group, depth)
        elif isinstance(value, list):
            for item in value:
                nested = isinstance(item, dict | list)
                self.rows += nested
                self.walk(item, key, self.rows if nested else group, depth + 1)
                if len(self.found) >= MAX_LEAVES:
                    break
        elif value is not None and value != "":
            self._scalar(value, key, group)

    def _object(self, value: dict[str, Any], group: int, depth: int) -> None:
        """An object's scalars before what is nested in it, whatever their order: they say what it is."""
        deeper = False
        for name, item in value.items():
            if isinstance(item, dict | list):
                deeper = True
            elif item is not None and item != "" and len(self.found) < MAX_LEAVES:
                self._scalar(item, label_of(name), group)
        if deeper:
            self._nested(value, group, depth)

    def _nested(self, value: dict[str, Any], group: int, depth: int) -> None:
        nested = {name: item for name, item in value.items() if isinstance(item, dict)}
        shared = Counter(field for item in nested.values() for field in islice(item, MAX_LEAVES))
        for name, item in value.items():
            label = label_of(name)
            if isinstance(item, list):
                self.walk(item, label, group, depth + 1)
            elif isinstance(item, dict) and _names_row(name, len(nested)):
                self.rows += 1
                row = self.rows
                self.found.append(Fact("", label, row, weight_of(label)))
                inner = {
                    field: inside for field, inside in item.items() if not (isinstance(inside, str) and inside in name)
                }
                self.walk(inner, label, row, depth + 1)
            elif isinstance(item, dict):
                start = len(self.found)
                self.walk(item, label, group, depth + 1)
                if any(shared[field] > 1 or field in value for field in islice(item, 20)):
                    for fact in self.found[start:]:
                        fact.key = f"{label}.{fact.key}"
            if len(self.found) >= MAX_LEAVES:
                break

    def _scalar(self, value: Any, key: str, group: int) -> None:
        if isinstance(value, bool):
            self.found.append(Fact(key, "true" if value else "false", group, 0.3))
            return
        text = clean(str(value)[:MAX_TEXT])
        if not text:
            return
        if isinstance(value, _Number):
            # Amounts and measures, however many digits they have: an identifier of digits only is a string in most JSON.
            text = text[:MAX_VALUE]
            weight = min(DIGITS, weight_of(text)) * (0.5 if len(text) < 4 else 1.0)
            self.found.append(Fact(key, text, group, weight))
        elif len(text) <= MAX_VALUE and text.count(" ") < 6:
            weight = weight_under(key, text) + (1.0 if tells_error(text) else 0.0)
            self.found.append(Fact(key, text, group, weight))
        else:
            for fact in islice(_text_facts(str(value), said=False), MAX_LEAVES):
                fact.key, fact.group = fact.key or key, group
                self.found.append(fact)


def _names_row(name: str, siblings: int) -> bool:
    """Whether an object's key is a value of its own: an identifier, or one of many like objects."""
    return siblings > 8 or any(map(str.isdigit, name))


# -- texts -------------------------------------------------------------------


_SENTENCE_END = re.compile(r"[.!?؟।…。！？]")
_CLOSED = "。！？"
"""Ends of sentences that no white space has to follow."""
_ITEM = re.compile(r"(?:^|\s)\d\d?\.\Z")
"""Ends in the number of an item of a list, which is no sentence."""
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_PAIR = re.compile(r"([^\W\d][\w ./()#-]{0,39}?)(?::\s+|\s=\s+|：\s*)(?=\S)")
_BULLETS = frozenset("-*#>•–0123456789")


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
        pair = _PAIR.match(sentence) if ": " in sentence or " = " in sentence or "：" in sentence else None
        error = 1.5 if not said and tells_error(sentence) else 0.0
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


def _sentences(text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            until = end.end()
            mark, following = line[until - 1], line[until : until + 1]
            if not (following.isspace() or mark in _CLOSED):
                continue
            if mark != "." or _ITEM.search(line, max(0, until - 4), until) is None:
                _add_pieces(line[start:until], found)
                start = until
        _add_pieces(line[start:], found)
    return found


def _add_pieces(raw: str, found: list[str]) -> None:
    """A sentence without the marks of lists and of emphasis, in pieces of at most `MAX_VALUE` characters."""
    text = clean(raw).replace("**", "").replace("`", "")
    if text[:1] in _BULLETS and (bullet := _BULLET.match(text)):
        text = text[bullet.end() :].strip()
    at = 0
    while len(text) - at > MAX_VALUE:
        # At white space, where there is some.
        space = text.rfind(" ", at + MAX_VALUE // 2, at + MAX_VALUE)
        until = space if space > 0 else at + MAX_VALUE
        found.append(text[at:until].strip())
        at = until
    if rest := text[at:].strip():
        found.append(rest)


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
    names = [clean(name).strip("*\"' ")[:MAX_KEY] for name in cells[0]]
    for number, row in enumerate(cells[1:], 1):
        if dashes and all(not cell.strip(" :-") for cell in row):
            continue
        for name, cell in zip(names, row, strict=False):
            value = clean(cell).strip("\"'")[:MAX_VALUE]
            if value:
                yield Fact(name, value, number, weight_of(value), prose=" " in value)

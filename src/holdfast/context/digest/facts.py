"""Read the facts of a unit for a digest, without a model.

Each source (a tool call with its result, a user message, an assistant message) becomes a `Line`: a handle that names the source, and its
facts. A fact is a value with its key, or a sentence. All text is treated as data: nothing is executed, and no source can change what is
read from another source. What is kept depends on the form of a value (identifier, date, number, word) and its position, never on its
meaning.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from holdfast.context.agent_view import is_hand_over
from holdfast.context.analysis_cache import ANALYSES, STRING_BYTES, make_analysis_key
from holdfast.context.digest.speech import is_acknowledgement, is_idle, read_speech
from holdfast.context.digest.texts import MAX_LEAVES, Fact, Line, deduplicate_facts, is_source, read_text_facts
from holdfast.context.units import Unit
from holdfast.context.values import (
    DIGITS,
    IDENTIFIER,
    MAX_KEY,
    MAX_TEXT,
    MAX_VALUE,
    NAME,
    NUMBERED,
    WORD,
    Number,
    clean,
    decode_json,
    estimate_tokens,
    format_label,
    has_error,
    split_all_words,
    weigh_keyed_value,
    weigh_value,
)
from holdfast.domain.messages import ToolCall, encode_without_origin
from holdfast.domain.session import TRANSFER

HANDLE = 48
"""Characters of arguments that a call's handle may contain. All other arguments become facts."""
FIRST_NAME, NAME_HEAD = 100, 24
"""An argument with at most `FIRST_NAME` characters, such as a command or a path, can be in the handle. If there is no such argument, the
handle has the first `NAME_HEAD` characters of a longer one."""
WORD_CHARS = 16
"""Characters of the handle that remain for a second argument next to a long path."""
_FILE = re.compile(r"[/\\@]|\w\.[A-Za-z]\w{0,5}$")
"""Matches a path, an address or a file name."""


def name_call(arguments: Any) -> tuple[list[str], dict[str, Any]]:
    """Divide the arguments of a call into those that its handle contains and all others.

    Paths and identifiers come first, wherever they are among the arguments. Other short arguments follow while there is space. If there are
    no paths or identifiers, the first text is used if it is short enough.

    Args:
        arguments: the decoded arguments.

    Returns:
        The texts for the handle, and the other arguments by name.
    """
    if not isinstance(arguments, dict):
        return [], {"input": arguments} if arguments else {}
    texts = {key: clean(value) for key, value in arguments.items() if isinstance(value, str)}
    texts = {key: text for key, text in texts.items() if 0 < len(text) <= FIRST_NAME}
    naming = [key for key, text in texts.items() if _is_identifying(key, text)]
    names: list[str] = []
    used: set[str] = set()
    free = HANDLE
    for key in (*naming, *(key for key in texts if key not in naming)):
        text = texts[key]
        if not names or (len(text) <= min(free, MAX_KEY) and not (naming and (" " in text or len(text) < 2))):
            names.append(text)
            used.add(key)
            free = max(free - len(text) - 2, WORD_CHARS * (len(names) == 1))
    rest = {key: value for key, value in arguments.items() if key not in used and value not in (None, "", [], {})}
    return names, rest


def _is_identifying(key: str, text: str) -> bool:
    """Return True if a value identifies something: a path, an address, a file name or an identifier."""
    return " " not in text and (weigh_keyed_value(key, text) >= NUMBERED or bool(_FILE.search(text)))


def shorten_first_text(rest: dict[str, Any]) -> str:
    """Return the beginning of the first text in `rest`. Used if no argument is short enough for the handle."""
    first = next((value for value in rest.values() if isinstance(value, str)), "")
    text = clean(first[:MAX_TEXT])
    return f"{text[:NAME_HEAD]}…" if len(text) > NAME_HEAD else text


def list_argument_names(arguments: str) -> list[str]:
    """Return the names of arguments, nested ones included, from the JSON of a call."""
    return collect_names(decode_json(arguments))


def collect_names(arguments: Any) -> list[str]:
    """Return the names of decoded arguments, nested ones included, at most about `MAX_KEY`."""
    found: dict[str, None] = {}
    todo = [arguments]
    while todo and len(found) < MAX_KEY:
        value = todo.pop()
        if isinstance(value, dict):
            found.update(dict.fromkeys(map(format_label, islice(value, MAX_KEY))))
            todo += islice(value.values(), MAX_KEY)
        elif isinstance(value, list):
            todo += value[:4]
    return list(found)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Line])

MAX_DEPTH = 12
OUTCOME, OUTCOME_MORE = 60, 1.0
"""A result with at most `OUTCOME` characters is only an outcome ("saved", a new id, a refusal). `OUTCOME_MORE` is added to its weight."""
FAILURE, TRIED = 400, 4.0
"""A result with at most `FAILURE` characters that mentions an error is only an error. `TRIED` is the factor for its weight and for that of
the call's arguments: the agent will retry the call in nearly the same form, or must not retry it."""

OBJECT_KEY_FACTOR = 2.0
"""Factor for the key under which a JSON object is stored, because later calls use it to refer to the object."""
PIECE, PIECE_COST = 0.8, 5.0
"""A sentence of a long value is kept if its weight is at least `PIECE`, or if it has at least `PIECE_COST` tokens. Other pieces are often
remains of a text that was cut in the middle of a word."""
CONSTANT = 3
"""If all rows of a list with at least this many rows have the same value, it becomes a fact of the list."""


# -- reading a unit ----------------------------------------------------------


class Reading(NamedTuple):
    """The facts of a unit, as far as they do not depend on other units."""

    lines: list[Line]
    """One line per source, in order. The caller may modify them."""
    words: Sequence[Sequence[str]]
    """The case-folded words of each line, with which mentions of values are counted; empty for calls and user messages."""
    idle: Collection[str]
    """Sentences of the user for which `is_idle` returns True: they are not worth keeping after an answer."""


class _CachedReading(NamedTuple):
    lines: bytes
    words: tuple[tuple[str, ...], ...]
    idle: frozenset[str]


def read_unit(unit: Unit) -> Reading:
    """Return the facts of `unit`. The result is cached in `ANALYSES`."""
    if unit.instructs or unit.refused:
        return Reading([], (), ())  # a system message is not data, and refused messages are left out
    handed_over = b"handed over" if is_hand_over(unit.entries[0]) else b""
    messages = (encode_without_origin(entry.message) for entry in unit.entries)
    key = make_analysis_key(
        b"lines", str(unit.first).encode(), unit.by.encode(errors="replace"), handed_over, *messages
    )
    kept: _CachedReading | None = ANALYSES.get(key)
    if kept is not None:
        return Reading(_decoder.decode(kept.lines), kept.words, kept.idle)
    lines = _read_lines(unit)
    words = tuple(() if line.kind in ("call", "user") else list_words(line) for line in lines)
    said = (fact for line in lines if line.kind == "user" for fact in line.facts)
    idle = frozenset(
        fact.value for fact in said if is_idle(fact.value) and not (fact.key and is_acknowledgement(fact.value))
    )
    kept = _CachedReading(_encoder.encode(lines), words, idle)
    strings = chain(*words, kept.idle)
    ANALYSES.put(key, kept, len(kept.lines) + sum(STRING_BYTES + len(string) for string in strings))
    return Reading(lines, words, kept.idle)


def list_words(line: Line) -> tuple[str, ...]:
    """Return the distinct words of a line's facts, case-folded, without those of one or two characters."""
    found = split_all_words([fact.value for fact in line.facts])
    return tuple(dict.fromkeys(folded for word in found if len(folded := word.casefold()) > 2))


def _read_lines(unit: Unit) -> list[Line]:
    first = unit.entries[0]
    if first.kind == "calls":
        return read_speech(first.message, first.seq, unit.by) if is_hand_over(first) else _read_calls(unit)
    if first.kind == "result":
        read = _read_result(first.message.text)
        facts = deduplicate_facts(read.facts)
        return [Line("late result", f"late#{first.seq}", first.seq, "other", facts, lists=read.lists)] if facts else []
    return read_speech(first.message, first.seq, unit.by)


def _read_calls(unit: Unit) -> list[Line]:
    first = unit.entries[0]
    results: dict[str, list[str]] = {}
    for entry in unit.entries[1:]:
        results.setdefault(str(entry.message.tool_call_id), []).append(entry.message.text)
    lines = read_speech(first.message, first.seq, unit.by)
    for call in first.message.tool_calls:
        answers = results.get(call.id) or [""]
        result = answers.pop(0)
        if not unit.by or call.name != TRANSFER:
            lines.append(_read_call(call, result, first.seq, unit.by))
    return lines


def _read_call(call: ToolCall, result: str, seq: int, by: str) -> Line:
    arguments = decode_json(call.arguments)
    names, rest = name_call(arguments)
    name = clean(call.name)[:64]
    handle = f"{_format_owner(by)}{name}({', '.join(names) or shorten_first_text(rest)})"
    given, answer = _read_arguments(rest) if rest else _LeafCollector(), _read_result(result)
    above = given.rows
    if above:
        _shift_rows(answer, above)
    _bundle(given.facts, answer.facts)
    if len(result) <= OUTCOME:
        for fact in answer.facts:
            fact.weight += OUTCOME_MORE
            fact.firm = True
    if len(result) <= FAILURE and has_error(result):
        for fact in (*given.facts, *answer.facts):
            if fact.firm or (fact.group and fact.group <= above and not fact.prose):
                fact.weight *= TRIED
    line = Line(
        handle,
        handle if not rest else f"{handle}#{_hash(call.arguments)}",
        seq,
        "call",
        deduplicate_facts((*given.facts, *answer.facts)),
        names,
        collect_names(arguments),
        cost=2.0 + round(estimate_tokens(handle), 1),
        given=above,
        lists=given.lists + answer.lists,
    )
    line.counts = _count_lists(line)
    return line


def _format_owner(by: str) -> str:
    """Return the prefix of a handle that names another agent; empty if `by` is. Brackets, which would end the tool's name, are removed."""
    return f"agent {by.replace('(', '')}'s " if by else ""


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def _read_arguments(rest: dict[str, Any]) -> _LeafCollector:
    """Return the facts in the arguments that the handle does not contain.

    Each argument is a group of its own, so that it cannot be taken for a part of the result.
    """
    found = _LeafCollector()
    for key, value in rest.items():
        if isinstance(value, str) and is_source(value):
            continue
        label = format_label(key)
        found.walk(value, label, found.add_row(label if isinstance(value, dict) else ""), 0)
    found.facts = _promote_identifiers(found.facts)
    return found


def _shift_rows(read: _LeafCollector, above: int) -> None:
    """Renumber the rows of a result, in place, so that they follow the `above` rows of the arguments."""
    for fact in read.facts:
        fact.group += above if fact.group else 0
    read.lists = [(above + 1, ""), *((start + above, name) for start, name in read.lists)]


def _bundle(given: list[Fact], answer: list[Fact]) -> None:
    """Give parallel lists of a call the same bundle number: lists of equal length in its arguments, or in one object of its result.

    Values at the same index belong together. If only some values of each list were shown, a reader would pair them wrongly.
    """
    lists: dict[tuple[int, int, str], list[Fact]] = {}
    for facts, of_call in ((given, True), (answer, False)):
        for fact in facts:
            if fact.key and not fact.prose:
                lists.setdefault((-1 if of_call else fact.group, fact.group, fact.key), []).append(fact)
    alike: dict[tuple[int, int], list[list[Fact]]] = {}
    for (owner, _, _), facts in lists.items():
        if len(facts) > 1:
            alike.setdefault((owner, len(facts)), []).append(facts)
    for number, parallel in enumerate((found for found in alike.values() if len(found) > 1), 1):
        for fact in (fact for facts in parallel for fact in facts):
            fact.bundle = number


def _count_lists(line: Line) -> dict[str, int]:
    """Return, by key, the number of values for each key of the source itself (not of its rows) that has several."""
    keys = [fact.key for fact in line.facts if not fact.group and not fact.prose and fact.value not in line.names]
    if len(keys) == len(set(keys)):
        return {}
    return {key: count for key, count in Counter(keys).items() if key and count > 1}


# -- reading results ---------------------------------------------------------


def _read_result(text: str) -> _LeafCollector:
    """Return the facts of a tool result: the scalars of JSON with their keys, or the facts of a text."""
    read = _LeafCollector()
    decoded = decode_json(text)
    if isinstance(decoded, dict | list):
        read.walk(decoded, "", 0, 0)
        read.facts = _promote_identifiers(read.facts[:MAX_LEAVES])
    else:
        read.facts = list(islice(read_text_facts(text, said=False), MAX_LEAVES))
    read.facts = _deduplicate_rows(read.facts, read.lists)
    return read


def _promote_identifiers(facts: list[Fact]) -> list[Fact]:
    """Give words the weight of identifiers if at least half of the values with the same key and length are identifiers.

    Some codes in a list have no digit, and look like words.
    """
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


def _deduplicate_rows(facts: list[Fact], lists: list[tuple[int, str]]) -> list[Fact]:
    """Remove repeated rows, and turn values that all rows of a list have in common into facts of the source.

    Shown in one row only, such a value would look like a property of that row.
    """
    rows: dict[int, list[Fact]] = {}
    for fact in facts:
        if fact.group:
            rows.setdefault(fact.group, []).append(fact)
    if len(rows) < 2 or (len(rows) < CONSTANT and not _is_same_row(*rows.values())):
        return facts
    seen: set[tuple[str, ...]] = set()
    again: set[int] = set()
    columns: dict[tuple[str, str], list[Fact]] = {}
    several: Counter[str] = Counter()
    at = Line("", "", 0, "call", [], lists=lists)
    for group, row in rows.items():
        name = at.find_list_name(group)
        identity = (name, *(part for fact in row for part in (fact.key, fact.value)))
        if len(row) > 1 and identity in seen:
            again.add(group)
            continue
        seen.add(identity)
        several[name] += 1
        for fact in row:
            columns.setdefault((name, fact.key), []).append(fact)
    hoisted = {
        (name, key): column[0]
        for (name, key), column in columns.items()
        if key and len(column) == several[name] >= CONSTANT and len({fact.value for fact in column}) == 1
    }
    if not again and not hoisted:
        return facts
    shared = {id(fact) for place in hoisted for fact in columns[place]}
    common = [
        Fact(f"{name}.{key}" if name else key, fact.value, 0, fact.weight, prose=fact.prose)
        for (name, key), fact in hoisted.items()
    ]
    kept = [fact for fact in facts if fact.group not in again and id(fact) not in shared]
    first = next((place for place, fact in enumerate(kept) if fact.group), len(kept))
    return kept[:first] + common + kept[first:]


def _is_same_row(row: list[Fact], other: list[Fact]) -> bool:
    return len(row) == len(other) and all(
        a.value == b.value and a.key == b.key for a, b in zip(row, other, strict=True)
    )


class _LeafCollector:
    """Collects the scalars of decoded JSON as facts, at most `MAX_LEAVES`."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.rows = 0
        self.lists: list[tuple[int, str]] = []

    def add_row(self, name: str) -> int:
        """Begin a new row in the list `name`, and return the row's group number."""
        self.rows += 1
        if (self.lists[-1][1] if self.lists else "") != name:
            self.lists.append((self.rows, name))
        return self.rows

    def walk(self, value: Any, key: str, group: int, depth: int) -> None:
        if depth > MAX_DEPTH or len(self.facts) >= MAX_LEAVES:
            return
        if isinstance(value, dict):
            self._walk_object(value, key, group, depth)
        elif isinstance(value, list):
            for item in value:
                self.walk(item, key, self.add_row(key) if isinstance(item, dict | list) else group, depth + 1)
                if len(self.facts) >= MAX_LEAVES:
                    break
        elif value is not None:
            self._add_scalar(value, key, group)

    def _walk_object(self, value: dict[str, Any], key: str, group: int, depth: int) -> None:
        """Collect an object's scalars before its nested values, whatever their order, because the scalars show what the object is."""
        deeper = False
        for name, item in value.items():
            if isinstance(item, dict | list):
                deeper = True
            elif item is not None and len(self.facts) < MAX_LEAVES:
                self._add_scalar(item, format_label(name), group)
        if deeper:
            self._walk_nested(value, key, group, depth)

    def _walk_nested(self, value: dict[str, Any], key: str, group: int, depth: int) -> None:
        nested = {name: item for name, item in value.items() if isinstance(item, dict)}
        shared = Counter(field for item in nested.values() for field in islice(item, MAX_LEAVES))
        for name, item in value.items():
            label = format_label(name)
            if isinstance(item, list):
                self.walk(item, label, group, depth + 1)
            # Of many nested objects, or with a digit, the key is a value such as an id, and no name of a field.
            elif isinstance(item, dict) and (len(nested) > 8 or any(map(str.isdigit, name))):
                row = self.add_row(key)
                self.facts.append(Fact("", label, row, OBJECT_KEY_FACTOR * weigh_value(label)))
                inner = {
                    field: inside for field, inside in item.items() if not (isinstance(inside, str) and inside in name)
                }
                self.walk(inner, label, row, depth + 1)
            elif isinstance(item, dict):
                start = len(self.facts)
                self.walk(item, label, group, depth + 1)
                if any(shared[field] > 1 or field in value for field in islice(item, 20)):
                    for fact in self.facts[start:]:
                        fact.key = f"{label}.{fact.key}"
            if len(self.facts) >= MAX_LEAVES:
                break

    def _add_scalar(self, value: Any, key: str, group: int) -> None:
        if isinstance(value, bool):
            self.facts.append(Fact(key, "true" if value else "false", group, 0.3))
            return
        text = clean(str(value)[:MAX_TEXT])
        if not text:
            return
        if isinstance(value, Number):
            # JSON numbers are mostly amounts, however many digits they have. Identifiers made of digits are mostly JSON strings.
            text = text[:MAX_VALUE]
            weight = min(DIGITS, weigh_value(text)) * (0.5 if len(text) < 4 else 1.0)
            self.facts.append(Fact(key, text, group, weight))
        elif len(text) <= MAX_VALUE and text.count(" ") < 6:
            weight = weigh_keyed_value(key, text) + (1.0 if has_error(text) else 0.0)
            self.facts.append(Fact(key, text, group, weight))
        else:
            for fact in islice(read_text_facts(str(value), said=False), MAX_LEAVES):
                fact.key, fact.group = fact.key or key, group
                if fact.weight >= PIECE or estimate_tokens(fact.value) >= PIECE_COST:
                    self.facts.append(fact)

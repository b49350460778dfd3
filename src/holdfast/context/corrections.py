"""Corrections: which earlier statement of the user a later one replaces. Found without a model. Pure.

    "The van is booked for 12 December."  …  "We're moving on Saturday the 19th instead."

A later sentence with a cue word of correction replaces at most one earlier statement: the one whose rare words it shares, whose value it
repeats next to another one ("the 2nd now, not the 4th"), or that has another value of the same kind. The threshold was set by eye on the
corrections of `benchmarks/statements/dev`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from holdfast.context.cues import DENSE_LANGUAGES, cues_of, spoken_language
from holdfast.context.statements import Position, Statement
from holdfast.recall.terms import terms_of

LEAST: Final = 2.7
"""Evidence, in logarithms of how rare what is shared is, below which nothing is linked, beyond the logarithm of the number of statements:
the more there are, the more of them have something in common by accident."""
SAME_KIND: Final = 3.0
"""What it adds that both have a value of one kind (milliseconds, days), and different ones."""
NO_VALUE: Final = 2.0
"""What it takes away that they share no value and change none."""
FEWEST: Final = 150
"""Statements that rarity is measured against at least: in a short conversation every word is rare."""
COMMON: Final = 0.1
"""The part of the statements that may share a word or a number; a more common one is no evidence."""
_NUMBER: Final = re.compile(
    r"(?P<sign>[£$€¥])?(?P<number>\d(?:[\d.,:]*\d)?)(?P<unit>(?:st|nd|rd|th|er|e|º)\b|\s?[^\W\d_]+|\s?[%€£°]|)"
)
_HAN_NUMBER: Final = re.compile(
    r"(?P<number>[一二三四五六七八九十百千万两]+)(?P<unit>[^\W\d_一二三四五六七八九十百千万两])"
)
_NEXT_WORD: Final = re.compile(r"\s([^\W\d_]+)")
_ARTICLES: Final = frozenset(
    {"one", "half", "un", "une", "demi", "ein", "eins", "halb", "uno", "um", "uma", "medio", "media", "meia"}
)
_SIGNS: Final = "£$€¥%°"
_ORDINALS: Final = frozenset({"st", "nd", "rd", "th", "er", "e", "º"})


class Value(NamedTuple):
    """A number or a day that a sentence states."""

    kind: str
    """Its unit, `time`, `day`; empty for a bare number."""
    text: str


def find_corrections(statements: Sequence[Statement]) -> dict[Position, Statement]:
    """Return the later statement that corrects an earlier one, by the position of the earlier one.

    A dropped statement does not correct a pinned one.

    Args:
        statements: in the order of the log.
    """
    index = _Index(statements)
    corrected: dict[Position, Statement] = {}
    for one in statements:
        if one.corrects and (earlier := index.find_replaced(one)) is not None:
            corrected[earlier.position] = one
        index.add(one)
    return corrected


class _Index:
    """Earlier statements, by their rare words and their values."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        total = max(len(statements), FEWEST)
        frequency = Counter(feature for one in statements for feature in _features(one.text))
        self._rarity: Mapping[str, float] = {
            feature: math.log(total / number) for feature, number in frequency.items() if number <= COMMON * total
        }
        self._holders: dict[str, list[Statement]] = {}
        self._least = LEAST + math.log(max(len(statements), 1))

    def add(self, one: Statement) -> None:
        for feature in self._rare_features(one.text):
            self._holders.setdefault(feature, []).append(one)

    def find_replaced(self, later: Statement) -> Statement | None:
        """Return the earlier statement that a later one replaces; the newer of equal ones."""
        values = _values(later.text)
        shared: dict[Position, list[str]] = {}
        others: dict[Position, Statement] = {}
        for feature in self._rare_features(later.text):
            for earlier in self._holders.get(feature, ()):
                undone = earlier.choice == "pinned" and later.choice == "dropped"
                if earlier.seq != later.seq and not undone:
                    others[earlier.position] = earlier
                    shared.setdefault(earlier.position, []).append(feature)
        evidence = {
            position: self._weigh(shared[position], _values(earlier.text), values)
            for position, earlier in others.items()
        }
        best = max(evidence, key=lambda position: (evidence[position], position), default=None)
        return others[best] if best is not None and evidence[best] >= self._least else None

    def _weigh(self, shared: Iterable[str], before: Collection[Value], after: Collection[Value]) -> float:
        """Weigh what two sentences share; a value that both state counts only if they share a topic or change a value, too."""
        topics = [self._rarity[one] for one in shared if not one.startswith("=")]
        repeated = [self._rarity[one] for one in shared if one.startswith("=")]
        changes = any(old.kind and old.kind == new.kind and old.text != new.text for old in before for new in after)
        changes = changes and len({value.text for value in after}) > len(repeated)
        if not (topics or changes):
            return 0.0
        return sum(topics) + sum(repeated) + (SAME_KIND if changes else 0.0 if repeated else -NO_VALUE)

    def _rare_features(self, text: str) -> Iterator[str]:
        return (feature for feature in _features(text) if feature in self._rarity)


@lru_cache(maxsize=2_048)
def _features(text: str) -> tuple[str, ...]:
    """Return the terms that say what a sentence is about, without digits, days and cue words, and its values, each with `=` before it."""
    language = spoken_language(text)
    topic = cues_of(language)["correction"].sub(" ", cues_of(language)["time"].sub(" ", text))
    terms = (term for term in terms_of(topic).counts if not any(map(str.isdigit, term)))
    if language in DENSE_LANGUAGES:
        terms = (term for term in terms if len(term) > 1)
    return (*terms, *dict.fromkeys(f"={value.text}" for value in _values(text)))


@lru_cache(maxsize=2_048)
def _values(text: str) -> frozenset[Value]:
    """Return the numbers and days that a sentence states."""
    language = spoken_language(text)
    cues = cues_of(language)
    found = {
        Value(_kind_of(match), match["number"]) for form in (_NUMBER, _HAN_NUMBER) for match in form.finditer(text)
    }
    words = (match for match in cues["number"].finditer(text) if match.group().casefold() not in _ARTICLES)
    if language not in DENSE_LANGUAGES:
        found |= {Value(_word_after(text, match.end()), match.group().casefold()) for match in words}
    days = cues["time"].findall(text)
    return frozenset(found | {Value("day", day.casefold().rstrip("s")) for day in days})


def _kind_of(number: re.Match[str]) -> str:
    unit, sign = number["unit"].strip().casefold(), number.groupdict().get("sign") or ""
    if ":" in number["number"] or unit in {"am", "pm", "uhr"}:
        return "time"
    if sign or unit in _SIGNS:
        return sign or unit
    return "date" if unit in _ORDINALS else unit


def _word_after(text: str, at: int) -> str:
    found = _NEXT_WORD.match(text, at)
    return found.group(1).casefold() if found else ""

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
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from holdfast.context.analysis_cache import ANALYSES, STRING_BYTES, analysis_key
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
    features = [_features(one.text) for one in statements]
    wanted = frozenset[str]().union(*(of for one, of in zip(statements, features, strict=True) if one.corrects))
    if not wanted:
        return {}
    shareable = [wanted.intersection(of) for of in features]
    index = _Index(len(statements), Counter(chain.from_iterable(shareable)))
    corrected: dict[Position, Statement] = {}
    for one, of, shared in zip(statements, features, shareable, strict=True):
        if one.corrects and (earlier := index.find_replaced(one, of)) is not None:
            corrected[earlier.position] = one
        if shared:
            index.add(one, shared)
    return corrected


class _Index:
    """Earlier statements, by their rare words and their values.

    Args:
        number: statements in all.
        frequency: in how many of them each word and value of a correction occurs.
    """

    def __init__(self, number: int, frequency: Mapping[str, int]) -> None:
        total = max(number, FEWEST)
        self._rarity = {
            feature: math.log(total / often) for feature, often in frequency.items() if often <= COMMON * total
        }
        self._holders: dict[str, list[tuple[Position, Statement]]] = {feature: [] for feature in self._rarity}
        self._least = LEAST + math.log(max(number, 1))

    def add(self, one: Statement, features: AbstractSet[str]) -> None:
        for feature in self._holders.keys() & features:
            self._holders[feature].append((one.position, one))

    def find_replaced(self, later: Statement, features: Iterable[str]) -> Statement | None:
        """Return the earlier statement that a later one replaces; the newer of equal ones."""
        topics: dict[Position, float] = {}
        repeated: dict[Position, list[float]] = {}
        others: dict[Position, Statement] = {}
        for feature in features:
            rarity = self._rarity.get(feature, 0.0)
            for position, earlier in self._holders.get(feature, ()):
                others[position] = earlier
                if feature.startswith("="):
                    repeated.setdefault(position, []).append(rarity)
                else:
                    topics[position] = topics.get(position, 0.0) + rarity
        values = _values(later.text)
        best, most = None, (self._least, (-1, -1))
        for position, earlier in others.items():
            topic, same = topics.get(position, 0.0), repeated.get(position, ())
            undone = earlier.choice == "pinned" and later.choice == "dropped"
            if topic + sum(same) + SAME_KIND < self._least or earlier.seq == later.seq or undone:
                continue
            if (found := (_weigh(topic, same, _values(earlier.text), values), position)) >= most:
                best, most = earlier, found
        return best


def _weigh(topic: float, same: Sequence[float], before: Collection[Value], after: Collection[Value]) -> float:
    """Weigh what two sentences share; a value that both state counts only if they share a topic or change a value, too.

    Args:
        topic: how rare the words are that both have.
        same: how rare each of the values is that both have.
        before: values of the earlier one.
        after: values of the later one.
    """
    changes = any(old.kind and old.kind == new.kind and old.text != new.text for old in before for new in after)
    changes = changes and len({value.text for value in after}) > len(same)
    if not (topic or changes):
        return 0.0
    return topic + sum(same) + (SAME_KIND if changes else 0.0 if same else -NO_VALUE)


def _features(text: str) -> tuple[str, ...]:
    """Return the terms that say what a sentence is about, without digits, days and cue words, and its values, each with `=` before it."""
    key = analysis_key(b"features", text.encode(errors="surrogatepass"))
    kept: tuple[str, ...] | None = ANALYSES.get(key)
    if kept is None:
        kept = _read_features(text)
        ANALYSES.put(key, kept, sum(STRING_BYTES + len(feature) for feature in kept))
    return kept


def _read_features(text: str) -> tuple[str, ...]:
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

"""Slips of the pen in a question: where no word of it was ever said, words that differ in one letter from one that was. Pure.

An index knows how many documents have a term, by a look at each term: so what a slip may have been is made here and asked for, one letter
less, more, another or two that have changed places. Nothing goes through all that a user has said. The first letter is taken to be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from holdfast.recall.questions import Concept, Question
from holdfast.recall.terms import is_dense

SHORTEST: Final = 4
"""Letters of a word from which on it is looked at: a shorter one differs in a letter from too many."""
LONGEST: Final = 24
MOST: Final = 4
"""Words of a question that are looked at, the first."""
KEPT: Final = 3
"""What one of them may have been, those that were said most."""
WEIGHT: Final = 0.7
"""What such a word counts for, where the word itself would count 1."""

_ALPHABETS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
)


def guesses(question: Question) -> tuple[str, ...]:
    """The terms to ask an index for that has none of the question's."""
    return tuple(dict.fromkeys(term for concept in _looked_at(question) for term in _near(concept.variants[0][0])))


def corrected(question: Question, frequencies: Mapping[str, int]) -> Question | None:
    """The question with what its words may have been; None where they were nothing that was said.

    Args:
        question: none of whose terms was.
        frequencies: in how many documents those of the `guesses` stand that were said.
    """
    found: list[Concept] = []
    for concept in _looked_at(question):
        near = {term for term in _near(concept.variants[0][0]) if frequencies.get(term)}
        if near:
            best = sorted(near, key=lambda term: (-frequencies[term], term))[:KEPT]
            found.append(Concept(concept.word, tuple((term, WEIGHT) for term in best)))
    return msgspec.structs.replace(question, concepts=tuple(found)) if found else None


def _looked_at(question: Question) -> list[Concept]:
    words = [
        concept
        for concept in question.concepts
        if SHORTEST <= len(term := concept.variants[0][0]) <= LONGEST and term.isalpha() and not is_dense(term)
    ]
    return words[:MOST]


def _near(term: str) -> Iterator[str]:
    """All that differs from a term in one letter, but the first."""
    letters = next((alphabet for alphabet in _ALPHABETS if term[0] in alphabet), "")
    for at in range(1, len(term) + 1):
        head, tail = term[:at], term[at:]
        yield from (head + letter + tail for letter in letters)
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in letters if letter != tail[0])
        if len(tail) > 1 and tail[0] != tail[1]:
            yield head + tail[1] + tail[0] + tail[2:]

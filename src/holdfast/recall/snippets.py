"""Snippets: the piece of a text that shows best why it was found, and where in it the words stand that were asked for."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import msgspec

from holdfast.recall.questions import Question
from holdfast.recall.stops import ENGLISH, language_of
from holdfast.recall.terms import is_dense, normal, terms_in, tokens_of

WIDTH: Final = 240
"""Characters of a snippet, unless asked otherwise."""
MAX_TOKENS: Final = 20_000
"""Words of a text that are looked at; what stands behind them is not shown."""
CUT: Final = "…"
_SPACE = re.compile(r"\s+")


class Snippet(msgspec.Struct, frozen=True):
    """A piece of a text, white space made single, with a mark where it is cut."""

    text: str
    highlights: tuple[tuple[int, int], ...] = ()
    """Start and stop of each word that was asked for, in characters of `text`; in order, none overlapping."""


def snippet_of(text: str, question: Question, width: int = WIDTH, *, marks: bool = True) -> Snippet:
    """The piece of a text that holds most of what a question asks for; without any of it, the beginning.

    Args:
        text: whole, as it stands in the log.
        width: characters that are shown, at least 16; marks where it is cut come on top.
        marks: whether the places of the words are wanted; without them a text that is shown whole is not looked at.
    """
    text = _SPACE.sub(" ", text).strip()
    width = max(width, 16)
    if not marks and len(text) <= width:
        return Snippet(text)
    wanted = {term: number for number, concept in enumerate(question.concepts) for term, _ in concept.variants}
    found = _found(text, wanted)
    if len(text) <= width:
        return Snippet(text, _merged(found))
    start, stop = _around(text, _best(found, width), width)
    shown = text[start:stop]
    head, tail = CUT if start else "", CUT if stop < len(text) else ""
    moved = len(head) - start
    within = _merged([(a, b, number) for a, b, number in found if a >= start and b <= stop])
    return Snippet(head + shown + tail, tuple((a + moved, b + moved) for a, b in within) if marks else ())


def _found(text: str, wanted: dict[str, int]) -> list[tuple[int, int, int]]:
    """Start, stop and concept of each word that was asked for, in order."""
    if not wanted:
        return []
    tokens = list(islice(tokens_of(text), MAX_TOKENS))
    language = language_of(token.text.casefold() for token in tokens) or ENGLISH
    found: list[tuple[int, int, int]] = []
    for token in tokens:
        word = normal(token.text)
        if is_dense(word):
            found += _in_dense(token.start, token.text, wanted)
            continue
        for term in terms_in(word, language):
            if term in wanted:
                found.append((token.start, token.stop, wanted[term]))
                break
    return found


def _in_dense(start: int, word: str, wanted: dict[str, int]) -> list[tuple[int, int, int]]:
    """The same within a run of a script without spaces: its pairs of characters."""
    places = []
    for at in range(len(word)):
        for size in (2, 1):
            term = normal(word[at : at + size])
            if len(term) == size and term in wanted:
                places.append((start + at, start + at + size, wanted[term]))
                break
    return places


def _best(found: list[tuple[int, int, int]], width: int) -> tuple[int, int]:
    """The places, within so many characters, of the most concepts, then of most words; the first such."""
    best, chosen = (0, 0), (0, 0)
    first = 0
    counts: dict[int, int] = {}
    for at, (_, stop, number) in enumerate(found):
        counts[number] = counts.get(number, 0) + 1
        while stop - found[first][0] > width and first < at:
            gone = found[first][2]
            counts[gone] -= 1
            if not counts[gone]:
                del counts[gone]
            first += 1
        worth = len(counts), at - first + 1
        if worth > best:
            best, chosen = worth, (found[first][0], stop)
    return chosen


def _around(text: str, kept: tuple[int, int], width: int) -> tuple[int, int]:
    """A window around what is kept, a little more of it behind, its ends between words."""
    spare = max(width - (kept[1] - kept[0]), 0)
    start = max(0, kept[0] - spare // 3)
    stop = min(len(text), start + width)
    start = max(0, stop - width)
    if start:
        space = text.find(" ", start, kept[0])
        start = space + 1 if space >= 0 else start
    if stop < len(text):
        space = text.rfind(" ", max(kept[1], start + 1), stop + 1)
        stop = space if space > 0 else stop
    return start, stop


def _merged(found: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Places that overlap or touch without a space, as one."""
    marks: list[tuple[int, int]] = []
    for start, stop, _ in found:
        if marks and start < marks[-1][1]:
            marks[-1] = marks[-1][0], max(stop, marks[-1][1])
        else:
            marks.append((start, stop))
    return tuple(marks)

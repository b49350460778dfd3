"""Snippets: the piece of a text that shows best why it was found, and where in it the words stand that were asked for.

Stemming is slow (20 microseconds a word), so it is bounded. A text of up to `SNIPPET_WHOLE_CHARS` is stemmed word by word. Of a
longer one only words are stemmed that begin like a word of the question, at most `SNIPPET_WORDS` of them. `Effort` bounds a
whole request.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Final

import msgspec

from holdfast.limits import SEARCH_CHARS, SEARCH_WORDS, SNIPPET_CHARS, SNIPPET_WHOLE_CHARS, SNIPPET_WORDS
from holdfast.recall.questions import Question
from holdfast.recall.terms import is_dense, normal, stem, terms_in, tokens_of
from holdfast.recall.word_tables import ENGLISH, IRREGULAR, language_of

WIDTH: Final = 240
"""Characters of a snippet, unless asked otherwise."""
MAX_TOKENS: Final = 50_000
"""Words of a text that are looked at; later words are not shown."""
MAX_WORD: Final = 1_000
"""Characters of a word; a longer one (a run of base64, say) is not stemmed."""
LEAD: Final = 3
"""First characters by which a word of a long text is taken for a form of a word of the question."""
CUT: Final = "…"
_DENSE_CHARS: Final = 20
"""Characters of a script without spaces that cost as much as stemming a word."""
_SPACE = re.compile(r"\s+")


class Snippet(msgspec.Struct, frozen=True):
    """A piece of a text, white space made single, with a mark where it is cut."""

    text: str
    highlights: tuple[tuple[int, int], ...] = ()
    """Start and stop of each word that was asked for, in characters of `text`; in order, none overlapping."""


class Effort:
    """What one request may still spend on snippets.

    Attributes:
        chars: characters that may still be looked through.
        words: words that may still be stemmed.
    """

    def __init__(self, chars: int = SEARCH_CHARS, words: int = SEARCH_WORDS) -> None:
        self.chars = chars
        self.words = words


def chunk_snippet(
    text: str,
    chunk: tuple[int, int] | None,
    question: Question,
    width: int = WIDTH,
    *,
    marks: bool = True,
    effort: Effort | None = None,
) -> Snippet:
    """Return the piece of a text that holds most of what a question asks for, in the chunk that was found and what is around it.

    Args:
        text: whole, as it is in the log.
        chunk: its first character and the one after its last; None, or a place that is not in the text: the whole text. So it is
            for a text of `SNIPPET_CHARS` or more: its middle may have been cut out, and then places in it are others.
        question, width, marks, effort: see `snippet_of`.
    """
    if chunk is None or not width < len(text) < SNIPPET_CHARS or not 0 <= chunk[0] < chunk[1] <= len(text):
        return snippet_of(text, question, width, marks=marks, effort=effort)
    start, stop = _around(text, chunk, max(width, chunk[1] - chunk[0]))
    found = snippet_of(text[start:stop], question, width, marks=marks, effort=effort)
    head = CUT if start and not found.text.startswith(CUT) else ""
    tail = CUT if stop < len(text) and not found.text.endswith(CUT) else ""
    return Snippet(
        head + found.text + tail, tuple((first + len(head), last + len(head)) for first, last in found.highlights)
    )


def snippet_of(
    text: str, question: Question, width: int = WIDTH, *, marks: bool = True, effort: Effort | None = None
) -> Snippet:
    """Return the piece of a text that holds most of what a question asks for; without any of it, the beginning.

    Args:
        text: whole, as it is in the log; `SNIPPET_CHARS` of it are looked through.
        question: what is asked for.
        width: characters that are shown, at least 16; marks where it is cut come on top.
        marks: False if the places of the words are not wanted; a text that is shown whole is not looked at then.
        effort: shared by the snippets of one request; None: this one alone.
    """
    effort = effort or Effort()
    width = max(width, 16)
    text = _SPACE.sub(" ", bounded_text(text, max(min(SNIPPET_CHARS, effort.chars), 2 * width))).strip()
    if not marks and len(text) <= width:
        return Snippet(text)
    effort.chars -= len(text)
    wanted = {term: number for number, concept in enumerate(question.concepts) for term, _ in concept.variants}
    found = _found(text, wanted, effort)
    if len(text) <= width:
        return Snippet(text, _merged(found))
    start, stop = _around(text, _best(found, width), width)
    shown = text[start:stop]
    head, tail = CUT if start else "", CUT if stop < len(text) else ""
    moved = len(head) - start
    within = _merged([(a, b, number) for a, b, number in found if a >= start and b <= stop])
    return Snippet(head + shown + tail, tuple((a + moved, b + moved) for a, b in within) if marks else ())


def bounded_text(text: str, most: int = SNIPPET_CHARS) -> str:
    """Return `text`, or if it has more than `most` characters its head and its tail, in the shares that are indexed."""
    if len(text) <= most:
        return text
    head = most * 3 // 5
    return f"{text[:head]} {CUT} {text[head - most :]}"


def _found(text: str, wanted: dict[str, int], effort: Effort) -> list[tuple[int, int, int]]:
    """Return start, stop and concept of each word that was asked for, in order."""
    if not wanted or effort.words <= 0:
        return []
    tokens = list(islice(tokens_of(text), MAX_TOKENS))
    language = language_of(token.text.casefold() for token in tokens) or ENGLISH
    leads = None if len(text) <= SNIPPET_WHOLE_CHARS else _leads(wanted)
    most = effort.words if leads is None else min(effort.words, SNIPPET_WORDS)
    left = most
    found: list[tuple[int, int, int]] = []
    for token in tokens:
        if leads is not None and not _may_match(token.text, leads):
            continue
        if left <= 0:
            break
        word = normal(token.text)
        if is_dense(word):
            some = token.text[: left * _DENSE_CHARS]
            left -= len(some) // _DENSE_CHARS + 1
            found += _in_dense(token.start, some, wanted)
            continue
        if len(word) > MAX_WORD:
            continue
        left -= 1
        for term in terms_in(word, language):
            if term in wanted:
                found.append((token.start, token.stop, wanted[term]))
                break
    effort.words -= most - left
    return found


def _leads(wanted: Iterable[str]) -> frozenset[str]:
    """Return how words begin whose terms are `wanted`: stems keep the beginning of a word, and irregular forms are listed."""
    irregular = _irregular_leads()
    leads: set[str] = set()
    for term in wanted:
        # The last letter of a stem may differ from the word's ("cry" is "cri"): of a short one it is not compared.
        leads.add(term[: LEAD if len(term) > LEAD else LEAD - 1])
        leads.update((term, *irregular.get(term, ())))
        if not term.isascii():
            leads.update(term)
    return frozenset(leads)


@cache
def _irregular_leads() -> dict[str, tuple[str, ...]]:
    """By stem, the beginnings of words that `IRREGULAR` and exceptions of the English stemmer lead to it."""
    found: dict[str, list[str]] = {"die": ["dyi"], "lie": ["lyi"], "tie": ["tyi"], "sky": ["ski"]}
    for form, base in IRREGULAR.items():
        found.setdefault(stem(base, ENGLISH), []).append(form[:LEAD])
    return {term: tuple(forms) for term, forms in found.items()}


def _may_match(word: str, leads: frozenset[str]) -> bool:
    """Return False if no term of a word can be one with these beginnings. It is cheap, and errs on the side of True."""
    if word.isascii():
        if word.isalpha():
            return _begins(word.lower(), leads) or not (word.islower() or word.istitle() or word.isupper())
        pieces = _ALNUM.findall(word[:MAX_WORD].lower())
        return any(_begins(piece, leads) for piece in (*pieces, "".join(pieces), word[:LEAD].lower()))
    if is_dense(word):
        return not leads.isdisjoint(normal(word))
    if ord(word[0]) >= _PREFIXING:  # stemmers of these scripts may take a prefix off
        return True
    plain = "".join(mark for mark in unicodedata.normalize("NFKD", word[:MAX_WORD].casefold()) if mark.isalnum())
    return not word.isalpha() or _begins(plain, leads)


def _begins(word: str, leads: frozenset[str]) -> bool:
    return word[:LEAD] in leads or word[: LEAD - 1] in leads


_ALNUM: Final = re.compile(r"[a-z0-9]+")
_PREFIXING: Final = 0x0590


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

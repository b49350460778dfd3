"""Cut snippets: the piece of a text that best shows why the text was found, and the positions of the query's words in it.

Stemming is slow (20 microseconds a word), so it is bounded. A text of up to `SNIPPET_WHOLE_CHARS` is stemmed word by word. In a
longer text only words that begin like a word of the question are stemmed, at most `SNIPPET_WORDS` of them. `SnippetBudget` limits
the work of a whole request.
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
from holdfast.recall.terms import get_terms, is_dense, iter_tokens, normalize, stem
from holdfast.recall.word_tables import ENGLISH, IRREGULAR, find_language

WIDTH: Final = 240
"""Default number of characters of a snippet."""
MAX_TOKENS: Final = 50_000
"""Words of a text that are checked; later words are not shown."""
MAX_WORD: Final = 1_000
"""Characters of a word; a longer one (such as a run of base64) is not stemmed."""
LEAD: Final = 3
"""Number of initial characters that a word of a long text must share with a word of the question to be stemmed."""
CUT: Final = "…"
_DENSE_CHARS: Final = 20
"""Characters of a script without spaces that cost as much as stemming a word."""
_SPACE = re.compile(r"\s+")


class Snippet(msgspec.Struct, frozen=True):
    """A piece of a text with single spaces, and an ellipsis where it is cut."""

    text: str
    highlights: tuple[tuple[int, int], ...] = ()
    """Start and stop of each matching word in the characters of `text`, in order and without overlaps."""


class SnippetBudget:
    """The remaining budget of a request for making snippets.

    Attributes:
        chars: characters that may still be searched.
        words: words that may still be stemmed.
    """

    def __init__(self, chars: int = SEARCH_CHARS, words: int = SEARCH_WORDS) -> None:
        self.chars = chars
        self.words = words


def make_chunk_snippet(
    text: str,
    chunk: tuple[int, int] | None,
    question: Question,
    width: int = WIDTH,
    *,
    marks: bool = True,
    budget: SnippetBudget | None = None,
) -> Snippet:
    """Return the piece of a text with the most concepts of a question, taken from the found chunk and its surroundings.

    Args:
        text: the complete text from the log.
        chunk: start and stop of the chunk. The whole text is used if it is None or outside the text, and for a text of
            `SNIPPET_CHARS` or more: the middle of such a text may have been cut before indexing, which shifts positions.
        question, width, marks, budget: see `make_snippet`.
    """
    if chunk is None or not width < len(text) < SNIPPET_CHARS or not 0 <= chunk[0] < chunk[1] <= len(text):
        return make_snippet(text, question, width, marks=marks, budget=budget)
    start, stop = _expand_span(text, chunk, max(width, chunk[1] - chunk[0]))
    found = make_snippet(text[start:stop], question, width, marks=marks, budget=budget)
    head = CUT if start and not found.text.startswith(CUT) else ""
    tail = CUT if stop < len(text) and not found.text.endswith(CUT) else ""
    return Snippet(
        head + found.text + tail, tuple((first + len(head), last + len(head)) for first, last in found.highlights)
    )


def make_snippet(
    text: str, question: Question, width: int = WIDTH, *, marks: bool = True, budget: SnippetBudget | None = None
) -> Snippet:
    """Return the piece of a text with the most concepts of a question, or the beginning of the text if it has none.

    Args:
        text: the complete text from the log; `SNIPPET_CHARS` of it are searched.
        question: the question.
        width: characters to show, at least 16, not counting ellipses.
        marks: False if highlights are not wanted. A text that is shown whole is then not searched.
        budget: the budget that the snippets of one request share; None: a separate budget.
    """
    budget = budget or SnippetBudget()
    width = max(width, 16)
    text = _SPACE.sub(" ", shorten_text(text, max(min(SNIPPET_CHARS, budget.chars), 2 * width))).strip()
    if not marks and len(text) <= width:
        return Snippet(text)
    budget.chars -= len(text)
    wanted = {term: number for number, concept in enumerate(question.concepts) for term, _ in concept.variants}
    found = _find_words(text, wanted, budget)
    if len(text) <= width:
        return Snippet(text, _merge_spans(found))
    start, stop = _expand_span(text, _choose_span(found, width), width)
    shown = text[start:stop]
    head, tail = CUT if start else "", CUT if stop < len(text) else ""
    moved = len(head) - start
    within = _merge_spans([(a, b, number) for a, b, number in found if a >= start and b <= stop])
    return Snippet(head + shown + tail, tuple((a + moved, b + moved) for a, b in within) if marks else ())


def shorten_text(text: str, most: int = SNIPPET_CHARS) -> str:
    """Return `text`, or its head and tail if it is longer than `most` characters, in the same proportion as the index."""
    if len(text) <= most:
        return text
    head = most * 3 // 5
    return f"{text[:head]} {CUT} {text[head - most :]}"


def _find_words(text: str, wanted: dict[str, int], budget: SnippetBudget) -> list[tuple[int, int, int]]:
    """Return start, stop and concept of each matching word, in order."""
    if not wanted or budget.words <= 0:
        return []
    tokens = list(islice(iter_tokens(text), MAX_TOKENS))
    language = find_language(token.text.casefold() for token in tokens) or ENGLISH
    leads = None if len(text) <= SNIPPET_WHOLE_CHARS else _find_leads(wanted)
    most = budget.words if leads is None else min(budget.words, SNIPPET_WORDS)
    left = most
    found: list[tuple[int, int, int]] = []
    for token in tokens:
        if leads is not None and not _can_match(token.text, leads):
            continue
        if left <= 0:
            break
        word = normalize(token.text)
        if is_dense(word):
            some = token.text[: left * _DENSE_CHARS]
            left -= len(some) // _DENSE_CHARS + 1
            found += _find_in_dense(token.start, some, wanted)
            continue
        if len(word) > MAX_WORD:
            continue
        left -= 1
        for term in get_terms(word, language):
            if term in wanted:
                found.append((token.start, token.stop, wanted[term]))
                break
    budget.words -= most - left
    return found


def _find_leads(wanted: Iterable[str]) -> frozenset[str]:
    """Return the beginnings of words that may have the `wanted` terms: those of the terms, and those of irregular forms."""
    irregular = _load_irregular_leads()
    leads: set[str] = set()
    for term in wanted:
        # The last letter of a stem may differ from the word's ("cry" becomes "cri"), so short stems are compared without it.
        leads.add(term[: LEAD if len(term) > LEAD else LEAD - 1])
        leads.update((term, *irregular.get(term, ())))
        if not term.isascii():
            leads.update(term)
    return frozenset(leads)


@cache
def _load_irregular_leads() -> dict[str, tuple[str, ...]]:
    """Return, by stem, the beginnings of words that `IRREGULAR` and exceptions of the English stemmer map to that stem."""
    found: dict[str, list[str]] = {"die": ["dyi"], "lie": ["lyi"], "tie": ["tyi"], "sky": ["ski"]}
    for form, base in IRREGULAR.items():
        found.setdefault(stem(base, ENGLISH), []).append(form[:LEAD])
    return {term: tuple(forms) for term, forms in found.items()}


def _can_match(word: str, leads: frozenset[str]) -> bool:
    """Return False if the terms of a word cannot have one of these beginnings. The check is cheap, and returns True in doubt."""
    if word.isascii():
        if word.isalpha():
            return _has_lead(word.lower(), leads) or not (word.islower() or word.istitle() or word.isupper())
        pieces = _ALNUM.findall(word[:MAX_WORD].lower())
        return any(_has_lead(piece, leads) for piece in (*pieces, "".join(pieces), word[:LEAD].lower()))
    if is_dense(word):
        return not leads.isdisjoint(normalize(word))
    if ord(word[0]) >= _PREFIXING:  # stemmers of these scripts may remove a prefix
        return True
    plain = "".join(mark for mark in unicodedata.normalize("NFKD", word[:MAX_WORD].casefold()) if mark.isalnum())
    return not word.isalpha() or _has_lead(plain, leads)


def _has_lead(word: str, leads: frozenset[str]) -> bool:
    return word[:LEAD] in leads or word[: LEAD - 1] in leads


_ALNUM: Final = re.compile(r"[a-z0-9]+")
_PREFIXING: Final = 0x0590


def _find_in_dense(start: int, word: str, wanted: dict[str, int]) -> list[tuple[int, int, int]]:
    """Return the matching character pairs in a run of a script without spaces, as `_find_words` does for words."""
    places = []
    for at in range(len(word)):
        for size in (2, 1):
            term = normalize(word[at : at + size])
            if len(term) == size and term in wanted:
                places.append((start + at, start + at + size, wanted[term]))
                break
    return places


def _choose_span(found: list[tuple[int, int, int]], width: int) -> tuple[int, int]:
    """Return the span within `width` characters with the most concepts, then the most words; the first such span."""
    best, chosen = (0, 0), (0, 0)
    first = 0
    counts: dict[int, int] = {}
    for at, (_, stop, number) in enumerate(found):
        counts[number] = counts.get(number, 0) + 1
        while stop - found[first][0] > width and first < at:
            concept = found[first][2]
            counts[concept] -= 1
            if not counts[concept]:
                del counts[concept]
            first += 1
        worth = len(counts), at - first + 1
        if worth > best:
            best, chosen = worth, (found[first][0], stop)
    return chosen


def _expand_span(text: str, kept: tuple[int, int], width: int) -> tuple[int, int]:
    """Return a window around a span, with more text after the span than before, which begins and ends between words."""
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


def _merge_spans(found: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge overlapping positions."""
    marks: list[tuple[int, int]] = []
    for start, stop, _ in found:
        if marks and start < marks[-1][1]:
            marks[-1] = marks[-1][0], max(stop, marks[-1][1])
        else:
            marks.append((start, stop))
    return tuple(marks)

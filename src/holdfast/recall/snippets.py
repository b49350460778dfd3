"""Cut snippets: the piece of a text that best shows why the text was found, with the positions of the question's words in it.

Stemming is slow (20 microseconds per word), so it is limited. In a text of up to `SNIPPET_WHOLE_CHARS`, every word is stemmed. In
a longer text, only words that begin like a word of the question are stemmed, at most `SNIPPET_WORDS` of them. `SnippetBudget`
limits the work for all snippets of a request.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
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
"""Number of words at the beginning of a text that are checked. Later words are not highlighted."""
MAX_WORD: Final = 1_000
"""Maximum characters of a word that is stemmed. A longer one, such as a run of base64, cannot match."""
LEAD: Final = 3
"""Number of initial characters that a word of a long text must share with a word of the question to be stemmed."""
CUT: Final = "…"
_DENSE_CHARS: Final = 20
"""Number of characters of a script without spaces that take as much time as stemming one word."""
_SPACE = re.compile(r"\s+")


class Snippet(msgspec.Struct, frozen=True):
    """A piece of a text. White space is reduced to single spaces, and an ellipsis marks each end that was cut."""

    text: str
    highlights: tuple[tuple[int, int], ...] = ()
    """Start and stop of each matching word in `text`, in order and without overlaps."""


class SnippetBudget:
    """Limit of the work for all snippets of one request. Each snippet reduces it.

    Attributes:
        chars: number of characters that may still be searched.
        words: number of words that may still be stemmed.
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
    """Return a snippet, as `make_snippet` does, from the chunk of a text that was found and its surroundings.

    The whole text is used instead if `chunk` is None or outside the text, or if the text has `SNIPPET_CHARS` characters or more:
    the middle of such a text may have been cut before indexing, which shifts positions.

    Args:
        text: the complete text from the log.
        chunk: start and stop of the chunk in the text.
        question, width, marks, budget: as in `make_snippet`.
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
    """Return the piece of a text that contains the most concepts of a question, or the beginning of the text if it contains none.

    Args:
        text: the complete text from the log. Only `SNIPPET_CHARS` characters, its head and tail, are used.
        question: the question.
        width: maximum number of characters to show, at least 16, not counting ellipses.
        marks: False if highlights are not needed. A text of at most `width` characters is then not searched.
        budget: the budget that the snippets of one request share; None: the default budget, for this snippet alone.
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
    """Return a text, or only its head and tail if it has more than `most` characters.

    The head has the same share as in the texts that the index cuts.
    """
    if len(text) <= most:
        return text
    head = most * 3 // 5
    return f"{text[:head]} {CUT} {text[head - most :]}"


def _find_words(text: str, wanted: dict[str, int], budget: SnippetBudget) -> list[tuple[int, int, int]]:
    """Return the start, the stop and the number of the concept of each word that matches, in order.

    Args:
        text: the text.
        wanted: the number of the concept for each term of the question.
        budget: reduced by the number of words that were stemmed.
    """
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
    """Return the beginnings of all words that may have one of these terms: of the terms themselves, and of their irregular forms."""
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
    """Return, for each stem of an irregular English word, the beginnings of the word's irregular forms.

    The forms come from `IRREGULAR` and from the exceptions of the English stemmer.
    """
    found: dict[str, list[str]] = {"die": ["dyi"], "lie": ["lyi"], "tie": ["tyi"], "sky": ["ski"]}
    for form, base in IRREGULAR.items():
        found.setdefault(stem(base, ENGLISH), []).append(form[:LEAD])
    return {term: tuple(forms) for term, forms in found.items()}


def _can_match(word: str, leads: frozenset[str]) -> bool:
    """Return False if the word cannot begin with one of `leads`, so that it need not be stemmed; True if it may."""
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
    """Return the matching characters and pairs of characters in a run of a script without spaces, as `_find_words` returns words."""
    places = []
    for at in range(len(word)):
        for size in (2, 1):
            term = normalize(word[at : at + size])
            if len(term) == size and term in wanted:
                places.append((start + at, start + at + size, wanted[term]))
                break
    return places


def _choose_span(found: list[tuple[int, int, int]], width: int) -> tuple[int, int]:
    """Return the span of at most `width` characters that contains the most concepts.

    Of several such spans, the one with the most words is returned; of those, the first one.
    """
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
    """Expand a span to about `width` characters, with more text after it than before it. It begins and ends between words."""
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
    """Return the start and stop of the words that were found, with overlapping words merged."""
    marks: list[tuple[int, int]] = []
    for start, stop, _ in found:
        if marks and start < marks[-1][1]:
            marks[-1] = marks[-1][0], max(stop, marks[-1][1])
        else:
            marks.append((start, stop))
    return tuple(marks)


class TermMatcher:
    """Finds out which sentences of a text have the terms of a question. Only words that begin like a term are stemmed, so it is quick.

    Args:
        rarity: the terms, each with its weight.
        language: the language of the question, in which words are stemmed.
    """

    def __init__(self, rarity: Mapping[str, float], language: str) -> None:
        self._rarity, self._language = rarity, language
        dense = [term for term in rarity if is_dense(term)]
        known = _find_leads(term for term in rarity if not is_dense(term))
        leads = {lead for lead in known if not any(lead[:size] in known for size in range(1, len(lead)))}
        patterns = [
            *map(re.escape, dense),
            *([rf"\b(?:{'|'.join(map(re.escape, sorted(leads)))})\w*"] if leads else []),
        ]
        self._words = re.compile("|".join(patterns) or r"(?!)")
        self._known: dict[str, Sequence[str]] = {}

    def score(self, text: str, stops: Sequence[int]) -> list[float]:
        """Return for each sentence of a text the weights of the terms that it has.

        Args:
            text: the text.
            stops: the end of each sentence, in order.
        """
        scores = [0.0] * len(stops)
        found: dict[int, set[str]] = {}
        at = 0
        lower = text.lower()  # twice as fast as a pattern that ignores case
        for match in self._words.finditer(lower if len(lower) == len(text) else text):
            start, stop = match.span()
            word = text[start:stop]
            terms = self._known.get(word)
            if terms is None:
                terms = self._known[word] = self._find_terms(word)
            if terms:
                at = bisect_right(stops, start, at)
                if at == len(stops):
                    break
                found.setdefault(at, set()).update(terms)
        for at, words in found.items():
            scores[at] = sum([self._rarity[term] for term in sorted(words)])
        return scores

    def _find_terms(self, word: str) -> Sequence[str]:
        """Return the terms of the question that a word has."""
        if word in self._rarity:
            return (word,)
        terms = get_terms(word, self._language) if len(word) <= MAX_WORD else ()
        return [term for term in terms if term in self._rarity]

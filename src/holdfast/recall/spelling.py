"""How a term is written: the words of a text that it stands for, for people to read. A stem like "deploi" is nobody's word. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from holdfast.recall.stops import ENGLISH, language_of
from holdfast.recall.terms import MAX_TERM, bounded, is_dense, normal, terms_in, tokens_of

_PIECES: Final = re.compile(r"[^\W_]+")


class Spelling:
    """How terms are written in some texts."""

    def __init__(self) -> None:
        self._written: dict[str, Counter[str]] = {}

    def read(self, text: str) -> None:
        """Take note of the words of a text."""
        words = [token.text for token in tokens_of(normal(text))]
        language = language_of(word.casefold() for word in words) or ENGLISH
        for word in words:
            if not is_dense(word):
                for term, written in _spelt(word, language):
                    self.note(term, written)

    def note(self, term: str, written: str) -> None:
        """Take note of one way to write a term. What is too long to be read is none."""
        if len(written) <= MAX_TERM:
            self._written.setdefault(term, Counter())[written] += 1

    def of(self, term: str) -> str:
        """The form that is written most often, capitals aside; of those the shortest, then the first by its letters. Without any: the term."""
        written = self._written.get(term)
        if not written:
            return term
        folded: Counter[str] = Counter()
        for form, number in written.items():
            folded[form.casefold()] += number
        best = min(folded, key=lambda form: (-folded[form], len(form), form))
        return min(
            (form for form in written if form.casefold() == best),
            key=lambda form: (-written[form], form.lower() != form, form),
        )

    def words(self, terms: Iterable[str], most: int) -> tuple[str, ...]:
        """The forms of some terms, each once, at most so many."""
        seen: dict[str, str] = {}
        for term in terms:
            form = self.of(term)
            seen.setdefault(form.casefold(), form)
            if len(seen) == most:
                break
        return tuple(seen.values())


def _spelt(word: str, language: str) -> Iterable[tuple[str, str]]:
    """The terms of a word, each with what of the word it stands for."""
    terms = terms_in(word, language)
    if len(terms) == 1 and word.isalnum():
        yield terms[0], word
        return
    pieces = {bounded(term): piece for piece in _PIECES.findall(word) for term in terms_in(piece, language)}
    for term in terms:
        yield term, pieces.get(term, word)

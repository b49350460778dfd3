"""Concepts: what a document states of each concept of a question, by BM25, whole and by its best chunk. Pure.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from holdfast.recall.base import Candidate, Candidates
from holdfast.recall.chunks import TARGET
from holdfast.recall.details import chunks_with, read_chunks, read_mentions
from holdfast.recall.questions import Question
from holdfast.recall.weights import FormWeights, Weights

TIME: Final = -1
"""The number of the concept that the times of a question are."""
DAY: Final = 86_400_000
"""Milliseconds."""
MANY_CHUNKS: Final = 32
MORE_CHUNKS: Final = 0.4
"""How much more the best chunk of a turn with so many chunks counts, beside the whole, than that of a short one."""


class Stated(NamedTuple):
    """The statements of a document whose best chunk counts."""

    concepts: dict[int, float]
    """By the concept's number."""
    chunk: int
    """The number of the chunk that states most."""
    traits: int
    """Traits of that chunk."""


class Statements:
    """Scores documents against one question.

    Args:
        question: what is looked for.
        found: what its terms found.
        weights: of the ranking.
        named: words that are names of speakers.
    """

    def __init__(self, question: Question, found: Candidates, weights: Weights, named: Collection[str]) -> None:
        self._weights = weights
        self._average = found.length / found.documents if found.documents and found.length else 1.0
        self._table: dict[str, list[tuple[int, float]]] = {}
        self._norms: dict[tuple[int, float], float] = {}
        for number, concept in enumerate(question.concepts):
            whole = weights.name if concept.word in named else 1.0
            for term, weight in concept.variants:
                rarity = rarity_of(found.documents, found.frequencies.get(term, 0))
                self._table.setdefault(term, []).append((number, whole * weight * rarity * (weights.k1 + 1)))
        self._question = question
        self._named_time: dict[str, bool] = {}
        self._dated = 0.0
        if weights.dated and (question.spans or question.days):
            dated = sum(self._is_dated(candidate) for candidate in found.found)
            self._dated = weights.dated * rarity_of(found.documents, dated)

    def score(self, candidate: Candidate, form: FormWeights) -> dict[int, float]:
        """Return what a document states of each concept, by its number, in order; of several terms of one the best counts."""
        norm = self._norm(candidate.length, form.b)
        concepts: dict[int, float] = {}
        for term, often in candidate.counts.items():
            for number, weight in self._table.get(term, ()):
                score = weight * often / (often + norm)
                if score > concepts.get(number, 0.0):
                    concepts[number] = score
        if self._dated and self._is_dated(candidate):
            concepts[TIME] = self._dated
        return dict(sorted(concepts.items()))

    def with_chunks(self, candidate: Candidate, concepts: dict[int, float]) -> Stated | None:
        """Return what a document states, mixed with what its best chunk does; None: it was not split, or no chunk states anything."""
        shapes = read_chunks(candidate.detail)
        by_chunk: dict[int, dict[int, float]] = {}
        for term in candidate.counts if shapes else ():
            entries = self._table.get(term)
            if not entries:
                continue
            for chunk in chunks_with(candidate.detail, term):
                held = by_chunk.setdefault(chunk, {})
                b = self._weights.chunk_b
                norm = self._weights.k1 * (1 - b + b * shapes[chunk].length / TARGET)
                for number, weight in entries:
                    score = weight / (1 + norm)
                    if score > held.get(number, 0.0):
                        held[number] = score
        if not by_chunk:
            return None
        best = max(sorted(by_chunk), key=lambda chunk: math.fsum(by_chunk[chunk].values()))
        share = self._weights.chunk + MORE_CHUNKS * min(len(shapes) / MANY_CHUNKS, 1.0)
        held = by_chunk[best]
        mixed = {
            number: score if number == TIME else (1 - share) * score + share * held.get(number, 0.0)
            for number, score in concepts.items()
        }
        return Stated(mixed, best, shapes[best].traits)

    def names_time(self, candidate: Candidate) -> bool:
        """Return True if a document names a time that the question names."""
        detail = candidate.detail
        if not (self._question.days and detail):
            return False
        named = self._named_time.get(detail)
        if named is None:
            named = self._named_time[detail] = _overlap(read_mentions(detail), self._question.days)
        return named

    def _is_dated(self, candidate: Candidate) -> bool:
        return self._question.covers(candidate.at) or self.names_time(candidate)

    def _norm(self, length: int, b: float) -> float:
        norm = self._norms.get((length, b))
        if norm is None:
            norm = self._norms[length, b] = self._weights.k1 * (1 - b + b * length / self._average)
        return norm


def names_day(candidate: Candidate, days: Collection[tuple[int, int]]) -> bool:
    """Return True if a document was said on one of some days (of UTC, since the epoch), or names one."""
    said = candidate.at // DAY
    return any(first <= said < stop for first, stop in days) or _overlap(read_mentions(candidate.detail), days)


def _overlap(spans: Iterable[tuple[int, int]], others: Collection[tuple[int, int]]) -> bool:
    return any(first < end and start < last for start, end in spans for first, last in others)


def rarity_of(documents: int, often: int) -> float:
    """Return how much a term says that so many of all documents have: BM25's IDF, never below 0."""
    return math.log(1 + (max(documents - often, 0) + 0.5) / (often + 0.5))

"""Scores: the weights of the ranking, what a document states of each concept of a question by BM25, and the hits that result.

The weights are in `holdfast/data/recall/weights.json`, with how they were found. A document is scored as a whole and by its best chunk.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.recall.base import Candidate, Candidates
from holdfast.recall.chunks import TARGET
from holdfast.recall.details import chunks_with, read_chunks, read_mentions
from holdfast.recall.questions import Question

_FILE: Final = Path(__file__).parents[1] / "data" / "recall" / "weights.json"
_PARTS: Final = 32
"""Into how many steps the way from a dialogue to a chat is divided."""


class FormWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers that depend on the form of a session: a dialogue of short turns, or a chat with long ones."""

    b: float
    """How far length counts in BM25."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    """What a neighbour counts, by its distance, where the turn's own words say less: those before a turn, those after it."""
    session: float
    """What the best session adds, as a share of what the best place has by itself."""
    covered: float
    """How much more a place counts that holds all concepts of the question, its neighbours included."""
    long: float
    """How much more a longer turn counts, by the logarithm of its length in average ones, at most one and a half."""
    asks: float
    asked: float
    """How much less a turn counts that ends in a question, and one that is all questions."""
    yours: float
    """How much less one counts that speaks of the other."""
    time: float
    number: float
    """How much more one counts that holds a time, or a number, where the question asks for one."""
    speaker: float
    """How much more one counts of whom the question names, or whose role it tells."""
    user: float
    """How much more a turn of the user counts, unless the question asks what the assistant said."""
    vector_before: tuple[float, ...]
    vector_after: tuple[float, ...]
    """What a neighbour's similarity adds to a turn's."""
    traits: float
    """How far a turn's traits count for similarities: as a power."""
    rrf: float
    """The constant of reciprocal ranks: the smaller, the more the first places count."""

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """Return where a place's neighbours are, seen from it, and what each counts."""
        return _steps(self.before, self.after)

    @property
    def vector_steps(self) -> tuple[tuple[int, float], ...]:
        """Return the same for similarities."""
        return _steps(self.vector_before, self.vector_after)


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every number that the ranking depends on."""

    k1: float
    """BM25's saturation."""
    name: float
    """What the name of a speaker counts as a word of a question: it stands in every greeting."""
    coded: float
    """How much more a turn counts that holds a code of the question itself: an answer about `ORD-12345` names it."""
    then: float
    said: float
    """How much more one counts that was said at a time that the question names, and at the one that it asks for."""
    about: float
    """How much more one counts that names a time of the question."""
    dated: float
    """What such a time counts as a concept of its own, so that turns are found that share nothing else with the question."""
    middle: float
    """Terms of an average turn at which a session is half dialogue, half chat."""
    steepness: float
    """How fast the one becomes the other, by the logarithm of that average."""
    few_turns: float
    """Turns of the space's average length that are added to those of a session, as few say little."""
    chunk: float
    """What the best chunk of a long turn counts, as a share, beside the whole turn."""
    chunk_b: float
    """How far its length counts."""
    echo: float
    """What a turn next to a better one counts, where a question asks for many things."""
    dialogue: FormWeights
    chat: FormWeights
    foreign: float
    """Hybrid: what the list by vectors counts beside the one by words where the question is in a language that the model does not know."""
    few: int
    lowered: float
    """Places with similarities below which the floor is lower, by that power of what is there of them: the nearest of few is farther
    away, whatever is asked."""
    beside: float
    """Part of the floor that is near enough, of a turn or a neighbour, for what vectors alone find where something reaches the floor."""
    held: float
    """Part of a question, each concept by its rarity, that a turn states itself where words are an answer though nothing is near."""

    def floor_among(self, floor: float, compared: int) -> float:
        """Return what is left of an embedder's floor where so many similarities are compared; 0 where there are none."""
        return floor * min(compared / self.few, 1.0) ** self.lowered if compared else 0.0

    def form(self, chat: float) -> FormWeights:
        """Return the numbers of a session.

        Args:
            chat: how far it is a chat, 0 to 1; in steps, so that few sessions have numbers of their own.
        """
        return _mix(self.dialogue, self.chat, round(chat * _PARTS))


@lru_cache(maxsize=1_024)
def _mix(dialogue: FormWeights, chat: FormWeights, part: int) -> FormWeights:
    share = part / _PARTS

    def mix(first: float, second: float) -> float:
        return first * (1 - share) + second * share

    found: dict[str, float | tuple[float, ...]] = {}
    for name in FormWeights.__struct_fields__:
        one, other = getattr(dialogue, name), getattr(chat, name)
        if isinstance(one, tuple):
            count = max(len(one), len(other))
            one, other = (some + (0.0,) * (count - len(some)) for some in (one, other))
            found[name] = tuple(map(mix, one, other))
        else:
            found[name] = mix(one, other)
    return FormWeights(**found)  # type: ignore[arg-type]  # each as its field has it


@cache
def _steps(before: tuple[float, ...], after: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    """Return distances and what each counts; those that count nothing are left out."""
    steps = (
        *((-distance, weight) for distance, weight in enumerate(before, start=1)),
        *((distance, weight) for distance, weight in enumerate(after, start=1)),
    )
    return tuple(step for step in steps if step[1])


class _File(msgspec.Struct, frozen=True):
    provenance: tuple[str, ...]
    weights: Weights


WEIGHTS: Final = msgspec.json.decode(_FILE.read_bytes(), type=_File).weights


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


_ROUNDED: Final = 2e-9
"""Scores that are this far apart are still apart when they are rounded to nine digits."""


class Parts(msgspec.Struct, frozen=True, gc=False):
    """The parts of a score, before the traits of the turn are counted."""

    own: float = 0.0
    """BM25 of the turn by itself."""
    near: float = 0.0
    """What its neighbours add."""
    session: float = 0.0
    """What its session adds."""
    traits: float = 1.0
    """What its form, its speaker and its time multiply."""
    keyword: float = 0.0
    """All of these together, as a share of the best place's."""
    vector: float | None = None
    """Similarity of the vectors, the neighbours' included, as a share of the best place's; None: not looked at."""
    similarity: float | None = None
    """Cosine of its own vector and the question's; None: not looked at."""


class Row(msgspec.Struct, gc=False):
    """What is known of a place."""

    candidate: Candidate | None
    concepts: dict[int, float]
    """What it states itself of each concept."""
    own: float = 0.0
    near: float = 0.0
    session: float = 0.0
    keyword: float = 0.0
    traits: float = 0.0
    """0: not worked out yet."""
    chunk: int | None = None
    """The number of the chunk that states most; None: it was not split, or none states anything."""
    form: int | None = None
    """Traits of that chunk; None: those of the whole turn count."""
    vector: float | None = None
    similarity: float | None = None
    beside: float = -1.0
    """The similarity of its nearest neighbour, or its own."""


class Hit(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A document in its rank."""

    candidate: Candidate
    score: float
    row: Row | None = None
    """What its parts are made of; None: it was not ranked."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        return (self.candidate, self.score, self.parts) == (other.candidate, other.score, other.parts)

    __hash__ = None  # type: ignore[assignment]  # as that of its candidate

    @property
    def chunk(self) -> tuple[int, int] | None:
        """Start and stop of the chunk that answers best, in characters of the text; None: the whole turn, or it is not known."""
        if self.row is None or self.row.chunk is None:
            return None
        shape = read_chunks(self.candidate.detail)[self.row.chunk]
        return shape.start, shape.stop

    @property
    def parts(self) -> Parts:
        """What its score is made of."""
        row = self.row
        if row is None:
            return Parts()
        return Parts(
            own=round(row.own, 6),
            near=round(row.near, 6),
            session=round(row.session, 6),
            traits=round(row.traits, 6),
            keyword=round(row.keyword * row.traits, 6),
            vector=None if row.vector is None else round(row.vector, 6),
            similarity=None if row.similarity is None else round(row.similarity, 6),
        )


def order_hits(rows: Sequence[Row], scores: Sequence[float], limit: int | None) -> list[Hit]:
    """Return the hits of rows by their scores, best first; equal ones newest first, then by session and position."""
    order = sorted(range(len(rows)), key=scores.__getitem__, reverse=True)
    hits: list[Hit] = []
    start, stop, count = 0, 1, len(rows)
    while start < count and (limit is None or len(hits) < limit):
        # Those that are equal when they are rounded stay together.
        while stop < count and scores[order[stop - 1]] - scores[order[stop]] < _ROUNDED:
            stop += 1
        together = [_hit(rows[at], scores[at]) for at in order[start:stop]]
        if stop - start > 1:
            together.sort(key=_rank)
        hits += together
        start, stop = stop, stop + 1
    while hits and hits[-1].score <= 0:
        hits.pop()
    return hits[:limit]


def _rank(hit: Hit) -> tuple[float, int, str, int]:
    found = hit.candidate
    return -hit.score, -found.at, found.session, found.seq


def _hit(row: Row, score: float) -> Hit:
    assert row.candidate is not None, "only what is there is a hit"
    return Hit(row.candidate, round(score, 9), row)

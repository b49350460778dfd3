"""Score documents: the weights of the ranking, BM25 by concept of the question, and the resulting hits.

The weights are in `holdfast/data/recall/weights.json`, with their origin. A document is scored as a whole and by its best chunk.

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
from holdfast.recall.details import find_chunks, read_chunks, read_mentions
from holdfast.recall.questions import Question

_FILE: Final = Path(__file__).parents[1] / "data" / "recall" / "weights.json"
_PARTS: Final = 32
"""Number of steps between a pure dialogue and a pure chat."""


class FormWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights that depend on the form of a session: a dialogue of short turns, or a chat with long ones."""

    b: float
    """Influence of length in BM25."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    """Weights of the neighbours before and after a turn by distance, used where they score higher than the turn's own words."""
    session: float
    """Bonus of the session with the best score, as a share of the best place's own score."""
    covered: float
    """Bonus of a place that, with its neighbours, has all concepts of the question."""
    long: float
    """Bonus of a long turn, multiplied by `log1p(length / average length)`, where the quotient is at most 1.5."""
    asks: float
    asked: float
    """Penalties of a turn that ends in a question, and of a turn that consists of questions."""
    yours: float
    """Penalty of a turn that speaks about the other participant."""
    time: float
    number: float
    """Bonuses of a turn with a time or a number if the question asks for one."""
    speaker: float
    """Bonus of a turn by the speaker or the role that the question names."""
    user: float
    """Bonus of a turn by the user, unless the question asks what the assistant said."""
    vector_before: tuple[float, ...]
    vector_after: tuple[float, ...]
    """Weight of a neighbour's similarity, added to the turn's own."""
    traits: float
    """Exponent of a turn's traits when they multiply similarities."""
    rrf: float
    """Constant of reciprocal rank fusion; the smaller it is, the more the first ranks count."""

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """The offsets of a place's neighbours and their weights."""
        return _list_steps(self.before, self.after)

    @property
    def vector_steps(self) -> tuple[tuple[int, float], ...]:
        """The offsets of a place's neighbours and their weights, for similarities."""
        return _list_steps(self.vector_before, self.vector_after)


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All weights of the ranking."""

    k1: float
    """BM25's saturation."""
    name: float
    """Weight of a speaker's name as a word of a question. It is low, since every greeting contains the name."""
    coded: float
    """Bonus of a turn with a code from the question: an answer about `ORD-12345` names it."""
    then: float
    said: float
    """Bonuses of a turn from a time that the question names, and from the time that it asks for."""
    about: float
    """Bonus of a turn that names a time of the question."""
    dated: float
    """Weight of such a time as a separate concept, which finds turns that have nothing else in common with the question."""
    middle: float
    """Terms of an average turn at which a session is half dialogue, half chat."""
    steepness: float
    """Steepness of the transition from dialogue to chat, by the logarithm of that average."""
    few_turns: float
    """Number of turns of average length that are added to those of a session, because few turns say little about its form."""
    chunk: float
    """Share of the best chunk in the score of a long turn; the whole turn has the rest."""
    chunk_b: float
    """Influence of the chunk's length."""
    echo: float
    """Weight of a turn next to a better one, for questions with several answers."""
    dialogue: FormWeights
    chat: FormWeights
    foreign: float
    """Hybrid search: weight of the vector ranking relative to the keyword ranking, if the model does not support the question's
    language."""
    few: int
    lowered: float
    """With `n` similarities, fewer than `few`, the floor is multiplied by `(n / few) ** lowered`, since the nearest of few texts
    is less similar for any question."""
    beside: float
    """Share of the floor that a turn or its neighbour must reach to be found by vectors alone, once anything reaches the
    floor."""
    held: float
    """Share of a question (its concepts weighted by rarity) that a turn must contain to be an answer although no similarity
    reaches the floor."""

    def lower_floor(self, floor: float, compared: int) -> float:
        """Return an embedder's floor lowered for `compared` similarities; 0 if there are none."""
        return floor * min(compared / self.few, 1.0) ** self.lowered if compared else 0.0

    def get_form(self, chat: float) -> FormWeights:
        """Return the weights of a session.

        Args:
            chat: position between a dialogue (0) and a chat (1), rounded to steps so that sessions share weights.
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
    return FormWeights(**found)  # type: ignore[arg-type]  # each value has the type of its field


@cache
def _list_steps(before: tuple[float, ...], after: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    """Return the distances and weights of neighbours that count."""
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
"""The concept number of a question's times."""
DAY: Final = 86_400_000
"""Milliseconds of a day."""
MANY_CHUNKS: Final = 32
MORE_CHUNKS: Final = 0.4
"""Additional share of the best chunk in the score of a turn with at least `MANY_CHUNKS` chunks."""


class ChunkScores(NamedTuple):
    """The concept scores of a document mixed with those of its best chunk."""

    concepts: dict[int, float]
    """Scores by concept number."""
    chunk: int
    """Number of the best chunk."""
    traits: int
    """Traits of that chunk."""


class ConceptScorer:
    """Scores documents by the concepts of one question.

    Args:
        question: the question.
        found: the candidates that its terms found.
        weights: the weights of the ranking.
        named: words of the speakers' names.
    """

    def __init__(self, question: Question, found: Candidates, weights: Weights, named: Collection[str]) -> None:
        self._weights = weights
        self._average = found.length / found.documents if found.documents and found.length else 1.0
        self._table: dict[str, list[tuple[int, float]]] = {}
        self._norms: dict[tuple[int, float], float] = {}
        for number, concept in enumerate(question.concepts):
            whole = weights.name if concept.word in named else 1.0
            for term, weight in concept.variants:
                rarity = compute_rarity(found.documents, found.frequencies.get(term, 0))
                self._table.setdefault(term, []).append((number, whole * weight * rarity * (weights.k1 + 1)))
        self._question = question
        self._named_time: dict[str, bool] = {}
        self._dated = 0.0
        if weights.dated and (question.spans or question.days):
            dated = sum(self._is_dated(candidate) for candidate in found.found)
            self._dated = weights.dated * compute_rarity(found.documents, dated)

    def score(self, candidate: Candidate, form: FormWeights) -> dict[int, float]:
        """Return a document's score for each concept, by concept number and in order. Only the best term of a concept counts."""
        norm = self._get_norm(candidate.length, form.b)
        concepts: dict[int, float] = {}
        for term, often in candidate.counts.items():
            for number, weight in self._table.get(term, ()):
                score = weight * often / (often + norm)
                if score > concepts.get(number, 0.0):
                    concepts[number] = score
        if self._dated and self._is_dated(candidate):
            concepts[TIME] = self._dated
        return dict(sorted(concepts.items()))

    def mix_chunks(self, candidate: Candidate, concepts: dict[int, float]) -> ChunkScores | None:
        """Mix a document's scores with those of its best chunk; return None if it has no chunks, or none that matches."""
        shapes = read_chunks(candidate.detail)
        by_chunk: dict[int, dict[int, float]] = {}
        for term in candidate.counts if shapes else ():
            entries = self._table.get(term)
            if not entries:
                continue
            for chunk in find_chunks(candidate.detail, term):
                chunk_scores = by_chunk.setdefault(chunk, {})
                b = self._weights.chunk_b
                norm = self._weights.k1 * (1 - b + b * shapes[chunk].length / TARGET)
                for number, weight in entries:
                    score = weight / (1 + norm)
                    if score > chunk_scores.get(number, 0.0):
                        chunk_scores[number] = score
        if not by_chunk:
            return None
        best = max(sorted(by_chunk), key=lambda chunk: math.fsum(by_chunk[chunk].values()))
        share = self._weights.chunk + MORE_CHUNKS * min(len(shapes) / MANY_CHUNKS, 1.0)
        chunk_scores = by_chunk[best]
        mixed = {
            number: score if number == TIME else (1 - share) * score + share * chunk_scores.get(number, 0.0)
            for number, score in concepts.items()
        }
        return ChunkScores(mixed, best, shapes[best].traits)

    def has_named_time(self, candidate: Candidate) -> bool:
        """Return True if a document names a time that the question names."""
        detail = candidate.detail
        if not (self._question.days and detail):
            return False
        named = self._named_time.get(detail)
        if named is None:
            named = self._named_time[detail] = _has_overlap(read_mentions(detail), self._question.days)
        return named

    def _is_dated(self, candidate: Candidate) -> bool:
        return self._question.has_time(candidate.at) or self.has_named_time(candidate)

    def _get_norm(self, length: int, b: float) -> float:
        norm = self._norms.get((length, b))
        if norm is None:
            norm = self._norms[length, b] = self._weights.k1 * (1 - b + b * length / self._average)
        return norm


def is_about_day(candidate: Candidate, days: Collection[tuple[int, int]]) -> bool:
    """Return True if a document was said on one of these days (UTC, counted from the epoch), or names one of them."""
    day = candidate.at // DAY
    return any(first <= day < stop for first, stop in days) or _has_overlap(read_mentions(candidate.detail), days)


def _has_overlap(spans: Iterable[tuple[int, int]], others: Collection[tuple[int, int]]) -> bool:
    return any(first < end and start < last for start, end in spans for first, last in others)


def compute_rarity(documents: int, often: int) -> float:
    """Return the weight of a term by the number of documents that have it: BM25's IDF, never below 0."""
    return math.log(1 + (max(documents - often, 0) + 0.5) / (often + 0.5))


_ROUNDED: Final = 2e-9
"""Scores that differ by at least this much still differ after rounding to nine digits."""


class Parts(msgspec.Struct, frozen=True, gc=False):
    """The parts of a score, before the traits of the turn are applied."""

    own: float = 0.0
    """BM25 of the turn itself."""
    near: float = 0.0
    """Bonus from its neighbours."""
    session: float = 0.0
    """Bonus from its session."""
    traits: float = 1.0
    """Factor for its form, speaker and time."""
    keyword: float = 0.0
    """The parts above combined, as a share of the best place's."""
    vector: float | None = None
    """Vector similarity including neighbours, as a share of the best place's; None: not computed."""
    similarity: float | None = None
    """Cosine of the place's own vector and the question's vector; None: not computed."""


class Row(msgspec.Struct, gc=False):
    """The intermediate results of a place."""

    candidate: Candidate | None
    concepts: dict[int, float]
    """Its own score for each concept."""
    own: float = 0.0
    near: float = 0.0
    session: float = 0.0
    keyword: float = 0.0
    traits: float = 0.0
    """0: not computed yet."""
    chunk: int | None = None
    """Number of the best chunk; None: it has no chunks, or none that matches."""
    form: int | None = None
    """Traits of that chunk; None: those of the whole turn count."""
    vector: float | None = None
    similarity: float | None = None
    beside: float = -1.0
    """The similarity of its nearest neighbour, or its own."""


class Hit(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A ranked document."""

    candidate: Candidate
    score: float
    row: Row | None = None
    """The data from which the parts are computed; None: the document was not ranked."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        return (self.candidate, self.score, self.parts) == (other.candidate, other.score, other.parts)

    __hash__ = None  # type: ignore[assignment]  # unhashable, like its candidate

    @property
    def chunk(self) -> tuple[int, int] | None:
        """First character of the best chunk, and the character after its last; None: the whole turn, or unknown."""
        if self.row is None or self.row.chunk is None:
            return None
        shape = read_chunks(self.candidate.detail)[self.row.chunk]
        return shape.start, shape.stop

    @property
    def parts(self) -> Parts:
        """The parts of its score."""
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
    """Return the hits of rows by score, best first; equal scores newest first, then by session and position."""
    order = sorted(range(len(rows)), key=scores.__getitem__, reverse=True)
    hits: list[Hit] = []
    start, stop, count = 0, 1, len(rows)
    while start < count and (limit is None or len(hits) < limit):
        # Rows whose scores are equal after rounding stay together.
        while stop < count and scores[order[stop - 1]] - scores[order[stop]] < _ROUNDED:
            stop += 1
        together = [_make_hit(rows[at], scores[at]) for at in order[start:stop]]
        if stop - start > 1:
            together.sort(key=_make_sort_key)
        hits += together
        start, stop = stop, stop + 1
    while hits and hits[-1].score <= 0:
        hits.pop()
    return hits[:limit]


def _make_sort_key(hit: Hit) -> tuple[float, int, str, int]:
    found = hit.candidate
    return -hit.score, -found.at, found.session, found.seq


def _make_hit(row: Row, score: float) -> Hit:
    assert row.candidate is not None, "only existing documents are hits"
    return Hit(row.candidate, round(score, 9), row)

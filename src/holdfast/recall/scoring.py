"""Score documents: the weights of the ranking, the BM25 score of each concept of a question, and the resulting hits.

The weights are in `holdfast/data/recall/weights.json`, together with a note of how they were found. The score of a long document
combines the score of the whole document and that of its best chunk.

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
"""Number of steps from a pure dialogue to a pure chat. The position of a session is rounded to a step."""


class FormWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights that depend on the form of a session: a dialogue of short turns, or a chat with long turns.

    A bonus `x` multiplies a score by `1 + x`, a penalty `x` by `1 - x`, unless the text of the weight says otherwise.
    """

    b: float
    """BM25's `b`: the influence of the turn's length."""
    before: tuple[float, ...]
    """Weights of the scores of the previous turns, by distance. They replace the turn's own score where they are higher."""
    after: tuple[float, ...]
    """Like `before`, but for the next turns."""
    session: float
    """Bonus that is added to the score of each place in the best session. Scores are scaled before, so that the best place has the score 1."""
    covered: float
    """Bonus of a place that, together with its neighbours, has all concepts of the question."""
    long: float
    """Bonus for length, multiplied by `log1p(length / average length)`. The quotient is at most 1.5."""
    asks: float
    """Penalty of a turn that ends with a question."""
    asked: float
    """Penalty of a turn that consists of questions only."""
    yours: float
    """Penalty of a turn that speaks about the other participant."""
    time: float
    """Bonus of a turn with a time if the question asks for a time."""
    number: float
    """Bonus of a turn with a number if the question asks for a number."""
    speaker: float
    """Bonus of a turn by the speaker or the role that the question names."""
    user: float
    """Bonus of a turn by the user, unless the question asks what the assistant said."""
    vector_before: tuple[float, ...]
    """Weights of the similarities of the previous turns, by distance. They are added to the turn's own similarity."""
    vector_after: tuple[float, ...]
    """Like `vector_before`, but for the next turns."""
    traits: float
    """Exponent of the traits factor (`Parts.traits`) when it multiplies a similarity."""
    rrf: float
    """Constant of reciprocal rank fusion. The smaller it is, the more weight the first ranks have."""

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """The neighbours whose scores are used: the distance (negative: earlier) and the weight of each."""
        return _list_steps(self.before, self.after)

    @property
    def vector_steps(self) -> tuple[tuple[int, float], ...]:
        """The neighbours whose similarities are used: the distance (negative: earlier) and the weight of each."""
        return _list_steps(self.vector_before, self.vector_after)


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All weights of the ranking. A bonus `x` multiplies a score by `1 + x`."""

    k1: float
    """BM25's `k1`: the smaller it is, the less each repetition of a term raises the score."""
    name: float
    """Weight of a speaker's name in a question. It is low, because every greeting contains the name."""
    coded: float
    """Bonus of a turn with a code from the question. An answer about `ORD-12345` names this code."""
    then: float
    """Bonus of a turn from a time that the question names without asking for messages from this time."""
    said: float
    """Bonus of a turn from the time range that the question asks for."""
    about: float
    """Bonus of a turn whose text names a time that the question names."""
    dated: float
    """Weight of the question's times as a concept of their own. It finds turns that have nothing else in common with the question."""
    middle: float
    """Average length of a session's turns, in terms, at which the session is half dialogue, half chat."""
    steepness: float
    """Steepness of the transition from dialogue to chat as a function of the logarithm of the average length."""
    few_turns: float
    """Number of imaginary turns of average length that are added to a session, because few turns say little about its form."""
    chunk: float
    """Share of the best chunk in the score of a long turn. The rest is the share of the whole turn."""
    chunk_b: float
    """BM25's `b` for chunks: the influence of the chunk's length."""
    echo: float
    """Factor for the score of a turn next to a better turn, if the question has several answers."""
    dialogue: FormWeights
    chat: FormWeights
    foreign: float
    """In hybrid search, weight of the ranking by vectors if the model does not support the question's language. The ranking by words
    has weight 1."""
    few: int
    """Number of similarities below which the floor is lowered."""
    lowered: float
    """With `n` similarities, fewer than `few`, the floor is multiplied by `(n / few) ** lowered`: of few texts, even the nearest
    is not very similar."""
    beside: float
    """Share of the floor that a turn or a neighbour must reach for the turn to be found by vectors alone. In addition, some turn must
    reach the whole floor."""
    held: float
    """Share of the question's concepts, weighted by rarity, that a turn must contain to be an answer if no similarity reaches the
    floor."""

    def lower_floor(self, floor: float, compared: int) -> float:
        """Return the floor for a search that computed `compared` similarities; 0 if it computed none.

        Args:
            floor: the embedder's floor.
            compared: the number of similarities; if it is below `few`, the floor is lowered.
        """
        return floor * min(compared / self.few, 1.0) ** self.lowered if compared else 0.0

    def get_form(self, chat: float) -> FormWeights:
        """Return the weights for a session.

        Args:
            chat: position of the session between a dialogue (0) and a chat (1). It is rounded to one of a few steps, so that
                sessions share weights.
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
    """Return the distance (negative: before) and weight of each neighbour whose weight is not 0."""
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
"""The number of the concept that stands for all times of the question. The words of the question are numbered from 0."""
DAY: Final = 86_400_000
"""Milliseconds in a day."""
MANY_CHUNKS: Final = 32
MORE_CHUNKS: Final = 0.4
"""Added to `Weights.chunk` for a turn with at least `MANY_CHUNKS` chunks. With fewer chunks, proportionally less is added."""


class ChunkScores(NamedTuple):
    """The scores of a long document, mixed with those of its best chunk."""

    concepts: dict[int, float]
    """The mixed score of each concept, by the number of the concept."""
    chunk: int
    """Number of the best chunk, from 0."""
    traits: int
    """Traits of the best chunk."""


class ConceptScorer:
    """Scores documents by the concepts of one question.

    Args:
        question: the question.
        found: the candidates of the search by words.
        weights: the weights of the ranking.
        named: words of the question that are speakers' names. They have a low weight.
    """

    def __init__(self, question: Question, found: Candidates, weights: Weights, named: Collection[str]) -> None:
        self._weights = weights
        self._average = found.length / found.documents if found.documents and found.length else 1.0
        self._table: dict[str, list[tuple[int, float]]] = {}
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
        """Return a document's BM25 score for each concept that it contains, in order of the concepts' numbers.

        The score of a concept is that of its best term.
        """
        norm = self._weights.k1 * (1 - form.b + form.b * candidate.length / self._average)
        concepts: dict[int, float] = {}
        for term, often in candidate.counts.items():
            for number, weight in self._table.get(term, ()):
                score = weight * often / (often + norm)
                if score > concepts.get(number, 0.0):
                    concepts[number] = score
        if self._dated and self._is_dated(candidate):
            concepts[TIME] = self._dated
        return dict(sorted(concepts.items())) if len(concepts) > 1 else concepts

    def mix_chunks(self, candidate: Candidate, concepts: dict[int, float]) -> ChunkScores | None:
        """Mix a document's scores with those of its best chunk. Return None if no chunk contains a term of the question."""
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
        """Return True if the text of a document names a time that the question names too."""
        detail = candidate.detail
        if not (self._question.days and detail):
            return False
        named = self._named_time.get(detail)
        if named is None:
            named = self._named_time[detail] = _has_overlap(read_mentions(detail), self._question.days)
        return named

    def _is_dated(self, candidate: Candidate) -> bool:
        return self._question.has_time(candidate.at) or self.has_named_time(candidate)


def is_about_day(candidate: Candidate, days: Collection[tuple[int, int]]) -> bool:
    """Return True if a document is from one of these days or its text names one of them.

    Args:
        candidate: the document.
        days: spans of days: the first day and the day after the last, in days since the epoch (UTC).
    """
    day = candidate.at // DAY
    return any(first <= day < stop for first, stop in days) or _has_overlap(read_mentions(candidate.detail), days)


def _has_overlap(spans: Iterable[tuple[int, int]], others: Collection[tuple[int, int]]) -> bool:
    return any(first < end and start < last for start, end in spans for first, last in others)


def compute_rarity(documents: int, often: int) -> float:
    """Return the weight of a term for its rarity: BM25's IDF, never below 0.

    Args:
        documents: the number of all documents.
        often: the number of documents that contain the term.
    """
    return math.log(1 + (max(documents - often, 0) + 0.5) / (often + 0.5))


_ROUNDED: Final = 2e-9
"""Scores that differ by at least this much still differ after rounding to nine digits."""


class Parts(msgspec.Struct, frozen=True, gc=False):
    """The parts of a turn's score."""

    own: float = 0.0
    """BM25 score of the turn itself."""
    near: float = 0.0
    """Score that the turn's neighbours add."""
    session: float = 0.0
    """Sum of the best scores of each concept in the session. The bonus for the session is proportional to it."""
    traits: float = 1.0
    """Factor for the turn's form, speaker, length and time."""
    keyword: float = 0.0
    """The score by words, which combines the parts above. Before it is multiplied by `traits`, it is divided by the best place's score."""
    vector: float | None = None
    """Sum of the turn's similarity and its neighbours' weighted similarities, divided by the best place's sum; None: not computed."""
    similarity: float | None = None
    """Cosine of the turn's vector and the question's vector; None: not computed."""


class Row(msgspec.Struct, gc=False):
    """The intermediate results for a place. Fields without a text are described in `Parts`."""

    candidate: Candidate | None
    """The document; None: not read yet."""
    concepts: dict[int, float]
    """The score of the turn itself for each concept, by the number of the concept."""
    own: float = 0.0
    near: float = 0.0
    session: float = 0.0
    keyword: float = 0.0
    traits: float = 0.0
    """As in `Parts`; 0: not computed yet."""
    chunk: int | None = None
    """Number of the best chunk; None: the turn has no chunks, or none of them matches."""
    form: int | None = None
    """Traits of the best chunk, which replace those of the whole turn; None: there is no best chunk."""
    vector: float | None = None
    similarity: float | None = None
    beside: float = -1.0
    """The highest similarity among the turn itself and its neighbours."""


class Hit(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A ranked document."""

    candidate: Candidate
    score: float
    row: Row | None = None
    """The data from which `parts` is computed; None: the document was not ranked."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        return (self.candidate, self.score, self.parts) == (other.candidate, other.score, other.parts)

    __hash__ = None  # type: ignore[assignment]  # unhashable, like its candidate

    @property
    def chunk(self) -> tuple[int, int] | None:
        """Start and stop of the best chunk in the text; None: there is no best chunk."""
        if self.row is None or self.row.chunk is None:
            return None
        shape = read_chunks(self.candidate.detail)[self.row.chunk]
        return shape.start, shape.stop

    @property
    def parts(self) -> Parts:
        """The parts of the score, for explanations. Defaults if the document was not ranked."""
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
    """Return the rows with a score above 0 as hits, best first. Rows with equal scores are ordered newest first, then by session and position.

    Args:
        rows: the places; each must have its document.
        scores: the score of each row. It is rounded to nine digits.
        limit: maximum number of hits; None: no limit.
    """
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

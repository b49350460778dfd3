"""Ranking: candidates to an order, with the parts of each score. Pure: the same candidates in any order give the same ranking.

A turn is seldom found by its own words alone. People answer questions, and the words of the topic stand in the question; a session
is about something from its first turn to its last. So each concept of a question counts in a turn what it counts there (BM25) or
what it counts in the turns around, weighed by distance, whichever is more; what comes before weighs more than what comes behind. The
best that the session holds of each concept is added. What is then left to tell apart are turns of one place: there a turn that tells
goes before one that asks, a time before none where a time is asked for, and a turn of whom the question names before the other's.

Words find nothing where there is nothing; of vectors some are always the nearest. So what they alone have found counts only from a
floor on, which is the embedder's: how near to each other texts are that have nothing in common differs from model to model.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009). Fusion with vectors: reciprocal ranks, Cormack, Clarke and
Büttcher, "Reciprocal Rank Fusion" (2009). All numbers are in `holdfast.recall.weights`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.questions import Question
from holdfast.recall.terms import ASKS, NUMBERED, TIMED, YOURS, asked_share
from holdfast.recall.weights import WEIGHTS, Weights

Place = tuple[int, int]
"""Where a document stands: its source's number, and its place there."""


class Parts(msgspec.Struct, frozen=True, gc=False):
    """What a score is made of; before the traits of the turn are counted."""

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


class _Row(msgspec.Struct, gc=False):
    """What is known of a place."""

    candidate: Candidate | None
    concepts: dict[int, float]
    """What stands there itself."""
    own: float = 0.0
    near: float = 0.0
    session: float = 0.0
    keyword: float = 0.0
    traits: float = 0.0
    """0: not worked out yet."""
    vector: float | None = None
    similarity: float | None = None
    beside: float = -1.0
    """The similarity of its nearest neighbour, or its own."""


class Hit(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A document in its rank."""

    candidate: Candidate
    score: float
    row: _Row | None = None
    """What its parts are made of; None: it was not ranked."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        return (self.candidate, self.score, self.parts) == (other.candidate, other.score, other.parts)

    __hash__ = None  # type: ignore[assignment]  # as that of its candidate

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


_NOTHING: Final[dict[int, float]] = {}
_SOURCE: Final = (1 << 40) + 0x9E3779B1
"""What a place's key grows by from source to source, so that neighbours have neighbouring keys. No power of two: in a dict, the
first places of all sources would stand in each other's way."""
_ROUNDED: Final = 2e-9
"""Scores that are this far apart are still apart when they are rounded to nine digits."""
_LEAST: Final = 0.01
"""What the least similarity counts: it may be the only one, or all may be equal."""
_LONGEST: Final = 1.5
"""Average lengths from which a turn is no longer for its rank."""
STRONG: Final = 100
"""Matching places, the best, around which neighbours are thought of that match nothing themselves."""


class Ranking:
    """The places that may answer a question, and their order.

    Args:
        question: what is looked for.
        found: what the terms found; None: keywords do not count.
        similar: what the vectors found; None: they do not count. With both, ranks are fused.
        weights: other ones than the tuned, for experiments.
        floor: the similarity that something must have for vectors to have found anything; 0: whatever is nearest.
    """

    def __init__(
        self,
        question: Question,
        found: Candidates | None,
        similar: Sequence[Similar] | None = None,
        weights: Weights = WEIGHTS,
        floor: float = 0.0,
    ) -> None:
        self._question = question
        self._floor = weights.floor_among(floor, len(similar or ()))
        self._nearest = -1.0
        self._found = found
        self._weights = weights
        self._rows: dict[int, _Row] = {}
        self._keyword = found is not None
        self._vector = similar is not None
        self._average = found.length / found.documents if found and found.documents and found.length else 1.0
        candidates = [*(found.found if found else ()), *(one.candidate for one in similar or ())]
        names = {candidate.name for candidate in candidates}
        self._named = {concept.word for concept in question.concepts} & _speakers(names)
        self._codes = {at for at, concept in enumerate(question.concepts) if _is_code(concept.word)}
        self._by_form: dict[tuple[int, str, str | None], float] = {}
        self._by_length: dict[int, float] = {}
        self._steps = _steps(weights.before, weights.behind)
        if found:
            self._by_words(found)
        if similar is not None:
            self._by_vectors(similar)

    def missing(self, limit: int) -> list[Place]:
        """The places among the first ones of which nothing is known yet: a good neighbour may match nothing itself.

        Args:
            limit: how many hits are wanted in the end.
        """
        most = (1 + self._weights.speaker) * (1 + self._weights.long)
        rows, traits = self._rows, self._traits
        promised = {
            key: row.keyword * (most if row.candidate is None else row.traits or traits(row))
            for key, row in rows.items()
        }
        first = sorted(sorted(rows), key=promised.__getitem__, reverse=True)[: 2 * limit + 20]
        return [divmod(key, _SOURCE) for key in first if rows[key].candidate is None]

    def fill(self, near: Iterable[Candidate], asked: Iterable[Place]) -> None:
        """Take in what was found at places that were missing; those of `asked` where nothing was are no places."""
        for candidate in near:
            row = self._rows.get(candidate.source * _SOURCE + candidate.place)
            if row is not None and row.candidate is None:
                row.candidate = candidate
        for source, place in asked:
            row = self._rows.get(source * _SOURCE + place)
            if row is not None and row.candidate is None:
                del self._rows[source * _SOURCE + place]

    def hits(self, limit: int | None = None) -> list[Hit]:
        """The documents, best first; equal ones newest first, then by session and position."""
        rows, traits = [row for row in self._rows.values() if row.candidate is not None], self._traits
        for row in rows:
            if not row.traits:
                traits(row)
        scores = self._fused(rows) if self._vector and self._keyword else self._single(rows)
        if self._floor > 0:
            scores = [
                score if row.keyword > 0 or self._is_near(row) else 0.0 for row, score in zip(rows, scores, strict=True)
            ]
        return _ordered(rows, scores, limit)

    def answers(self, hits: Sequence[Hit]) -> bool:
        """Whether some of these hits are surely more than what stands nearest to any question at all.

        One is as near as the floor, or states enough of the question itself. True where there are no vectors, or no floor, to tell by.
        """
        if self._floor <= 0:
            return True
        rows = [hit.row for hit in hits if hit.row is not None]
        if any(row.similarity is not None and row.similarity >= self._floor for row in rows):
            return True
        rarities = self._rarities()
        least = self._weights.held * sum(rarities)
        return any(sum(rarities[number] for number in row.concepts) >= least for row in rows if row.concepts)

    def _is_near(self, row: _Row) -> bool:
        """Whether a place that no word leads to is near enough."""
        return self._nearest >= self._floor and row.beside >= self._weights.beside * self._floor

    def _rarities(self) -> list[float]:
        """How rare each concept of the question is, by its commonest term; what nobody has said is the rarest."""
        found = self._found
        if found is None:
            return []
        often = (max(found.frequencies.get(term, 0) for term, _ in one.variants) for one in self._question.concepts)
        return [_rarity(found.documents, count) for count in often]

    # -- by words ----------------------------------------------------------------

    def _by_words(self, found: Candidates) -> None:
        """Each place's own share of each concept, its neighbours', and its session's."""
        concepts_in, rows, slots = self._stating(found), self._rows, len(self._question.concepts)
        held: dict[int, float] = {}  # the best of each concept in each source
        for candidate in found.found:
            concepts = concepts_in(candidate)
            if not concepts:
                continue
            source = candidate.source
            rows[source * _SOURCE + candidate.place] = _Row(candidate, concepts, sum(concepts.values()))
            for concept, score in concepts.items():
                slot = source * slots + concept
                if score > held.get(slot, 0.0):
                    held[slot] = score
        best: dict[int, float] = {}
        sessions: dict[int, float] = {}
        for slot, score in held.items():
            source, concept = divmod(slot, slots)
            sessions[source] = sessions.get(source, 0.0) + score
            if score > best.get(concept, 0.0):
                best[concept] = score
        near = self._around()
        for key in sorted(near.keys() - rows.keys()):
            rows[key] = _Row(None, _NOTHING)
        self._with_neighbours(near, best)
        self._with_sessions(sessions)

    def _table(self, found: Candidates) -> dict[str, list[tuple[int, float]]]:
        """By term, the concepts that it stands for, with its weight there times its rarity."""
        table: dict[str, list[tuple[int, float]]] = {}
        for number, concept in enumerate(self._question.concepts):
            whole = self._weights.name if concept.word in self._named else 1.0
            for term, weight in concept.variants:
                often = found.frequencies.get(term, 0)
                rarity = _rarity(found.documents, often)
                table.setdefault(term, []).append((number, whole * weight * rarity * (self._weights.k1 + 1)))
        return table

    def _stating(self, found: Candidates) -> Callable[[Candidate], dict[int, float]]:
        """What says what a document states of each concept, by BM25: of several terms of one the best counts."""
        table, average, k1, b = self._table(found), self._average, self._weights.k1, self._weights.b
        nothing: list[tuple[int, float]] = []
        slows: dict[int, float] = {}

        def concepts_in(candidate: Candidate) -> dict[int, float]:
            length = candidate.length
            slow = slows.get(length)
            if slow is None:
                slow = slows[length] = k1 * (1 - b + b * length / average)
            concepts: dict[int, float] = {}
            for term, often in candidate.counts.items():
                for number, weight in table.get(term, nothing):
                    score = weight * often / (often + slow)
                    if score > concepts.get(number, 0.0):
                        concepts[number] = score
            return concepts

        return concepts_in

    def _around(self) -> dict[int, dict[int, float]]:
        """By place, what its neighbours state of each concept: of places that are known, and of those beside the best ones."""
        rows = self._rows
        strong = sorted(sorted(rows), key=lambda key: rows[key].own, reverse=True)[:STRONG]
        beside = {key - step for key in strong for step, _ in self._steps if key % _SOURCE >= step}
        places = beside | rows.keys()
        found: dict[int, dict[int, float]] = {}
        for step, weight in self._steps:
            for at, row in rows.items():
                key = at - step
                if key not in places:
                    continue
                near = found.get(key)
                if near is None:
                    found[key] = {concept: weight * score for concept, score in row.concepts.items()}
                    continue
                for concept, score in row.concepts.items():
                    near[concept] = near.get(concept, 0.0) + weight * score
        return found

    def _with_neighbours(self, around: Mapping[int, dict[int, float]], best: Mapping[int, float]) -> None:
        """What stands around each place, concept by concept, where that is more than what stands there itself."""
        whole, covered = sum(best.values()) or 1.0, self._weights.covered
        for key, row in self._rows.items():
            near = around.get(key)
            beyond = held = 0.0
            for concept, score in row.concepts.items():
                held += best[concept]
                if near and concept in near:
                    beyond += max(near.pop(concept) - score, 0.0)
            if near:
                for concept, score in near.items():
                    held += best[concept]
                    beyond += score
            row.near = beyond
            row.keyword = (row.own + beyond) * (1 + covered * held / whole)

    def _with_sessions(self, sessions: Mapping[int, float]) -> None:
        """The best that a session holds of each concept, added to all its places; then all as shares."""
        top, most = _top([row.keyword for row in self._rows.values()]), _top(sessions.values())
        shares = {source: self._weights.session * session / most for source, session in sessions.items()}
        for key, row in self._rows.items():
            source = row.candidate.source if row.candidate else key // _SOURCE
            row.session = sessions[source]  # beside a place that matches there is its source
            row.keyword = row.keyword / top + shares[source]

    # -- by vectors --------------------------------------------------------------

    def _by_vectors(self, similar: Sequence[Similar]) -> None:
        """Similarities smoothed over neighbours, as shares between the least and the most; one not known counts as the least."""
        given = {one.candidate.source * _SOURCE + one.candidate.place: one.similarity for one in similar}
        least, self._nearest = min(given.values(), default=0.0), max(given.values(), default=-1.0)
        known = {key: similarity - least + _LEAST for key, similarity in given.items()}
        steps = _steps(self._weights.vector_before, self._weights.vector_behind)
        smooth = {
            key: value + sum(weight * known.get(key + step, 0.0) for step, weight in steps)
            for key, value in known.items()
        }
        top = _top(smooth.values())
        for one in similar:
            key = one.candidate.source * _SOURCE + one.candidate.place
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = _Row(one.candidate, _NOTHING)
            row.candidate = row.candidate or one.candidate
            row.vector, row.similarity = smooth[key] / top, one.similarity
            row.beside = max((one.similarity, *(given.get(key + step, -1.0) for step, _ in steps)))

    # -- all together ------------------------------------------------------------

    def _traits(self, row: _Row) -> float:
        """What form, speaker, length and time of a turn multiply."""
        candidate = row.candidate
        if row.traits or candidate is None:
            return row.traits
        form = candidate.traits, candidate.role, candidate.name
        share = self._by_form.get(form)
        if share is None:
            share = self._by_form[form] = self._of_form(*form)
        long = self._by_length.get(candidate.length)
        if long is None:
            average = min(candidate.length / self._average, _LONGEST)
            long = self._by_length[candidate.length] = 1 + self._weights.long * math.log1p(average)
        if any(start <= candidate.at < stop for start, stop in self._question.mentioned):
            share *= 1 + self._weights.then
        if self._codes and not self._codes.isdisjoint(row.concepts):
            share *= 1 + self._weights.coded
        row.traits = share * long
        return row.traits

    def _of_form(self, traits: int, role: str, name: str | None) -> float:
        weights, question = self._weights, self._question
        share = (1 - weights.asked * asked_share(traits)) * (1 - weights.asks * bool(traits & ASKS))
        share *= 1 - weights.yours * bool(traits & YOURS)
        if question.asks_time and traits & TIMED:
            share *= 1 + weights.time
        if question.asks_number and traits & NUMBERED:
            share *= 1 + weights.number
        if role == question.role or (self._named and not self._named.isdisjoint(_words(name))):
            share *= 1 + weights.speaker
        return share

    def _single(self, rows: Sequence[_Row]) -> list[float]:
        """Scores where one kind of search counts alone."""
        if self._keyword:
            return [row.keyword * row.traits for row in rows]
        return [(row.vector or 0.0) * row.traits**self._weights.traits for row in rows]

    def _fused(self, rows: Sequence[_Row]) -> list[float]:
        """Reciprocal ranks of both lists, weighed and summed; what a list does not hold adds nothing."""
        lists = (
            [row.keyword * row.traits for row in rows],
            [(row.vector or 0.0) * row.traits**self._weights.traits for row in rows],
        )
        scores = [0.0] * len(rows)
        for values, weight in zip(lists, self._weights.fused, strict=True):
            for at, rank in _ranks(values):
                scores[at] += weight / (self._weights.rrf + rank)
        return scores


def _ranks(values: Sequence[float]) -> Iterable[tuple[int, int]]:
    """Place and rank of each value above 0, from 1; equal values have equal ranks."""
    order = sorted((at for at, value in enumerate(values) if value > 0), key=lambda at: -values[at])
    rank, last = 0, math.inf
    for count, at in enumerate(order, start=1):
        if (value := round(values[at], 9)) < last:
            rank, last = count, value
        yield at, rank


def _rarity(documents: int, often: int) -> float:
    """How much a term says that stands in so many of all documents (BM25's IDF, never below 0)."""
    return math.log(1 + (max(documents - often, 0) + 0.5) / (often + 0.5))


def _is_code(word: str) -> bool:
    """Whether it is more than a word, a number, or words with hyphens: it has another mark within, or letters and digits."""
    bare = word.replace("-", "")
    return word.isascii() and not (bare.isalpha() or word.isdecimal())


def _steps(before: Sequence[float], behind: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Where a place's neighbours stand, seen from it, and what each counts."""
    return (
        *((-distance, weight) for distance, weight in enumerate(before, start=1)),
        *((distance, weight) for distance, weight in enumerate(behind, start=1)),
    )


def _top(values: Iterable[float]) -> float:
    return max(values, default=0.0) or 1.0


def _words(name: str | None) -> frozenset[str]:
    return frozenset(name.casefold().split()) if name else frozenset()


def _speakers(names: Iterable[str | None]) -> frozenset[str]:
    """The words of the names of those who speak; of one alone none, for then a name tells nothing apart."""
    told = {name for name in names if name}
    return frozenset(word for name in told for word in _words(name)) if len(told) > 1 else frozenset()


def _ordered(rows: Sequence[_Row], scores: Sequence[float], limit: int | None) -> list[Hit]:
    """The hits of rows by their scores, best first; see `Ranking.hits`."""
    order = sorted(range(len(rows)), key=scores.__getitem__, reverse=True)
    hits: list[Hit] = []
    start, stop, count = 0, 1, len(rows)
    while start < count and (limit is None or len(hits) < limit):
        # Those that are equal when they are rounded stand together.
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


def _hit(row: _Row, score: float) -> Hit:
    assert row.candidate is not None, "only what is there is a hit"
    return Hit(row.candidate, round(score, 9), row)

"""Rank candidates, and return the parts of each score. The order of the candidates does not matter. Pure functions.

A turn is seldom found by its own words alone. People answer questions, and the words of the topic are in the question; a session
is about one topic from its first turn to its last. So a turn's score for a concept is its own score (BM25) or that of the
surrounding turns, weighted by distance, whichever is higher; earlier turns weigh more than later ones. The best score of the
concept in the session is added. Turns at the same place are then told apart: statements rank before questions, turns with a time
first if a time is asked for, and turns of the speaker whom the question names before those of others.

That holds for dialogues of short turns. In a chat with an assistant, messages are long and each has its own topic: neighbours and
session count less, length counts more, and the user's messages rank first, because replies only repeat what people ask for later.
The average length of a session's turns determines how much it is one or the other; see `holdfast.recall.scoring`.

Words find nothing if there is nothing, but some vectors are always nearest. So results found by vectors alone count only above a
floor. The embedder defines it, because the similarity of unrelated texts differs from model to model.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009). Fusion with vectors: reciprocal ranks, Cormack,
Clarke and Büttcher, "Reciprocal Rank Fusion" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.questions import Question
from holdfast.recall.scoring import WEIGHTS, ConceptScorer, FormWeights, Hit, Row, Weights, compute_rarity, order_hits
from holdfast.recall.terms import ASKS, NUMBERED, TIMED, YOURS, get_asked_share

Place = tuple[int, int]
"""The position of a document: its source's number, and its place in the source."""

_NOTHING: Final[dict[int, float]] = {}
_SOURCE: Final = (1 << 40) + 0x9E3779B1
"""Distance between the keys of one source and the next, so that neighbours have neighbouring keys. Not a power of two, because
then the first places of all sources would collide in a dict."""
_LEAST: Final = 0.01
"""Weight of the lowest similarity. It is above 0, since this may be the only similarity, or all may be equal."""
_LONGEST: Final = 1.5
"""The bonus for length stops growing at this many times the average length."""
_BELOW: Final = 0.99
"""If a question has one concept, a turn without it scores at most this share of its neighbour's score."""
CHUNKED: Final = 100
"""The best chunk is scored for this many long turns, the best ones."""
STRONG: Final = 100
"""Neighbours that match nothing themselves are considered for this many of the best matching places."""


class Ranking:
    """The places that may answer a question, and their order.

    Args:
        question: the question.
        found: the candidates that the terms found; None: keywords do not count.
        similar: the candidates that the vectors found; None: vectors do not count. With both, ranks are fused.
        weights: replaces the tuned weights in experiments.
        floor: the minimum similarity at which vectors count as having found something; 0: no minimum.
        knows: whether the embedding model supports the language of the question.
    """

    def __init__(
        self,
        question: Question,
        found: Candidates | None,
        similar: Sequence[Similar] | None = None,
        weights: Weights = WEIGHTS,
        floor: float = 0.0,
        *,
        knows: bool = True,
    ) -> None:
        self._question = question
        self._floor = weights.lower_floor(floor, len(similar or ()))
        self._nearest = -1.0
        self._vector_share = 1.0 if knows else weights.foreign
        self._found = found
        self._weights = weights
        self._rows: dict[int, Row] = {}
        self._keyword = found is not None
        self._vector = similar is not None
        candidates = [*(found.found if found else ()), *(one.candidate for one in similar or ())]
        self._average = _compute_average(found, candidates)
        names = {candidate.name for candidate in candidates}
        self._named = {concept.word for concept in question.concepts} & _collect_speaker_words(names)
        self._codes = {at for at, concept in enumerate(question.concepts) if _is_code(concept.word)}
        self._traits_of: dict[tuple[int, str, str | None, FormWeights], float] = {}
        self._longer: dict[tuple[int, float], float] = {}
        self._forms = self._choose_forms(candidates)
        self._statements = None if found is None else ConceptScorer(question, found, weights, self._named)
        if found:
            self._score_words(found)
        if similar is not None:
            self._score_vectors(similar)

    def list_missing(self, limit: int) -> list[Place]:
        """Return top-ranked places whose documents have not been read yet, such as good neighbours that match nothing themselves.

        Args:
            limit: the number of hits that the caller wants in the end.
        """
        forms = (self._weights.dialogue, self._weights.chat)
        most = max((1 + form.speaker) * (1 + form.long) * (1 + form.user) for form in forms)
        if self._question.spans or self._question.days:
            most *= (1 + max(self._weights.then, self._weights.said)) * (1 + self._weights.about)
        rows, traits = self._rows, self._compute_traits
        promised = {
            key: row.keyword * (most if row.candidate is None else row.traits or traits(row))
            for key, row in rows.items()
        }
        first = sorted(sorted(rows), key=promised.__getitem__, reverse=True)[: 2 * limit + 20]
        return [divmod(key, _SOURCE) for key in first if rows[key].candidate is None]

    def fill(self, near: Iterable[Candidate], asked: Iterable[Place]) -> None:
        """Add documents found at missing places; remove those places of `asked` that have none."""
        for candidate in near:
            row = self._rows.get(candidate.source * _SOURCE + candidate.place)
            if row is not None and row.candidate is None:
                row.candidate = candidate
        for source, place in asked:
            row = self._rows.get(source * _SOURCE + place)
            if row is not None and row.candidate is None:
                del self._rows[source * _SOURCE + place]

    def list_hits(self, limit: int | None = None) -> list[Hit]:
        """Return the documents, best first; equal scores newest first, then by session and position."""
        rows, traits = [row for row in self._rows.values() if row.candidate is not None], self._compute_traits
        for row in rows:
            if not row.traits:
                traits(row)
        scores = self._fuse(rows) if self._vector and self._keyword else self._score_single(rows)
        if self._floor > 0:
            scores = [
                score if row.keyword > 0 or self._is_near(row) else 0.0 for row, score in zip(rows, scores, strict=True)
            ]
        if self._question.asks_many:
            scores = self._dampen_echoes(rows, scores)
        return order_hits(rows, scores, limit)

    def has_answer(self, hits: Sequence[Hit]) -> bool:
        """Return True if some of these hits are clearly better than the nearest hits of an unrelated question.

        One hit must reach the floor, or contain enough of the question itself. Always True without vectors or without a floor.
        """
        if self._floor <= 0:
            return True
        rows = [hit.row for hit in hits if hit.row is not None]
        if any(row.similarity is not None and row.similarity >= self._floor for row in rows):
            return True
        rarities = self._compute_rarities()
        least = self._weights.held * sum(rarities)
        stated = ([rarities[number] for number in row.concepts if number >= 0] for row in rows)  # without the times
        return any(sum(some) >= least for some in stated if some)

    def _dampen_echoes(self, rows: Sequence[Row], scores: Sequence[float]) -> list[float]:
        """Lower the scores of turns next to a better one, because neighbours often repeat an answer and several are wanted."""
        spread = list(scores)
        better: set[int] = set()
        for at in sorted(range(len(rows)), key=lambda at: (-round(scores[at], 9), _make_newest_key(rows[at]))):
            candidate = rows[at].candidate
            assert candidate is not None, "only existing documents are ranked"
            key = candidate.source * _SOURCE + candidate.place
            if key - 1 in better or key + 1 in better:
                spread[at] *= self._weights.echo
            better.add(key)
        return spread

    def _is_near(self, row: Row) -> bool:
        """Return True if a place that no word found is similar enough."""
        return self._nearest >= self._floor and row.beside >= self._weights.beside * self._floor

    def _compute_rarities(self) -> list[float]:
        """Return the rarity of each concept of the question: that of its most common term. Unknown concepts are the rarest."""
        found = self._found
        if found is None:
            return []
        often = (max(found.frequencies.get(term, 0) for term, _ in one.variants) for one in self._question.concepts)
        return [compute_rarity(found.documents, count) for count in often]

    # -- scores by words ---------------------------------------------------------

    def _choose_forms(self, candidates: Sequence[Candidate]) -> dict[int, FormWeights]:
        """Choose the weights of each source by the average length of its known turns."""
        few, middle, steepness = self._weights.few_turns, self._weights.middle, self._weights.steepness
        sizes: dict[int, list[int]] = {}
        for candidate in candidates:
            size = sizes.setdefault(candidate.source, [0, 0])
            size[0] += 1
            size[1] += candidate.length
        found = {}
        for source, (count, length) in sizes.items():
            average = (length + few * self._average) / (count + few)
            found[source] = self._weights.get_form(1 / (1 + (middle / max(average, 1e-9)) ** steepness))
        return found

    def _score_words(self, found: Candidates) -> None:
        """Score each place by the concepts in itself, in its neighbours, and in its session."""
        assert self._statements is not None, "keywords are searched"
        score, rows, forms = self._statements.score, self._rows, self._forms
        for candidate in found.found:
            if concepts := score(candidate, forms[candidate.source]):
                rows[candidate.source * _SOURCE + candidate.place] = Row(candidate, concepts, sum(concepts.values()))
        self._apply_chunks()
        best_by_source: dict[int, dict[int, float]] = {}  # the best score of each concept in each source
        for key, row in rows.items():
            of_source = best_by_source.setdefault(key // _SOURCE, {})
            for concept, share in row.concepts.items():
                if share > of_source.get(concept, 0.0):
                    of_source[concept] = share
        best: dict[int, float] = {}
        for of_source in best_by_source.values():
            for concept, share in of_source.items():
                if share > best.get(concept, 0.0):
                    best[concept] = share
        sessions = {source: sum(of_source.values()) for source, of_source in best_by_source.items()}
        near = self._sum_neighbours()
        for key in sorted(near.keys() - rows.keys()):
            rows[key] = Row(None, _NOTHING)
        self._apply_neighbours(near, best)
        self._apply_sessions(sessions)

    def _apply_chunks(self) -> None:
        """Add the best chunk's scores to the best long turns, of which there may be very many."""
        assert self._statements is not None, "keywords are searched"
        rows = self._rows
        long = [key for key, row in rows.items() if row.candidate is not None and row.candidate.detail]
        for key in sorted(sorted(long), key=lambda key: rows[key].own, reverse=True)[:CHUNKED]:
            row = rows[key]
            assert row.candidate is not None, "only existing documents were scored"
            stated = self._statements.mix_chunks(row.candidate, row.concepts)
            if stated is not None:
                row.concepts, row.chunk, row.form = stated
                row.own = sum(row.concepts.values())

    def _sum_neighbours(self) -> dict[int, dict[int, float]]:
        """Return the neighbours' scores for each concept by place, for known places and those next to the best ones."""
        rows, forms = self._rows, self._forms
        strong = sorted(sorted(rows), key=lambda key: rows[key].own, reverse=True)[:STRONG]
        places = {
            key - step for key in strong for step, _ in forms[key // _SOURCE].steps if key % _SOURCE >= step
        } | rows.keys()
        found: dict[int, dict[int, float]] = {}
        for at, row in rows.items():
            for step, weight in forms[at // _SOURCE].steps:
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

    def _apply_neighbours(self, around: Mapping[int, dict[int, float]], best: Mapping[int, float]) -> None:
        """Add the neighbours' score for each concept where it exceeds the place's own."""
        whole, forms = sum(best.values()) or 1.0, self._forms
        for key, row in self._rows.items():
            near, covered = around.get(key), forms[key // _SOURCE].covered
            beyond = matched = 0.0
            for concept, score in row.concepts.items():
                matched += best[concept]
                if near and concept in near:
                    beyond += max(near.pop(concept) - score, 0.0)
            if near:
                for concept, score in near.items():
                    matched += best[concept]
                    beyond += score
            row.near = beyond
            row.keyword = (row.own + beyond) * (1 + covered * matched / whole)

    def _apply_sessions(self, sessions: Mapping[int, float]) -> None:
        """Add each session's best score for each concept to all its places, and convert all scores to shares."""
        top, most = _get_top([row.keyword for row in self._rows.values()]), _get_top(sessions.values())
        shares = {source: self._forms[source].session * session / most for source, session in sessions.items()}
        for key, row in self._rows.items():
            source = row.candidate.source if row.candidate else key // _SOURCE
            row.session = sessions[source]  # a place is here only because its source has a match
            row.keyword = row.keyword / top + shares[source]

    # -- scores by vectors -------------------------------------------------------

    def _score_vectors(self, similar: Sequence[Similar]) -> None:
        """Smooth similarities over neighbours, and scale them from the lowest to the highest. Unknown ones count as lowest."""
        given = {one.candidate.source * _SOURCE + one.candidate.place: one.similarity for one in similar}
        least, self._nearest = min(given.values(), default=0.0), max(given.values(), default=-1.0)
        known = {key: similarity - least + _LEAST for key, similarity in given.items()}
        forms = self._forms
        smooth = {
            key: value + sum(weight * known.get(key + step, 0.0) for step, weight in forms[key // _SOURCE].vector_steps)
            for key, value in known.items()
        }
        top = _get_top(smooth.values())
        for one in similar:
            key = one.candidate.source * _SOURCE + one.candidate.place
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = Row(one.candidate, _NOTHING)
            row.candidate = row.candidate or one.candidate
            row.vector, row.similarity = smooth[key] / top, one.similarity
            steps = self._weights.dialogue.vector_steps  # the weights of neighbours do not depend on the form
            row.beside = max((one.similarity, *(given.get(key + step, -1.0) for step, _ in steps)))

    # -- combined scores ---------------------------------------------------------

    def _compute_traits(self, row: Row) -> float:
        """Return the factor of a turn for its form, speaker, length and time."""
        candidate = row.candidate
        if row.traits or candidate is None:
            return row.traits
        weights, form = self._weights, self._forms[candidate.source]
        traits = candidate.traits if row.form is None else row.form
        known = traits, candidate.role, candidate.name, form
        share = self._traits_of.get(known)
        if share is None:
            share = self._traits_of[known] = self._compute_form_factor(*known)
        long = self._longer.get((candidate.length, form.long))
        if long is None:
            average = min(candidate.length / self._average, _LONGEST)
            long = self._longer[candidate.length, form.long] = 1 + form.long * math.log1p(average)
        if self._question.has_time(candidate.at):
            share *= 1 + (weights.then if self._question.range is None else weights.said)
        if self._statements is not None and self._statements.has_named_time(candidate):
            share *= 1 + weights.about
        if self._codes and not self._codes.isdisjoint(row.concepts):
            share *= 1 + weights.coded
        row.traits = share * long
        return row.traits

    def _compute_form_factor(self, traits: int, role: str, name: str | None, form: FormWeights) -> float:
        question = self._question
        share = (1 - form.asked * get_asked_share(traits)) * (1 - form.asks * bool(traits & ASKS))
        share *= 1 - form.yours * bool(traits & YOURS)
        if question.asks_time and traits & TIMED:
            share *= 1 + form.time
        if question.asks_number and traits & NUMBERED:
            share *= 1 + form.number
        if role == question.role or (self._named and not self._named.isdisjoint(_split_name(name))):
            share *= 1 + form.speaker
        if role == "user" and question.role != "assistant":
            share *= 1 + form.user
        return share

    def _score_single(self, rows: Sequence[Row]) -> list[float]:
        """Return the scores if only one kind of search counts."""
        if self._keyword:
            return self._score_by_keyword(rows)
        return self._score_by_vector(rows)

    def _score_by_vector(self, rows: Sequence[Row]) -> list[float]:
        """Return the scores by similarity."""
        return [
            0.0
            if row.vector is None or row.candidate is None
            else row.vector * row.traits ** self._forms[row.candidate.source].traits
            for row in rows
        ]

    def _score_by_keyword(self, rows: Sequence[Row]) -> list[float]:
        """Return the scores by words. If a question has one concept, a turn without it ranks after its neighbour with it."""
        scores = [row.keyword * row.traits for row in rows]
        if len(self._question.concepts) != 1:
            return scores
        by_key = {
            row.candidate.source * _SOURCE + row.candidate.place: (row, score)
            for row, score in zip(rows, scores, strict=True)
            if row.candidate is not None and _has_word(row)
        }
        for at, row in enumerate(rows):
            if row.candidate is None or _has_word(row):
                continue
            key = row.candidate.source * _SOURCE + row.candidate.place
            beside = [by_key[key + step] for step, _ in self._forms[row.candidate.source].steps if key + step in by_key]
            asked = key - 1 in by_key and by_key[key - 1][0].candidate.traits & ASKS  # type: ignore[union-attr]  # as above
            if beside and not asked:
                scores[at] = min(scores[at], _BELOW * max(score for _, score in beside))
        return scores

    def _fuse(self, rows: Sequence[Row]) -> list[float]:
        """Sum the weighted reciprocal ranks of both lists; a list adds nothing for a document that it lacks."""
        scores = [0.0] * len(rows)
        constants = [self._forms[row.candidate.source].rrf for row in rows if row.candidate is not None]
        constant = math.fsum(constants) / len(constants) if constants else 0.0
        for values, weight in ((self._score_by_keyword(rows), 1.0), (self._score_by_vector(rows), self._vector_share)):
            for at, rank in _iter_ranks(values):
                scores[at] += weight / (constant + rank)
        return scores


def _iter_ranks(values: Sequence[float]) -> Iterable[tuple[int, int]]:
    """Yield position and rank, from 1, of each value above 0; equal values have equal ranks."""
    order = sorted((at for at, value in enumerate(values) if value > 0), key=lambda at: -values[at])
    rank, last = 0, math.inf
    for count, at in enumerate(order, start=1):
        if (value := round(values[at], 9)) < last:
            rank, last = count, value
        yield at, rank


def _has_word(row: Row) -> bool:
    """Return True if a place itself has a concept of the question other than its time."""
    return any(number >= 0 for number in row.concepts)


def _make_newest_key(row: Row) -> tuple[int, str, int]:
    assert row.candidate is not None, "only existing documents are ranked"
    return -row.candidate.at, row.candidate.session, row.candidate.seq


def _compute_average(found: Candidates | None, candidates: Sequence[Candidate]) -> float:
    """Return the average length of a turn in the space; without keywords, of the known turns."""
    if found is not None:
        return found.length / found.documents if found.documents and found.length else 1.0
    return sum(one.length for one in candidates) / len(candidates) or 1.0 if candidates else 1.0


def _is_code(word: str) -> bool:
    """Return True if a word is a code: it has letters and digits, or marks other than hyphens."""
    bare = word.replace("-", "")
    return word.isascii() and not (bare.isalpha() or word.isdecimal())


def _get_top(values: Iterable[float]) -> float:
    return max(values, default=0.0) or 1.0


def _split_name(name: str | None) -> frozenset[str]:
    return frozenset(name.casefold().split()) if name else frozenset()


def _collect_speaker_words(names: Iterable[str | None]) -> frozenset[str]:
    """Return the words of all speakers' names; none for a single speaker, whose name distinguishes nothing."""
    known = {name for name in names if name}
    return frozenset(word for name in known for word in _split_name(name)) if len(known) > 1 else frozenset()

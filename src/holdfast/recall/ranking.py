"""Ranking: candidates to an order, with the parts of each score. Pure: the same candidates in any order give the same ranking.

A turn is seldom found by its own words alone. People answer questions, and the words of the topic are in the question; a session
is about something from its first turn to its last. So each concept of a question counts in a turn what it counts there (BM25) or
what it counts in the turns around, weighed by distance, whichever is more; what comes before weighs more than what comes after. The
best that the session holds of each concept is added. What is then left to tell apart are turns of one place: there a turn that states something
goes before one that asks, a time before none where a time is asked for, and a turn of whom the question names before the other's.

That holds for dialogues of short turns. In a chat with an assistant messages are long and each is about something by itself: neighbours
and session count less, length counts more, and the user's own messages go first, as replies only echo what people ask for later. How far
a session is one or the other is read off the average length of its turns; see `holdfast.recall.scoring`.

Words find nothing where there is nothing; of vectors some are always the nearest. So what they alone have found counts only from a
floor on, which is the embedder's: how near to each other texts are that have nothing in common differs from model to model.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009). Fusion with vectors: reciprocal ranks, Cormack, Clarke and
Büttcher, "Reciprocal Rank Fusion" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.questions import Question
from holdfast.recall.scoring import WEIGHTS, FormWeights, Hit, Row, Statements, Weights, order_hits, rarity_of
from holdfast.recall.terms import ASKS, NUMBERED, TIMED, YOURS, asked_share

Place = tuple[int, int]
"""Where a document is: its source's number, and its place there."""

_NOTHING: Final[dict[int, float]] = {}
_SOURCE: Final = (1 << 40) + 0x9E3779B1
"""What a place's key grows by from source to source, so that neighbours have neighbouring keys. No power of two: in a dict, the
first places of all sources would be in each other's way."""
_LEAST: Final = 0.01
"""What the least similarity counts: it may be the only one, or all may be equal."""
_LONGEST: Final = 1.5
"""Average lengths from which a turn is no longer for its rank."""
_BELOW: Final = 0.99
"""Part of its neighbour's score that a turn has at most which shares nothing with a question of one concept."""
CHUNKED: Final = 100
"""Long turns, the best, of which the best chunk is looked for."""
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
        knows: whether the model of the vectors knows the language of the question.
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
        self._floor = weights.floor_among(floor, len(similar or ()))
        self._nearest = -1.0
        self._vector_share = 1.0 if knows else weights.foreign
        self._found = found
        self._weights = weights
        self._rows: dict[int, Row] = {}
        self._keyword = found is not None
        self._vector = similar is not None
        candidates = [*(found.found if found else ()), *(one.candidate for one in similar or ())]
        self._average = _average(found, candidates)
        names = {candidate.name for candidate in candidates}
        self._named = {concept.word for concept in question.concepts} & _speakers(names)
        self._codes = {at for at, concept in enumerate(question.concepts) if _is_code(concept.word)}
        self._traits_of: dict[tuple[int, str, str | None, FormWeights], float] = {}
        self._longer: dict[tuple[int, float], float] = {}
        self._forms = self._forms_of(candidates)
        self._statements = None if found is None else Statements(question, found, weights, self._named)
        if found:
            self._by_words(found)
        if similar is not None:
            self._by_vectors(similar)

    def missing(self, limit: int) -> list[Place]:
        """The places among the first ones of which nothing is known yet: a good neighbour may match nothing itself.

        Args:
            limit: how many hits are wanted in the end.
        """
        forms = (self._weights.dialogue, self._weights.chat)
        most = max((1 + form.speaker) * (1 + form.long) * (1 + form.user) for form in forms)
        if self._question.spans or self._question.days:
            most *= (1 + max(self._weights.then, self._weights.said)) * (1 + self._weights.about)
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
        scores = self._fuse(rows) if self._vector and self._keyword else self._single(rows)
        if self._floor > 0:
            scores = [
                score if row.keyword > 0 or self._is_near(row) else 0.0 for row, score in zip(rows, scores, strict=True)
            ]
        if self._question.asks_many:
            scores = self._spread(rows, scores)
        return order_hits(rows, scores, limit)

    def answers(self, hits: Sequence[Hit]) -> bool:
        """Return True if some of these hits are surely more than what is nearest to any question at all.

        One is as near as the floor, or states enough of the question itself. True where there are no vectors, or no floor, to tell by.
        """
        if self._floor <= 0:
            return True
        rows = [hit.row for hit in hits if hit.row is not None]
        if any(row.similarity is not None and row.similarity >= self._floor for row in rows):
            return True
        rarities = self._rarities()
        least = self._weights.held * sum(rarities)
        stated = ([rarities[number] for number in row.concepts if number >= 0] for row in rows)  # without the time
        return any(sum(some) >= least for some in stated if some)

    def _spread(self, rows: Sequence[Row], scores: Sequence[float]) -> list[float]:
        """Lower the scores of turns next to a better one: of several answers each is wanted once, not with its echo."""
        spread = list(scores)
        better: set[int] = set()
        for at in sorted(range(len(rows)), key=lambda at: (-round(scores[at], 9), _newest_first(rows[at]))):
            candidate = rows[at].candidate
            assert candidate is not None, "only what is there is ranked"
            key = candidate.source * _SOURCE + candidate.place
            if key - 1 in better or key + 1 in better:
                spread[at] *= self._weights.echo
            better.add(key)
        return spread

    def _is_near(self, row: Row) -> bool:
        """Return True if a place that no word leads to is near enough."""
        return self._nearest >= self._floor and row.beside >= self._weights.beside * self._floor

    def _rarities(self) -> list[float]:
        """Return the rarity of each concept of the question, by its commonest term; what was never said is the rarest."""
        found = self._found
        if found is None:
            return []
        often = (max(found.frequencies.get(term, 0) for term, _ in one.variants) for one in self._question.concepts)
        return [rarity_of(found.documents, count) for count in often]

    # -- by words ----------------------------------------------------------------

    def _forms_of(self, candidates: Sequence[Candidate]) -> dict[int, FormWeights]:
        """The numbers of each source, by the average length of those of its turns that are known."""
        few, middle, steepness = self._weights.few_turns, self._weights.middle, self._weights.steepness
        sizes: dict[int, list[int]] = {}
        for candidate in candidates:
            size = sizes.setdefault(candidate.source, [0, 0])
            size[0] += 1
            size[1] += candidate.length
        found = {}
        for source, (count, length) in sizes.items():
            average = (length + few * self._average) / (count + few)
            found[source] = self._weights.form(1 / (1 + (middle / max(average, 1e-9)) ** steepness))
        return found

    def _by_words(self, found: Candidates) -> None:
        """Each place's own share of each concept, its neighbours', and its session's."""
        assert self._statements is not None, "there are words"
        score, rows, forms = self._statements.score, self._rows, self._forms
        for candidate in found.found:
            if concepts := score(candidate, forms[candidate.source]):
                rows[candidate.source * _SOURCE + candidate.place] = Row(candidate, concepts, sum(concepts.values()))
        self._with_chunks()
        held: dict[int, dict[int, float]] = {}  # the best of each concept in each source
        for key, row in rows.items():
            of_source = held.setdefault(key // _SOURCE, {})
            for concept, share in row.concepts.items():
                if share > of_source.get(concept, 0.0):
                    of_source[concept] = share
        best: dict[int, float] = {}
        for of_source in held.values():
            for concept, share in of_source.items():
                if share > best.get(concept, 0.0):
                    best[concept] = share
        sessions = {source: sum(of_source.values()) for source, of_source in held.items()}
        near = self._around()
        for key in sorted(near.keys() - rows.keys()):
            rows[key] = Row(None, _NOTHING)
        self._with_neighbours(near, best)
        self._with_sessions(sessions)

    def _with_chunks(self) -> None:
        """Let the best chunk count in the turns that state most: of long turns there may be very many."""
        assert self._statements is not None, "there are words"
        rows = self._rows
        long = [key for key, row in rows.items() if row.candidate is not None and row.candidate.detail]
        for key in sorted(sorted(long), key=lambda key: rows[key].own, reverse=True)[:CHUNKED]:
            row = rows[key]
            assert row.candidate is not None, "only what is there was scored"
            stated = self._statements.with_chunks(row.candidate, row.concepts)
            if stated is not None:
                row.concepts, row.chunk, row.form = stated
                row.own = sum(row.concepts.values())

    def _around(self) -> dict[int, dict[int, float]]:
        """By place, what its neighbours state of each concept: of places that are known, and of those beside the best ones."""
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

    def _with_neighbours(self, around: Mapping[int, dict[int, float]], best: Mapping[int, float]) -> None:
        """Count what the neighbours of each place state, concept by concept, where that is more than what it states itself."""
        whole, forms = sum(best.values()) or 1.0, self._forms
        for key, row in self._rows.items():
            near, covered = around.get(key), forms[key // _SOURCE].covered
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
        shares = {source: self._forms[source].session * session / most for source, session in sessions.items()}
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
        forms = self._forms
        smooth = {
            key: value + sum(weight * known.get(key + step, 0.0) for step, weight in forms[key // _SOURCE].vector_steps)
            for key, value in known.items()
        }
        top = _top(smooth.values())
        for one in similar:
            key = one.candidate.source * _SOURCE + one.candidate.place
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = Row(one.candidate, _NOTHING)
            row.candidate = row.candidate or one.candidate
            row.vector, row.similarity = smooth[key] / top, one.similarity
            steps = self._weights.dialogue.vector_steps  # what is near is so whatever the form
            row.beside = max((one.similarity, *(given.get(key + step, -1.0) for step, _ in steps)))

    # -- all together ------------------------------------------------------------

    def _traits(self, row: Row) -> float:
        """What form, speaker, length and time of a turn multiply."""
        candidate = row.candidate
        if row.traits or candidate is None:
            return row.traits
        weights, form = self._weights, self._forms[candidate.source]
        traits = candidate.traits if row.form is None else row.form
        known = traits, candidate.role, candidate.name, form
        share = self._traits_of.get(known)
        if share is None:
            share = self._traits_of[known] = self._of_form(*known)
        long = self._longer.get((candidate.length, form.long))
        if long is None:
            average = min(candidate.length / self._average, _LONGEST)
            long = self._longer[candidate.length, form.long] = 1 + form.long * math.log1p(average)
        if self._question.covers(candidate.at):
            share *= 1 + (weights.then if self._question.range is None else weights.said)
        if self._statements is not None and self._statements.names_time(candidate):
            share *= 1 + weights.about
        if self._codes and not self._codes.isdisjoint(row.concepts):
            share *= 1 + weights.coded
        row.traits = share * long
        return row.traits

    def _of_form(self, traits: int, role: str, name: str | None, form: FormWeights) -> float:
        question = self._question
        share = (1 - form.asked * asked_share(traits)) * (1 - form.asks * bool(traits & ASKS))
        share *= 1 - form.yours * bool(traits & YOURS)
        if question.asks_time and traits & TIMED:
            share *= 1 + form.time
        if question.asks_number and traits & NUMBERED:
            share *= 1 + form.number
        if role == question.role or (self._named and not self._named.isdisjoint(_words(name))):
            share *= 1 + form.speaker
        if role == "user" and question.role != "assistant":
            share *= 1 + form.user
        return share

    def _single(self, rows: Sequence[Row]) -> list[float]:
        """Scores where one kind of search counts alone."""
        if self._keyword:
            return self._by_keyword(rows)
        return self._by_vector(rows)

    def _by_vector(self, rows: Sequence[Row]) -> list[float]:
        """Scores by similarity."""
        return [
            0.0
            if row.vector is None or row.candidate is None
            else row.vector * row.traits ** self._forms[row.candidate.source].traits
            for row in rows
        ]

    def _by_keyword(self, rows: Sequence[Row]) -> list[float]:
        """Scores by words. Where a question has one concept, a turn without it never goes before the one that it is found by."""
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
        """Reciprocal ranks of both lists, weighed and summed; what a list does not hold adds nothing."""
        scores = [0.0] * len(rows)
        constants = [self._forms[row.candidate.source].rrf for row in rows if row.candidate is not None]
        constant = math.fsum(constants) / len(constants) if constants else 0.0
        for values, weight in ((self._by_keyword(rows), 1.0), (self._by_vector(rows), self._vector_share)):
            for at, rank in _ranks(values):
                scores[at] += weight / (constant + rank)
        return scores


def _ranks(values: Sequence[float]) -> Iterable[tuple[int, int]]:
    """Place and rank of each value above 0, from 1; equal values have equal ranks."""
    order = sorted((at for at, value in enumerate(values) if value > 0), key=lambda at: -values[at])
    rank, last = 0, math.inf
    for count, at in enumerate(order, start=1):
        if (value := round(values[at], 9)) < last:
            rank, last = count, value
        yield at, rank


def _has_word(row: Row) -> bool:
    """Return True if a place states something of the question itself, other than its time."""
    return any(number >= 0 for number in row.concepts)


def _newest_first(row: Row) -> tuple[int, str, int]:
    assert row.candidate is not None, "only what is there is ranked"
    return -row.candidate.at, row.candidate.session, row.candidate.seq


def _average(found: Candidates | None, candidates: Sequence[Candidate]) -> float:
    """The usual length of a turn: of the space, or where words do not count of those that are known."""
    if found is not None:
        return found.length / found.documents if found.documents and found.length else 1.0
    return sum(one.length for one in candidates) / len(candidates) or 1.0 if candidates else 1.0


def _is_code(word: str) -> bool:
    """Return True if it is more than a word, a number, or words with hyphens: it has another mark within, or letters and digits."""
    bare = word.replace("-", "")
    return word.isascii() and not (bare.isalpha() or word.isdecimal())


def _top(values: Iterable[float]) -> float:
    return max(values, default=0.0) or 1.0


def _words(name: str | None) -> frozenset[str]:
    return frozenset(name.casefold().split()) if name else frozenset()


def _speakers(names: Iterable[str | None]) -> frozenset[str]:
    """The words of the names of those who speak; of one alone none, as a name distinguishes nothing then."""
    known = {name for name in names if name}
    return frozenset(word for name in known for word in _words(name)) if len(known) > 1 else frozenset()

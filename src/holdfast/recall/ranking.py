"""Rank the candidates that an index found, and keep the parts of each score. Pure functions.

The result does not depend on the order of the candidates. A turn is a document of the index, such as a message. A place is its
position: the source's number, and the document's place in the source. A place may be ranked before its document has been read.

**Dialogues of short turns.** The turn that answers a question often does not contain the question's words. They may be in the turn
that it replies to, or elsewhere in the session, because a session is mostly about one topic. So a turn's score for a concept is
its own score (BM25) or the score of the surrounding turns, weighted by distance, whichever is higher. Earlier turns have more
weight than later ones. The session's best score for the concept is added. Turns that are then nearly equal are separated by their
form: statements rank before questions, turns with a time rank first if the question asks for a time, and turns by the speaker
whom the question names rank before others.

**Chats with an assistant.** Messages are long, and each has its own topic. So neighbours and the session have less weight, and
length has more. The user's messages rank first, because people later ask about what they said themselves, and replies only repeat
it. The average length of a session's turns decides how much the session is a dialogue and how much a chat; see
`holdfast.recall.scoring`.

**Vectors.** A search by words may find nothing, but a search by vectors always finds some nearest ones. So a result that only
vectors found must reach a minimum similarity, the floor. Each embedder defines its own floor, because the similarity of unrelated
texts differs from model to model.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009). Ranks by words and by vectors are combined by
reciprocal ranks: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.questions import Question
from holdfast.recall.scoring import WEIGHTS, ConceptScorer, FormWeights, Hit, Row, Weights, compute_rarity, order_hits
from holdfast.recall.terms import ASKS, NUMBERED, TIMED, YOURS, get_asked_share

Place = tuple[int, int]
"""The position of a document: its source's number, and its place in the source."""

_NOTHING: Final[dict[int, float]] = {}
_SOURCE: Final = (1 << 40) + 0x9E3779B1
"""The key of a place is `source * _SOURCE + place`, so neighbours have consecutive keys. The factor is not a power of two, because
then the first places of all sources would collide in a dict."""
_LEAST: Final = 0.01
"""Scaled value of the lowest similarity. It is above 0, since there may be only one similarity, or all may be equal."""
_LONGEST: Final = 1.5
"""Length, as a multiple of the average length, at which the bonus for length reaches its maximum."""
_BELOW: Final = 0.99
"""For a question with one concept. A turn without the concept scores at most this share of the score of a neighbour that has the concept."""
CHUNK_TURNS: Final = 100
"""Maximum number of long turns whose chunks are scored. The best ones are chosen."""
STRONG: Final = 100
"""Maximum number of matching places whose neighbours are considered even if the neighbours match nothing. The best places are chosen."""


class Ranking:
    """The places that may answer a question, and their order.

    If both `found` and `similar` are given, the two rankings are combined by reciprocal ranks.

    Args:
        question: the question.
        found: the candidates of the search by words; None: there was no such search.
        similar: the candidates of the search by vectors; None: there was no such search.
        weights: other weights than the tuned ones, for experiments.
        floor: the embedder's minimum similarity for a result that only vectors find; 0: no minimum.
        knows: True if the embedding model supports the language of the question.
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
        self._traits_of: dict[tuple[int, str, str | None, int], float] = {}  # by id: hashing weights is slow
        self._forms = self._choose_forms(candidates)
        self._statements = None if found is None else ConceptScorer(question, found, weights, self._named)
        if found:
            self._score_words(found)
        if similar is not None:
            self._score_vectors(similar)

    def list_missing(self, limit: int) -> list[Place]:
        """Return highly ranked places whose documents have not been read yet.

        Such places are neighbours of good matches that match no term themselves. The caller reads their documents with `Index.near`
        and passes them to `fill`.

        Args:
            limit: the number of hits that the caller will request.
        """
        forms = (self._weights.dialogue, self._weights.chat)
        most = max((1 + form.speaker) * (1 + form.long) * (1 + form.user) for form in forms)
        if self._question.spans or self._question.days:
            most *= (1 + max(self._weights.then, self._weights.said)) * (1 + self._weights.about)
        self._apply_traits()
        rows = self._rows
        promised = {key: row.keyword * (most if row.candidate is None else row.traits) for key, row in rows.items()}
        first = sorted(sorted(rows), key=promised.__getitem__, reverse=True)[: 2 * limit + 20]
        return [divmod(key, _SOURCE) for key in first if rows[key].candidate is None]

    def fill(self, near: Iterable[Candidate], asked: Iterable[Place]) -> None:
        """Add the documents of missing places, and forget the places that have no document.

        Args:
            near: the documents that `Index.near` returned.
            asked: the places from `list_missing` that were requested.
        """
        for candidate in near:
            row = self._rows.get(candidate.source * _SOURCE + candidate.place)
            if row is not None and row.candidate is None:
                row.candidate = candidate
        for source, place in asked:
            row = self._rows.get(source * _SOURCE + place)
            if row is not None and row.candidate is None:
                del self._rows[source * _SOURCE + place]

    def list_hits(self, limit: int | None = None) -> list[Hit]:
        """Return the hits, best first. Hits with equal scores are ordered newest first, then by session and position.

        Args:
            limit: maximum number of hits; None: no limit.
        """
        self._apply_traits()
        rows = [row for row in self._rows.values() if row.candidate is not None]
        scores = self._fuse(rows) if self._vector and self._keyword else self._score_single(rows)
        if self._question.asks_many:
            scores = self._dampen_echoes(rows, scores)
        if self._floor > 0:  # last, so that the scores of the other hits do not depend on it
            scores = [
                score if row.keyword > 0 or self._is_near(row) else 0.0 for row, score in zip(rows, scores, strict=True)
            ]
        return order_hits(rows, scores, limit)

    def has_answer(self, hits: Sequence[Hit]) -> bool:
        """Return True if at least one hit is clearly better than the nearest hits of an unrelated question.

        Such a hit has a similarity of at least the floor, or its own words contain enough of the question. Without vectors or without a
        floor, the result is always True.
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
        """Return the scores, lowered for turns next to a better turn.

        Neighbours often repeat the same answer, but a question with several answers needs different ones.
        """
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
        """Return True if a place that matches no word is similar enough to be a hit.

        Some place must reach the floor. This place or one of its neighbours must reach a share of the floor (`Weights.beside`).
        """
        return self._nearest >= self._floor and row.beside >= self._weights.beside * self._floor

    def _compute_rarities(self) -> list[float]:
        """Return the rarity of each concept of the question: the rarity of its most common term."""
        found = self._found
        if found is None:
            return []
        often = (max(found.frequencies.get(term, 0) for term, _ in one.variants) for one in self._question.concepts)
        return [compute_rarity(found.documents, count) for count in often]

    # -- scores by words ---------------------------------------------------------

    def _choose_forms(self, candidates: Sequence[Candidate]) -> dict[int, FormWeights]:
        """Return the weights for each source.

        If its known turns are short on average, they are the weights of a dialogue; if long, those of a chat.
        """
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
        """Score each place by the concepts of the question that occur in its own turn, in neighbouring turns and in its session."""
        assert self._statements is not None, "keywords are searched"
        score, rows, forms = self._statements.score, self._rows, self._forms
        for candidate in found.found:
            if concepts := score(candidate, forms[candidate.source]):
                rows[candidate.source * _SOURCE + candidate.place] = Row(candidate, concepts, sum(concepts.values()))
        self._apply_chunks()
        self._apply_surroundings()

    def _apply_chunks(self) -> None:
        """Mix the scores of the best long turns with those of their best chunks. There may be too many long turns to do it for all."""
        assert self._statements is not None, "keywords are searched"
        rows = self._rows
        long = [key for key, row in rows.items() if row.candidate is not None and row.candidate.detail]
        for key in sorted(sorted(long), key=lambda key: rows[key].own, reverse=True)[:CHUNK_TURNS]:
            row = rows[key]
            assert row.candidate is not None, "only existing documents were scored"
            stated = self._statements.mix_chunks(row.candidate, row.concepts)
            if stated is not None:
                row.concepts, row.chunk, row.form = stated
                row.own = sum(row.concepts.values())

    def _apply_surroundings(self) -> None:
        """Raise each place's score for a concept to the neighbours' weighted score if that is higher, and add the bonuses.

        One bonus is for places that, together with their neighbours, contain many of the concepts; another is for the place's session.
        Scores are divided by the best score. Neighbours that match no term become places too, if they are next to the `STRONG` best ones.
        """
        rows, forms = self._rows, self._forms
        steps = {source: form.steps for source, form in forms.items()}
        strong = sorted(sorted(rows), key=lambda key: rows[key].own, reverse=True)[:STRONG]
        near = {
            key - step for key in strong for step, _ in steps[key // _SOURCE] if key % _SOURCE >= step
        } - rows.keys()
        numbers = {key: number for number, key in enumerate((*rows, *near))}
        reached: list[list[tuple[int, float]]] = []
        scores: dict[int, list[tuple[int, float]]] = {}
        tops: dict[int, dict[int, float]] = {}  # the best score of each concept in each source
        for number, (key, row) in enumerate(rows.items()):
            source = key // _SOURCE
            reached.append([(numbers[key - step], weight) for step, weight in steps[source] if key - step in numbers])
            top = tops.setdefault(source, {})
            for concept, score in row.concepts.items():
                scores.setdefault(concept, []).append((number, score))
                if score > top.get(concept, 0.0):
                    top[concept] = score
        found = (scores[concept] for concept in sorted(scores))
        beyond, matched, whole = _sum_surroundings(found, reached, len(numbers))
        rows.update((key, Row(None, _NOTHING)) for key in near)
        sessions = {source: sum(top.values()) for source, top in tops.items()}
        most = _get_top(sessions.values())
        for (key, row), more, share in zip(rows.items(), beyond, matched, strict=True):
            row.near, row.session = more, sessions[key // _SOURCE]
            row.keyword = (row.own + more) * (1 + forms[key // _SOURCE].covered * share / (whole or 1.0))
        best = _get_top([row.keyword for row in rows.values()])
        for key, row in rows.items():
            row.keyword = row.keyword / best + forms[key // _SOURCE].session * row.session / most

    # -- scores by vectors -------------------------------------------------------

    def _score_vectors(self, similar: Sequence[Similar]) -> None:
        """Add the weighted similarities of neighbours to each similarity, and scale the results so that the best is 1.

        From each similarity, a value just below the lowest similarity is subtracted first. A neighbour without a known similarity adds nothing.
        """
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

    def _apply_traits(self) -> None:
        """Compute the factor by which a turn's form, speaker, length and time change its score, for all documents that have been read."""
        weights, question, statements, codes = self._weights, self._question, self._statements, self._codes
        has_spans, then = bool(question.spans), weights.then if question.range is None else weights.said
        for row in self._rows.values():
            candidate = row.candidate
            if row.traits or candidate is None:
                continue
            form = self._forms[candidate.source]
            traits = candidate.traits if row.form is None else row.form
            known = traits, candidate.role, candidate.name, id(form)
            share = self._traits_of.get(known)
            if share is None:
                share = self._traits_of[known] = self._compute_form_factor(traits, candidate.role, candidate.name, form)
            if form.long:
                share *= 1 + form.long * math.log1p(min(candidate.length / self._average, _LONGEST))
            if has_spans and question.has_time(candidate.at):
                share *= 1 + then
            if statements is not None and candidate.detail and statements.has_named_time(candidate):
                share *= 1 + weights.about
            if codes and not codes.isdisjoint(row.concepts):
                share *= 1 + weights.coded
            row.traits = share

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
        """Return the scores of a search by words only, or by vectors only."""
        if self._keyword:
            return self._score_by_keyword(rows)
        return self._score_by_vector(rows)

    def _score_by_vector(self, rows: Sequence[Row]) -> list[float]:
        """Return the scores by vectors."""
        return [
            0.0
            if row.vector is None or row.candidate is None
            else row.vector * row.traits ** self._forms[row.candidate.source].traits
            for row in rows
        ]

    def _score_by_keyword(self, rows: Sequence[Row]) -> list[float]:
        """Return the scores by words.

        If the question has only one concept, a turn without the concept ranks after a neighbour that has it. The exception is a turn that
        directly follows a question with the concept, because that turn may be the answer.
        """
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
        """Combine the scores by words and by vectors: sum the weighted reciprocal ranks. A score of 0 adds nothing."""
        scores = [0.0] * len(rows)
        constants = [self._forms[row.candidate.source].rrf for row in rows if row.candidate is not None]
        constant = math.fsum(constants) / len(constants) if constants else 0.0
        for values, weight in ((self._score_by_keyword(rows), 1.0), (self._score_by_vector(rows), self._vector_share)):
            for at, rank in _iter_ranks(values):
                scores[at] += weight / (constant + rank)
        return scores


def _sum_surroundings(
    by_concept: Iterable[Sequence[tuple[int, float]]], reached: Sequence[Sequence[tuple[int, float]]], count: int
) -> tuple[list[float], list[float], float]:
    """Return what neighbours add to each place, the worth of the concepts around it, and the worth of all concepts.

    A concept is worth its best score.

    Args:
        by_concept: for each concept, the places that contain it, by number, with their scores.
        reached: for each place that contains a concept, the neighbours that it adds to, with the weights.
        count: number of places.
    """
    beyond, matched, whole = [0.0] * count, [0.0] * count, 0.0
    for scores in by_concept:
        around, best, touched = [0.0] * count, 0.0, set[int]()
        for number, score in scores:
            touched.add(number)
            for other, weight in reached[number]:
                around[other] += weight * score
                touched.add(other)
        for number, score in scores:
            around[number] = max(around[number] - score, 0.0)
            best = max(best, score)
        for number in touched:
            beyond[number] += around[number]
            matched[number] += best
        whole += best
    return beyond, matched, whole


def _iter_ranks(values: Sequence[float]) -> Iterable[tuple[int, int]]:
    """Yield the position and rank of each value above 0. The highest value has rank 1. Equal values have equal ranks."""
    order = sorted((at for at, value in enumerate(values) if value > 0), key=lambda at: -values[at])
    rank, last = 0, math.inf
    for count, at in enumerate(order, start=1):
        if (value := round(values[at], 9)) < last:
            rank, last = count, value
        yield at, rank


def _has_word(row: Row) -> bool:
    """Return True if the place's own turn contains a word of the question. The question's time alone is not enough."""
    return any(number >= 0 for number in row.concepts)


def _make_newest_key(row: Row) -> tuple[int, str, int]:
    assert row.candidate is not None, "only existing documents are ranked"
    return -row.candidate.at, row.candidate.session, row.candidate.seq


def _compute_average(found: Candidates | None, candidates: Sequence[Candidate]) -> float:
    """Return the average length, in terms, of the turns in the space; without a search by words, of the candidates."""
    if found is not None:
        return found.length / found.documents if found.documents and found.length else 1.0
    return sum(one.length for one in candidates) / len(candidates) or 1.0 if candidates else 1.0


def _is_code(word: str) -> bool:
    """Return True if an ASCII word is a code: neither a number nor letters and hyphens only."""
    bare = word.replace("-", "")
    return word.isascii() and not (bare.isalpha() or word.isdecimal())


def _get_top(values: Iterable[float]) -> float:
    return max(values, default=0.0) or 1.0


def _split_name(name: str | None) -> frozenset[str]:
    return frozenset(name.casefold().split()) if name else frozenset()


def _collect_speaker_words(names: Iterable[str | None]) -> frozenset[str]:
    """Return the words of all speakers' names. If there is only one speaker, return an empty set, because the name distinguishes nothing."""
    known = {name for name in names if name}
    return frozenset(word for name in known for word in _split_name(name)) if len(known) > 1 else frozenset()

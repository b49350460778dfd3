"""Rank the entries of one session for a message: BM25 by concepts, with neighbours, episodes and the form of the entry.

The weights are those of the keyword search (`holdfast.recall.scoring`). One pass over the postings finds the best entries; only these and
their neighbours are scored in full, so the time is bounded.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.core.postings import USER, Postings
from holdfast.recall.questions import Question
from holdfast.recall.scoring import WEIGHTS, FormWeights, compute_rarity
from holdfast.recall.terms import NUMBERED, TIMED, YOURS

_NOTHING: Final[dict[int, float]] = {}
BEST: Final = 100
"""Number of entries that are scored in full, together with their neighbours."""
PLAIN_VARIANTS: Final = 2
"""Number of first variants of a concept that count as the word itself."""
_Read = tuple[int, bool, float, Sequence[int], Sequence[int]]
"""A concept's number, whether the term is the word itself, the term's weight, and its postings."""


class Hit(NamedTuple):
    """A ranked entry."""

    seq: int
    score: float
    coverage: float
    """Share of the message's words, weighted by rarity, that the entry itself contains."""


class Ranked(NamedTuple):
    """The entries that match a message, best first, and the rarity of each term of the message."""

    hits: Sequence[Hit]
    rarity: Mapping[str, float]


def rank(postings: Postings, question: Question, stop: int) -> Ranked:
    """Rank the first `stop` entries of a session for a message."""
    if not stop or not question.concepts:
        return Ranked((), {})
    average = postings.totals[stop] / stop or 1.0
    form = WEIGHTS.get_form(1 / (1 + (WEIGHTS.middle / average) ** WEIGHTS.steepness))
    rarity, reads = _read(postings, question, stop)
    flat: dict[int, float] = {}
    lengths, k1 = postings.lengths, WEIGHTS.k1
    fixed, slope = k1 * (1 - form.b), k1 * form.b / average
    for _, _, weight, seqs, often in reads:
        for seq, count in zip(seqs, often, strict=True):
            flat[seq] = flat.get(seq, 0.0) + weight * count / (count + fixed + slope * lengths[seq])
    best = set(heapq.nlargest(BEST, flat, key=lambda seq: (flat[seq], seq)))
    steps = [step for step, _ in form.steps]
    targets = best.union(seq - step for seq in best for step in steps if 0 <= seq - step < stop)
    near = targets.union(seq + step for seq in targets for step in steps if 0 <= seq + step < stop)
    rows: dict[int, dict[int, float]] = {}
    plain: dict[int, set[int]] = {}
    for concept, itself, weight, seqs, often in reads:
        for seq, count in zip(seqs, often, strict=True):
            if seq in near:
                row = rows.setdefault(seq, {})
                score = weight * count / (count + fixed + slope * lengths[seq])
                if score > row.get(concept, 0.0):
                    row[concept] = score
                if itself:
                    plain.setdefault(seq, set()).add(concept)
    worth = [rarity.get(concept.variants[0][0], 0.0) for concept in question.concepts]
    whole = sum(worth) or 1.0
    scores = _score(postings, question, (rows, targets), form, average)
    order = sorted(scores, key=lambda seq: (-round(scores[seq], 9), -seq))
    hits = [Hit(seq, scores[seq], sum(worth[one] for one in plain.get(seq, ())) / whole) for seq in order]
    return Ranked(hits, rarity)


def _read(postings: Postings, question: Question, stop: int) -> tuple[dict[str, float], list[_Read]]:
    """Return the rarity of each term, and the postings to score."""
    words = frozenset().union(*postings.speakers.values()) if len(postings.speakers) > 1 else frozenset[str]()
    owners: dict[str, list[tuple[int, bool, float]]] = {}
    for number, concept in enumerate(question.concepts):
        share = WEIGHTS.name if concept.word in words else 1.0
        for place, (term, weight) in enumerate(concept.variants):
            owners.setdefault(term, []).append((number, place < PLAIN_VARIANTS, share * weight))
    often = [(term, postings.count(term, stop)) for term in owners]
    rarity = {term: compute_rarity(stop, number) for term, number in often}
    reads = [
        (concept, itself, weight * rarity[term] * (WEIGHTS.k1 + 1), seqs, counts)
        for term, seqs, counts in postings.read(often)
        for concept, itself, weight in owners[term]
    ]
    return rarity, reads


def _score(
    postings: Postings,
    question: Question,
    found: tuple[Mapping[int, Mapping[int, float]], Collection[int]],
    form: FormWeights,
    average: float,
) -> dict[int, float]:
    """Return the scores of entries: words, neighbours, coverage, episode, and the form of the entry.

    Args:
        postings: the postings of the session.
        question: the message.
        found: the score of each concept in each entry near a match, and the entries to score.
        form: the weights.
        average: the average length of an entry.
    """
    rows, targets = found
    best: dict[int, float] = {}
    episodes: dict[int, dict[int, float]] = {}
    for seq, row in rows.items():
        of_episode = episodes.setdefault(postings.episodes[seq], {})
        for concept, score in row.items():
            if score > of_episode.get(concept, 0.0):
                of_episode[concept] = score
                best[concept] = max(best.get(concept, 0.0), score)
    whole = sum(best.values()) or 1.0
    scores: dict[int, float] = {}
    for seq in targets:
        row, episode = rows.get(seq, _NOTHING), postings.episodes[seq]
        around: dict[int, float] = {}
        for step, weight in form.steps:
            other = rows.get(seq + step)
            if other is not None and postings.episodes[seq + step] == episode:
                for concept, score in other.items():
                    around[concept] = around.get(concept, 0.0) + weight * score
        total = matched = 0.0
        for concept in row.keys() | around.keys():
            total += max(row.get(concept, 0.0), around.get(concept, 0.0))
            matched += best[concept]
        scores[seq] = total * (1 + form.covered * matched / whole)
    top = max(scores.values(), default=0.0) or 1.0
    sums = {episode: sum(row.values()) for episode, row in episodes.items()}
    most = max(sums.values(), default=0.0) or 1.0
    return {
        seq: (score / top + form.session * sums.get(postings.episodes[seq], 0.0) / most)
        * _weigh_form(postings, question, seq, form, average)
        for seq, score in scores.items()
        if score
    }


def _weigh_form(postings: Postings, question: Question, seq: int, form: FormWeights, average: float) -> float:
    """Return the factor for an entry's form, speaker, length and time."""
    share = (1 - form.asked * postings.asked[seq]) * (1 - form.asks * postings.ends_asking[seq])
    traits = postings.traits[seq]
    share *= 1 - form.yours * bool(traits & YOURS)
    if question.asks_time and traits & TIMED:
        share *= 1 + form.time
    if question.asks_number and traits & NUMBERED:
        share *= 1 + form.number
    share *= 1 + form.long * math.log1p(min(postings.lengths[seq] / average, 1.5))
    is_user = postings.roles[seq] == USER
    name = postings.names[seq]
    named = name is not None and any(concept.word in postings.speakers[name] for concept in question.concepts)
    if named or (question.role is not None and (question.role == "user") == is_user):
        share *= 1 + form.speaker
    if is_user and question.role != "assistant":
        share *= 1 + form.user
    if question.spans and question.has_time(postings.at[seq]):
        share *= 1 + (WEIGHTS.then if question.range is None else WEIGHTS.said)
    return share

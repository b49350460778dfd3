"""How well memories answer a question: relevance, how long ago, how important, how far to be trusted; one number of all. Pure.

A memory's relevance is what share of the question it answers: each concept counts by its rarity among the owner's memories, which
is smoothed, as some have few, and by BM25's saturation (Robertson and Zaragoza, 2009). Two lists, by words and by vectors, are fused by reciprocal ranks (Cormack, Clarke and
Büttcher, 2009). What was said long ago counts half after the half-life of its type; importance and trust weigh mildly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.domain.memory import Memory
from holdfast.recall.base import Candidates, Similar
from holdfast.recall.questions import Question
from holdfast.recall.scoring import WEIGHTS

DAY: Final = 86_400_000
"""Milliseconds."""
HALF_LIVES: Final[Mapping[str, float]] = {
    "semantic": 10_000.0,
    "procedural": 10_000.0,
    "user": 10_000.0,
    "reference": 10_000.0,
    "feedback": 365.0,
    "project": 90.0,
    "episodic": 90.0,
}
"""Days after which a memory of that type counts half: since it was last said, and for dreams since it was last recalled."""
K1: Final = 1.2
B: Final = 0.3
"""BM25's saturation, and how far length counts: memories are short."""
RRF: Final = 60.0
"""The constant of reciprocal ranks; both lists count the same."""
IMPORTANCE: Final = 0.2
TRUST: Final = 0.3
"""Parts of a score that are lost where a memory is of no importance, and where nobody vouches for it."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """How a memory answers, before it has been read."""

    number: int
    relevance: float
    """What it is ranked by, 0 to 1."""
    keyword: float | None = None
    """Share of the question that its words answer, 0 to 1; None: not looked at."""
    vector: float | None = None
    """Similarity of the vectors, 0 to 1; None: not looked at."""
    sure: bool = True
    """Whether it answers by itself: it is as near as the floor, or has enough of the question. True where nothing tells."""


def matches(
    question: Question, found: Candidates | None, similar: Sequence[Similar] | None = None, floor: float = 0.0
) -> list[Match]:
    """An owner's memories in the order of their relevance, ties to the newest.

    Args:
        question: what is asked.
        found: what its terms found; None: they do not count.
        similar: what its vector found; None: it does not count.
        floor: the similarity that one must have for vectors alone to have found anything; 0: whatever is nearest. As in
            `holdfast.recall.ranking`.
    """
    words = {} if found is None else _by_words(question, found)
    vectors = {one.candidate.seq: _share(one.similarity) for one in similar or ()}
    floor = WEIGHTS.floor_among(floor, len(vectors))
    if floor > 0:
        least = WEIGHTS.beside * floor if max(vectors.values()) >= floor else math.inf
        vectors = {number: share for number, share in vectors.items() if share >= least or words.get(number, 0.0) > 0}
    made = _make_matches(words, vectors, by_words=found is not None, by_vectors=similar is not None)
    if floor > 0:
        made = [msgspec.structs.replace(one, sure=_is_sure(one, floor)) for one in made]
    return sorted((one for one in made if one.relevance > 0), key=lambda one: (-one.relevance, -one.number))


def _make_matches(
    words: Mapping[int, float], vectors: Mapping[int, float], *, by_words: bool, by_vectors: bool
) -> list[Match]:
    """Matches of what was looked at, by words, by vectors or by both."""
    if not by_vectors:
        return [Match(number, min(share, 1.0), keyword=min(share, 1.0)) for number, share in words.items()]
    if not by_words:
        return [Match(number, share, vector=share) for number, share in vectors.items()]
    return _fuse(words, vectors)


def _is_sure(match: Match, floor: float) -> bool:
    return (match.vector or 0.0) >= floor or (match.keyword or 0.0) >= WEIGHTS.held


def _by_words(question: Question, found: Candidates) -> dict[int, float]:
    """Each candidate's share of the question; with its saturation it may be a little over 1."""
    average = found.length / found.documents if found.documents and found.length else 1.0
    rarities = []
    for concept in question.concepts:
        among = max((found.frequencies.get(term, 0) for term, _ in concept.variants), default=0)
        rarities.append(1 + math.log((found.documents + 1) / (among + 1)))
    whole = sum(rarities) or 1.0
    shares: dict[int, float] = {}
    for candidate in found.found:
        norm = K1 * (1 - B + B * candidate.length / average)
        share = 0.0
        for concept, rarity in zip(question.concepts, rarities, strict=True):
            counts = ((candidate.counts.get(term, 0), weight) for term, weight in concept.variants)
            share += rarity * max((weight * count * (K1 + 1) / (count + norm) for count, weight in counts), default=0.0)
        shares[candidate.seq] = share / whole
    return shares


def _fuse(words: Mapping[int, float], vectors: Mapping[int, float]) -> list[Match]:
    best = 2 / (RRF + 1)
    ranks: dict[int, float] = {}
    for shares in (words, vectors):
        order = sorted(shares, key=lambda number: (-shares[number], -number))
        for rank, number in enumerate(order, 1):
            if shares[number] > 0:
                ranks[number] = ranks.get(number, 0.0) + 1 / (RRF + rank) / best
    return [Match(n, rank, min(words.get(n, 0.0), 1.0), vectors.get(n, 0.0)) for n, rank in ranks.items()]


def _share(similarity: float) -> float:
    return min(max(similarity, 0.0), 1.0) if math.isfinite(similarity) else 0.0


# -- the rest of a score ---------------------------------------------------------


def recency(memory: Memory, now: int, half_lives: Mapping[str, float] | None = None) -> float:
    """What is left of a memory by its age: a half after each half-life of its type, 1 for one of the future.

    Args:
        memory: counted from when it was last said, `updated_at`.
        now: milliseconds since the epoch.
        half_lives: days by type, in place of `HALF_LIVES`.
    """
    days = (half_lives or {}).get(memory.type, HALF_LIVES[memory.type])
    age = max(0, now - memory.updated_at) / DAY
    return float(2.0 ** (-age / days)) if days > 0 else float(not age)


def standing(memory: Memory) -> float:
    """What importance and trust leave of a score, 0 to 1."""
    return (1 - IMPORTANCE * (1 - memory.importance)) * (1 - TRUST * (1 - memory.trust))


def digest_question(text: str, question: Question) -> bytes:
    """16 bytes that stand for a question by its terms, whatever their order; of one without terms by its words."""
    terms = sorted({concept.variants[0][0] for concept in question.concepts}) or text.casefold().split()
    return hashlib.blake2b("\0".join(terms).encode("utf-8", "surrogatepass"), digest_size=16).digest()

"""Score how well memories answer a question, by relevance, age, importance and trust. Pure functions.

- The relevance by words is the share of the question that the memory answers. Concepts that are rare among the owner's memories have
  more weight. Their rarity is smoothed, because some owners have few memories. Each repetition of a word adds less than the one
  before, as in BM25 (Robertson and Zaragoza, 2009).
- The relevance by vectors is the similarity. If both are used, the two rankings are combined by reciprocal ranks (Cormack, Clarke
  and Büttcher, 2009).
- The score is halved once per half-life, which depends on the type of the memory. Importance and trust have a small weight.
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
"""Milliseconds in a day."""
HALF_LIVES: Final[Mapping[str, float]] = {
    "semantic": 10_000.0,
    "procedural": 10_000.0,
    "user": 10_000.0,
    "reference": 10_000.0,
    "feedback": 365.0,
    "project": 90.0,
    "episodic": 90.0,
}
"""Half-life, in days, of each type of memory. For recalls, age is counted from the time when a memory was last stated. Consolidation
counts age from the last recall."""
K1: Final = 1.2
"""BM25's `k1`."""
B: Final = 0.3
"""BM25's `b`, the influence of length. It is low, because memories are short."""
RRF: Final = 60.0
"""The constant of reciprocal rank fusion. The rankings by words and by vectors have the same weight."""
IMPORTANCE: Final = 0.2
"""Share of the score that a memory with importance 0 loses."""
TRUST: Final = 0.3
"""Share of the score that a memory with trust 0 loses."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """The relevance of a memory that is not yet read from the store."""

    number: int
    relevance: float
    """The value by which matches are ranked, 0 to 1."""
    keyword: float | None = None
    """Share of the question that the memory's words answer, 0 to 1; None: not computed."""
    vector: float | None = None
    """Similarity of the vectors of memory and question, 0 to 1; None: not computed."""
    sure: bool = True
    """True if the memory surely answers the question: its similarity is at least the embedder's minimum (`floor`), or its words answer
    enough of the question. Always True if there is no minimum."""


def rank_matches(
    question: Question, found: Candidates | None, similar: Sequence[Similar] | None = None, floor: float = 0.0
) -> list[Match]:
    """Rank an owner's memories by relevance. Of equally relevant memories, the newest come first.

    Args:
        question: the question.
        found: the candidates of the search by words; None: there was no such search.
        similar: the candidates of the search by vectors; None: there was no such search.
        floor: the embedder's minimum similarity for a memory that only vectors find (`holdfast.recall.ranking`); 0: no minimum.
    """
    words = {} if found is None else _score_words(question, found)
    vectors = {one.candidate.seq: _clamp(one.similarity) for one in similar or ()}
    floor = WEIGHTS.lower_floor(floor, len(vectors))
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
    """Make matches from the scores by words, by vectors or by both."""
    if not by_vectors:
        return [Match(number, min(share, 1.0), keyword=min(share, 1.0)) for number, share in words.items()]
    if not by_words:
        return [Match(number, share, vector=share) for number, share in vectors.items()]
    return _fuse(words, vectors)


def _is_sure(match: Match, floor: float) -> bool:
    return (match.vector or 0.0) >= floor or (match.keyword or 0.0) >= WEIGHTS.held


def _score_words(question: Question, found: Candidates) -> dict[int, float]:
    """Return the share of the question that each memory answers, by number of the memory. A share may be slightly more than 1."""
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


def _clamp(similarity: float) -> float:
    return min(max(similarity, 0.0), 1.0) if math.isfinite(similarity) else 0.0


# -- other parts of a score ------------------------------------------------------


def compute_recency(memory: Memory, now: int) -> float:
    """Return the factor for a memory's age: it begins at 1 and is halved once per half-life of the memory's type.

    Args:
        memory: the memory. Its age is counted from `updated_at`, the time when it was last stated.
        now: the current time, in milliseconds since the epoch.
    """
    age = max(0, now - memory.updated_at) / DAY
    return float(2.0 ** (-age / HALF_LIVES[memory.type]))


def compute_standing(memory: Memory) -> float:
    """Return the factor for a memory's importance and trust, 0 to 1."""
    return (1 - IMPORTANCE * (1 - memory.importance)) * (1 - TRUST * (1 - memory.trust))


def digest_question(text: str, question: Question) -> bytes:
    """Return a 16-byte digest of a question's terms. It does not depend on their order. Without terms, the question's words are used."""
    terms = sorted({concept.variants[0][0] for concept in question.concepts}) or text.casefold().split()
    return hashlib.blake2b("\0".join(terms).encode("utf-8", "surrogatepass"), digest_size=16).digest()

"""Hits: documents in their rank, with what their scores are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.recall.base import Candidate
from holdfast.recall.details import read_chunks

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

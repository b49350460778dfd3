"""Results of a search: hits with their snippets and neighbours, and the page that they are on."""

from __future__ import annotations

import msgspec

from holdfast.recall.base import SearchMode


class SearchNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A message before or behind a hit."""

    seq: int
    turn_id: int
    role: str
    agent: str | None
    name: str | None
    timestamp: int
    text: str


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that answers."""

    session_id: str
    seq: int
    turn_id: int
    role: str
    agent: str | None
    name: str | None
    """Who spoke, where several do."""
    timestamp: int
    score: float
    """The higher, the better; comparable within one search only. 0 where only a time was asked for."""
    parts: dict[str, float]
    """What the score is made of: `own`, `neighbours`, `session`, `traits`, `keyword`, `vector`; `similarity` is the cosine.

    `rerank` is the score of the reranker: it decides the order, and is not part of `score`."""
    snippet: str
    highlights: tuple[tuple[int, int], ...]
    """Start and stop of each word that was asked for, in characters of `snippet`."""
    position: int
    """Its rank, from 1, over all pages."""
    cursor: str = ""
    """Names this hit of this search: given as `after`, the page begins behind it."""
    before: tuple[SearchNeighbour, ...] = ()
    after: tuple[SearchNeighbour, ...] = ()

    @property
    def id(self) -> str:
        """Names it: `session#seq`."""
        return f"{self.session_id}#{self.seq}"


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """A page of hits."""

    hits: tuple[SearchHit, ...]
    mode: SearchMode
    """What was searched by."""
    has_more: bool = False
    cursor: str | None = None
    """Give it as `after` for the next page; None: there is none."""
    range: tuple[int | None, int | None] = (None, None)
    """The time that was searched, filters and time expressions together: from the one until before the other, in milliseconds."""
    notes: tuple[str, ...] = ()
    """What was otherwise than asked for: `keyword only: there is no embedder`."""

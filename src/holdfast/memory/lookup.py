"""Find the memories that answer a question, by words, by vectors or by both.

Every memory that an index finds is read from the store again. So forgotten, superseded and rejected memories are never returned,
even if the index still has them. If there is no index, or if it fails, words are looked up in a cache of this process
(`holdfast.memory.owner_caches`). The cost depends on the number of matches, not on the number of memories.

An owner's version is a number that increases with every change of the owner's memories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.domain.memory import Memory, Owner
from holdfast.errors import Conflict, StoreError
from holdfast.limits import RECALLED_MEMORIES, SEARCH_VECTOR_SECONDS
from holdfast.memory.checks import to_tuple
from holdfast.memory.owner_caches import LocalIndexes
from holdfast.memory.queries import PreparedQuery, prepare_query
from holdfast.memory.ranking import Match, compute_recency, compute_standing, rank_matches
from holdfast.numbers import check_number, check_whole
from holdfast.recall.base import CANDIDATES, NEAREST, Candidates, Index, Lookup, SearchMode, Space
from holdfast.recall.questions import parse_question
from holdfast.stores.logic.memories import MemoryStore

_log = logging.getLogger("holdfast.memories")
_READ: Final = 100
"""Number of memories that are read from the store at once. The best matches are read first, until enough memories have passed the filters."""
_ROUNDS: Final = 8
"""Maximum number of times that a search for similar memories is repeated because another process has changed the memories."""
BROAD_RELEVANCE: Final = 0.1
"""Relevance that the newest memories get if a question has no searchable words ("what do you know about me?")."""


class IndexService(Protocol):
    """The part of the index service (`holdfast.indexes`) that is needed to find memories."""

    @property
    def index(self) -> Index:
        """The tenant's index."""

    @property
    def embedder(self) -> Any:
        """The embedder, which makes vectors; None: searches use words only."""

    @property
    def floor(self) -> float:
        """The similarity below which texts are unrelated, measured for the embedder's model; 0 if it is not known."""

    async def index_memories(self, owner: Owner) -> int:
        """Bring an owner's memories up to date in the index. Return the owner's version that the index then has."""


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of memories."""

    mode: SearchMode | None = None
    """The default mode of recalls. None: the mode of the index or, without an index, `keyword`."""
    hold_mcp: bool = False
    """True: every memory that a client of the MCP server remembers is held for review, whatever its origin."""


class Recalled(msgspec.Struct, frozen=True):
    """A memory that answers a question."""

    memory: Memory
    score: float
    """The score by which memories are ranked, 0 to 1: the product of relevance, recency and standing."""
    parts: Mapping[str, float]
    """The parts of the score, each 0 to 1: `relevance`, `recency`, `standing`, and `keyword` and `vector` if they were computed."""
    age: int
    """Age in milliseconds, counted from the time when the memory was last stated."""


class RecalledMemories(msgspec.Struct, frozen=True):
    """The memories that answer a question, best first."""

    found: tuple[Recalled, ...]
    mode: SearchMode
    """The mode that was used. It is `keyword` if a search by vectors was not possible."""
    note: str = ""
    """The reason why `mode` differs from the requested mode; empty if it does not."""


class MemoryFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on the memories that a recall returns.

    Raises:
        InvalidRequest: a filter is invalid.
    """

    limit: int = 5
    """Maximum number of memories to return."""
    types: Collection[str] = ()
    """Only memories of these types; empty: any."""
    tags: Collection[str] = ()
    """Only memories with all of these tags."""
    min_score: float = 0.0
    """Only memories with at least this score."""
    include_quarantined: bool = True
    """True to include memories that are held for review. Their `status` shows it."""
    statuses: Collection[str] = ()
    """Only memories with these statuses; empty: all memories that can be recalled."""
    without: Collection[str] = ()
    """Ids of memories to leave out."""
    sure: bool = False
    """If True, an owner's memories are returned only if at least one of them surely answers (`Match.sure`). Used if the
    memories are shown to a model."""

    def __post_init__(self) -> None:
        check_whole(self.limit, "limit", 1, RECALLED_MEMORIES)
        check_number(self.min_score, "min_score", 0, 1)
        for name in ("types", "tags", "statuses", "without"):
            to_tuple(getattr(self, name), str, name)

    def should_include(self, memory: Memory, now: int) -> bool:
        """Return True if a memory passes the filters and is valid at the time `now` (milliseconds since the epoch).

        `limit`, `min_score` and `sure` are not checked here.
        """
        return (
            memory.is_valid_at(now)
            and (self.include_quarantined or memory.status == "active")
            and (not self.statuses or memory.status in self.statuses)
            and (not self.types or memory.type in self.types)
            and set(self.tags) <= set(memory.tags)
            and memory.id not in self.without
        )


class _WordMatches(NamedTuple):
    """The memories of an owner that the words of a question found."""

    version: int
    """The owner's version for which the result holds."""
    found: Candidates
    indexed: bool
    """True if the index found them. The index was brought up to date before."""


class Recaller:
    """Finds the memories of owners that answer a question or that are similar to a text.

    Args:
        store: the store of memories.
        index: returns the index service; None if there is no index.
    """

    def __init__(self, store: MemoryStore, index: Callable[[], IndexService | None]) -> None:
        self._store = store
        self._service = index
        self.local = LocalIndexes(store)

    async def recall(
        self,
        text: str,
        owners: Sequence[Owner],
        mode: SearchMode,
        filters: MemoryFilters,
        now: int,
        *,
        strict: bool,
        patience: float = SEARCH_VECTOR_SECONDS,
    ) -> RecalledMemories:
        """Return the memories that answer a question, best first.

        Args:
            text: the question.
            owners: the owners whose memories are searched.
            mode: the kind of search.
            filters: conditions on the memories.
            now: the time at which memories must be valid, in milliseconds since the epoch.
            strict: if a search by vectors is not possible, raise an error. If False, search by words instead.
            patience: seconds to wait for the question's vector.

        Raises:
            InvalidRequest: `strict` is True, and no embedder is configured.
            EmbeddingFailed: `strict` is True, and the embedder fails or takes too long.
        """
        service = self._service()
        embedder = None if service is None else service.embedder
        query = await prepare_query(text, mode, embedder, now=now, patience=patience, strict=strict)
        try:
            found = [one for owner in owners for one in await self._recall_owner(owner, query, filters, now)]
        except (StoreError, Conflict) as exc:
            if strict or query.vector is None:
                raise
            _log.warning("memories are recalled by words only: the index does not answer: %s", exc.code)
            query = query._replace(mode="keyword", vector=None, note="the index did not answer")
            found = [one for owner in owners for one in await self._recall_owner(owner, query, filters, now)]
        found.sort(key=lambda one: (-one.score, -one.memory.updated_at, -one.memory.number, one.memory.id))
        return RecalledMemories(tuple(found[: filters.limit]), query.mode, query.note)

    async def find_similar(self, owner: Owner, text: str, limit: int) -> tuple[int, list[Memory]]:
        """Return the memories of an owner that have the most words in common with a text.

        If the text has no searchable words, return the newest memories.

        Returns:
            The owner's version at which the memories were read, and the memories.
        """
        question = parse_question(text, now=0, narrow=False)
        if not question.terms:
            newest = await self._store.memories(owner, limit=limit, descending=True)
            return newest.version, list(newest.memories)
        for _ in range(_ROUNDS):
            words = await self._look_up_words(owner, question.terms)
            numbers = [match.number for match in rank_matches(question, words.found)][:limit]
            read = await self._store.memories(owner, numbers=numbers, limit=max(1, len(numbers)))
            if read.version == words.version:
                break
        return read.version, list(read.memories)

    # -- internals -----------------------------------------------------------

    async def _recall_owner(
        self, owner: Owner, query: PreparedQuery, filters: MemoryFilters, now: int
    ) -> list[Recalled]:
        """Return the memories of an owner that answer a question and pass the filters.

        Memories are read in groups of `_READ` until at least `filters.limit` are found. So the result may have more than `filters.limit`.
        """
        words = None if query.mode == "vector" else await self._look_up_words(owner, query.question.terms)
        similar, service = None, self._service()
        if query.vector is not None and service is not None:
            if not (words is not None and words.indexed):
                await service.index_memories(owner)
            lookup = Lookup(space=_to_space(owner), limit=NEAREST)
            similar = await service.index.similar(lookup, service.embedder.name, query.vector)
        ranked = rank_matches(query.question, words and words.found, similar, 0.0 if service is None else service.floor)
        if not query.question.terms and not ranked:
            newest = await self._store.memories(owner, limit=_READ, descending=True)
            ranked = [Match(one.number, BROAD_RELEVANCE) for one in newest.memories]
        ranked = [
            match for match in ranked if match.relevance >= filters.min_score
        ]  # a score never exceeds the relevance
        found, sure = list[Recalled](), False
        for start in range(0, len(ranked), _READ):
            some = {match.number: match for match in ranked[start : start + _READ]}
            read = await self._store.memories(owner, numbers=list(some), limit=len(some))
            for memory in read.memories:
                match = some[memory.number]
                rated = self._rate(memory, match, now) if filters.should_include(memory, now) else None
                if rated is not None and rated.score >= filters.min_score:
                    found.append(rated)
                    sure = sure or match.sure
            if len(found) >= filters.limit:
                break
        return found if sure or not filters.sure else []

    def _rate(self, memory: Memory, match: Match, now: int) -> Recalled:
        recent, stands = compute_recency(memory, now), compute_standing(memory)
        parts = {"keyword": match.keyword, "vector": match.vector, "relevance": match.relevance}
        parts_shown = {name: round(value, 6) for name, value in parts.items() if value is not None}
        parts_shown |= {"recency": round(recent, 6), "standing": round(stands, 6)}
        score = round(match.relevance * recent * stands, 6)
        return Recalled(memory, score, parts_shown, max(0, now - memory.updated_at))

    async def _look_up_words(self, owner: Owner, terms: tuple[str, ...]) -> _WordMatches:
        service = self._service()
        if service is not None and terms:
            try:
                version = await service.index_memories(owner)
                found = await service.index.lookup(Lookup(space=_to_space(owner), terms=terms))
            except (StoreError, Conflict) as exc:  # a conflict means that other processes keep writing
                _log.warning("memories are looked up without the index, which does not answer: %s", exc.code)
            else:
                return _WordMatches(version, found, indexed=True)
        version, found = await self.local.find_candidates(owner, terms, CANDIDATES)
        return _WordMatches(version, found, indexed=False)


def _to_space(owner: Owner) -> Space:
    return Space(owner.kind, owner.id)

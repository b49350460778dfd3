"""Recall: which of the memories that somebody may see answer a question, by words, by vectors or both, and that they were asked for.

What an index finds is read from the store again, so nothing comes out that was forgotten, superseded or rejected, whatever an index
still has. Without an index, or while it fails, words are looked up in this process; see `holdfast.memory.owner_caches`. Cost: that of what is
found, whatever there is besides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import anyio
import msgspec

from holdfast.domain.memory import Memory, Owner
from holdfast.errors import Conflict, EmbeddingFailed, InvalidRequest, MissingExtra, StoreError
from holdfast.limits import RECALLED_MEMORIES, SEARCH_VECTOR_SECONDS
from holdfast.memory.checks import list_of
from holdfast.memory.owner_caches import LocalIndexes
from holdfast.memory.ranking import Match, matches, recency, standing
from holdfast.numbers import check_number, check_whole
from holdfast.recall.base import CANDIDATES, NEAREST, Candidates, Index, Lookup, SearchMode, Similar, Space
from holdfast.recall.questions import Question, question_of
from holdfast.stores.memories import MemoryStore

_log = logging.getLogger("holdfast.memories")
_READ: Final = 100
"""Memories that are read at once, the best first, until enough pass the filters."""
_ROUNDS: Final = 8
"""Times that an index is brought up to the store for one lookup, where others keep writing."""
UNASKED: Final = 0.1
"""Relevance where a question has no word to look up ("what do you know about me?"): then the newest memories may answer."""


class IndexService(Protocol):
    """What is needed of the index service; see `holdfast.indexes`."""

    @property
    def index(self) -> Index:
        """The tenant's."""

    @property
    def embedder(self) -> Any:
        """Makes vectors; None: there are none."""

    @property
    def floor(self) -> float:
        """The similarity below which texts have nothing to do with each other; 0: that is not known."""

    async def take_memories(self, owner: Owner) -> int:
        """Have the index hold what the store has of an owner's memories; the owner's version."""


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How memories are found."""

    mode: SearchMode | None = None
    """Of a recall that names none. None: as the index has it, else `keyword`."""
    half_lives: Mapping[str, float] = {}
    """Days by type, where they are not those of `holdfast.memory.ranking.HALF_LIVES`."""


class Recalled(msgspec.Struct, frozen=True):
    """A memory that answers."""

    memory: Memory
    score: float
    """What it is ranked by, 0 to 1."""
    parts: Mapping[str, float]
    """What the score is made of: `keyword`, `vector` (0 to 1, where they were looked at), `relevance`, `recency`, `standing`."""
    age: int
    """Milliseconds since it was last said."""


class RecalledMemories(msgspec.Struct, frozen=True):
    """What answers a question, the best first."""

    found: tuple[Recalled, ...]
    mode: SearchMode
    """How it was looked for: `keyword` in place of `hybrid` where there are no vectors."""
    note: str = ""
    """Why it was looked for in another way than it was asked for."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which memories are wanted of those that answer.

    Raises:
        InvalidRequest: a filter that cannot be one.
    """

    limit: int = 5
    """At most so many."""
    types: Collection[str] = ()
    """Only of these; none: of any."""
    tags: Collection[str] = ()
    """Only with all of them."""
    min_score: float = 0.0
    """Only from that score on."""
    include_quarantined: bool = True
    """Whether those are among them that are held for review; they say so."""
    statuses: Collection[str] = ()
    """Only these; none: of any that is recalled."""
    without: Collection[str] = ()
    """Ids of memories that are not wanted."""
    sure: bool = False
    """Whether none of an owner's is wanted unless one surely answers; see `Match.sure`. For what a model is given."""

    def __post_init__(self) -> None:
        check_whole(self.limit, "limit", 1, RECALLED_MEMORIES)
        check_number(self.min_score, "min_score", 0, 1)
        for name in ("types", "tags", "statuses", "without"):
            list_of(getattr(self, name), str, name)

    def takes(self, memory: Memory, now: int) -> bool:
        """Whether a memory is among the wanted at that time."""
        return (
            memory.is_valid_at(now)
            and (self.include_quarantined or memory.status == "active")
            and (not self.statuses or memory.status in self.statuses)
            and (not self.types or memory.type in self.types)
            and set(self.tags) <= set(memory.tags)
            and memory.id not in self.without
        )


class _Asked(NamedTuple):
    """A question on its way through the owners."""

    question: Question
    mode: SearchMode
    vector: bytes | None
    note: str


class _ByWords(NamedTuple):
    """What the words of a question found among an owner's memories."""

    version: int
    """Of the owner, at which that holds."""
    found: Candidates
    indexed: bool
    """Whether by the index: then it has all that is written."""


class Recaller:
    """Looks memories up.

    Args:
        store: where they are.
        index: the index service; None: there is none.
        half_lives: days by type, where they are not the usual ones.
    """

    def __init__(
        self,
        store: MemoryStore,
        index: Callable[[], IndexService | None],
        half_lives: Mapping[str, float] | None = None,
    ) -> None:
        self._store = store
        self._service = index
        self._half_lives = half_lives
        self.local = LocalIndexes(store)

    async def recall(
        self,
        text: str,
        owners: Sequence[Owner],
        mode: SearchMode,
        wanted: Wanted,
        now: int,
        *,
        strict: bool,
        patience: float = SEARCH_VECTOR_SECONDS,
    ) -> RecalledMemories:
        """What answers; see `Memories.recall`. Raises `InvalidRequest` where it is strict about vectors, and there are none."""
        asked = await self._asked(text, mode, now, patience, strict=strict)
        try:
            found = [one for owner in owners for one in await self._of(owner, asked, wanted, now)]
        except (StoreError, Conflict) as exc:
            if strict or asked.vector is None:
                raise
            _log.warning("memories are recalled by their words alone: the index does not answer: %s", exc.code)
            asked = asked._replace(mode="keyword", vector=None, note="the index did not answer")
            found = [one for owner in owners for one in await self._of(owner, asked, wanted, now)]
        found.sort(key=lambda one: (-one.score, -one.memory.updated_at, -one.memory.number, one.memory.id))
        return RecalledMemories(tuple(found[: wanted.limit]), asked.mode, asked.note)

    async def like(self, owner: Owner, text: str, limit: int) -> tuple[int, list[Memory]]:
        """The memories that share most words with a text, and the version of the owner at which these are they."""
        question = question_of(text, now=0, narrow=False)
        if not question.terms:
            newest = await self._store.memories(owner, limit=limit, descending=True)
            return newest.version, list(newest.memories)
        for _ in range(_ROUNDS):
            words = await self._by_words(owner, question.terms)
            numbers = [match.number for match in matches(question, words.found)][:limit]
            read = await self._store.memories(owner, numbers=numbers, limit=max(1, len(numbers)))
            if read.version == words.version:
                break
        return read.version, list(read.memories)

    # -- inside --------------------------------------------------------------

    async def _asked(self, text: str, mode: SearchMode, now: int, patience: float, *, strict: bool) -> _Asked:
        question = question_of(text, now=now, narrow=False)
        if mode == "keyword":
            return _Asked(question, mode, None, "")
        service = self._service()
        if service is None or service.embedder is None:
            if strict:
                message = "there are no vectors to look memories up by: configure an embedder, or use mode keyword"
                raise InvalidRequest(message, param="mode")
            return _Asked(question, "keyword", None, "no embedder is configured")
        why = "the embedder took too long"
        try:
            with anyio.fail_after(patience):
                embed = getattr(service.embedder, "embed_queries", None) or service.embedder.embed
                (vector,) = await embed([text])
                return _Asked(question, mode, vector, "")
        except TimeoutError as exc:
            if strict:
                raise EmbeddingFailed("the embedder took too long for the question", again=True) from exc
        except (EmbeddingFailed, MissingExtra):
            if strict:
                raise
            why = "the embedder did not answer"
        _log.warning("memories are recalled by their words alone: %s", why)
        return _Asked(question, "keyword", None, why)

    async def _of(self, owner: Owner, asked: _Asked, wanted: Wanted, now: int) -> list[Recalled]:
        """The wanted memories of an owner that answer; at most as many as are wanted."""
        ranked = await self._matches(owner, asked)
        if not asked.question.terms and not ranked:
            newest = await self._store.memories(owner, limit=_READ, descending=True)
            ranked = [Match(one.number, UNASKED) for one in newest.memories]
        ranked = [match for match in ranked if match.relevance >= wanted.min_score]  # no score is above that
        found, sure = list[Recalled](), False
        for start in range(0, len(ranked), _READ):
            some = {match.number: match for match in ranked[start : start + _READ]}
            read = await self._store.memories(owner, numbers=list(some), limit=len(some))
            for memory in read.memories:
                match = some[memory.number]
                rated = self._rated(memory, match, now) if wanted.takes(memory, now) else None
                if rated is not None and rated.score >= wanted.min_score:
                    found.append(rated)
                    sure = sure or match.sure
            if len(found) >= wanted.limit:
                break
        return found if sure or not wanted.sure else []

    def _rated(self, memory: Memory, match: Match, now: int) -> Recalled:
        recent, stands = recency(memory, now, self._half_lives), standing(memory)
        parts = {"keyword": match.keyword, "vector": match.vector, "relevance": match.relevance}
        told = {name: round(value, 6) for name, value in parts.items() if value is not None}
        told |= {"recency": round(recent, 6), "standing": round(stands, 6)}
        score = round(match.relevance * recent * stands, 6)
        return Recalled(memory, score, told, max(0, now - memory.updated_at))

    async def _matches(self, owner: Owner, asked: _Asked) -> list[Match]:
        words = None if asked.mode == "vector" else await self._by_words(owner, asked.question.terms)
        similar, service = None, self._service()
        if asked.vector is not None and service is not None:
            similar = await self._by_vector(service, owner, asked.vector, taken=words is not None and words.indexed)
        return matches(asked.question, words and words.found, similar, 0.0 if service is None else service.floor)

    async def _by_words(self, owner: Owner, terms: tuple[str, ...]) -> _ByWords:
        service = self._service()
        if service is not None and terms:
            try:
                version = await service.take_memories(owner)
                found = await service.index.lookup(Lookup(space=_space(owner), terms=terms))
            except (StoreError, Conflict) as exc:  # a conflict: others write to it all the time
                _log.warning("the index does not answer, memories are looked up without it: %s", exc.code)
            else:
                return _ByWords(version, found, indexed=True)
        version, found = await self.local.found(owner, terms, CANDIDATES)
        return _ByWords(version, found, indexed=False)

    async def _by_vector(self, service: IndexService, owner: Owner, vector: bytes, *, taken: bool) -> Sequence[Similar]:
        if not taken:
            await service.take_memories(owner)
        lookup = Lookup(space=_space(owner), limit=NEAREST)
        return await service.index.similar(lookup, service.embedder.name, vector)


def _space(owner: Owner) -> Space:
    return Space(owner.kind, owner.id)

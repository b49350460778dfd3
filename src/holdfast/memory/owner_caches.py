"""Cache owners' memories in this process: their terms, for lookups without an index, and the promoted memories.

The first access reads all memories of an owner; later ones read only the changes. If nothing has changed, an access is one small
read, regardless of the number of memories. Deleted memories disappear at the next access. The least recently used owners are
evicted.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.domain.memory import Memory, Owner
from holdfast.limits import MEMORIES_AT_HAND, PAGE
from holdfast.recall.base import Candidate, Candidates
from holdfast.recall.terms import Terms, extract_terms
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.walk import iterate_memory_pages


class OwnerData(Protocol):
    """Data that a cache derives from the memories of one owner."""

    version: int
    """Version of the owner up to which the data includes all changes; 0 at first."""
    numbers: set[int]
    """The numbers of all memories that were added, of any status."""

    def add(self, memory: Memory) -> None:
        """Add a memory, or update it if it was added before. Its number is in `numbers` afterwards."""

    def __len__(self) -> int:
        """Return the size of the data, for the size limit of the cache."""


D = TypeVar("D", bound=OwnerData)


class OwnerCache(Generic[D]):
    """A cache of data derived from owners' memories.

    Args:
        store: the store of memories.
        make: returns empty data for a new owner.
        most: maximum total size of the cache. The size of an owner's data is its `len` plus one. The owner used last is always kept.
    """

    def __init__(self, store: MemoryStore, make: Callable[[], D], most: int = MEMORIES_AT_HAND) -> None:
        self._store = store
        self._make = make
        self._most = most
        self._kept: OrderedDict[Owner, tuple[D, int]] = OrderedDict()
        self._weight = 0

    async def get(self, owner: Owner) -> D:
        """Return an owner's data, brought up to date."""
        kept = self._kept.get(owner)
        known = self._make() if kept is None else kept[0]
        if await self._read(owner, known) != len(
            known.numbers
        ):  # some memories were forgotten, and it is unknown which ones
            known = self._make()
            await self._read(owner, known)
        self.evict(owner)
        weight = len(known) + 1  # an owner without memories also needs space
        self._kept[owner] = known, weight
        self._weight += weight
        while len(self._kept) > 1 and self._weight > self._most:
            self.evict(next(iter(self._kept)))
        return known

    def evict(self, owner: Owner) -> None:
        """Remove an owner from the cache."""
        self._weight -= self._kept.pop(owner, (None, 0))[1]

    async def _read(self, owner: Owner, known: D) -> int:
        """Add an owner's new and changed memories to the data. Return the number of all memories of the owner."""
        pages = iterate_memory_pages(self._store, owner, since=known.version or None, limit=PAGE)
        first = await anext(pages)
        for memory in first.memories:
            known.add(memory)
        async for page in pages:
            for memory in page.memories:
                known.add(memory)
        known.version = first.version  # writes during the read are read again next time
        return first.total


class _LocalIndex:
    """A search index of one owner's memories by their terms. Only memories that can be recalled are found.

    The attributes are described in `OwnerData`.
    """

    def __init__(self) -> None:
        self.version = 0
        self.numbers: set[int] = set()
        self._held: dict[int, tuple[Terms, int, str | None]] = {}
        self._having: dict[str, set[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, memory: Memory) -> None:
        self._drop(memory.number)
        self.numbers.add(memory.number)
        if memory.is_recalled:
            terms = extract_terms(memory.words)
            self._held[memory.number] = (terms, memory.updated_at, memory.agent)
            self._length += terms.length
            for term in terms.counts:
                self._having.setdefault(term, set()).add(memory.number)

    def _drop(self, number: int) -> None:
        entry = self._held.pop(number, None)
        if entry is None:
            return
        self._length -= entry[0].length
        for term in entry[0].counts:
            self._having[term].discard(number)
            if not self._having[term]:
                del self._having[term]

    def find_candidates(self, terms: Sequence[str], limit: int) -> Candidates:
        frequencies = {term: len(self._having[term]) for term in terms if term in self._having}
        numbers: dict[int, None] = {}
        for term in sorted(frequencies, key=lambda term: frequencies[term]):
            numbers |= dict.fromkeys(sorted(self._having[term], reverse=True))
            if len(numbers) >= limit:
                break
        candidates = [self._make_candidate(number, frequencies) for number in list(numbers)[:limit]]
        return Candidates(candidates, len(self._held), self._length, frequencies)

    def _make_candidate(self, number: int, terms: Mapping[str, int]) -> Candidate:
        entry_terms, at, agent = self._held[number]
        return Candidate(
            source=0,
            place=number,
            seq=number,
            session="",
            identity="",
            role="user",
            agent=agent,
            name=None,
            at=at,
            length=entry_terms.length,
            counts={term: entry_terms.counts[term] for term in terms if term in entry_terms.counts},
        )


class LocalIndexes:
    """Search indexes, by words, of the memories of recently used owners.

    Args:
        store: the store of memories.
        most: maximum number of memories in the cache, for all owners together.
    """

    def __init__(self, store: MemoryStore, most: int = MEMORIES_AT_HAND) -> None:
        self._indexes = OwnerCache(store, _LocalIndex, most)

    async def find_candidates(self, owner: Owner, terms: Sequence[str], limit: int) -> tuple[int, Candidates]:
        """Return the owner's version, and the memories that contain at least one of the terms at that version."""
        index = await self._indexes.get(owner)
        return index.version, index.find_candidates(terms, limit)

    def evict(self, owner: Owner) -> None:
        """Remove an owner from the cache."""
        self._indexes.evict(owner)


_lives = itertools.count(1)


class PromotedMemories(msgspec.Struct, frozen=True):
    """The promoted memories of one owner."""

    memories: tuple[Memory, ...]
    """The promoted and active memories, in order of number. They may be outside their time of validity; the caller checks that."""
    life: int
    """A number that changes whenever any memory of the owner is deleted, whether the memory was promoted or not."""


class _PromotedData:
    """The cached data of an owner for `PromotedCache`.

    Attributes:
        version, numbers: as in `OwnerData`.
        promoted: the promoted and active memories, by number.
        life: as in `PromotedMemories`.
    """

    def __init__(self) -> None:
        self.version = 0
        self.numbers: set[int] = set()
        self.promoted: dict[int, Memory] = {}
        self.life = next(_lives)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, memory: Memory) -> None:
        self.numbers.add(memory.number)
        if memory.promoted_at is not None and memory.status == "active":
            self.promoted[memory.number] = memory
        else:
            self.promoted.pop(memory.number, None)


class PromotedCache:
    """A cache of the promoted memories of recently used owners.

    Args:
        store: the store of memories.
        most: maximum number of memories in the cache, for all owners together.
    """

    def __init__(self, store: MemoryStore, most: int = MEMORIES_AT_HAND) -> None:
        self._known = OwnerCache(store, _PromotedData, most)

    async def get(self, owner: Owner) -> PromotedMemories:
        """Return an owner's promoted memories, brought up to date."""
        known = await self._known.get(owner)
        return PromotedMemories(tuple(known.promoted[number] for number in sorted(known.promoted)), known.life)

"""Caches of owners' memories in this process: their terms, for lookups without an index, and those that are promoted.

The memories of an owner are read whole once, then only what changed. An owner without changes costs one small read, however many
memories there are. Forgotten memories are gone with the next read. The least recently used owners are evicted.
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
from holdfast.recall.terms import Terms, terms_of
from holdfast.stores.memories import MemoryStore


class Digest(Protocol):
    """What is worked out of an owner's memories, one by one."""

    version: int
    """Of the owner, up to which all is taken in; 0 at first."""
    numbers: set[int]
    """Of all memories that were taken in, whatever their status."""

    def take(self, memory: Memory) -> None:
        """Take a memory in, or in again as it is now; its number is among `numbers` then."""

    def __len__(self) -> int:
        """What it counts for among all that is kept."""


D = TypeVar("D", bound=Digest)


class Following(Generic[D]):
    """What is known of the owners that were asked for last.

    Args:
        store: where memories are.
        make: one of an owner that nothing is known of.
        most: how much is kept, of all owners together, each by its `len` and one; the last that was asked for is always.
    """

    def __init__(self, store: MemoryStore, make: Callable[[], D], most: int = MEMORIES_AT_HAND) -> None:
        self._store = store
        self._make = make
        self._most = most
        self._kept: OrderedDict[Owner, tuple[D, int]] = OrderedDict()
        self._weight = 0

    async def of(self, owner: Owner) -> D:
        """What is known of an owner, as its memories are now."""
        kept = self._kept.get(owner)
        known = self._make() if kept is None else kept[0]
        if await self._read(owner, known) != len(known.numbers):  # some were forgotten, and nobody says which
            known = self._make()
            await self._read(owner, known)
        self._keep(owner, known)
        return known

    def forget(self, owner: Owner) -> None:
        """Let go of what is kept of an owner."""
        self._weight -= self._kept.pop(owner, (None, 0))[1]

    def _keep(self, owner: Owner, known: D) -> None:
        self.forget(owner)
        weight = len(known) + 1  # one without memories is something to keep, too
        self._kept[owner] = known, weight
        self._weight += weight
        while len(self._kept) > 1 and self._weight > self._most:
            self.forget(next(iter(self._kept)))

    async def _read(self, owner: Owner, known: D) -> int:
        """Take in what has changed; how many memories the owner has."""
        since = known.version or None
        first = page = await self._store.memories(owner, since=since, limit=PAGE)
        while True:
            for memory in page.memories:
                known.take(memory)
            if not page.has_more:
                break
            page = await self._store.memories(owner, since=since, after=page.memories[-1].number, limit=PAGE)
        known.version = first.version  # what was written while it was read is read again
        return first.total


class _LocalIndex:
    """The terms of an owner's memories that may be recalled.

    Attributes:
        version: of the owner, up to which all is taken in.
        numbers: of all that the owner has, whatever their status.
    """

    def __init__(self) -> None:
        self.version = 0
        self.numbers: set[int] = set()
        self._held: dict[int, tuple[Terms, int, str | None]] = {}
        self._having: dict[str, set[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._held)

    def take(self, memory: Memory) -> None:
        self._drop(memory.number)
        self.numbers.add(memory.number)
        if memory.is_recalled:
            terms = terms_of(memory.words)
            self._held[memory.number] = (terms, memory.updated_at, memory.agent)
            self._length += terms.length
            for term in terms.counts:
                self._having.setdefault(term, set()).add(memory.number)

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is None:
            return
        self._length -= held[0].length
        for term in held[0].counts:
            self._having[term].discard(number)
            if not self._having[term]:
                del self._having[term]

    def found(self, terms: Sequence[str], limit: int) -> Candidates:
        frequencies = {term: len(self._having[term]) for term in terms if term in self._having}
        numbers: dict[int, None] = {}
        for term in sorted(frequencies, key=lambda term: frequencies[term]):
            numbers |= dict.fromkeys(sorted(self._having[term], reverse=True))
            if len(numbers) >= limit:
                break
        candidates = [self._candidate(number, frequencies) for number in list(numbers)[:limit]]
        return Candidates(candidates, len(self._held), self._length, frequencies)

    def _candidate(self, number: int, terms: Mapping[str, int]) -> Candidate:
        held, at, agent = self._held[number]
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
            length=held.length,
            counts={term: held.counts[term] for term in terms if term in held.counts},
        )


class LocalIndexes:
    """The memories of the owners that were looked at last.

    Args:
        store: where memories are.
        most: memories that are kept, of all owners together.
    """

    def __init__(self, store: MemoryStore, most: int = MEMORIES_AT_HAND) -> None:
        self._indexes = Following(store, _LocalIndex, most)

    async def found(self, owner: Owner, terms: Sequence[str], limit: int) -> tuple[int, Candidates]:
        """What may answer, and the version of the owner at which that holds."""
        index = await self._indexes.of(owner)
        return index.version, index.found(terms, limit)

    def forget(self, owner: Owner) -> None:
        """Let go of what is kept of an owner."""
        self._indexes.forget(owner)


_lives = itertools.count(1)


class PromotedOf(msgspec.Struct, frozen=True):
    """The promoted memories of one owner."""

    memories: tuple[Memory, ...]
    """Active ones, in order of number; whether they hold is a matter of time."""
    life: int
    """Another one where something of the owner's was forgotten since it was asked last, promoted or not."""


class _Known:
    """What is known of an owner.

    Attributes:
        version: of the owner, up to which all is taken in.
        numbers: of all its memories, whatever their status.
        promoted: the promoted ones by number.
    """

    def __init__(self) -> None:
        self.version = 0
        self.numbers: set[int] = set()
        self.promoted: dict[int, Memory] = {}
        self.life = next(_lives)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, memory: Memory) -> None:
        self.numbers.add(memory.number)
        if memory.promoted_at is not None and memory.status == "active":
            self.promoted[memory.number] = memory
        else:
            self.promoted.pop(memory.number, None)


class Promoted:
    """The promoted memories of the owners that were asked for last.

    Args:
        store: where memories are.
        most: memories that are known of, of all owners together.
    """

    def __init__(self, store: MemoryStore, most: int = MEMORIES_AT_HAND) -> None:
        self._known = Following(store, _Known, most)

    async def of(self, owner: Owner) -> PromotedOf:
        """Those of an owner, as they are now."""
        known = await self._known.of(owner)
        return PromotedOf(tuple(known.promoted[number] for number in sorted(known.promoted)), known.life)

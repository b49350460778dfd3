"""Looking memories up without an index: the terms of an owner's memories in this process's memory, brought up to the store each time.

What an owner has is read whole once, then only what has changed. Owners that were looked at longest ago are let go; what was forgotten
is gone with the next look, as it is from an index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from holdfast.domain.memory import Memory, Owner
from holdfast.limits import PAGE, SHELVED_MEMORIES
from holdfast.recall.base import Candidate, Candidates
from holdfast.recall.terms import Terms, terms_of
from holdfast.stores.memories import MemoryStore


def words_of(memory: Memory) -> str:
    """What a memory is found by: what it says, and its tags."""
    return "\n".join((memory.content, " ".join(memory.tags))) if memory.tags else memory.content


class _Shelf:
    """The terms of an owner's memories that may be recalled.

    Attributes:
        version: of the owner, up to which all is taken in.
        known: numbers of all that the owner has, whatever their status.
    """

    def __init__(self) -> None:
        self.version = 0
        self.known: set[int] = set()
        self._held: dict[int, tuple[Terms, int, str | None]] = {}
        self._numbers: dict[str, set[int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._held)

    def take(self, memory: Memory) -> None:
        self._drop(memory.number)
        self.known.add(memory.number)
        if memory.status in ("active", "quarantined") and not memory.is_proposal:
            terms = terms_of(words_of(memory))
            self._held[memory.number] = (terms, memory.updated_at, memory.agent)
            self._length += terms.length
            for term in terms.counts:
                self._numbers.setdefault(term, set()).add(memory.number)

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is None:
            return
        self._length -= held[0].length
        for term in held[0].counts:
            self._numbers[term].discard(number)
            if not self._numbers[term]:
                del self._numbers[term]

    def found(self, terms: Sequence[str], limit: int) -> Candidates:
        frequencies = {term: len(self._numbers[term]) for term in terms if term in self._numbers}
        numbers: dict[int, None] = {}
        for term in sorted(frequencies, key=lambda term: frequencies[term]):
            numbers |= dict.fromkeys(sorted(self._numbers[term], reverse=True))
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


class Shelves:
    """The memories of the owners that were looked at last.

    Args:
        store: where memories are.
        most: memories that are kept, of all owners together.
    """

    def __init__(self, store: MemoryStore, most: int = SHELVED_MEMORIES) -> None:
        self._store = store
        self._most = most
        self._shelves: OrderedDict[Owner, _Shelf] = OrderedDict()

    async def found(self, owner: Owner, terms: Sequence[str], limit: int) -> tuple[int, Candidates]:
        """What may answer, and the version of the owner at which that holds."""
        shelf = await self._fresh(owner)
        return shelf.version, shelf.found(terms, limit)

    def forget(self, owner: Owner) -> None:
        """Let go of what is kept of an owner."""
        self._shelves.pop(owner, None)

    async def _fresh(self, owner: Owner) -> _Shelf:
        shelf = self._shelves.get(owner) or _Shelf()
        total = await self._read(owner, shelf)
        if total != len(shelf.known):  # some were forgotten, and nobody says which
            shelf = _Shelf()
            await self._read(owner, shelf)
        self._shelves[owner] = shelf
        self._shelves.move_to_end(owner)
        while len(self._shelves) > 1 and sum(map(len, self._shelves.values())) > self._most:
            self._shelves.popitem(last=False)
        return shelf

    async def _read(self, owner: Owner, shelf: _Shelf) -> int:
        """Take in what has changed since the shelf's version; how many memories the owner has."""
        since = shelf.version or None
        first = page = await self._store.memories(owner, since=since, limit=PAGE)
        while True:
            for memory in page.memories:
                shelf.take(memory)
            if not page.has_more:
                break
            page = await self._store.memories(owner, since=since, after=page.memories[-1].number, limit=PAGE)
        shelf.version = first.version  # what was written while it was read is read again
        return first.total

"""Looking memories up without an index: the terms of an owner's memories in this process's memory, brought up to the store each time.

What an owner has is read whole once, then only what has changed. Owners that were looked at longest ago are let go; what was forgotten
is gone with the next look, as it is from an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.domain.memory import Memory, Owner
from holdfast.limits import MEMORIES_AT_HAND
from holdfast.memory.following import Following
from holdfast.recall.base import Candidate, Candidates
from holdfast.recall.terms import Terms, terms_of
from holdfast.stores.memories import MemoryStore


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

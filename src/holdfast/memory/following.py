"""What this process works out of owners' memories, at hand: read whole once, then brought up to the store by what has changed.

Whoever asks again where nothing was changed costs one small read, however many memories there are. Owners that were asked for longest
ago are let go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.domain.memory import Memory, Owner
from holdfast.limits import MEMORIES_AT_HAND, PAGE
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

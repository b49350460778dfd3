"""The promoted memories of owners, at hand: read whole once, then brought up to the store by what has changed, as shelves are.

Whoever asks again where nothing was changed costs one small read, however many memories there are.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict

import msgspec

from holdfast.domain.memory import Memory, Owner
from holdfast.limits import PAGE, SHELVED_MEMORIES
from holdfast.stores.memories import MemoryStore

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
        weight: what it counted for when it was kept.
    """

    def __init__(self) -> None:
        self.version = 0
        self.numbers: set[int] = set()
        self.promoted: dict[int, Memory] = {}
        self.life = next(_lives)
        self.weight = 0

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

    def __init__(self, store: MemoryStore, most: int = SHELVED_MEMORIES) -> None:
        self._store = store
        self._most = most
        self._known: OrderedDict[Owner, _Known] = OrderedDict()
        self._held = 0

    async def of(self, owner: Owner) -> PromotedOf:
        """Those of an owner, as they are now."""
        known = self._known.get(owner) or _Known()
        if await self._read(owner, known) != len(known.numbers):  # some were forgotten, and nobody says which
            known = _Known()
            await self._read(owner, known)
        self._keep(owner, known)
        return PromotedOf(tuple(known.promoted[number] for number in sorted(known.promoted)), known.life)

    def _keep(self, owner: Owner, known: _Known) -> None:
        old = self._known.pop(owner, None)
        self._held -= 0 if old is None else old.weight
        known.weight = len(known.numbers) + 1
        self._held += known.weight
        self._known[owner] = known
        while len(self._known) > 1 and self._held > self._most:
            self._held -= self._known.popitem(last=False)[1].weight

    async def _read(self, owner: Owner, known: _Known) -> int:
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

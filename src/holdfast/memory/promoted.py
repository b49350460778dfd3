"""The promoted memories of owners, at hand; see `following`."""

from __future__ import annotations

import itertools

import msgspec

from holdfast.domain.memory import Memory, Owner
from holdfast.limits import MEMORIES_AT_HAND
from holdfast.memory.following import Following
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

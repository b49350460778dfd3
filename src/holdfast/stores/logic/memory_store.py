"""The part of the store contract that is about memories, on top of any database: checks, and leaves the rest to the steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import TypeVar

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.stores import checks, memory_checks
from holdfast.stores.logic import memories
from holdfast.stores.logic.steps import Steps
from holdfast.stores.memories import MemoriesAsked, OwnedMemories

T = TypeVar("T")


class MemoryMethods(ABC):
    """The methods of `MemoryStore` of a handle that runs steps."""

    tenant: str

    @abstractmethod
    async def _read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        """See `Database.read`."""

    @abstractmethod
    async def _queued(self, steps: Callable[[], Steps[T]], queue: Hashable, *, scrub: bool = False) -> T:
        """See `Database.write`."""

    async def memories(
        self,
        owner: Owner,
        *,
        ids: Collection[str] | None = None,
        numbers: Collection[int] | None = None,
        since: int | None = None,
        status: str | None = None,
        after: int | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> OwnedMemories:
        """See `MemoryStore.memories`."""
        filters = {"ids": ids, "numbers": numbers, "since": since, "status": status}
        asked = MemoriesAsked(**filters, after=after, limit=limit, descending=descending)  # type: ignore[arg-type]
        memory_checks.check_asked(owner, asked)
        return await self._read(partial(memories.read, self.tenant, owner, asked), single=True)

    async def find_memory(self, memory_id: str) -> Memory:
        """See `MemoryStore.find_memory`."""
        checks.check_id(memory_id, "memory_id")
        return await self._read(partial(memories.find, self.tenant, memory_id), single=True)

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """See `MemoryStore.change_memories`."""
        payloads = memory_checks.check_delta(owner, delta)
        memory_checks.check_change(timestamp, expect)
        steps = partial(memories.change, self.tenant, owner, delta, payloads, timestamp=timestamp, expect=expect)
        # What stands in place of something else takes that off the disk too.
        scrub = bool(delta.forget) or any(memory.number for memory in delta.put)
        return await self._queued(steps, (self.tenant, owner), scrub=scrub)

    async def signals(
        self, owner: Owner, *, memory_ids: Collection[str] | None = None, since: int | None = None
    ) -> tuple[Signal, ...]:
        """See `MemoryStore.signals`."""
        memory_checks.check_owner(owner)
        memory_checks.check_ids(memory_ids, "memory_ids")
        memory_checks.check_change(since or 0, None)
        return await self._read(partial(memories.signals, self.tenant, owner, memory_ids, since), single=True)

    async def diary(self, owner: Owner, *, limit: int = 20) -> tuple[DiaryEntry, ...]:
        """See `MemoryStore.diary`."""
        memory_checks.check_owner(owner)
        checks.check_limit(limit)
        return await self._read(partial(memories.diary, self.tenant, owner, limit), single=True)

    async def memory_owners(self, *, after: Owner | None = None, limit: int = 100) -> tuple[tuple[Owner, int], ...]:
        """See `MemoryStore.memory_owners`."""
        if after is not None:
            memory_checks.check_owner(after)
        checks.check_limit(limit)
        return await self._read(partial(memories.owners, self.tenant, after, limit), single=True)

    async def drop_memories(self, owner: Owner) -> int:
        """See `MemoryStore.drop_memories`."""
        memory_checks.check_owner(owner)
        return await self._queued(partial(memories.drop, self.tenant, owner), (self.tenant, owner), scrub=True)

"""The part of the store contract about memories: records of what was learned, signals of their recalls, and a diary.

A `MemoryStore` is a handle of one tenant, like a store. Every `Store` is one; a separate one can be given as `Holdfast(memory_store=…)`.

**Owners.** Memories belong to an `Owner`: a user, an agent or, with an empty id, the tenant itself. A method with an owner reads and
changes only what belongs to that owner. An owner that nothing was ever written for has version 0 and no memories.

**Writing.** `change_memories` is one transaction, all or nothing, as durable as `append`. Each write that puts a memory, or forgets one
that existed, adds one to the owner's version; what it wrote has that version. Signals and diary entries alone do not change the
version, and a change without effect writes nothing. Every new memory gets a higher number than those before it; numbers are never
reused. Of several writers with the same `expect` one succeeds, and the others get `StaleMemories`; without `expect` they come one
after the other, and none is lost.

**Dropping** deletes everything of an owner, its name too; afterwards it is like an owner that nothing was ever written for. If
something is written for it later, versions and numbers continue above the earlier ones, so that callers that remember the earlier
ones never confuse the two.

**Forgetting** deletes a memory's row and its signals, from the disk too as `Store.erase` does; replacing a memory removes the old
content from the disk too. Diary entries stay: they quote nothing. Readers that use `since` do not get forgotten memories; they
notice them by `total`, or by asking for the numbers that they know.

**Limits** are those of `holdfast.limits`: a memory as JSON (`MEMORY_BYTES`), memories of an owner (`MEMORIES`), memories put or forgotten
per call (`MEMORIES_AT_ONCE`), ids, numbers and signals per call (`PAGE`), a diary entry's report (`METADATA_BYTES`); beyond them a
call raises `TooLarge`. The newest `SIGNALS_KEPT` signals of a memory and the newest `DIARY_KEPT` diary entries of an owner are kept, in
the order in which they were written. An invalid memory, by `holdfast.stores.memory_checks`, is `InvalidRequest`.

**Order** is that of numbers; signals and diary entries are in the order in which they were written. The cost of a read depends on what it returns.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal


class OwnedMemories(msgspec.Struct, frozen=True):
    """Some memories of an owner."""

    version: int
    """The owner's version; 0: nothing was ever written."""
    memories: tuple[Memory, ...]
    """In order of `number`."""
    total: int = 0
    """Number of memories that the owner has, whatever their status."""
    has_more: bool = False
    damaged: tuple[int, ...] = ()
    """Numbers of memories that cannot be decoded and are left out."""


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which memories of an owner to read: the arguments of `MemoryStore.memories`."""

    ids: Collection[str] | None = None
    numbers: Collection[int] | None = None
    since: int | None = None
    status: str | None = None
    after: int | None = None
    limit: int = 100
    descending: bool = False


class MemoryStore(Protocol):
    """Memories of a tenant. The module describes what all methods promise."""

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
        """Return memories of an owner, all from one moment.

        Filters are combined: a memory has to match all of them.

        Args:
            owner: whose memories.
            ids: only these; unknown ones are ignored.
            numbers: only these.
            since: only memories changed after this version of the owner.
            status: only memories with this status.
            after: continue after this number.
            limit: 1 to `PAGE`.
            descending: the newest number first.
        """
        ...

    async def find_memory(self, memory_id: str) -> Memory:
        """Return the memory with that id, of any owner. Raises `MemoryNotFound`."""
        ...

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """Change memories of an owner; return those put, as stored, with the owner's new version.

        Args:
            owner: whose memories; every memory in `delta` must belong to it.
            delta: the changes.
            timestamp: milliseconds since the epoch.
            expect: the version that the owner must be at; None: any.

        Raises:
            StaleMemories: the owner is at another version.
            MemoryNotFound: a memory to put has a number, but this owner has no such memory with that number.
            InvalidRequest: a memory to put has no number, but its id is taken; or a memory, signal or diary entry is invalid.
            TooLarge: a limit would be passed.
        """
        ...

    async def signals(
        self, owner: Owner, *, memory_ids: Collection[str] | None = None, since: int | None = None
    ) -> tuple[Signal, ...]:
        """Return signals of an owner's memories, in the order in which they were written.

        Args:
            owner: whose memories.
            memory_ids: only signals of these memories; None: of all.
            since: only signals from then on, milliseconds since the epoch.
        """
        ...

    async def diary(self, owner: Owner, *, limit: int = 20) -> tuple[DiaryEntry, ...]:
        """Return the newest diary entries of an owner, newest first."""
        ...

    async def memory_owners(self, *, after: Owner | None = None, limit: int = 100) -> tuple[tuple[Owner, int], ...]:
        """Return owners that something was ever written for, with the times (ms) of their last writes, in order of kind and id.

        An owner whose memories were all forgotten is included; one that was dropped is not.
        """
        ...

    async def drop_memories(self, owner: Owner) -> int:
        """Delete all of an owner's memories, signals and diary entries, and its name, from the disk too; return how many memories there were."""
        ...

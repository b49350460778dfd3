"""The part of the store contract about memories: records of what was learned, signals that record their recalls, and a diary.

A `MemoryStore` is a handle of one tenant, like a store. Every `Store` is a `MemoryStore`.

**Owners.** Memories belong to an `Owner`: a user, an agent or, with an empty id, the tenant itself. A method with an owner
reads and changes only what belongs to that owner. Before the first write for an owner, its version is 0 and it has no memories.

**Writing.** `change_memories` runs one transaction: it changes everything or nothing, and is as durable as `append`. A write
that puts a memory, or forgets an existing one, adds one to the owner's version, and the memories that it wrote get that
version. Signals and diary entries alone do not change the version. A change without effect writes nothing. Every new memory
gets a higher number than all memories before it; numbers are never reused. Of several writers with the same `expect` one
succeeds, and the others raise `StaleMemories`. Writers without `expect` are executed one after the other, and none is lost.

**Dropping** deletes all data of an owner, including its name. Afterwards the owner is like one for which nothing was ever
written. If something is written for the owner later, versions and numbers continue above the earlier ones, so that a caller never
takes new data for the old.

**Forgetting** deletes a memory's row and its signals, also from the disk, as `Store.erase` does. Replacing a memory also
removes the old content from the disk. Diary entries stay, since they quote no memories. A read with `since` does not report
forgotten memories. A reader can notice that memories were forgotten by `total`, or by reading the numbers that it knows.

**Limits** are defined in `holdfast.limits`. If one is exceeded, the call raises `TooLarge`:

| limit | of |
| --- | --- |
| `MEMORY_BYTES` | bytes of a memory as JSON |
| `MEMORIES` | memories of an owner |
| `MEMORIES_AT_ONCE` | memories put or forgotten per call |
| `PAGE` | ids, numbers or signals per call |
| `METADATA_BYTES` | bytes of a diary entry's report |

The newest `SIGNALS_KEPT` signals of a memory and the newest `DIARY_KEPT` diary entries of an owner are kept; the newest are
those written last. A memory that `holdfast.stores.memory_checks` finds invalid raises `InvalidRequest`.

**Order.** Memories are in order of their numbers. Signals and diary entries are in the order in which they were written. The
cost of a read depends on how much it returns.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal


class OwnedMemories(msgspec.Struct, frozen=True):
    """Some memories of an owner."""

    version: int
    """The owner's version; 0 if nothing was ever written for it."""
    memories: tuple[Memory, ...]
    """The memories, in order of `number`."""
    total: int = 0
    """Number of all memories of the owner, whatever their status."""
    has_more: bool = False
    damaged: tuple[int, ...] = ()
    """Numbers of memories that are left out because they cannot be decoded."""


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects memories of an owner. The fields are arguments of `MemoryStore.memories`."""

    ids: Collection[str] | None = None
    numbers: Collection[int] | None = None
    since: int | None = None
    status: str | None = None
    after: int | None = None
    limit: int = 100
    descending: bool = False


class MemoryStore(Protocol):
    """Store the memories of a tenant. The module docstring describes what all methods promise."""

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
        """Return memories of an owner, all as of one moment.

        A memory must match all filters that are given.

        Args:
            owner: the owner of the memories.
            ids: return only memories with these ids; unknown ids are ignored.
            numbers: return only memories with these numbers.
            since: return only memories that changed after this version of the owner.
            status: return only memories with this status.
            after: return only memories that come after this number in the requested order.
            limit: maximum number of memories, 1 to `PAGE`.
            descending: if True, the highest number comes first.
        """
        ...

    async def find_memory(self, memory_id: str) -> Memory:
        """Return the memory with this id, of any owner. Raises `MemoryNotFound` if there is no such memory."""
        ...

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """Change memories of an owner. Return the memories that were put, as stored, and the owner's new version.

        Args:
            owner: the owner, to whom every memory in `delta` must belong.
            delta: the changes.
            timestamp: milliseconds since the epoch.
            expect: the version that the owner must have; None: any.

        Raises:
            StaleMemories: the owner's version is not `expect`.
            MemoryNotFound: a memory to put has a number, but the owner has no such memory with that number.
            InvalidRequest: a memory to put has no number, but its id is already used; or a memory, signal or diary entry is
                invalid.
            TooLarge: a limit would be exceeded.
        """
        ...

    async def signals(
        self, owner: Owner, *, memory_ids: Collection[str] | None = None, since: int | None = None
    ) -> tuple[Signal, ...]:
        """Return signals of an owner's memories, in the order in which they were written.

        Args:
            owner: the owner of the memories.
            memory_ids: return only signals of these memories; None: signals of all memories.
            since: return only signals at or after this time, in milliseconds since the epoch; None: all.
        """
        ...

    async def diary(self, owner: Owner, *, limit: int = 20) -> tuple[DiaryEntry, ...]:
        """Return the newest `limit` diary entries of an owner, newest first."""
        ...

    async def memory_owners(self, *, after: Owner | None = None, limit: int = 100) -> tuple[tuple[Owner, int], ...]:
        """Return owners in order of kind and id, each with the time of its last write in milliseconds since the epoch.

        An owner is included even if all its memories were forgotten, but not if it was dropped.
        """
        ...

    async def drop_memories(self, owner: Owner) -> int:
        """Delete all data of an owner: memories, signals, diary entries and its name, also from the disk. Return the number of memories."""
        ...

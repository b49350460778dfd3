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
those written last. A memory that `holdfast.stores.logic.memories` finds invalid raises `InvalidRequest`.

**Order.** Memories are in order of their numbers. Signals and diary entries are in the order in which they were written. The
cost of a read depends on how much it returns.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.domain.memory import Memory


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

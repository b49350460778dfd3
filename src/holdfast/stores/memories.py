"""The part of the store contract that is about memories: records of what was learned, signals of their recalls, and a diary.

A `MemoryStore` is a handle of one tenant, like a store, and every `Store` is one; it may also stand alone (`Holdfast(memory_store=…)`).

**Owners.** Memories belong to an `Owner`: a user, an agent or, with an empty id, the tenant itself. Nothing of another owner is seen
or changed by a method that is given one. An owner that nothing was ever written for has version 0 and no memories.

**Writing.** `change_memories` is one transaction, all or nothing, durable as `append` is. Each one that puts a memory, or forgets one that
was there, adds one to the owner's version; what it wrote has that version. Signals and diary entries alone change no version; what
changes nothing at all is no write. Numbers go up with every memory that is put first, and are never given again. With `expect` one
of several writers wins, the others get `StaleMemories`; without, they come one after the other, and none is lost.

**Dropping** takes all of an owner, the owner's name too: it is as one that nothing was ever written for. What is written for it later has a
version and numbers above those that it had, so that nobody who knew them takes the one for the other.

**Forgetting** takes a memory's row and its signals, off the disk as `Store.erase` does; a memory that is put in place of what it was
takes that off the disk too. Diary entries stay: they quote nothing. Readers who go by `since` are not told what was forgotten:
`total`, or asking for the numbers that they know, says it.

**Bounds** are those of `holdfast.limits`: a memory as JSON (`MEMORY_BYTES`), memories of an owner (`MEMORIES`), put or forgotten at once
(`MEMORIES_AT_ONCE`), ids, numbers and signals at once (`PAGE`), a diary entry's report (`METADATA_BYTES`), else `TooLarge`. Of a memory the newest `SIGNALS_KEPT` signals are kept, of an owner the newest `DIARY_KEPT`
diary entries: those that were written last. What can be no memory, by `holdfast.stores.memory_checks`, is `InvalidRequest`.

**Order** is that of numbers; of signals and the diary, that in which they were written. Reads cost what they return.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal


class OwnedMemories(msgspec.Struct, frozen=True):
    """Some memories of an owner."""

    version: int
    """Of the owner; 0: nothing was ever written."""
    memories: tuple[Memory, ...]
    """In order of `number`."""
    total: int = 0
    """How many the owner has, whatever their status."""
    has_more: bool = False
    damaged: tuple[int, ...] = ()
    """Numbers of memories that cannot be decoded; they are left out."""


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which memories of an owner are asked for: the arguments of `MemoryStore.memories`."""

    ids: Collection[str] | None = None
    numbers: Collection[int] | None = None
    since: int | None = None
    status: str | None = None
    after: int | None = None
    limit: int = 100
    descending: bool = False


class MemoryStore(Protocol):
    """Memories of a tenant. See the module for what all methods promise."""

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
        """Memories of an owner, all seen at one moment.

        What is asked for in several ways at once has to fit all of them.

        Args:
            owner: whose.
            ids: only these; unknown ones are left out.
            numbers: only these.
            since: only those that were changed behind this version of the owner.
            status: only those.
            after: continue behind this number.
            limit: 1 to `PAGE`.
            descending: the newest number first.
        """
        ...

    async def find_memory(self, memory_id: str) -> Memory:
        """The memory of that id, whoever's it is. Raises `MemoryNotFound`."""
        ...

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """Change memories of an owner; those put, as they are stored now, with the owner's version after it.

        Args:
            owner: whose; every memory in `delta` is of it.
            delta: what changes.
            timestamp: milliseconds since the epoch.
            expect: the version that the owner must be at; None: any.

        Raises:
            StaleMemories: the owner is at another version.
            MemoryNotFound: a memory that is put has a number, and is not there, of this owner and with this number.
            InvalidRequest: one has none, and its id is taken; or it can be no memory, signal, or diary entry.
            TooLarge: a limit would be passed.
        """
        ...

    async def signals(
        self, owner: Owner, *, memory_ids: Collection[str] | None = None, since: int | None = None
    ) -> tuple[Signal, ...]:
        """Signals of an owner's memories, in the order in which they were written.

        Args:
            owner: whose.
            memory_ids: only of these; None: of all.
            since: only from then on, milliseconds since the epoch.
        """
        ...

    async def diary(self, owner: Owner, *, limit: int = 20) -> tuple[DiaryEntry, ...]:
        """The newest diary entries of an owner, newest first."""
        ...

    async def memory_owners(self, *, after: Owner | None = None, limit: int = 100) -> tuple[tuple[Owner, int], ...]:
        """Owners for whom something was ever written, with the times (ms) of their last writes, in order of kind and id.

        One whose memories were all forgotten is among them; one that was dropped is not.
        """
        ...

    async def drop_memories(self, owner: Owner) -> int:
        """Delete all memories, signals and diary entries of an owner, and its name, off the disk too; how many memories there were."""
        ...

"""Forgetting memories: one with its history, or all that came from a session; and what stands behind every change of an owner's memories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.errors import HoldfastError, StaleMemories
from holdfast.limits import MEMORIES_AT_ONCE, PAGE
from holdfast.memory.checks import list_of, without
from holdfast.memory.reading import Recollection
from holdfast.memory.reviewing import proposals
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import owners
from holdfast.wire.sendable import check_text

_log = logging.getLogger("holdfast.memories")
TRIES: Final = 50
"""Times that a change is decided anew, where others keep changing the same owner's memories."""
OnChanged = Callable[[Owner], Awaitable[None]]
"""Called behind every change of an owner's memories, when it is durable and looked up no more."""


class Forgetting(Recollection):
    """The memories of one tenant, to be read and forgotten.

    Attributes:
        on_changed: called behind every change, with the owner, one after the other.

    Args:
        store: where they are.
        clock: milliseconds since the epoch.
        settings: the rest; see `Recollection`.
    """

    def __init__(self, store: MemoryStore, clock: Callable[[], int], **settings: Any) -> None:
        super().__init__(store, clock, **settings)
        self.on_changed: list[OnChanged] = []
        self._changing: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    async def forget(self, memory_id: str, *, owners: Collection[Owner] | None = None) -> tuple[str, ...]:
        """Forget a memory with its history, those that it stands in place of: rows, signals, what an index has of them.

        Args:
            memory_id: which.
            owners: whose it may be; None: anybody's.

        Returns:
            The ids of all that are gone.

        Raises:
            MemoryNotFound: there is none of that id, or it is another owner's.
        """
        found = await self.get(memory_id, owners=owners)
        gone = await self._with_history(found)
        return await self._forget(found.owner, [one.id for one in gone])

    async def forget_source(
        self, user_id: str, session_id: str, *, seqs: Collection[int] | None = None
    ) -> tuple[str, ...]:
        """Forget what was remembered from a session, or from some of its entries, and from nothing else.

        Of a memory that has other sources too, that source is taken away; its trust stays what it was.
        The user's memories are looked at, the agents' and the app's: all of them, so this costs what they have.

        Args:
            user_id: whose session it is.
            session_id: which.
            seqs: only what comes from these entries; None: from any.

        Returns:
            The ids of those that are gone.
        """
        check_text(user_id, "user_id")
        check_text(session_id, "session_id")
        seqs = None if seqs is None else list_of(seqs, int, "seqs")
        owners = [Owner("user", user_id), *await self._agents(), Owner("app")]
        source, only = (user_id, session_id), None if seqs is None else set(seqs)
        return tuple([one for owner in owners for one in await self._forget_source(owner, source, only)])

    async def _agents(self) -> list[Owner]:
        """The agents for whom something was ever remembered; they come first among all owners."""
        found: list[Owner] = []
        async for owner, _ in owners(self.store):
            if owner.kind != "agent":
                break
            found.append(owner)
        return found

    async def _forget_source(self, owner: Owner, source: tuple[str, str], seqs: set[int] | None) -> tuple[str, ...]:
        async with self._alone(owner):
            for _ in range(TRIES):
                version, left, lost = await self._from_source(owner, source, seqs)
                try:
                    await self._written(owner, version, left, lost)
                except StaleMemories as exc:
                    stale = exc
                    continue
                if lost:
                    self._recaller.local.forget(owner)
                if left or lost:
                    await self._changed(owner)
                return tuple(lost)
            raise stale

    async def _from_source(
        self, owner: Owner, source: tuple[str, str], seqs: set[int] | None
    ) -> tuple[int, list[Memory], list[str]]:
        """The version of an owner, its memories that come from a source and others, without it, and ids of those from it alone."""
        left, lost = list[Memory](), list[str]()
        first = page = await self.store.memories(owner, limit=PAGE)
        while True:
            for one in page.memories:
                sources = without(one.sources, source, seqs)
                if sources and sources != one.sources:
                    left.append(msgspec.structs.replace(one, sources=sources))
                elif sources != one.sources:
                    lost.append(one.id)
            if not page.has_more:
                break
            page = await self.store.memories(owner, after=page.memories[-1].number, limit=PAGE)
        also = {one.id for one in await proposals(self.store, owner, naming=lost)} if lost else set[str]()
        return first.version, [one for one in left if one.id not in also], list(dict.fromkeys((*lost, *sorted(also))))

    async def _written(self, owner: Owner, version: int, put: Sequence[Memory], lost: Sequence[str]) -> None:
        """Put and forget any number of memories, those first that are forgotten. Raises `StaleMemories`."""
        most = MEMORIES_AT_ONCE
        deltas = [MemoryDelta(forget=tuple(lost[start : start + most])) for start in range(0, len(lost), most)]
        deltas += [MemoryDelta(put=tuple(put[start : start + most])) for start in range(0, len(put), most)]
        for delta in deltas:
            version = (await self.store.change_memories(owner, delta, timestamp=self.clock(), expect=version)).version

    async def forgotten_owner(self, owner: Owner) -> None:
        """What is to be done where all memories of an owner were dropped: nothing of them is looked up any more."""
        self._recaller.local.forget(owner)
        await self._tell(owner)

    async def _forget(self, owner: Owner, ids: Sequence[str]) -> tuple[str, ...]:
        for start in range(0, len(ids), MEMORIES_AT_ONCE):
            delta = MemoryDelta(forget=tuple(ids[start : start + MEMORIES_AT_ONCE]))
            await self.store.change_memories(owner, delta, timestamp=self.clock())
        if ids:
            self._recaller.local.forget(owner)
            await self._changed(owner)
        return tuple(ids)

    async def _with_history(self, found: Memory) -> list[Memory]:
        """A memory, all those in whose place it stands, whatever they stood in place of, and merges with them that are proposed."""
        known, ask = {found.id: found}, list(found.supersedes)
        while ask:
            some, ask = ask[:PAGE], ask[PAGE:]
            read = await self.store.memories(found.owner, ids=some, limit=len(some))
            for one in read.memories:
                if one.id not in known and one.status == "superseded":
                    known[one.id] = one
                    ask += [other for other in one.supersedes if other not in known]
        return [*known.values(), *await proposals(self.store, found.owner, naming=known)]

    # -- behind every change -------------------------------------------------

    def _alone(self, owner: Owner) -> asyncio.Lock:
        """One change of an owner's memories at a time in this process: they would only have to be decided anew."""
        return self._changing.setdefault(owner, asyncio.Lock())

    async def _changed(self, owner: Owner) -> None:
        """Have the index take in what has changed, and tell those who want to know."""
        service = self._index()
        if service is not None:
            try:
                await service.take_memories(owner)
            except HoldfastError as exc:  # the next lookup tries again, and reads every hit from the store
                _log.warning("the index has not taken memories in yet: %s", exc.code)
        await self._tell(owner)

    async def _tell(self, owner: Owner) -> None:
        for told in self.on_changed:
            try:
                await told(owner)
            except Exception as exc:  # noqa: BLE001 - what is done already must not seem to have failed
                _log.error("what follows a change of memories failed", exc_info=exc)

"""The memories of an owner in an index: brought up to the owner's version."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from holdfast.errors import Conflict
from holdfast.indexes.feeding import document_of_memory
from holdfast.memories import Memory, Owner
from holdfast.recall.base import Batch, Index, Progress, Source, Space
from holdfast.stores.memories import MemoryStore

SOURCE: Final = Source()
FOUND: Final = frozenset({"active", "quarantined"})
"""Statuses of memories that can be found."""
_PAGE: Final = 100
_HELD: Final = 1000
_TRIES: Final = 8


def space_of_owner(owner: Owner) -> Space:
    """Where an owner's memories are."""
    return Space(owner.kind, owner.id)


async def brought(
    index: Index,
    store: MemoryStore,
    owner: Owner,
    *,
    gone: Collection[int] = (),
    anew: int | None = None,
    compare: bool = False,
) -> None:
    """Bring an owner's documents up to the owner's version: those that changed come in, those that are forgotten or hold no more go.

    Args:
        index: of the tenant.
        store: where memories are.
        owner: whose.
        gone: numbers that were just forgotten, so that they need not be looked for.
        anew: analyse all of them, unless it was in this epoch.
        compare: look at all of them, whatever the index's progress says.

    Raises:
        Conflict: others write to it all the time.
    """
    space = space_of_owner(owner)
    for _ in range(_TRIES):
        known = await index.progress(space, SOURCE.id)
        if await _Owned(index, store, owner, known, anew, compare=compare).up_to_date(gone):
            return
    raise Conflict("the memories of an owner are being indexed elsewhere all the time: try again")


class _Owned:
    """One try. `Progress.tool` holds how many memories there were, so that it is noticed when some are gone."""

    def __init__(
        self, index: Index, store: MemoryStore, owner: Owner, known: Progress | None, anew: int | None, *, compare: bool
    ) -> None:
        self._index = index
        self._store = store
        self._owner = owner
        self._space = space_of_owner(owner)
        self._known = known
        whole = compare or known is None or not known.complete or (anew is not None and known.epoch < anew)
        self._since = None if whole or known is None else known.version
        self._epoch = max(anew or 0, known.epoch if known else 0)

    async def up_to_date(self, gone: Collection[int]) -> bool:
        known = self._known
        page = await self._store.memories(self._owner, since=self._since, limit=_PAGE)
        if known is not None and self._since is not None and page.version == known.version:
            return True
        if known is None and not page.version:
            return True
        version, total, after = page.version, page.total, None
        if not await self._opened(gone):
            return False
        before = known.next_seq if known is not None and self._since is not None else 0
        new, number = 0, before
        while True:
            new += sum(one.number >= before for one in page.memories)
            number = max([number, *(one.number + 1 for one in page.memories)])
            if not await self._wrote(page.memories, number):
                return False
            if not page.has_more:
                break
            after = page.memories[-1].number
            page = await self._store.memories(self._owner, since=self._since, after=after, limit=_PAGE)
        expected = (known.tool if known is not None and self._since is not None else 0) + new - len(set(gone))
        if (self._since is None or total != expected) and not await self._compared():
            return False
        return await self._put(_progress(version, number, total, self._epoch))

    async def _opened(self, gone: Collection[int]) -> bool:
        known = self._known
        base = known or Progress(identity=SOURCE.identity, version=-1)
        return await self._put(_progress(-1, base.next_seq, base.tool, base.epoch), drop=sorted(set(gone)))

    async def _wrote(self, memories: Sequence[Memory], number: int) -> bool:
        assert self._known is not None  # it was opened
        documents = [document_of_memory(one) for one in memories if _is_found(one)]
        drop = [one.number for one in memories if not _is_found(one)]
        if not memories:
            return True
        known = self._known
        progress = _progress(-1, max(number, known.next_seq), known.tool, known.epoch)
        batch = Batch(source=SOURCE, progress=progress, put=documents, drop=drop, expect=self._known)
        return await self._written(batch)

    async def _compared(self) -> bool:
        """Drop what is not there any more."""
        assert self._known is not None  # it was opened
        start = 0
        while True:
            held = [seq for seq, _ in await self._index.held(self._space, SOURCE.id, start=start, limit=_HELD)]
            for at in range(0, len(held), _PAGE):
                part = held[at : at + _PAGE]
                there = await self._store.memories(self._owner, numbers=part, limit=_PAGE)
                lost = set(part) - {one.number for one in there.memories if _is_found(one)}
                if lost and not await self._put(self._known, drop=sorted(lost)):
                    return False
            if len(held) < _HELD:
                return True
            start = held[-1] + 1

    async def _put(self, progress: Progress, drop: Sequence[int] = ()) -> bool:
        return await self._written(Batch(source=SOURCE, progress=progress, drop=drop, expect=self._known))

    async def _written(self, batch: Batch) -> bool:
        if not await self._index.write(self._space, batch):
            return False
        self._known = batch.progress
        return True


def _is_found(memory: Memory) -> bool:
    return memory.status in FOUND and not memory.is_proposal


def _progress(version: int, number: int, total: int, epoch: int) -> Progress:
    """How far it is; at version -1 in the middle of it."""
    return Progress(
        identity=SOURCE.identity,
        version=version,
        next_seq=number,
        talk=number,
        tool=total,
        epoch=epoch,
        complete=version >= 0,
    )

"""The memories of an owner in an index: brought up to the owner's version."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from holdfast.domain.memory import Memory, Owner
from holdfast.errors import Conflict, InvalidRequest
from holdfast.indexes.documents import document_of_memory
from holdfast.recall.base import Batch, Document, Index, Progress, Source, Space
from holdfast.stores.memories import MemoryStore, OwnedMemories

_log: Final = logging.getLogger("holdfast.indexing")
SOURCE: Final = Source()
_PAGE: Final = 100
_HELD: Final = 1000
_TRIES: Final = 8


def space_of_owner(owner: Owner) -> Space:
    """Where an owner's memories are."""
    return Space(owner.kind, owner.id)


async def bring_up_to_date(
    index: Index,
    store: MemoryStore,
    owner: Owner,
    *,
    gone: Collection[int] = (),
    anew: int | None = None,
    compare: bool = False,
) -> int:
    """Bring an owner's documents up to the owner's version: those that changed come in, those that are forgotten or hold no more go.

    Returns that version.

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
        owned = _Owned(index, store, owner, known, anew, compare=compare)
        if await owned.up_to_date(gone):
            return owned.version
    raise Conflict("the memories of an owner are being indexed elsewhere all the time: try again")


async def bring_stored(index: Index, store: MemoryStore, owner: Owner, *, anew: int | None = None) -> None:
    """Do what `brought` does for an owner found in the store. A damaged row of that owner is logged and left out."""
    try:
        await bring_up_to_date(index, store, owner, anew=anew)
    except InvalidRequest as exc:
        _log.error("not indexed: the memories of %s %r are damaged: %s", owner.kind, owner.id, exc)


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

    @property
    def version(self) -> int:
        """Of the owner, up to which all is in the index; 0: nothing was ever written for it."""
        return self._known.version if self._known else 0

    async def up_to_date(self, gone: Collection[int]) -> bool:
        known = self._known
        page = await self._store.memories(self._owner, since=self._since, limit=_PAGE)
        if known is not None and self._since is not None and page.version == known.version:
            return True
        if known is None and not page.version:
            return True
        lost = None if page.has_more else await self._lost(page, gone)
        if lost is None or len(lost) > _HELD:
            return await self._in_steps(page, gone)
        # By one write: of many who are at it at once somebody always gets through.
        number = max([self._before, *(one.number + 1 for one in page.memories)])
        documents, drop = _split_findable(page.memories)
        drop = sorted({*drop, *lost, *gone} - {one.seq for one in documents})
        progress = _progress(page.version, number, page.total, self._epoch)
        return await self._written(
            Batch(source=SOURCE, progress=progress, put=documents, drop=drop, expect=self._known)
        )

    @property
    def _before(self) -> int:
        """The number behind those that the index knows of."""
        return self._known.next_seq if self._known is not None and self._since is not None else 0

    def _expected(self, new: int, gone: Collection[int]) -> int | None:
        """How many memories there are if nothing went that nobody told of; None: that is not known."""
        if self._known is None or self._since is None:
            return None
        return self._known.tool + new - len(set(gone))

    async def _lost(self, page: OwnedMemories, gone: Collection[int]) -> list[int]:
        """What the index has of memories that are not there any more; `page` has all that came."""
        new = sum(one.number >= self._before for one in page.memories)
        return [] if self._expected(new, gone) == page.total else [number async for number in self._left_over()]

    async def _in_steps(self, page: OwnedMemories, gone: Collection[int]) -> bool:
        """Take in what is too much for one write: the source is marked meanwhile, and begun again by whoever comes in between."""
        version, total, before, number, new = page.version, page.total, self._before, self._before, 0
        known_there = self._expected(0, gone)
        if not await self._opened(gone):
            return False
        while True:
            new += sum(one.number >= before for one in page.memories)
            number = max([number, *(one.number + 1 for one in page.memories)])
            if not await self._wrote(page.memories, number):
                return False
            if not page.has_more:
                break
            after = page.memories[-1].number
            page = await self._store.memories(self._owner, since=self._since, after=after, limit=_PAGE)
        expected = None if known_there is None else known_there + new
        if total != expected and not await self._compared():
            return False
        return await self._put(_progress(version, number, total, self._epoch))

    async def _opened(self, gone: Collection[int]) -> bool:
        known = self._known
        base = known or Progress(identity=SOURCE.identity, version=-1)
        return await self._put(_progress(-1, base.next_seq, base.tool, base.epoch), drop=sorted(set(gone)))

    async def _wrote(self, memories: Sequence[Memory], number: int) -> bool:
        assert self._known is not None  # it was opened
        documents, drop = _split_findable(memories)
        if not memories:
            return True
        known = self._known
        progress = _progress(-1, max(number, known.next_seq), known.tool, known.epoch)
        batch = Batch(source=SOURCE, progress=progress, put=documents, drop=drop, expect=self._known)
        return await self._written(batch)

    async def _compared(self) -> bool:
        """Drop what is not there any more."""
        assert self._known is not None  # it was opened
        lost = [number async for number in self._left_over()]
        for at in range(0, len(lost), _HELD):
            if not await self._put(self._known, drop=lost[at : at + _HELD]):
                return False
        return True

    async def _left_over(self) -> AsyncIterator[int]:
        """Numbers that the index has and the store has not, or not as ones that can be found."""
        start = 0
        while True:
            held = [seq for seq, _ in await self._index.held(self._space, SOURCE.id, start=start, limit=_HELD)]
            for at in range(0, len(held), _PAGE):
                part = held[at : at + _PAGE]
                there = await self._store.memories(self._owner, numbers=part, limit=_PAGE)
                for number in sorted(set(part) - {one.number for one in there.memories if one.is_recalled}):
                    yield number
            if len(held) < _HELD:
                return
            start = held[-1] + 1

    async def _put(self, progress: Progress, drop: Sequence[int] = ()) -> bool:
        return await self._written(Batch(source=SOURCE, progress=progress, drop=drop, expect=self._known))

    async def _written(self, batch: Batch) -> bool:
        if not await self._index.write(self._space, batch):
            return False
        self._known = batch.progress
        return True


def _split_findable(memories: Sequence[Memory]) -> tuple[list[Document], list[int]]:
    """The documents of those that can be found, and the numbers of the others."""
    documents = [document_of_memory(one) for one in memories if one.is_recalled]
    return documents, [one.number for one in memories if not one.is_recalled]


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

"""Bring the documents of an owner's memories in an index up to date with the store of memories.

An *owner* is a user, an agent or an app. An owner's version is a number that increases with every change of the owner's memories.
A memory has a number, which identifies it among the owner's memories.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from holdfast.domain.memory import Memory, Owner
from holdfast.errors import Conflict, InvalidRequest
from holdfast.indexes.documents import make_memory_document
from holdfast.recall.base import Batch, Document, Index, Progress, Source, Space
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.memories import OwnedMemories

_log: Final = logging.getLogger("holdfast.indexing")
SOURCE: Final = Source()
_PAGE: Final = 100
_DIGEST_PAGE: Final = 1000
_TRIES: Final = 8


def to_owner_space(owner: Owner) -> Space:
    """Return the part of the index (space) that contains an owner's memories."""
    return Space(owner.kind, owner.id)


async def bring_up_to_date(
    index: Index,
    store: MemoryStore,
    owner: Owner,
    *,
    rebuild_epoch: int | None = None,
    compare: bool = False,
) -> int:
    """Bring the documents of an owner's memories up to date. Return the owner's version that the index now has.

    Changed memories are indexed. Documents of memories that were deleted, or that must no longer be recalled, are deleted.

    Args:
        index: the tenant's index.
        store: the store of memories.
        owner: the owner of the memories.
        rebuild_epoch: the number of a rebuild: memories that this rebuild has not analysed yet are analysed again. None: no
            rebuild.
        compare: True: check every memory, even if the index seems to be up to date.

    Raises:
        Conflict: other processes keep writing to the owner's documents.
    """
    space = to_owner_space(owner)
    for _ in range(_TRIES):
        known = await index.progress(space, SOURCE.id)
        update = _OwnerUpdate(index, store, owner, known, rebuild_epoch, compare=compare)
        if await update.run():
            return update.version
    raise Conflict("the memories of an owner are being indexed elsewhere all the time: try again")


async def bring_stored_up_to_date(
    index: Index, store: MemoryStore, owner: Owner, *, rebuild_epoch: int | None = None
) -> None:
    """Bring an owner's documents up to date. If the owner's memories are damaged, log an error and continue."""
    try:
        await bring_up_to_date(index, store, owner, rebuild_epoch=rebuild_epoch)
    except InvalidRequest as exc:
        _log.error("not indexed: the memories of %s %r are damaged: %s", owner.kind, owner.id, exc)


class _OwnerUpdate:
    """One attempt to bring an owner's documents up to date.

    `Progress.tool` contains the number of the owner's memories. If the store has another number, memories were deleted.
    """

    def __init__(
        self,
        index: Index,
        store: MemoryStore,
        owner: Owner,
        known: Progress | None,
        rebuild_epoch: int | None,
        *,
        compare: bool,
    ) -> None:
        self._index = index
        self._store = store
        self._owner = owner
        self._space = to_owner_space(owner)
        self._known = known
        whole = (
            compare
            or known is None
            or not known.complete
            or (rebuild_epoch is not None and known.epoch < rebuild_epoch)
        )
        self._since = None if whole or known is None else known.version
        self._epoch = max(rebuild_epoch or 0, known.epoch if known else 0)

    @property
    def version(self) -> int:
        """The version up to which the owner's memories are indexed; 0: the owner never had memories."""
        return self._known.version if self._known else 0

    async def run(self) -> bool:
        known = self._known
        page = await self._store.memories(self._owner, since=self._since, limit=_PAGE)
        if known is not None and self._since is not None and page.version == known.version:
            return True
        if known is None and not page.version:
            return True
        lost = None if page.has_more else await self._find_lost(page)
        if lost is None or len(lost) > _DIGEST_PAGE:
            return await self._write_in_steps(page)
        # A single write: among concurrent writers, one always succeeds.
        number = max([self._next_number, *(one.number + 1 for one in page.memories)])
        documents, drop = _split_findable(page.memories)
        drop = sorted({*drop, *lost} - {one.seq for one in documents})
        progress = _make_progress(page.version, number, page.total, self._epoch)
        return await self._write(Batch(source=SOURCE, progress=progress, put=documents, drop=drop, expect=self._known))

    @property
    def _next_number(self) -> int:
        """The number that follows the highest number of an indexed memory; 0 if all memories are checked."""
        return self._known.next_seq if self._known is not None and self._since is not None else 0

    def _compute_expected_total(self, new: int) -> int | None:
        """Return how many memories the owner has if none was deleted; None if that is not known.

        Args:
            new: how many memories are new.
        """
        if self._known is None or self._since is None:
            return None
        return self._known.tool + new

    async def _find_lost(self, page: OwnedMemories) -> list[int]:
        """Return the numbers of indexed memories that were deleted.

        Args:
            page: all changed memories.
        """
        new = sum(one.number >= self._next_number for one in page.memories)
        return [] if self._compute_expected_total(new) == page.total else [number async for number in self._iter_lost()]

    async def _write_in_steps(self, page: OwnedMemories) -> bool:
        """Write changes in several batches.

        Meanwhile the source is marked as incomplete, so that another process starts over after a crash.

        Args:
            page: the first page of the changed memories.
        """
        version, total, before, number, new = page.version, page.total, self._next_number, self._next_number, 0
        known_there = self._compute_expected_total(0)
        if not await self._mark_incomplete():
            return False
        while True:
            new += sum(one.number >= before for one in page.memories)
            number = max([number, *(one.number + 1 for one in page.memories)])
            if not await self._write_memories(page.memories, number):
                return False
            if not page.has_more:
                break
            after = page.memories[-1].number
            page = await self._store.memories(self._owner, since=self._since, after=after, limit=_PAGE)
        expected = None if known_there is None else known_there + new
        if total != expected and not await self._drop_lost():
            return False
        return await self._write_progress(_make_progress(version, number, total, self._epoch))

    async def _mark_incomplete(self) -> bool:
        known = self._known
        base = known or Progress(identity=SOURCE.identity, version=-1)
        return await self._write_progress(_make_progress(-1, base.next_seq, base.tool, base.epoch))

    async def _write_memories(self, memories: Sequence[Memory], number: int) -> bool:
        assert self._known is not None  # set by the preceding write
        documents, drop = _split_findable(memories)
        if not memories:
            return True
        known = self._known
        progress = _make_progress(-1, max(number, known.next_seq), known.tool, known.epoch)
        batch = Batch(source=SOURCE, progress=progress, put=documents, drop=drop, expect=self._known)
        return await self._write(batch)

    async def _drop_lost(self) -> bool:
        """Delete the documents of memories that no longer exist or must no longer be recalled."""
        assert self._known is not None  # set by the preceding write
        lost = [number async for number in self._iter_lost()]
        for at in range(0, len(lost), _DIGEST_PAGE):
            if not await self._write_progress(self._known, drop=lost[at : at + _DIGEST_PAGE]):
                return False
        return True

    async def _iter_lost(self) -> AsyncIterator[int]:
        """Yield the numbers of indexed memories that no longer exist in the store, or that must no longer be recalled."""
        start = 0
        while True:
            digests = [
                seq
                for seq, _ in await self._index.list_digests(self._space, SOURCE.id, start=start, limit=_DIGEST_PAGE)
            ]
            for at in range(0, len(digests), _PAGE):
                part = digests[at : at + _PAGE]
                there = await self._store.memories(self._owner, numbers=part, limit=_PAGE)
                for number in sorted(set(part) - {one.number for one in there.memories if one.is_recalled}):
                    yield number
            if len(digests) < _DIGEST_PAGE:
                return
            start = digests[-1] + 1

    async def _write_progress(self, progress: Progress, drop: Sequence[int] = ()) -> bool:
        return await self._write(Batch(source=SOURCE, progress=progress, drop=drop, expect=self._known))

    async def _write(self, batch: Batch) -> bool:
        if not await self._index.write(self._space, batch):
            return False
        self._known = batch.progress
        return True


def _split_findable(memories: Sequence[Memory]) -> tuple[list[Document], list[int]]:
    """Return the documents of the memories that may be recalled, and the numbers of the other memories."""
    documents = [make_memory_document(one) for one in memories if one.is_recalled]
    return documents, [one.number for one in memories if not one.is_recalled]


def _make_progress(version: int, number: int, total: int, epoch: int) -> Progress:
    """Return the progress to store with an owner's documents. Version -1 means that not all memories are indexed."""
    return Progress(
        identity=SOURCE.identity,
        version=version,
        next_seq=number,
        talk=number,
        tool=total,
        epoch=epoch,
        complete=version >= 0,
    )

"""Bring the documents of a source in an index up to date with the store.

    the source is new        -> write it without documents, then read it again
    it does not exist        -> drop it
    there are changes        -> write them page by page, each page with the progress after it
    an entry was removed     -> delete its document alone, and count that in the progress

Each write contains the progress that it expects. If another process has written in the meantime, the write fails and the work is repeated.
If the work was interrupted, or if the whole source was written again, all documents are compared with the store in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from msgspec.structs import replace

from holdfast.accounting import Owner, charge_to, run_cpu
from holdfast.errors import Conflict, StoreCorrupt
from holdfast.indexes.documents import Text, compute_digest, split_for_writes
from holdfast.indexes.sources import (
    PAGE,
    Changes,
    SourceName,
    StoredMemories,
    StoredRecords,
    StoredSession,
    StoredSource,
    restart,
)
from holdfast.indexes.throttle import SCAN_SHARE, Throttle
from holdfast.limits import INDEX_INLINE_CHARS
from holdfast.recall.base import Batch, Document, Index, Progress, Source
from holdfast.stores.base import Store

_PIECE: Final = 1_000
"""Number of characters that are analysed in one step. Other work can run between steps."""
_TRIES: Final = 8
_BUSY: Final = "other processes keep writing to the index of this source: try again"


class Updated(NamedTuple):
    """The result of an update of a source."""

    number: int
    """Number of entries, memories or records that were read."""
    progress: Progress | None
    """The progress of the source; None: the store does not have the source."""


class IndexUpdater:
    """Updates the sources of one tenant's index.

    Args:
        store: the store; it must include expired sessions that are not deleted yet.
        index: the index of the same tenant.
        throttle: limits the speed of the work.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(self, store: Store, index: Index, throttle: Throttle, clock: Callable[[], int]) -> None:
        self._store = store
        self._index = index
        self._throttle = throttle
        self._clock = clock
        self._locks: WeakValueDictionary[SourceName, asyncio.Lock] = WeakValueDictionary()

    def find_stored(self, name: SourceName) -> StoredSource:
        """Return a source as the store has it."""
        if name.space.kind == "talk":
            return StoredSession(name, self._store, self._index)
        if name.space.kind == "record":
            return StoredRecords(name, self._store, self._index, self._clock)
        return StoredMemories(name, self._store)

    async def update(self, name: SourceName, *, epoch: int = 0) -> Updated:
        """Bring the documents of a source up to date. Calls for the same source run one after the other.

        Args:
            name: the source.
            epoch: the number of a rebuild: a source that this rebuild has not analysed yet is written again. 0: no rebuild.

        Raises:
            Conflict: other processes keep writing to the source.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            for _ in range(_TRIES):
                updated = await self._try_update(name, epoch)
                if updated is not None:
                    return updated
        raise Conflict(_BUSY)

    async def _try_update(self, name: SourceName, epoch: int) -> Updated | None:
        """Update a source. Return None if another process has written to it meanwhile."""
        stored, number = self.find_stored(name), 0
        known = await self._index.progress(*name)
        # A source that was being written again when a process ended is checked, as one that is written again now.
        needs_check = known is not None and not known.complete and known.removals > 0
        is_old = known is not None and known.epoch < epoch
        while True:
            async with self._throttle.run_step(SCAN_SHARE):
                changes = Changes(restart(known)) if known is not None and is_old else await stored.read_changes(known)
            if changes is None:
                break
            is_old = False
            number += changes.number
            needs_check |= known is not None and changes.progress.removals > known.removals
            if changes.progress.complete:
                changes = changes._replace(progress=replace(changes.progress, epoch=max(changes.progress.epoch, epoch)))
            if (changes.progress != known or changes.drop) and not await self._write(name, known, changes):
                return None
            known = changes.progress
            if known.complete:
                if needs_check:
                    await self.check(name)
                return Updated(number, known)
        if known is not None:
            await self._index.drop(*name, identity=known.identity)
        return Updated(number, None)

    async def _write(self, name: SourceName, known: Progress | None, changes: Changes) -> bool:
        """Write changes, in several parts if there are many terms. Return False if another process has written meanwhile."""
        source = Source(name.id, changes.progress.identity)
        documents: list[Document] = []
        for piece in _split_for_analysis(changes.texts):
            async with self._throttle.run_step():
                with charge_to(Owner(self._store.tenant, "index")):  # not the request that started this task
                    is_long = len(piece[0].words) > INDEX_INLINE_CHARS
                    documents += await run_cpu(_analyse_texts, piece, long=is_long)
        *parts, last = split_for_writes(documents) or [[]]
        for part in parts:
            assert known is not None, "a new source is written without documents first"
            batch = Batch(source=source, progress=replace(known, complete=False), put=part, expect=known)
            if not await self._write_batch(name, batch):
                return False
            known = batch.progress
        batch = Batch(source=source, progress=changes.progress, put=last, drop=changes.drop, expect=known)
        return await self._write_batch(name, batch)

    async def _write_batch(self, name: SourceName, batch: Batch) -> bool:
        async with self._throttle.run_step():
            return await self._index.write(name.space, batch)

    async def check(self, name: SourceName, seqs: Sequence[int] | None = None) -> None:
        """Delete documents whose text the store does not have any more.

        Args:
            name: the source.
            seqs: the documents; None: all documents of the source, also those whose text has changed.

        Raises:
            Conflict: other processes keep writing to the source.
        """
        at: int | None = 0
        while at is not None:
            for _ in range(_TRIES):
                async with self._throttle.run_step(SCAN_SHARE):
                    is_done, after = await self._check_part(name, at, seqs)
                if is_done:
                    break
            else:
                raise Conflict(_BUSY)
            at = after

    async def _check_part(self, name: SourceName, at: int, seqs: Sequence[int] | None) -> tuple[bool, int | None]:
        """Check up to `PAGE` documents.

        Args:
            name: the source.
            at: the place in `seqs` or, if that is None, the number of the document to begin with.
            seqs: as for `check`.

        Returns:
            False if another process has written meanwhile; then where the next part begins, or None if this was the last one.
        """
        known = await self._index.progress(*name)
        if seqs is None:
            digests: dict[int, bytes | None] = dict(await self._index.list_digests(*name, start=at, limit=PAGE))
            after = max(digests, default=0) + 1
        else:
            digests = dict.fromkeys(seqs[at : at + PAGE])
            after = at + PAGE
        if known is None or not digests:
            return True, None
        texts = await self.find_stored(name).read_texts(known.identity, list(digests))
        lost = [seq for seq, digest in digests.items() if not _matches(texts.get(seq, ""), digest)]
        if lost:
            progress = replace(known, removals=known.removals + 1)
            source = Source(name.id, known.identity)
            if not await self._index.write(
                name.space, Batch(source=source, progress=progress, drop=lost, expect=known)
            ):
                return False, None
        return True, after if len(digests) == PAGE else None

    async def settle(self, name: SourceName) -> bool:
        """Delete the documents of a source that was removed as a whole, and of which another one may have the name by now.

        Return True if there is such a source. Only its name is then in the index, so it must be updated.
        """
        for _ in range(_TRIES):
            known = await self._index.progress(*name)
            if known is None and name.space.kind != "talk":
                return False
            try:
                changes = await self.find_stored(name).read_changes(known)
            except StoreCorrupt as exc:
                if exc.session_id is None:  # the index or the store is damaged, not a session
                    raise
                return True
            if changes is None:
                if known is not None:
                    await self._index.drop(*name, identity=known.identity)
                return False
            if known is not None and known.identity == changes.progress.identity:
                await self.check(name)
                if name.space.kind != "talk" and not await self._index.list_digests(*name, limit=1):
                    await self._index.drop(*name, identity=known.identity)  # its name is the id of a user
                return True
            if await self._write(name, known, Changes(changes.progress)):
                return True
        raise Conflict(_BUSY)


def _matches(words: str | None, digest: bytes | None) -> bool:
    """Return True if a stored text is the text of a document. A damaged text (None) and an unknown digest match."""
    return words is None or (words != "" and (digest is None or compute_digest(words) == digest))


def _analyse_texts(texts: Sequence[Text]) -> list[Document]:
    return [one.analyse() for one in texts]


def _split_for_analysis(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Split texts into parts, each of which is analysed without a pause: one long text, or several short ones."""
    piece: list[Text] = []
    chars = 0
    for one in texts:
        if piece and chars + len(one.words) > _PIECE:
            yield piece
            piece, chars = [], 0
        piece.append(one)
        chars += len(one.words)
    if piece:
        yield piece

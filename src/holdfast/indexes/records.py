"""Bring the documents of searchable records in an index up to date with the store of records.

A record is searchable if it was put with a text. Each owner of records is a source of the index, and each searchable record a
document. The progress of a source is the version and the number up to which the owner's records are indexed, so each update reads
only what was written since. Owners without searchable records are not in the index.

Every hit is read from the store again. So deleted, expired and changed records are never found, even if the index still has them.
The store records deletions for the index (`holdfast.indexes.removals`); a full backfill finds the documents of expired records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from holdfast.accounting import run_cpu
from holdfast.background import cancel_task
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import RecordName, RecordOwner, SearchablePage, SearchableRecord, TenantRef, decode_place
from holdfast.domain.session import SessionRef
from holdfast.errors import Conflict, SessionNotFound
from holdfast.indexes.documents import compute_digest, make_record_document, split_for_writes
from holdfast.indexes.throttle import Throttle
from holdfast.limits import INDEX_DELAY_SECONDS, INDEX_INLINE_CHARS, INDEX_PAUSE_SECONDS, INDEX_WAITING, RECORD_CHANGES
from holdfast.recall.base import Batch, Document, Index, Progress, Source, Space
from holdfast.stores.base import Store

_PAGE: Final = 100
_DIGEST_PAGE: Final = 1000
_TRIES: Final = 8
_START: Final = (0, 0)
"""The version and number before those of all records."""
_FIRST_PAUSE: Final = 0.5
_NO_DIGEST: Final = b""


def to_record_source(owner: RecordOwner) -> tuple[Space, str]:
    """Return the space and the id of the source that contains an owner's searchable records."""
    if isinstance(owner, SessionRef):
        return Space("record", owner.user_id), owner.id
    return Space("record", getattr(owner, "user_id", "")), ""


def to_record_owner(space: Space, source_id: str) -> RecordOwner:
    """Return the owner whose searchable records a source contains."""
    if source_id:
        return SessionRef(space.name, source_id)
    return UserRef(space.name) if space.name else TenantRef()


async def iterate_record_owners(store: Store) -> AsyncIterator[RecordOwner]:
    """Yield the users that have searchable records of their own, and the tenant if it has any."""
    after: str | None = None
    while page := await store.record_users(after=after, limit=_PAGE):
        for user_id in page:
            yield to_record_owner(Space("record", user_id), "")
        after = page[-1]


class RecordFeeder:
    """Indexes the searchable records of one tenant.

    Args:
        store: the store of records.
        index: the index of the same tenant.
        throttle: limits the speed of the work.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(self, store: Store, index: Index, throttle: Throttle, clock: Callable[[], int]) -> None:
        self._store = store
        self._index = index
        self._throttle = throttle
        self._clock = clock
        self._locks: WeakValueDictionary[RecordOwner, asyncio.Lock] = WeakValueDictionary()

    async def update_source(self, owner: RecordOwner, *, epoch: int = 0, compare: bool = False) -> int:
        """Bring the documents of an owner's records up to date, and return the number of records that were analysed.

        Args:
            owner: the owner.
            epoch: the number of a rebuild: records that this rebuild has not analysed yet are analysed again. 0: no rebuild.
            compare: True: also delete documents whose record was deleted without a report, and index changed texts again.

        Raises:
            Conflict: other processes keep writing to the owner's documents.
        """
        update = _SourceUpdate(self, owner, epoch)
        while await self.run_step(owner, update.index_page):
            pass
        if compare:
            await update.compare()
        return update.number

    async def remove(self, owner: RecordOwner, numbers: Sequence[int] | None) -> None:
        """Delete the documents of records that are not searchable any more.

        Args:
            owner: the owner.
            numbers: numbers of the records; None: all documents of the owner are compared with the store.

        Raises:
            Conflict: other processes keep writing to the owner's documents.
        """
        if numbers is None:
            space, source_id = to_record_source(owner)
            if await self._index.progress(space, source_id) is None:
                return
            await self.update_source(owner, compare=True)
            if not await self._index.list_digests(space, source_id, limit=1):
                await self._index.drop(space, source_id)
            return
        update = _SourceUpdate(self, owner, 0)
        for at in range(0, len(numbers), _PAGE):
            part = [(number, _NO_DIGEST) for number in numbers[at : at + _PAGE]]
            await self.run_step(owner, partial(update.compare_part, part))

    async def run_step(self, owner: RecordOwner, step: Callable[[], Awaitable[bool | None]]) -> bool:
        """Run one step of an update, and return its result. No other step for the same owner runs in this process meanwhile.

        Args:
            owner: the owner.
            step: reads the progress of the source and writes to the index. It returns None if another process has written meanwhile; the
                step is then repeated.
        """
        lock = self._locks.setdefault(owner, asyncio.Lock())
        for _ in range(_TRIES):
            async with lock:
                result = await step()
            if result is not None:
                return result
        raise Conflict("the records of an owner are being indexed elsewhere all the time: try again")

    async def read_texts(self, space: Space, source_id: str, seqs: Sequence[int]) -> dict[int, SearchableRecord]:
        """Return the searchable records of documents by number. Documents whose record does not exist any more are left out."""
        found: dict[int, SearchableRecord] = {}
        for at in range(0, len(seqs), RECORD_CHANGES):
            there = await self._index.at(space, source_id, seqs[at : at + RECORD_CHANGES])
            names = [decode_place(one.name.encode()) for one in there if one.name is not None]
            found |= await self.read_numbered(to_record_owner(space, source_id), names)
        return {number: one for number, one in found.items() if number in set(seqs)}

    async def read_numbered(self, owner: RecordOwner, names: Sequence[RecordName]) -> dict[int, SearchableRecord]:
        """Return those of some records that are searchable, by number. At most `RECORD_CHANGES` names."""
        try:
            page = await self._store.searchable_records(owner, now=self._clock(), names=list(dict.fromkeys(names)))
        except SessionNotFound:
            return {}
        return {one.number: one for one in page.records}

    # -- used by an update ---------------------------------------------------

    async def read_page(self, owner: RecordOwner, since: tuple[int, int]) -> SearchablePage | None:
        """Return the next searchable records of an owner; None if the owner is a session that does not exist."""
        try:
            return await self._store.searchable_records(owner, now=self._clock(), since=since, limit=_PAGE)
        except SessionNotFound:
            return None

    async def make_documents(self, records: Sequence[SearchableRecord]) -> list[Document]:
        """Analyse texts, and return a document for each record. Long texts are analysed in a thread."""
        long = sum([len(one.text) for one in records]) > INDEX_INLINE_CHARS
        async with self._throttle.run_step():
            return await run_cpu(partial(_make_documents, records), long=long)

    @property
    def index(self) -> Index:
        """The tenant's index."""
        return self._index


def _make_documents(records: Sequence[SearchableRecord]) -> list[Document]:
    return [make_record_document(one) for one in records]


class _SourceUpdate:
    """Brings the documents of an owner up to date, in steps.

    Attributes:
        number: the number of records that were analysed.

    `Progress.version` and `next_seq` are the version and number after which records are not indexed yet.
    """

    def __init__(self, feeder: RecordFeeder, owner: RecordOwner, epoch: int) -> None:
        self._feeder = feeder
        self._index = feeder.index
        self._owner = owner
        self._space, self._id = to_record_source(owner)
        self._epoch = epoch
        self.number = 0

    async def index_page(self) -> bool | None:
        """Index the next records. Return True if there are more, and None if another process has written meanwhile."""
        known = await self._index.progress(self._space, self._id)
        since = _START if known is None or known.epoch < self._epoch else (known.version, known.next_seq)
        page = await self._feeder.read_page(self._owner, since)
        if page is None:
            if known is not None:
                await self._index.drop(self._space, self._id, identity=known.identity)
            return False
        if known is not None and known.identity != page.identity:  # another session of the same name
            page = page if since == _START else await self._feeder.read_page(self._owner, _START)
            if page is None:
                return None
        return page.has_more if await self._write_page(known, page) else None

    async def _write_page(self, known: Progress | None, page: SearchablePage) -> bool:
        """Write the documents of a page. Return False if another process has written meanwhile."""
        same = known is not None and known.identity == page.identity
        epoch = max(self._epoch, known.epoch if known else 0)
        if not page.records and (known is None or (same and known.complete and known.epoch == epoch)):
            return True
        documents = await self._feeder.make_documents(page.records)
        self.number += len(documents)
        place = (known.version, known.next_seq) if known is not None and same else _START
        at = 0
        for part in split_for_writes(documents) or [[]]:
            at += len(part)
            place = (page.records[at - 1].version, page.records[at - 1].number) if at else place
            progress = Progress(
                identity=page.identity,
                version=place[0],
                next_seq=place[1],
                epoch=epoch,
                complete=at == len(documents) and not page.has_more,
            )
            if not await self._write(known, progress, part):
                return False
            known = progress
        return True

    async def _write(
        self, known: Progress | None, progress: Progress, put: Sequence[Document], drop: Sequence[int] = ()
    ) -> bool:
        source = Source(self._id, progress.identity)
        batch = Batch(source=source, progress=progress, put=put, drop=drop, expect=known)
        return await self._index.write(self._space, batch)

    async def compare(self) -> None:
        """Compare all documents with the store."""
        start = 0
        while True:
            page = await self._index.list_digests(self._space, self._id, start=start, limit=_DIGEST_PAGE)
            for at in range(0, len(page), _PAGE):
                await self._feeder.run_step(self._owner, partial(self.compare_part, page[at : at + _PAGE]))
            if len(page) < _DIGEST_PAGE:
                return
            start = page[-1][0] + 1

    async def compare_part(self, digests: Sequence[tuple[int, bytes]]) -> bool | None:
        """Delete the documents of records that do not exist any more, and index changed texts. The result is as in `index_page`."""
        known = await self._index.progress(self._space, self._id)
        if known is None:
            return False
        records = await self._feeder.read_texts(self._space, self._id, [seq for seq, _ in digests])
        lost = [seq for seq, _ in digests if seq not in records]
        changed = [
            records[seq] for seq, digest in digests if seq in records and compute_digest(records[seq].text) != digest
        ]
        if not lost and not changed:
            return False
        documents = await self._feeder.make_documents(changed)
        return False if await self._write(known, known, documents, lost) else None


class RecordQueue:
    """Indexes the records of owners in the background, a short time after they were written.

    Args:
        feeder: indexes the records.
        indexed: called after records were indexed.
        failed: called with the activity and the error of each failed attempt; without an error if the queue is full.
    """

    def __init__(
        self, feeder: RecordFeeder, indexed: Callable[[], None], failed: Callable[[str, Exception | None], None]
    ) -> None:
        self._feeder = feeder
        self._indexed = indexed
        self._failed = failed
        self._waiting: dict[RecordOwner, bool] = {}
        """The queued owners, and True for each whose documents are all compared."""
        self._task: asyncio.Task[None] | None = None
        self._working = asyncio.Lock()
        self._closed = False

    def schedule(self, owner: RecordOwner, *, compare: bool = False) -> None:
        """Queue an owner whose searchable records have changed. If the queue is full, a later search or backfill finds the changes.

        Args:
            owner: the owner.
            compare: True: compare all documents of the owner with the store.
        """
        if self._closed or (isinstance(owner, SessionRef) and owner.withdrawn):
            return
        if len(self._waiting) >= INDEX_WAITING and owner not in self._waiting:
            self._failed("waiting", None)
            return
        self._waiting[owner] = compare or self._waiting.get(owner, False)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="indexing records")

    async def refresh(self, owner: RecordOwner, seconds: float) -> bool:
        """Index what was written to an owner's records. Return False if that takes longer; it then continues in the background.

        Args:
            owner: the owner.
            seconds: maximum number of seconds to wait.
        """
        compare = self._waiting.pop(owner, False)
        try:
            async with asyncio.timeout(seconds):
                await self._update(owner, compare=compare)
        except BaseException as exc:
            self.schedule(owner, compare=compare)
            if isinstance(exc, (TimeoutError, Conflict)):
                return False
            raise
        return True

    async def _update(self, owner: RecordOwner, *, compare: bool) -> None:
        if await self._feeder.update_source(owner, compare=compare):
            self._indexed()

    async def _run(self) -> None:
        pause = INDEX_DELAY_SECONDS
        failures = 0
        while self._waiting:
            await asyncio.sleep(pause)
            failures = 0 if await self._run_once() else failures + 1
            pause = min(_FIRST_PAUSE * 2 ** min(failures, 16), INDEX_PAUSE_SECONDS) if failures else INDEX_DELAY_SECONDS

    async def _run_once(self) -> bool:
        """Index the records of all queued owners. Return False if that fails for some of them; these are queued again."""
        succeeded = True
        async with self._working:
            waiting, self._waiting = self._waiting, {}
            for owner, compare in waiting.items():
                try:
                    await self._update(owner, compare=compare)
                except Exception as exc:  # noqa: BLE001 - the outermost handler: no write may fail because of an index
                    self._failed("indexing", exc)
                    self._waiting[owner] = compare or self._waiting.get(owner, False)
                    succeeded = False
        return succeeded

    async def settle(self) -> None:
        """Index the records of all queued owners now, and wait until an attempt was made."""
        await self._run_once()

    async def close(self, seconds: float) -> None:
        """Index the queued records within a time limit, and stop. A later search or backfill indexes the rest."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.settle()
        task, self._task = self._task, None
        await cancel_task(task)

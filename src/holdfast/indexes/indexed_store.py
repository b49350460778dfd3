"""A store wrapper that reports each write to the index of its tenant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from holdfast.domain.record import ChangedRecords, PutRecord, RecordChange, RecordOwner
from holdfast.domain.session import Ending, Entry, NewEntry, Receipt, Session, SessionRef
from holdfast.indexes.service import IndexService
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

ServiceOf = Callable[[Store], IndexService]
"""Function that returns the index service of a store's tenant."""


class IndexedStore(StoreWrapper):
    """A store that reports each write to the index of its tenant.

    Added data is reported after the write. Removed data is deleted from the index before the method returns, if the index answers
    in time.

    Args:
        inner: the store that is wrapped.
        service: returns the index service of a tenant.
    """

    def __init__(self, inner: Store, service: ServiceOf) -> None:
        super().__init__(inner)
        self._find_service = service

    def wrap(self, inner: Store) -> Self:
        """Return a store that wraps `inner` and reports its writes in the same way."""
        return type(self)(inner, self._find_service)

    @property
    def _index(self) -> IndexService:
        return self._find_service(self.inner)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        appended = await self.inner.append(ref, write)
        if (write.entries or write.retire_from is not None) and not appended.replayed:
            self._index.record_write(appended.session, entries=len(appended.entries), cut=write.retire_from)
        if appended.records is not None:
            await self._handle_records(ref, write.records, appended.records.unsearchable)
        return appended

    async def _handle_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], gone: Collection[int] = ()
    ) -> None:
        """Have the searchable records of a write indexed, and delete the documents of records that are not searchable any more."""
        if any(isinstance(change, PutRecord) and change.text is not None for change in changes):
            self._index.records.schedule(owner)
        if gone:
            await self._index.erase_records(owner, gone)

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        changed = await self.inner.change_records(owner, changes, timestamp=timestamp, identity=identity)
        await self._handle_records(owner, changes, changed.unsearchable)
        return changed

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
        dropped = await self.inner.drop_records(owner, identity=identity)
        await self._index.erase_records(owner)
        return dropped

    def note_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        super().note_append(ref, write, appended)
        if write.entries or write.retire_from is not None:
            self._index.record_write(appended.session, entries=len(appended.entries), cut=write.retire_from)
        if any(isinstance(change, PutRecord) and change.text is not None for change in write.records):
            self._index.records.schedule(ref)

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        async with self._index.mark_change(new.ref, new.identity):
            installed = await self.inner.replace(new, entries, **more)
        self._index.record_write(installed.session, entries=len(entries), cut=0)
        await self._index.erase_records(new.ref, ())
        return installed

    async def fork(self, new: NewSession, source: Session, stop: int, *, pins: bool = True) -> Session | None:
        async with self._index.mark_change(new.ref, new.identity):
            forked = await self.inner.fork(new, source, stop, pins=pins)
        if forked is not None:
            self._index.record_write(forked, entries=forked.tail.next_seq, cut=0)
        return forked

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        async with self._index.mark_change(ref) as change:
            entry = await self.inner.erase(ref, seq, tokens=tokens)
        await self._index.erase_entry(ref, seq, change)
        return entry

    async def remove(self, ref: SessionRef, **expected: int | None) -> Receipt | None:
        async with self._index.mark_change(ref):
            removed = await self.inner.remove(ref, **expected)
        await self._index.drop_if_gone(ref)
        return removed

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """End a session.

        If the ended session is no longer available to its user (withdrawn), its documents are deleted from the index too.
        """
        if not ending.withdrawn:
            return await self.inner.end(ending, idle_since=idle_since)
        ref = SessionRef(ending.user_id, ending.session_id)
        async with self._index.mark_change(ref):
            did = await self.inner.end(ending, idle_since=idle_since)
        await self._index.drop_if_gone(ref)
        return did

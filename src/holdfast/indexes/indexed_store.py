"""A store wrapper that reports each write to the index of its tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from holdfast.domain.memory import MemoryDelta, Owner
from holdfast.domain.record import ChangedRecords, PutRecord, RecordChange, RecordOwner
from holdfast.domain.session import Ending, Entry, NewEntry, Receipt, Session, SessionRef
from holdfast.indexes.service import IndexService
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

T = TypeVar("T")
ServiceOf = Callable[[Store], IndexService]
"""Function that returns the index service of a store's tenant."""


class IndexedStore(StoreWrapper):
    """A store that reports each write to the index of its tenant.

    Added data is reported after the write. Removed data is deleted from the index before the method returns, if the index answers
    in time; the store has recorded the removal, so it is not lost.

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
        if not appended.replayed:
            self._report_append(write, appended)
        if appended.records is not None:
            await self._handle_records(ref, write.records, appended.records)
        return appended

    def _report_append(self, write: Append, appended: Appended) -> None:
        if write.entries or write.retire_from is not None:
            self._index.schedule(appended.session.ref)

    async def _handle_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], changed: ChangedRecords
    ) -> None:
        """Have the searchable records of a write indexed, and delete the documents of records that are not searchable any more."""
        if any(isinstance(change, PutRecord) and change.text is not None for change in changes):
            self._index.schedule_records(owner)
        if changed.unsearchable:
            await self._index.apply_removals()

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        changed = await self.inner.change_records(owner, changes, timestamp=timestamp, identity=identity)
        await self._handle_records(owner, changes, changed)
        return changed

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
        return await self._remove(self.inner.drop_records(owner, identity=identity))

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        change = self.inner.change_memories(owner, delta, timestamp=timestamp, expect=expect)
        return await (self._remove(change) if delta.forget else change)

    async def drop_memories(self, owner: Owner) -> int:
        return await self._remove(self.inner.drop_memories(owner))

    async def _remove(self, removal: Awaitable[T]) -> T:
        """Run a removal, and apply it to the index."""
        result = await removal
        await self._index.apply_removals()
        return result

    def note_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        super().note_append(ref, write, appended)
        self._report_append(write, appended)
        if any(isinstance(change, PutRecord) and change.text is not None for change in write.records):
            self._index.schedule_records(ref)

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        installed = await self.inner.replace(new, entries, **more)
        self._index.schedule(installed.session.ref)
        if new.past is not None or not more.get("fresh"):
            await self._index.apply_removals()
        return installed

    async def fork(self, new: NewSession, source: Session, stop: int) -> Session | None:
        forked = await self.inner.fork(new, source, stop)
        if forked is not None:
            self._index.schedule(forked.ref)
        return forked

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        return await self._remove(self.inner.erase(ref, seq, tokens=tokens))

    async def remove(self, ref: SessionRef, **expected: int | None) -> Receipt | None:
        return await self._remove(self.inner.remove(ref, **expected))

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """End a session. If it is no longer available to its user (withdrawn), its documents are deleted from the index too."""
        end = self.inner.end(ending, idle_since=idle_since)
        return await (self._remove(end) if ending.withdrawn else end)

"""Remove from an index what was erased or deleted in the store.

The store records each removal in the transaction of the removal, for each index that is registered (`holdfast.stores.logic.due`). The process
that has removed something applies the removal to its index before its call returns. If the index does not answer, or if the process dies,
the removal stays recorded, and the next backfill of any process with this index applies it. A removal only names data: what is applied is
what the store has by then, so removals may be applied twice, late, and in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import Conflict, SessionNotFound
from holdfast.indexes.memories import SOURCE, bring_stored_up_to_date
from holdfast.indexes.records import RecordFeeder, to_record_owner
from holdfast.indexes.sources import INVALID, mark_progress, to_session_space
from holdfast.recall.base import Batch, Index, Progress, Source, Space
from holdfast.stores.base import Store
from holdfast.stores.logic.due import Removal

_PAGE: Final = 100
_TRIES: Final = 8
_BUSY: Final = "a session is being indexed elsewhere all the time: try again"


class Removals:
    """Applies the recorded removals of one tenant to its index.

    Args:
        store: the store of sessions; it must include expired sessions that are not deleted yet.
        index: the tenant's index.
        records: indexes searchable records.
        name: returns the name of the index.
        enqueue: called with each session that must be indexed again.
    """

    def __init__(
        self,
        store: Store,
        index: Index,
        records: RecordFeeder,
        name: Callable[[], Awaitable[str]],
        enqueue: Callable[[SessionRef], object],
    ) -> None:
        self._store = store
        self._index = index
        self._records = records
        self._name = name
        self._enqueue = enqueue
        self._applying = asyncio.Lock()

    async def apply(self) -> None:
        """Apply all recorded removals.

        Raises:
            StoreError: the index or the store cannot be used.
            Conflict: other processes keep writing to the same documents.
        """
        name = await self._name()
        async with self._applying:
            while due := await self._store.removals(name, limit=_PAGE):
                for (space, source_id), group in groupby(due, key=lambda one: (one.space, one.source)):
                    await self._apply_to_source(space, source_id, list(group))
                await self._store.finish_due([one.id for one in due])

    async def _apply_to_source(self, space: Space, source_id: str, due: Sequence[Removal]) -> None:
        is_whole = any(one.seq is None for one in due)
        numbers = [one.seq for one in due if one.seq is not None]
        if space.kind == "record":
            await self._records.remove(to_record_owner(space, source_id), None if is_whole else numbers)
        elif space.kind != "talk":
            await self._update_owner(Owner(space.kind, space.name), space)
        elif is_whole:
            await self.check_session(SessionRef(space.name, source_id))
        else:
            for one in due:
                await self._erase(SessionRef(space.name, source_id), one)

    async def _update_owner(self, owner: Owner, space: Space) -> None:
        """Delete the documents of memories that were forgotten; if all data of the owner was dropped, its name too."""
        if (await self._store.memories(owner, limit=1)).version:
            await bring_stored_up_to_date(self._index, self._store, owner)
        else:
            await self._index.drop(space, SOURCE.id)

    async def _erase(self, ref: SessionRef, one: Removal) -> None:
        """Delete the document of an entry that was erased. Updates that may have read the entry before then fail and are repeated."""
        space = to_session_space(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            if known is None or known.version >= one.version or one.seq is None:
                return
            is_next = known.complete and known.version == one.version - 1
            progress = msgspec.structs.replace(known, version=one.version) if is_next else mark_progress(known)
            batch = Batch(source=Source(ref.id, known.identity), progress=progress, drop=[one.seq], expect=known)
            if await self._index.write(space, batch):
                if not is_next:
                    self._enqueue(ref)
                return
        raise Conflict(_BUSY)

    async def check_session(self, ref: SessionRef) -> None:
        """Delete a session from the index if it does not exist any more. Otherwise have its documents compared with its log.

        The documents of the session's records are checked too.
        """
        space = to_session_space(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            identity = await self._read_identity(ref, known)
            if identity is None:
                if known is not None:
                    await self._index.drop(space, ref.id, identity=known.identity)
                break
            is_same = known is not None and known.identity == identity
            marked = mark_progress(known) if known is not None and is_same else None
            progress = marked or Progress(identity=identity, version=INVALID, complete=False)
            # This also deletes the documents of another session that had the name before.
            if await self._index.write(space, Batch(source=Source(ref.id, identity), progress=progress, expect=known)):
                self._enqueue(ref)
                break
        else:
            raise Conflict(_BUSY)
        await self._records.remove(ref, None)

    async def _read_identity(self, ref: SessionRef, known: Progress | None) -> str | None:
        """Return the identity of the stored session; None if it does not exist. A damaged session counts as the indexed one."""
        try:
            session = await self._store.get(ref)
        except SessionNotFound:
            return None
        return known.identity if session.damaged and known is not None else session.identity

"""Announce removals of data to the indexes of other processes, by a mark in the store.

A process reports the data that it erases and deletes to its own index at once. The index of another process would not notice the
removal: its *backfill*, which searches for unreported changes, compares the times of sessions, and a removal does not change
these times. So a process sets the mark, with the current time, before it removes data (at most once a minute). If the backfill of
another index finds the mark, it checks all sessions, and all data in the index (at most once an hour). Without a mark, that
happens once a week. The mark names no session and no user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from holdfast.domain.memory import MemoryDelta, Owner
from holdfast.domain.record import ChangedRecords, RecordChange, RecordOwner
from holdfast.domain.session import Ending, Entry, NewEntry, Receipt, SessionRef
from holdfast.errors import HoldfastError
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.stores.base import Store
from holdfast.stores.log import Appended
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.sessions import NewSession
from holdfast.stores.tenants import FOREVER
from holdfast.stores.wrapper import StoreWrapper

MARK: Final = "holdfast.departures"
"""Key of the mark. The mark is stored with the tenant's calibration data of models, under a name that no model has."""
_FRESH: Final = 60_000
"""Milliseconds for which a mark is not written again."""
_MOST: Final = 32
"""Maximum number of indexes whose marks are stored. The latest marks are kept."""

_Marks = dict[str, int]
_decode: Final = msgspec.json.Decoder(_Marks).decode
_encode: Final = msgspec.json.encode


async def _get_shared_name() -> str:
    return ""


class RemovalMarks:
    """Sets the mark for removals by processes with one index, and reads the marks of all of the tenant's indexes.

    Args:
        store: the tenant's store.
        clock: returns the current time, in milliseconds since the epoch.
        name: returns the name of the index. The default is a name that all processes without an index share.
    """

    def __init__(
        self, store: Store, clock: Callable[[], int], name: Callable[[], Awaitable[str]] = _get_shared_name
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._marked_at = -_FRESH

    async def mark(self) -> None:
        """Set the mark, because data is about to be removed.

        Errors are ignored, because the weekly full backfill finds the removal anyway.
        """
        now = self._clock()
        if 0 <= now - self._marked_at < _FRESH:
            return
        name = ""
        with suppress(HoldfastError):  # an unreachable index has no name
            name = await self._name()
        with suppress(HoldfastError):
            stored = await self._store.learned(MARK)
            marks = _parse_marks(stored)
            if not 0 <= now - marks.get(name, -_FRESH) < _FRESH:
                kept = {one: at for one, at in marks.items() if one != name and now - at < INDEX_WHOLE_WALK}
                newest = sorted(kept.items(), key=lambda pair: -pair[1])[: _MOST - 1]
                data = _encode(dict([*newest, (name, now)]))
                if not await self._store.learn(MARK, data, timestamp=FOREVER, expect=stored):
                    return  # another process wrote first; the next call marks again
            self._marked_at = now

    async def has_removal_since(self, when: int) -> bool:
        """Return True if a process with another index may have removed data since `when` (milliseconds since the epoch)."""
        own, marks = await self._name(), _parse_marks(await self._store.learned(MARK))
        return any(at + _FRESH + INDEX_MARGIN >= when for name, at in marks.items() if name != own)


def _parse_marks(stored: bytes | None) -> _Marks:
    try:
        return {} if stored is None else _decode(stored)
    except msgspec.MsgspecError:  # written by a later release
        return {}


class UnindexedStore(StoreWrapper):
    """The store of a process without an index. It sets the mark before each removal, for the indexes of other processes.

    Args:
        inner: the store that is wrapped.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(self, inner: Store, clock: Callable[[], int]) -> None:
        super().__init__(inner)
        self._clock = clock
        self._removals = RemovalMarks(inner, clock)

    def wrap(self, inner: Store) -> Self:
        """Return a store that wraps `inner`, and sets the mark in the same way."""
        return type(self)(inner, self._clock)

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        await self._removals.mark()
        return await self.inner.replace(new, entries, **more)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        await self._removals.mark()
        return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(self, ref: SessionRef, **expected: int | None) -> Receipt | None:
        await self._removals.mark()
        return await self.inner.remove(ref, **expected)

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        if ending.withdrawn:
            await self._removals.mark()
        return await self.inner.end(ending, idle_since=idle_since)

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        if delta.forget:
            await self._removals.mark()
        return await self.inner.change_memories(owner, delta, timestamp=timestamp, expect=expect)

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        changed = await self.inner.change_records(owner, changes, timestamp=timestamp, identity=identity)
        if changed.unsearchable:
            await self._removals.mark()
        return changed

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
        await self._removals.mark()
        return await self.inner.drop_records(owner, identity=identity)

    async def drop_memories(self, owner: Owner) -> int:
        await self._removals.mark()
        return await self.inner.drop_memories(owner)

"""Announce removals of data to other indexes of a store, with a mark in the store that contains the time of the last removal.

Processes report what they erase and delete to their own index at once. Removals by processes with another index, or without one,
do not change the timestamps that a walk compares. The mark turns the next walk into a full walk, which otherwise happens once a
week. It names no session and no user.

    before a removal: set the mark, at most once a minute -> a walk reads it and checks everything, at most once an hour
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from holdfast.domain.memory import MemoryDelta, Owner
from holdfast.domain.session import Ending, Entry, NewEntry, RemovalCounts, SessionRef
from holdfast.errors import HoldfastError
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.stores.base import Store
from holdfast.stores.log import Appended
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.sessions import NewSession
from holdfast.stores.tenants import FOREVER
from holdfast.stores.wrapper import StoreWrapper

MARK: Final = "holdfast.departures"
"""Key of the mark in the tenant's calibration data of models. No model has this name."""
_FRESH: Final = 60_000
"""A mark is not written again for this many milliseconds."""
_MOST: Final = 32
"""Maximum number of indexes whose marks are stored; the latest marks are kept."""

_Marks = dict[str, int]
_decode: Final = msgspec.json.Decoder(_Marks).decode
_encode: Final = msgspec.json.encode


async def _get_shared_name() -> str:
    return ""


class RemovalMarks:
    """Set and read the removal mark of one tenant for one index.

    Args:
        store: the tenant's store.
        clock: milliseconds since the epoch.
        name: returns the index's own name; the default is the shared name of all processes without an index.
    """

    def __init__(
        self, store: Store, clock: Callable[[], int], name: Callable[[], Awaitable[str]] = _get_shared_name
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._marked_at = -_FRESH

    async def mark(self) -> None:
        """Mark that data is about to be removed. A failure is ignored, since the weekly full walk finds the removal."""
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
    """The store of a process without an index: marks removals for the indexes of other processes.

    Args:
        inner: the store.
        clock: milliseconds since the epoch.
    """

    def __init__(self, inner: Store, clock: Callable[[], int]) -> None:
        super().__init__(inner)
        self._clock = clock
        self._removals = RemovalMarks(inner, clock)

    def wrap(self, inner: Store) -> Self:
        """Wrap another store handle in the same way."""
        return type(self)(inner, self._clock)

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        await self._removals.mark()
        return await self.inner.replace(new, entries, **more)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        await self._removals.mark()
        return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> RemovalCounts | None:
        await self._removals.mark()
        return await self.inner.remove(ref, expect=expect, artifacts=artifacts)

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

    async def drop_memories(self, owner: Owner) -> int:
        await self._removals.mark()
        return await self.inner.drop_memories(owner)


def mark_removals(store: Store, clock: Callable[[], int]) -> Store:
    """Wrap a store so that it marks removals."""
    return UnindexedStore(store, clock)  # type: ignore[abstract]  # the wrapper delegates the other methods

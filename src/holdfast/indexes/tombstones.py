"""Tell all indexes of a store that something was removed: by one mark in the store, which says when that happened last.

An index knows at once what its own processes erase and delete. Removals by other processes, which have another index or none, change no time
that a walk goes by: such a mark makes the next walk look at everything, instead of the one a week later. It names no session and no user.

    before a removal: marked, once a minute at most -> a walk reads it: a whole one, once an hour at most
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
"""Under what name it is kept among what a tenant has learned of models: none is called so."""
_FRESH: Final = 60_000
"""Milliseconds in which it need not be told again."""
_MOST: Final = 32
"""Indexes that are told apart; of more the ones that told last."""

_Marks = dict[str, int]
_decode: Final = msgspec.json.Decoder(_Marks).decode
_encode: Final = msgspec.json.encode


async def _unnamed() -> str:
    return ""


class Departures:
    """The mark of one tenant, as the processes of one index leave and read it.

    Args:
        store: of the tenant, as it is.
        clock: milliseconds since the epoch.
        name: gives the index's own name; by default that of those who have none.
    """

    def __init__(self, store: Store, clock: Callable[[], int], name: Callable[[], Awaitable[str]] = _unnamed) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._told = -_FRESH

    async def tell(self) -> None:
        """Something is about to go. Where that cannot be told, the walk of the week sees it: nobody fails for it."""
        now = self._clock()
        if 0 <= now - self._told < _FRESH:
            return
        name = ""
        with suppress(HoldfastError):  # an index that is away has none
            name = await self._name()
        with suppress(HoldfastError):
            stored = await self._store.learned(MARK)
            marks = _marks(stored)
            if not 0 <= now - marks.get(name, -_FRESH) < _FRESH:
                kept = {one: at for one, at in marks.items() if one != name and now - at < INDEX_WHOLE_WALK}
                newest = sorted(kept.items(), key=lambda pair: -pair[1])[: _MOST - 1]
                data = _encode(dict([*newest, (name, now)]))
                if not await self._store.learn(MARK, data, timestamp=FOREVER, expect=stored):
                    return  # somebody else was faster: the next one tells
            self._told = now

    async def since(self, when: int) -> bool:
        """Whether something may have gone after a time, milliseconds since the epoch, that this index was not told of."""
        own, marks = await self._name(), _marks(await self._store.learned(MARK))
        return any(at + _FRESH + INDEX_MARGIN >= when for name, at in marks.items() if name != own)


def _marks(stored: bytes | None) -> _Marks:
    try:
        return {} if stored is None else _decode(stored)
    except msgspec.MsgspecError:  # of a later release
        return {}


class UnindexedStore(StoreWrapper):
    """The store of a process that has no index, for those of others: leaves the mark before something goes.

    Args:
        inner: the store.
        clock: milliseconds since the epoch.
    """

    def __init__(self, inner: Store, clock: Callable[[], int]) -> None:
        super().__init__(inner)
        self._clock = clock
        self._departures = Departures(inner, clock)

    def wrap(self, inner: Store) -> Self:
        """The same around another handle."""
        return type(self)(inner, self._clock)

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store.replace`."""
        await self._departures.tell()
        return await self.inner.replace(new, entries, **more)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """See `Store.erase`."""
        await self._departures.tell()
        return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> RemovalCounts | None:
        """See `Store.remove`."""
        await self._departures.tell()
        return await self.inner.remove(ref, expect=expect, artifacts=artifacts)

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """See `Store.end`."""
        if ending.withdrawn:
            await self._departures.tell()
        return await self.inner.end(ending, idle_since=idle_since)

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """See `MemoryStore.change_memories`."""
        if delta.forget:
            await self._departures.tell()
        return await self.inner.change_memories(owner, delta, timestamp=timestamp, expect=expect)

    async def drop_memories(self, owner: Owner) -> int:
        """See `MemoryStore.drop_memories`."""
        await self._departures.tell()
        return await self.inner.drop_memories(owner)


def mark_removals(store: Store, clock: Callable[[], int]) -> Store:
    """The store, which leaves the mark."""
    return UnindexedStore(store, clock)  # type: ignore[abstract]  # the rest is passed on

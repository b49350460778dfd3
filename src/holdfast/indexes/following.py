"""A store that tells the index what is written through it: the one place that all writes of a process pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from holdfast.domain.session import Ending, Entry, NewEntry, Removed, SessionRef
from holdfast.indexes.service import IndexService
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

ServiceOf = Callable[[Store], IndexService]
"""Gives the index of a handle's tenant."""


class FollowedStore(StoreWrapper):
    """Tells the index of its tenant of every write.

    What only comes is told behind it. What goes is gone from the index, too, when the write returns, if that can be reached in time.

    Args:
        inner: the store.
        service: see `ServiceOf`.
    """

    def __init__(self, inner: Store, service: ServiceOf) -> None:
        super().__init__(inner)
        self._of = service

    def around(self, inner: Store) -> Self:
        """The same around another handle."""
        return type(self)(inner, self._of)

    @property
    def _index(self) -> IndexService:
        return self._of(self.inner)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store.append`."""
        appended = await self.inner.append(ref, write)
        if (write.entries or write.retire_from is not None) and not appended.replayed:
            self._index.written(appended.session, entries=len(appended.entries), cut=write.retire_from)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store.replace`."""
        async with self._index.changing(new.ref, new.identity):
            installed = await self.inner.replace(new, entries, **more)
        self._index.written(installed.session, entries=len(entries), cut=0)
        return installed

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """See `Store.erase`."""
        async with self._index.changing(ref) as change:
            entry = await self.inner.erase(ref, seq, tokens=tokens)
        await self._index.erased(ref, seq, change)
        return entry

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        """See `Store.remove`."""
        async with self._index.changing(ref):
            removed = await self.inner.remove(ref, expect=expect, artifacts=artifacts)
        await self._index.forget(ref)
        return removed

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """See `Store.end`. One that gives up its name is found no more."""
        if not ending.withdrawn:
            return await self.inner.end(ending, idle_since=idle_since)
        ref = SessionRef(ending.user_id, ending.session_id)
        async with self._index.changing(ref):
            did = await self.inner.end(ending, idle_since=idle_since)
        await self._index.forget(ref)
        return did


def followed(store: Store, service: ServiceOf) -> Store:
    """The store, which tells the index of its tenant."""
    return FollowedStore(store, service)  # type: ignore[abstract]  # the rest is passed on

"""A store that tells what is written through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from holdfast.domain.session import Entry, NewEntry, Removed, SessionRef
from holdfast.hooks.base import Change, Observer
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper


class ObservedStore(StoreWrapper):
    """Tells observers what is written. They only take note of it: no write waits for them.

    Args:
        inner: the store.
        observers: told in order, of every tenant's writes.
    """

    def __init__(self, inner: Store, observers: Sequence[Observer]) -> None:
        super().__init__(inner)
        self._observers = tuple(observers)

    def around(self, inner: Store) -> Self:
        """The same around another handle."""
        return type(self)(inner, self._observers)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store.append`."""
        appended = await self.inner.append(ref, write)
        # A retirement may come without an entry.
        if write.entries or write.retire_from is not None:
            for observer in self._observers:
                observer.appended(self.tenant, ref, appended)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store.replace`."""
        with self._changing(new.ref, "replaced"):
            return await self.inner.replace(new, entries, **more)

    async def annotate(self, ref: SessionRef, seq: int, **changes: Any) -> Entry:
        """See `Store.annotate`."""
        with self._changing(ref, "annotated"):
            return await self.inner.annotate(ref, seq, **changes)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """See `Store.erase`."""
        with self._changing(ref, "erased"):
            return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        """See `Store.remove`."""
        if ref.withdrawn:
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)
        with self._changing(ref, "deleted"):
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)

    @contextmanager
    def _changing(self, ref: SessionRef, how: Change) -> Iterator[None]:
        """Something that was written changes: told before it, since the process may end in between, and behind it."""
        for observer in self._observers:
            observer.changing(self.tenant, ref, how)
        try:
            yield
        finally:
            for observer in self._observers:
                observer.changed(self.tenant, ref, how)


def observed(store: Store, observers: Sequence[Observer]) -> Store:
    """The store, told of to observers; each of them may read from it from now on. The same store when there are none."""
    for observer in observers:
        observer.begin(store)
    return ObservedStore(store, observers) if observers else store  # type: ignore[abstract]  # the rest is passed on

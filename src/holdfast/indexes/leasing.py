"""Whose turn it is to walk over an index, or to embed for it: one process at a time of those that share it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.recall.base import Index
from holdfast.stores.base import Store
from holdfast.stores.lease import leased

NOTE: Final = "name"
_LENGTH: Final = 60_000
"""Milliseconds after which another process takes over from one that is gone."""


class Leases:
    """Leases in the store of a tenant, under a name that those have who share its index.

    Args:
        store: of the tenant.
        index: of the same.
        holder: names this process.
        clock: milliseconds since the epoch.
    """

    def __init__(self, store: Store, index: Index, holder: str, clock: Callable[[], int]) -> None:
        self._store = store
        self._index = index
        self._holder = holder
        self._clock = clock
        self._named: str | None = None

    @asynccontextmanager
    async def held(self, what: str) -> AsyncIterator[Callable[[], Awaitable[bool]] | None]:
        """The lease while the block runs, as what tells whether it still is; None: another process has it."""
        name = f"{what} {await self.name()}"
        async with leased(self._store, name, self._holder, self._clock, length=_LENGTH) as lease:
            yield lease.kept if lease is not None else None

    def renewed(self) -> None:
        """The index is another one: it has a name of its own."""
        self._named = None

    async def name(self) -> str:
        """The index's own name: two of them that one store has, each where a server is, are walked over apart."""
        while self._named is None:
            found = await self._index.note(NOTE)
            if found is None:
                await self._index.keep_note(NOTE, uuid.uuid4().hex.encode(), new=True)
            else:
                self._named = found.decode()
        return self._named

"""Whose turn it is to walk over an index, or to embed for it: one process at a time of those that share it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.recall.base import Index
from holdfast.stores.base import Store

_log: Final = logging.getLogger("holdfast.indexing")
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
        lease = _Lease(self._store, name, self._holder, self._clock)
        ours = True  # until it is known that it is not: one who is cancelled while it asks may have it
        try:
            ours = await lease.renew()
            yield lease.kept if ours else None
        finally:
            if ours:
                await self._released(name)

    def renewed(self) -> None:
        """The index is another one: it has a name of its own."""
        self._named = None

    async def _released(self, name: str) -> None:
        try:
            await self._store.release(name, self._holder)
        except HoldfastError as exc:  # it expires by itself
            _log.warning("a lease could not be released", exc_info=exc)

    async def name(self) -> str:
        """The index's own name: two of them that one store has, each where a server is, are walked over apart."""
        while self._named is None:
            found = await self._index.note(NOTE)
            if found is None:
                await self._index.keep_note(NOTE, uuid.uuid4().hex.encode(), new=True)
            else:
                self._named = found.decode()
        return self._named


class _Lease:
    def __init__(self, store: Store, name: str, holder: str, clock: Callable[[], int]) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._clock = clock
        self._until = 0

    async def renew(self) -> bool:
        now = self._clock()
        self._until = now + _LENGTH
        return await self._store.lease(self._name, self._holder, now=now, until=self._until)

    async def kept(self) -> bool:
        return self._until - self._clock() > _LENGTH // 2 or await self.renew()

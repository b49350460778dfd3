"""Limit the speed of indexing, and let one process at a time do it.

Work is done in small steps with rests in between, so that turns are not slowed down. There are no rests while a caller waits for
the work. If several processes share an index, only one at a time has the lease for walks, or for embedding.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Final

from holdfast.recall.base import Index
from holdfast.stores.base import Store
from holdfast.stores.lease import acquire_lease

SHARE: Final = 0.2
"""The share of time that long-running work is active."""
_CREDIT: Final = 0.2
"""Seconds of work that need no rest. A few turns cause less work than that."""
_LONGEST: Final = 0.05
"""The longest rest in seconds."""


class Throttle:
    """Manages the rests that all work on one index in a process shares.

    Args:
        time: returns a monotonic time in seconds.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self, time: Callable[[], float] = monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._time = time
        self._sleep = sleep
        self._due = 0.0
        self._waited_for = 0

    @contextmanager
    def skip_rests(self) -> Iterator[None]:
        """Skip all rests during the block, because a caller waits for the work."""
        self._waited_for += 1
        try:
            yield
        finally:
            self._waited_for -= 1

    @asynccontextmanager
    async def run_step(self) -> AsyncIterator[None]:
        """Run a block of work, then rest if a rest is due."""
        began = self._time()
        yield
        now = self._time()
        paid = max(self._due, began - _CREDIT) + (now - began) / SHARE
        self._due = min(paid, now + _LONGEST)
        await self._sleep(0 if self._waited_for else max(0.0, self._due - now))


NOTE: Final = "name"
_LENGTH: Final = 60_000
"""Milliseconds after which another process takes over the lease of a process that has ended."""


class Leases:
    """Leases in a tenant's store, under a name shared by the processes of one index.

    Args:
        store: the tenant's store.
        index: the tenant's index.
        holder: the name of this process.
        clock: milliseconds since the epoch.
    """

    def __init__(self, store: Store, index: Index, holder: str, clock: Callable[[], int]) -> None:
        self._store = store
        self._index = index
        self._holder = holder
        self._clock = clock
        self._named: str | None = None

    @asynccontextmanager
    async def hold(self, what: str) -> AsyncIterator[Callable[[], Awaitable[bool]] | None]:
        """Hold a lease during the block; yield a check that it is still held, or None if another process has it."""
        name = f"{what} {await self.get_name()}"
        async with acquire_lease(self._store, name, self._holder, self._clock, length=_LENGTH) as lease:
            yield lease.keep if lease is not None else None

    def forget_name(self) -> None:
        """Forget the index's name, because a new index has replaced it."""
        self._named = None

    async def get_name(self) -> str:
        """Return the index's own name. Two indexes of one store, each with its own server, thus have separate leases."""
        while self._named is None:
            found = await self._index.note(NOTE)
            if found is None:
                await self._index.keep_note(NOTE, uuid.uuid4().hex.encode(), new=True)
            else:
                self._named = found.decode()
        return self._named

"""How fast indexing works, and which process does it.

Work is done in small steps with rests between them, so that turns are not slowed down; without rests while a caller waits for it. Of
several processes that share an index one at a time holds the lease to walk over it, or to embed for it.
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
"""Part of its time in which a long piece of work does something."""
_CREDIT: Final = 0.2
"""Seconds whose share is worked off without a rest: what a few turns leave behind is less than that."""
_LONGEST: Final = 0.05
"""Seconds that one rest lasts at most."""


class Pace:
    """Rests of all who work on one index in a process, together.

    Args:
        time: seconds that go by.
        sleep: waits for so many of them.
    """

    def __init__(
        self, time: Callable[[], float] = monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._time = time
        self._sleep = sleep
        self._due = 0.0
        self._waited_for = 0

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """A block in which there are no rests: somebody waits for what is being done."""
        self._waited_for += 1
        try:
            yield
        finally:
            self._waited_for -= 1

    @asynccontextmanager
    async def step(self) -> AsyncIterator[None]:
        """A block that does some of the work, and a rest behind it where it is time for one."""
        began = self._time()
        yield
        now = self._time()
        paid = max(self._due, began - _CREDIT) + (now - began) / SHARE
        self._due = min(paid, now + _LONGEST)
        await self._sleep(0 if self._waited_for else max(0.0, self._due - now))


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
        async with acquire_lease(self._store, name, self._holder, self._clock, length=_LENGTH) as lease:
            yield lease.keep if lease is not None else None

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

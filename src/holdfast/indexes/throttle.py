"""Limit the speed of work on an index, and let only one process at a time do the long work.

Work is done in small steps. After a step, the throttle sleeps if needed, so that turns are not slowed down. The throttle does not
sleep while a caller waits for the work. If several processes share an index, leases ensure that only one at a time runs backfills
(searches for unreported changes), and only one makes vectors.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Final

from holdfast.limits import INDEX_PAUSE_SECONDS
from holdfast.recall.base import Index
from holdfast.stores.base import Store
from holdfast.stores.lease import acquire_lease

SHARE: Final = 0.2
"""Fraction of the time in which long work is active. The rest of the time, it sleeps."""
SCAN_SHARE: Final = 0.5
"""The same for a scan that only reads."""
_CREDIT: Final = 0.2
"""Seconds of sleep that are skipped after an idle time, so that the little work that a few turns cause needs no sleep."""
_SHORTEST: Final = 0.01
"""Minimum seconds of a sleep. Shorter ones add up, because each of them has a cost of its own. Between longer ones, most turns meet no step."""
_LONGEST: Final = 0.05
"""Maximum seconds of sleep after a step."""
_FIRST_PAUSE: Final = 0.5
"""Seconds until failed work is tried for the second time."""


def compute_pause(failures: int, asked: float | None = None) -> float:
    """Return the seconds until failed work on an index is tried again, at most `INDEX_PAUSE_SECONDS`.

    Args:
        failures: how often the work failed after the first pause. Each time doubles the pause.
        asked: shortest pause in seconds that an embedder asked for.
    """
    return min(max(_FIRST_PAUSE * 2.0 ** min(failures, 16), asked or 0.0), INDEX_PAUSE_SECONDS)


class Throttle:
    """Limits the speed of all work of one process on one index.

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
        """Let work run without sleep during the `with` block, because a caller waits for the work."""
        self._waited_for += 1
        try:
            yield
        finally:
            self._waited_for -= 1

    @asynccontextmanager
    async def run_step(self, share: float = SHARE) -> AsyncIterator[None]:
        """Run the `async with` block as one step of work, then sleep if needed, so that work takes this share of the time."""
        began = self._time()
        yield
        now = self._time()
        paid = max(self._due, began - _CREDIT) + (now - began) / share
        self._due = min(paid, now + _LONGEST)
        rest = self._due - now
        await self._sleep(0 if self._waited_for or rest < _SHORTEST else rest)


NOTE: Final = "name"
_LENGTH: Final = 60_000
"""Milliseconds after which another process can take over the lease of a process that has ended."""


class Leases:
    """Leases for work on a tenant's index. They are stored in the tenant's store.

    Args:
        store: the tenant's store.
        index: the tenant's index. The names of leases contain the name of the index, so only processes with the same index share
            leases.
        holder: the name of this process.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(self, store: Store, index: Index, holder: str, clock: Callable[[], int]) -> None:
        self._store = store
        self._index = index
        self._holder = holder
        self._clock = clock

    @asynccontextmanager
    async def hold(self, what: str) -> AsyncIterator[Callable[[], Awaitable[bool]] | None]:
        """Hold a lease during the `async with` block.

        Args:
            what: the work that the lease protects, such as `walk` or `vectors`.

        Yields:
            A function that returns True as long as the lease is held; None if another process holds the lease.
        """
        name = f"{what} {await read_name(self._index)}"
        async with acquire_lease(self._store, name, self._holder, self._clock, length=_LENGTH) as lease:
            yield lease.keep if lease is not None else None


async def read_name(index: Index) -> str:
    """Return the name of an index, which is random. If the index has no name yet, give it one."""
    while (found := await index.note(NOTE)) is None:
        await index.keep_note(NOTE, uuid.uuid4().hex.encode(), new=True)
    return found.decode()

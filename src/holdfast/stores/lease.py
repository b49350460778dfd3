"""Leases for background work. Of all processes that use a database, one at a time holds a lease, and renews it while it works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast import faults
from holdfast.background import wait_until_done
from holdfast.errors import HoldfastError
from holdfast.liveness import is_dead
from holdfast.stores.base import Store

_log = logging.getLogger("holdfast.leases")


class Lease:
    """A named lease that one process at a time can hold.

    Args:
        store: the handle of the tenant that the lease belongs to.
        name: the lease's name.
        holder: identifies this process. Made by `holdfast.liveness.make_holder`, so that other processes can detect when this
            one has died.
        clock: returns milliseconds since the epoch.
        length: milliseconds until the lease expires if it is not renewed.
    """

    def __init__(self, store: Store, name: str, holder: str, clock: Callable[[], int], length: int) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._clock = clock
        self._length = length
        self._until = 0

    async def renew(self) -> bool:
        """Acquire the lease, or extend it to its full length from now; return False if another process holds it.

        If that process is known to be dead, the lease is taken over before it expires.
        """
        await faults.hit("before-lease-renewed")
        ours = await self._take() or (await self._free() and await self._take())
        if not ours:
            self._until = 0
        return ours

    async def _take(self) -> bool:
        now = self._clock()
        until = now + self._length
        ours = await self._store.lease(self._name, self._holder, now=now, until=until)
        if ours:
            self._until = until
        return ours

    async def _free(self) -> bool:
        """Release the lease if the process that holds it has died. Return True if the lease was released."""
        holder = await self._store.leased_by(self._name, now=self._clock())
        if holder is None or not is_dead(holder):
            return False
        await self._store.release(self._name, holder)
        return True

    async def keep(self) -> bool:
        """Renew the lease if half of its length or less remains; return True if this process holds it."""
        return self._until - self._clock() > self._length // 2 or await self.renew()

    async def release(self) -> None:
        """Release the lease. If the store fails, a warning is logged, and the lease expires by itself."""
        try:
            await self._store.release(self._name, self._holder)
        except HoldfastError as exc:
            _log.warning("a lease could not be released", exc_info=exc)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Run the block, and renew the lease in the background three times per `length`.

        Raises:
            TimeoutError: the lease could not be renewed, so the block was cancelled.
        """
        async with asyncio.timeout(None) as scope:
            renewing = asyncio.ensure_future(self._renew_repeatedly(scope))
            try:
                yield
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    async def _renew_repeatedly(self, scope: asyncio.Timeout) -> None:
        while True:
            await asyncio.sleep(self._length / 3000)
            try:
                if await self.renew():
                    continue
            except HoldfastError as exc:
                _log.warning("a lease could not be renewed", exc_info=exc)
            scope.reschedule(asyncio.get_running_loop().time())
            return


@asynccontextmanager
async def acquire_lease(
    store: Store, name: str, holder: str, clock: Callable[[], int], *, length: int
) -> AsyncIterator[Lease | None]:
    """Acquire a lease and release it after the block; yield None if another process holds it. The arguments are those of `Lease`."""
    lease = Lease(store, name, holder, clock, length)
    ours = True  # until the store says otherwise: if this is cancelled while it asks, it may have the lease
    try:
        ours = await lease.renew()
        yield lease if ours else None
    finally:
        if ours:
            releasing = asyncio.ensure_future(lease.release())
            try:
                await asyncio.shield(releasing)
            finally:  # an interrupted release would block the lease until it expires
                await wait_until_done(releasing)

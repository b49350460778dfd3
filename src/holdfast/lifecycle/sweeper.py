"""End expired sessions and delete old ones periodically. One such run is called a sweep.

One process at a time sweeps a tenant. It holds a lease, which another process takes over if the process dies. A sweep works in
small steps with pauses, so that turns do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from holdfast.domain.session import Session, SessionRef
from holdfast.errors import HoldfastError, StoreCorrupt
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.lifecycle.hook_delivery import HookDispatcher
from holdfast.lifecycle.retention import iterate_retired_sessions
from holdfast.stores.lease import Lease, acquire_lease
from holdfast.stores.walk import is_unchanged, iterate_tenants

_log = logging.getLogger("holdfast.sweeping")
LEASE: Final = "sweep"


class SweepPace(msgspec.Struct, frozen=True, kw_only=True):
    """Frequency and speed of sweeps."""

    end_batch: int = 8
    """Number of sessions to end between two pauses."""
    read_batch: int = 96
    """Number of sessions to read at a time."""
    work_share: float = 0.25
    """Fraction of the time in which a sweep works; the rest are pauses."""
    min_pause_seconds: float = 0.002
    """Shortest pause in seconds."""
    chore_ms: int = 3_600_000
    """Milliseconds between two runs of the additional work (`chore`)."""
    lease_ms: int = 60_000
    """Milliseconds after which another process takes over from a process that has died."""
    ttl_share: float = 0.25
    """Time between two sweeps, as a fraction of the shortest ttl."""
    min_interval_seconds: float = 1.0
    max_interval_seconds: float = 21_600.0
    """`min_interval_seconds` and `max_interval_seconds` are the shortest and longest time in seconds between two sweeps."""
    default_interval_seconds: float = 60.0
    """Seconds between two sweeps if no session has a ttl."""
    first_sweep_seconds: float = 60.0
    """Longest time in seconds until the first sweep. The shortest time is a quarter of this.

    It is short so that short-lived processes sweep too.
    """


class SweepResult(msgspec.Struct, frozen=True):
    """Counts of what one sweep did."""

    expired: int = 0
    """Sessions that ended because they were idle for too long."""
    evicted: int = 0
    """Sessions that ended because too many were active."""
    deleted: int = 0
    """Closed sessions that were deleted after their retention time."""
    endings: int = 0
    """Ended sessions whose hooks this process will notify."""
    elsewhere: int = 0
    """Tenants that were skipped because another process is sweeping them."""
    records: int = 0
    """Records that were deleted because they had expired, or because their deletion had been interrupted."""

    def add(self, other: SweepResult) -> SweepResult:
        """Return a result with the sums of both."""
        return SweepResult(
            *(left + right for left, right in zip(*map(msgspec.structs.astuple, (self, other)), strict=True))
        )


class Sweeper:
    """Ends expired sessions and deletes old ones, for the tenant of a `Holdfast` or for all tenants of its database.

    Attributes:
        pace: frequency and speed of sweeps.
        resume: completes the erasures and deletions of a tenant that a process has begun and not finished.

    Args:
        life: the lifecycle of the sessions of the `Holdfast`'s own tenant.
        hook_dispatcher: notifies hooks.
        clock: returns milliseconds since the epoch.
        holder: identifies this process in leases.
        chore: additional work for each tenant. It is called with the tenant's lifecycle and the time in milliseconds.
        remove: deletes a session with all its data. It is called with the tenant's lifecycle and the session, and returns False
            if there was no session.
        pace: the attribute `pace`; None: the defaults.
    """

    def __init__(
        self,
        life: SessionLifecycle,
        hook_dispatcher: HookDispatcher,
        clock: Callable[[], int],
        holder: str,
        *,
        chore: Callable[[SessionLifecycle, int], Awaitable[object]],
        remove: Callable[[SessionLifecycle, SessionRef], Awaitable[bool]],
        pace: SweepPace | None = None,
    ) -> None:
        self.pace = pace or SweepPace()
        self._chore = chore
        self._remove = remove
        self.resume: Callable[[SessionLifecycle], Awaitable[None]] = _do_nothing
        self._chore_due = 0
        self._doing_chores = False
        self._life = life
        self._hook_dispatcher = hook_dispatcher
        self._clock = clock
        self._holder = holder
        self._task: asyncio.Task[None] | None = None
        self._sweeping = asyncio.Lock()
        self._sooner = asyncio.Event()
        life.on_shorter = self._sooner.set

    def start(self) -> None:
        """Begin to sweep regularly."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop sweeping, even in the middle of a sweep; a later sweep finishes the work. Closing twice is allowed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def interval(self) -> float:
        """Seconds between two sweeps: a fraction of the shortest ttl that this process knows, within the bounds of `pace`."""
        pace, shortest = self.pace, self._life.shortest
        if not shortest:
            return pace.default_interval_seconds
        return min(max(shortest * pace.ttl_share / 1000, pace.min_interval_seconds), pace.max_interval_seconds)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(HoldfastError):  # the first sweep tries again
            await self.resume(self._life)
        last = loop.time()
        # At a random moment, so that processes that started together do not sweep at the same time.
        first = self.pace.first_sweep_seconds * (1 + 3 * random.random()) / 4  # noqa: S311 - not a secret
        while True:
            self._sooner.clear()
            wait = last + min(self.interval, first) - loop.time()
            if wait > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._sooner.wait()
                continue  # a session with a shorter ttl was created, so the interval may have changed
            last, first = loop.time(), math.inf
            try:
                await self.sweep()
            except HoldfastError as exc:
                _log.warning("a sweep was cut short; the next one does the rest", exc_info=exc)
            except Exception as exc:  # noqa: BLE001 - nothing above handles it, and sweeping must go on
                _log.error("a sweep failed", exc_info=exc)

    async def sweep(self) -> SweepResult:
        """Sweep once, and return the result.

        Only one sweep runs at a time in a process, because the lease belongs to the process.
        """
        async with self._sweeping:
            now = self._clock()
            self._doing_chores = now >= self._chore_due
            if self._doing_chores:
                self._chore_due = now + self.pace.chore_ms
            swept = await self._sweep_tenant(self._life)
            if self._life.settings.all_tenants:
                async for tenant in iterate_tenants(self._life.store):
                    if tenant != self._life.store.tenant:
                        swept = swept.add(await self._sweep_tenant(self._life.for_tenant(tenant)))
            return swept

    async def _sweep_tenant(self, life: SessionLifecycle) -> SweepResult:
        async with acquire_lease(life.store, LEASE, self._holder, self._clock, length=self.pace.lease_ms) as lease:
            if lease is None:
                await life.evict(recount=True)
                return SweepResult(elsewhere=1)
            await self.resume(life)
            expired = await self._end_expired(life, lease)
            evicted = await life.evict(recount=True)
            deleted = await self._delete_retired(life, lease)
            records = await self._delete_expired_records(life, lease)
            await life.store.sweep_turn_keys(now=self._clock())
            if self._doing_chores:
                await self._chore(life, self._clock())
            endings = await self._hook_dispatcher.claim_due(life.store)
            return SweepResult(expired, evicted, deleted, endings, records=records)

    async def _end_expired(self, life: SessionLifecycle, lease: Lease) -> int:
        """End expired sessions, in order of expiry. Return the number of ended sessions."""
        number = 0
        while await lease.keep():
            found = await life.store.idle(limit=self.pace.read_batch, **life.get_expiry_filters())
            ended = await self._run_in_steps(found, life.expire)
            number += ended
            if not ended:  # the remaining sessions are in use, or other processes ended them
                break
        return number

    async def _delete_retired(self, life: SessionLifecycle, lease: Lease) -> int:
        """Delete sessions that have been closed for longer than the retention time. Return their number."""
        age, number = life.settings.retention, 0
        if not age:
            return 0
        until, delete = self._clock() - age, partial(self._delete_if_unchanged, life)
        async for retired in iterate_retired_sessions(life.store, until, size=self.pace.read_batch):
            if retired and not await lease.keep():
                break
            number += await self._run_in_steps(retired, delete)
        return number

    async def _delete_expired_records(self, life: SessionLifecycle, lease: Lease) -> int:
        """Delete records that have expired, a few at a time. Return their number."""
        number, batch = 0, self.pace.read_batch
        while await lease.keep():
            swept = await life.store.sweep_records(now=self._clock(), limit=batch)
            number += swept
            if not swept:
                break
            await asyncio.sleep(self.pace.min_pause_seconds)
        return number

    async def _delete_if_unchanged(self, life: SessionLifecycle, session: Session) -> bool:
        return await is_unchanged(life.store, session) and await self._remove(life, session.ref)

    async def _run_in_steps(self, sessions: Sequence[Session], do: Callable[[Session], Awaitable[bool]]) -> int:
        """Call `do` for each session, a few at a time, and count the results that are True. Pauses leave most of the time to other work."""
        loop, number, batch = asyncio.get_running_loop(), 0, self.pace.end_batch
        for at in range(0, len(sessions), batch):
            began = loop.time()
            number += sum(await asyncio.gather(*(_run_unless_damaged(do, one) for one in sessions[at : at + batch])))
            took = loop.time() - began
            await asyncio.sleep(max(self.pace.min_pause_seconds, took * (1 / self.pace.work_share - 1)))
        return number


async def _do_nothing(_: SessionLifecycle) -> None:
    """Resume nothing."""


async def _run_unless_damaged(do: Callable[[Session], Awaitable[bool]], session: Session) -> bool:
    """Call `do` for a session and return its result.

    If the session is damaged, log that and return False, so that the other sessions are still processed.
    """
    try:
        session.require_intact()
        return await do(session)
    except StoreCorrupt as exc:
        _log.error("skipped by the sweep: %s", exc)
        return False

"""Track which principal each task works for, and share the CPU threads of this process fairly among principals.

A principal is a tenant together with a key or a user. The server sets the principal once per request (`charge_to`); all
CPU work is charged to it. Programs that use Holdfast as a library share one account.

CPU work runs in a few threads that all principals share. Python runs one thread at a time, so more threads would only make
the event loop wait longer. No principal may use all of the threads, and waiting principals take turns, one job each.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from holdfast.limits import CPU_THREADS, CPU_THREADS_OF_PRINCIPAL, CPU_THREADS_OF_TENANT

T = TypeVar("T")


class Owner(NamedTuple):
    """The principal whose limits work counts against: a tenant, and one of its keys or users."""

    tenant: str = ""
    name: str = ""
    key_id: str = ""
    """Id of the API key or other credential of the request; empty if there is none."""


_LIBRARY: Final = Owner()
_OWNER: Final[ContextVar[Owner]] = ContextVar("holdfast_owner", default=_LIBRARY)


def get_owner() -> Owner:
    """Return the principal that the running task works for."""
    return _OWNER.get()


@contextmanager
def charge_to(owner: Owner) -> Iterator[None]:
    """Charge all work inside the block, including tasks started there, to `owner`."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


async def run_cpu(work: Callable[..., T], *args: object, long: bool = True) -> T:
    """Run CPU-heavy work in one of the shared threads and return its result.

    Args:
        work: the function to run. Its run time must be bounded by a limit, because it is not interrupted.
        args: passed to `work`.
        long: False runs `work` directly on the event loop, for work of a few milliseconds at most.
    """
    if not long:
        return work(*args)
    return await get_scheduler().run(get_owner(), partial(work, *args))


def get_scheduler() -> CpuScheduler:
    """Return the CPU scheduler of the running event loop, which the first call creates."""
    loop = asyncio.get_running_loop()
    scheduler = _SCHEDULERS.get(loop)
    if scheduler is None:
        scheduler = _SCHEDULERS[loop] = CpuScheduler()
    return scheduler


class CpuScheduler:
    """Shares a few threads among principals: it limits how many jobs run at the same time, and lets waiting principals take turns.

    Args:
        threads: number of threads.
        of_tenant: maximum number of threads that one tenant may use at the same time.
        of_principal: maximum number of threads that one principal may use at the same time.

    Attributes:
        running: number of running jobs by principal.
    """

    def __init__(
        self,
        threads: int = CPU_THREADS,
        of_tenant: int = CPU_THREADS_OF_TENANT,
        of_principal: int = CPU_THREADS_OF_PRINCIPAL,
    ) -> None:
        self._free = threads
        self._of_tenant = of_tenant
        self._of_principal = of_principal
        self._threads = anyio.CapacityLimiter(threads)
        self.running: Counter[Owner] = Counter()
        self._tenants: Counter[str] = Counter()
        self._waiting: OrderedDict[Owner, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of jobs that wait."""
        return sum(map(len, self._waiting.values()))

    async def run(self, owner: Owner, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result. Wait until a thread is free for this owner."""
        await self._acquire(owner)
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._release(owner)

    async def _acquire(self, owner: Owner) -> None:
        if owner not in self._waiting and self._may_run(owner):
            self._start(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(owner)
            else:
                self._forget(owner, turn)
            raise

    def _may_run(self, owner: Owner) -> bool:
        return (
            self._free > 0
            and self.running[owner] < self._of_principal
            and self._tenants[owner.tenant] < self._of_tenant
        )

    def _start(self, owner: Owner) -> None:
        self._free -= 1
        self.running[owner] += 1
        self._tenants[owner.tenant] += 1

    def _release(self, owner: Owner) -> None:
        self._free += 1
        self.running[owner] -= 1
        self._tenants[owner.tenant] -= 1
        if not self.running[owner]:
            del self.running[owner]
        if not self._tenants[owner.tenant]:
            del self._tenants[owner.tenant]
        self._dispatch()

    def _dispatch(self) -> None:
        """Start waiting jobs while threads are free: one job per principal, and each served principal moves to the end of the queue."""
        for owner in list(self._waiting):
            if not self._free:
                return
            if self._may_run(owner):
                turns = self._waiting[owner]
                turn = turns.popleft()
                self._waiting.move_to_end(owner)
                if not turns:
                    del self._waiting[owner]
                self._start(owner)
                turn.set_result(None)

    def _forget(self, owner: Owner, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(owner)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[owner]


_SCHEDULERS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, CpuScheduler]] = WeakKeyDictionary()

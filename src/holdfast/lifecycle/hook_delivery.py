"""Deliver the ends of sessions to hooks: at once, off every turn's path, and again with growing pauses after a failure.

    new or due -> claim -> call hook after hook -> settle each -> forget

An end is recorded with the change of the session, so it outlives the process. A process claims it by moving its `due_at` forward: that is
when other processes may take it over. Each hook is settled before the next one is called, so after a crash at any place only those are
called again whose success nobody recorded.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.session import Ending
from holdfast.errors import EndingNotFound, HookFailed, SessionNotFound, StoreError
from holdfast.hooks.registry import EndedSession, Hook, Hooks, describe_failure
from holdfast.stores.base import Store
from holdfast.stores.lease import acquire_lease

_log = logging.getLogger("holdfast.hooks")
LEASE: Final = "endings"
DAY: Final = 86_400_000


class DeliverySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take, and how long they wait."""

    call: float = 30.0
    """Seconds that a hook may take."""
    claim: int = 90_000
    """Milliseconds after which another process takes over an end from one that is gone: more than a call."""
    pauses: tuple[int, ...] = (1_000, 5_000, 30_000, 120_000, 600_000, 3_600_000)
    """Milliseconds until the second try, the third, and so on; the last one holds for all others."""
    asked: float = 3600.0
    """Seconds that a hook may ask to be left alone for, at most."""
    attempts: int = 174
    """Tries until it is given up: about seven days of them."""
    unknown: int = DAY
    """Milliseconds after which a hook that is configured no more is forgotten; counted while a process is up."""
    elsewhere: int = 300_000
    """Milliseconds until an end is looked at again of which only hooks are left that this process does not know."""
    look: float = 30.0
    """Seconds until it is looked for what others left behind."""
    close: float = 30.0
    """Seconds that hooks get to end when the process does."""


BATCH: Final = 100
"""Ends that are taken on at a time."""
AT_ONCE: Final = 8
"""Ends of which hooks are told at the same time."""
WAITING: Final = 1000
"""Ends that wait in memory; of more than that hooks are told when they are due."""
_JITTER: Final = 0.2


class _Failure(NamedTuple):
    """Why a hook could not be told."""

    why: str
    asked: int = 0
    """Milliseconds that it asked to be left alone for."""


class HookDispatcher:
    """Tells the hooks of one `Holdfast`, of all tenants that it ends sessions of.

    Attributes:
        outcomes: how often a hook was `told`, `failed`, was `given_up`, was `dropped` because it is configured no more, or
            could not be told because the session is `gone`; by hook and outcome.

    Args:
        hooks: who is told.
        clock: milliseconds since the epoch.
        holder: names this process where ends are claimed.
        patience: how long things may take.
        chance: a number from 0 to 1, so that processes do not try again at the same moment.
    """

    def __init__(
        self,
        hooks: Hooks,
        clock: Callable[[], int],
        holder: str,
        *,
        patience: DeliverySchedule | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.schedule = patience or DeliverySchedule()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._hooks = hooks
        self._clock = clock
        self._holder = holder
        self._chance = chance
        self._since = clock()
        self._stores: dict[str, Store] = {}
        self._waiting: deque[tuple[Store, Ending]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._mine: set[str] = set()
        """Ends that wait, or are being told of."""
        self._strays: set[asyncio.Task[Any]] = set()
        self._retries: list[int] = []
        self._claiming = asyncio.Lock()
        """The lease is the whole process's."""
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False
        hooks.add_listener(self._wake.set)

    @property
    def pending(self) -> int:
        """Ends that this process has taken on, and not told everybody of."""
        return len(self._waiting) + len(self._running)

    def start(self, store: Store) -> None:
        """Look from now on for ends of a tenant that are due."""
        self._stores[store.tenant] = store
        self._loop = asyncio.ensure_future(self._poll())

    def enqueue(self, store: Store, ending: Ending) -> None:
        """Tell of an end that this process has recorded, or claimed, in the background."""
        self._stores.setdefault(store.tenant, store)
        if len(self._waiting) < WAITING and not self._closed:
            self._waiting.append((store, ending))
            self._mine.add(ending.id)
            self._start_deliveries()

    async def claim_due(self, store: Store) -> int:
        """Take on the ends of a tenant that are due, and tell of them in the background; how many.

        One process at a time claims; telling is nobody's to wait for.
        """
        now = self._clock()
        if not len(self._hooks) or not await store.endings(due=now, limit=1):
            return 0
        claim = self.schedule.claim
        async with self._claiming, acquire_lease(store, LEASE, self._holder, self._clock, length=claim) as lease:
            return 0 if lease is None else await self._claim_all(store, now)

    async def _claim_all(self, store: Store, now: int) -> int:
        taken = 0
        while len(self._waiting) < WAITING and (found := await store.endings(due=now, limit=BATCH)):
            for ending in found:
                claimed = await self._claim(store, ending, now)
                if claimed is not None:
                    taken += 1
                    self.enqueue(store, claimed)
        return taken

    async def _claim(self, store: Store, ending: Ending, now: int) -> Ending | None:
        """An end, taken on; None when none of its hooks is known here, and it is too early to say that it never will be."""
        mine = not ending.hooks or any(self._hooks.get(name) for name in ending.hooks) or self._is_abandoned(ending)
        try:
            claimed = await store.settle(
                ending.id, due_at=now + (self.schedule.claim if mine else self.schedule.elsewhere)
            )
        except EndingNotFound:  # somebody else is done with it
            return None
        return claimed if mine and ending.id not in self._mine else None

    def _is_abandoned(self, ending: Ending) -> bool:
        return self._clock() - max(ending.ended_at, self._since) >= self.schedule.unknown

    async def wait_until_idle(self) -> None:
        """Return when nobody is being told of anything."""
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Let those that are being told end, within `Patience.close`; the others are told by whoever starts next."""
        self._closed = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
        try:
            async with asyncio.timeout(self.schedule.close):
                await self.wait_until_idle()
        except TimeoutError:
            self._waiting.clear()
            _log.warning("%d ends are left to be told of at the next start", len(self._running))
        for task in (left := [*self._running, *self._strays]):
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1)

    # -- in the background -------------------------------------------------

    async def _poll(self) -> None:
        """Look again when the next try is due, and now and then for what others left behind."""
        while True:
            self._wake.clear()
            try:
                for store in tuple(self._stores.values()):
                    await self.claim_due(store)
            except StoreError as exc:
                _log.warning("it could not be looked for ends that hooks are to be told of", exc_info=exc)
            now = self._clock()
            while self._retries and self._retries[0] <= now:
                heapq.heappop(self._retries)
            pause = (self._retries[0] - now) / 1000 if self._retries else self.schedule.look
            try:
                async with asyncio.timeout(min(max(pause, 0.05), self.schedule.look) if len(self._hooks) else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _start_deliveries(self) -> None:
        while self._waiting and len(self._running) < AT_ONCE:
            task = asyncio.ensure_future(self._deliver(*self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._finish_delivery)

    def _finish_delivery(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("hooks could not be told of an end; they will be, later", exc_info=task.exception())
        self._start_deliveries()

    # -- one end -----------------------------------------------------------

    async def _deliver(self, store: Store, ending: Ending) -> None:
        """Tell the hooks of an end that is claimed; what is left is left to be told of later."""
        try:
            if ending.due_at <= self._clock():
                return  # it waited for so long that it may be somebody else's by now
            await self._call_hooks(store, ending)
        except EndingNotFound:
            pass  # somebody else is done with it
        except StoreError as exc:
            _log.warning("what became of telling an end could not be noted: hooks may be told again", exc_info=exc)
        finally:
            self._mine.discard(ending.id)

    async def _call_hooks(self, store: Store, ending: Ending) -> None:
        try:
            session = await store.get(ending.ref)
        except SessionNotFound:
            await self._drop_deliveries(store, ending)
            return
        if session.identity != ending.identity:  # another one has the name by now
            await self._drop_deliveries(store, ending)
            return
        failures: list[tuple[str, _Failure]] = []
        for name in ending.hooks:
            hook = self._hooks.get(name)
            if hook is None:
                if self._is_abandoned(ending):
                    _log.warning("hook %r is configured no more: it is not told of the end %s", name, ending.id)
                    ending = await self._settle_hook(store, ending, name, "dropped")
                continue
            ending = await self._extend_claim(store, ending)
            error = await self._call_hook(hook, EndedSession(store, session, ending))
            if error is None:
                ending = await self._settle_hook(store, ending, name, "told")
            else:
                failures.append((name, error))
                self.outcomes[name, "failed"] += 1
        await self._conclude(store, ending, failures)

    async def _call_hook(self, hook: Hook, ended: EndedSession) -> _Failure | None:
        """Why a hook could not be told; None when it was. One that does not stop when it should is left behind."""
        task = asyncio.ensure_future(hook(ended))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.schedule.call)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            self._strays.add(task)
            task.add_done_callback(self._discard_stray)
            return _Failure(f"it took more than {self.schedule.call:g} s")
        if task.cancelled():
            return _Failure("it was cancelled")
        error = task.exception()
        if error is None:
            return None
        _log.warning("hook %r failed to be told of the end %s", hook.name, ended.delivery_id, exc_info=error)
        asked = error.retry_after if isinstance(error, HookFailed) else None
        return _Failure(describe_failure(error), int(1000 * max(0.0, min(asked or 0.0, self.schedule.asked))))

    def _discard_stray(self, task: asyncio.Task[Any]) -> None:
        self._strays.discard(task)
        if not task.cancelled():
            task.exception()  # it was told that it is too late

    async def _extend_claim(self, store: Store, ending: Ending) -> Ending:
        """The end, claimed for long enough to tell one more hook."""
        now, patience = self._clock(), self.schedule
        if ending.due_at - now > patience.call * 1000 + patience.claim // 3:
            return ending
        return await store.settle(ending.id, due_at=now + patience.claim)

    async def _settle_hook(self, store: Store, ending: Ending, name: str, outcome: str) -> Ending:
        """The end without a hook that is not told of it again."""
        self.outcomes[name, outcome] += 1
        return await store.settle(ending.id, delivered=name)

    async def _conclude(self, store: Store, ending: Ending, failures: Sequence[tuple[str, _Failure]]) -> None:
        """Forget an end that everybody was told of, and the session with it that waited for that; or try again later."""
        if failures and ending.attempts + 1 >= self.schedule.attempts:
            for name, error in failures:
                _log.error("hook %r is given up for the end %s, after many tries: %s", name, ending.id, error.why)
                ending = await self._settle_hook(store, ending, name, "given_up")
        if not ending.hooks:
            await self._forget(store, ending)
            return
        pauses = self.schedule.pauses
        pause = pauses[min(ending.attempts, len(pauses) - 1)] if failures else self.schedule.elsewhere
        due = self._clock() + int(pause * (1 + _JITTER * self._chance()))
        due = max(due, *(self._clock() + error.asked for _, error in failures)) if failures else due
        told = "; ".join(f"{name}: {error.why}" for name, error in failures) or None
        await store.settle(ending.id, due_at=due, error=told)
        heapq.heappush(self._retries, due)
        self._wake.set()

    async def _forget(self, store: Store, ending: Ending) -> None:
        if ending.withdrawn:
            await store.remove(ending.ref)
        await store.forget_ending(ending.id)

    async def _drop_deliveries(self, store: Store, ending: Ending) -> None:
        """What was deleted before a hook could be told of it is deleted: that hook hears of the deletion, if it asked for that."""
        for name in ending.hooks:
            _log.warning("hook %r is not told of the end %s: the session was deleted since", name, ending.id)
            self.outcomes[name, "gone"] += 1
        await store.forget_ending(ending.id)

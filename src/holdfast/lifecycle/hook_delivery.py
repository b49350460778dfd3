"""Notify hooks of ended sessions, in the background. A hook that fails is called again, with growing pauses.

    new or due -> claim -> call each hook and store the outcome -> forget

In the transaction that ends a session, an `Ending` is stored. It is called the session's record here; it names the hooks to notify,
and it survives a crash. A process claims a record by moving the record's `due_at` to the time when other processes may take the record
over; of several processes, one succeeds. The outcome for each hook is stored before the next hook is called. So after a crash, only hooks without a stored outcome are
called again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import faults
from holdfast.domain.session import Ending, Session
from holdfast.errors import EndingNotFound, HookFailed, SessionNotFound, StoreError
from holdfast.hooks.registry import EndedSession, Hook, HookRegistry, describe_failure
from holdfast.stores.base import Store

_log = logging.getLogger("holdfast.hooks")
DAY: Final = 86_400_000


class DeliverySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits and pauses of hook delivery."""

    call_seconds: float = 30.0
    """Time limit in seconds for one call of a hook."""
    claim_ms: int = 90_000
    """Milliseconds for which a record is claimed. Then another process may deliver the record. Must be longer than `call_seconds`."""
    pauses_ms: tuple[int, ...] = (1_000, 5_000, 30_000, 120_000, 600_000, 3_600_000)
    """Milliseconds before the second attempt, the third, and so on. The last value applies to all further attempts."""
    max_asked_seconds: float = 3600.0
    """Longest pause in seconds that a hook may ask for before the next attempt."""
    max_attempts: int = 174
    """Attempts after which a hook is no longer called for an ended session. With the default pauses they take about seven days."""
    unknown_hook_ms: int = DAY
    """Milliseconds after which a hook that is not configured is removed from a record.

    The time counts from the time when the session ended or from the start of this process, whichever is later.
    """
    recheck_ms: int = 300_000
    """If none of a record's hooks are configured in this process, milliseconds until the record is checked again."""
    poll_seconds: float = 30.0
    """Seconds between two checks for records that other processes left undelivered."""
    close_seconds: float = 30.0
    """Seconds that running hooks get to finish when the process shuts down."""


BATCH: Final = 100
"""Maximum number of records that are read at a time."""
AT_ONCE: Final = 8
"""Maximum number of records that are delivered at the same time."""
WAITING: Final = 1000
"""Maximum number of records that wait in memory. All others stay in the store and are delivered when they are due."""
_JITTER: Final = 0.2


class _Failure(NamedTuple):
    """The reason why a hook could not be notified."""

    why: str
    retry_after_ms: int = 0
    """Pause in milliseconds that the hook asked for."""


class HookDispatcher:
    """Calls the hooks of one `Holdfast` for ended sessions of all tenants of this process.

    Attributes:
        schedule: time limits and pauses.
        outcomes: counts by hook and outcome. The outcomes are `told` (the hook was notified), `failed`, `given_up`, `dropped` (the hook is
            no longer configured) and `gone` (the session was deleted before).

    Args:
        hooks: the hooks to call.
        clock: returns milliseconds since the epoch.
    """

    def __init__(self, hooks: HookRegistry, clock: Callable[[], int]) -> None:
        self.schedule = DeliverySchedule()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._hooks = hooks
        self._clock = clock
        self._since = clock()
        self._stores: dict[str, Store] = {}
        self._deliveries: dict[str, asyncio.Task[None]] = {}
        """Deliveries that wait for a slot or run, by the id of their record."""
        self._claiming = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._strays: set[asyncio.Task[Any]] = set()
        self._retries: list[int] = []
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False
        hooks.on_added = self._wake.set

    @property
    def pending(self) -> int:
        """Number of records that this process has claimed and not finished."""
        return len(self._deliveries)

    def start(self, store: Store) -> None:
        """Begin to check a tenant regularly for records that are due."""
        self._stores[store.tenant] = store
        self._loop = asyncio.ensure_future(self._poll())

    def enqueue(self, store: Store, ending: Ending) -> None:
        """Call the hooks of a record in the background. This process has written or claimed the record."""
        self._stores.setdefault(store.tenant, store)
        if len(self._deliveries) < WAITING and not self._closed:
            task = self._deliveries[ending.id] = asyncio.ensure_future(self._deliver(store, ending))
            task.add_done_callback(lambda _: self._deliveries.pop(ending.id))

    async def claim_due(self, store: Store) -> int:
        """Claim all records of a tenant that are due, and return their number. Their hooks are called in the background.

        Records that another task has just claimed are in delivery when this returns: `wait_until_idle` waits for them too.
        """
        taken = 0
        async with self._claiming:
            now = self._clock()
            while len(self._hooks) and len(self._deliveries) < WAITING:
                found = await store.endings(due=now, limit=BATCH)
                new = [ending for ending in found if ending.id not in self._deliveries]
                for ending in new:
                    claimed = await self._claim(store, ending, now)
                    if claimed is not None:
                        taken += 1
                        self.enqueue(store, claimed)
                if len(found) < BATCH or not new:
                    break
        return taken

    async def _claim(self, store: Store, ending: Ending, now: int) -> Ending | None:
        """Claim a record and return it. Return None if another process must deliver the record.

        Another process must do so if none of the record's hooks is configured here and it is too early to remove unconfigured hooks.
        """
        is_ours = not ending.hooks or any(self._hooks.get(name) for name in ending.hooks) or self._is_abandoned(ending)
        try:
            due_at = now + (self.schedule.claim_ms if is_ours else self.schedule.recheck_ms)
            claimed = await store.settle(ending.id, due_at=due_at, expect_due=ending.due_at)
        except EndingNotFound:  # another process has claimed or finished it
            return None
        return claimed if is_ours else None

    def _is_abandoned(self, ending: Ending) -> bool:
        return self._clock() - max(ending.ended_at, self._since) >= self.schedule.unknown_hook_ms

    async def wait_until_idle(self) -> None:
        """Wait until no delivery is running."""
        while self._deliveries:
            await asyncio.wait(self._deliveries.values())

    async def close(self) -> None:
        """Wait up to `DeliverySchedule.close_seconds` for deliveries. Other records are delivered after the next start."""
        self._closed = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
        if self._deliveries:
            await asyncio.wait(self._deliveries.values(), timeout=self.schedule.close_seconds)
        if self._deliveries:
            message = "%d ends of sessions were not delivered to hooks; they are delivered after the next start"
            _log.warning(message, len(self._deliveries))
        for task in (left := [*self._deliveries.values(), *self._strays]):
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1)

    # -- in the background -------------------------------------------------

    async def _poll(self) -> None:
        """Claim due records: at the time of the next retry, and regularly, because other processes may have left records behind."""
        while True:
            self._wake.clear()
            try:
                for store in tuple(self._stores.values()):
                    await self.claim_due(store)
            except StoreError as exc:
                _log.warning("ends of sessions that are due for hooks could not be read", exc_info=exc)
            now = self._clock()
            while self._retries and self._retries[0] <= now:
                heapq.heappop(self._retries)
            pause = (self._retries[0] - now) / 1000 if self._retries else self.schedule.poll_seconds
            pause = min(max(pause, 0.05), self.schedule.poll_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause if len(self._hooks) else None):
                    await self._wake.wait()

    # -- one end -----------------------------------------------------------

    async def _deliver(self, store: Store, ending: Ending) -> None:
        """Call the hooks of a claimed record. Hooks that fail are called again later."""
        async with self._slots:
            try:
                if ending.due_at <= (now := self._clock()):
                    # The claim ended while the record waited. Another process may have claimed it since.
                    due_at = now + self.schedule.claim_ms
                    ending = await store.settle(ending.id, due_at=due_at, expect_due=ending.due_at)
                await self._call_hooks(store, ending)
            except EndingNotFound:
                pass  # another process has claimed or finished it
            except StoreError as exc:
                message = "the outcome of notifying hooks could not be stored: they may be notified again"
                _log.warning(message, exc_info=exc)
            except Exception as exc:  # noqa: BLE001 - nothing awaits a delivery
                _log.error("hooks could not be notified of an end; this is tried again later", exc_info=exc)

    async def _call_hooks(self, store: Store, ending: Ending) -> None:
        session: Session | None = None
        with suppress(SessionNotFound):
            session = await store.get(ending.ref)
        if session is None or session.identity != ending.identity:  # the name may belong to another session now
            await self._drop_deliveries(store, ending)
            return
        failures: list[tuple[str, _Failure]] = []
        for name in ending.hooks:
            hook = self._hooks.get(name)
            if hook is None:
                if self._is_abandoned(ending):
                    _log.warning("hook %r is no longer configured: it is not notified of the end %s", name, ending.id)
                    ending = await self._settle_hook(store, ending, name, "dropped")
                continue
            ending = await self._extend_claim(store, ending)
            await faults.hit("before-hook-call")
            error = await self._call_hook(hook, EndedSession(store, session, ending))
            await faults.hit("after-hook-call")
            if error is None:
                ending = await self._settle_hook(store, ending, name, "told")
            else:
                failures.append((name, error))
                self.outcomes[name, "failed"] += 1
        await self._conclude(store, ending, failures)

    async def _call_hook(self, hook: Hook, ended: EndedSession) -> _Failure | None:
        """Call a hook. Return None if the call succeeded, otherwise the failure.

        The call is cancelled after `DeliverySchedule.call_seconds`, and not waited for any longer.
        """
        task = asyncio.ensure_future(hook(ended))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.schedule.call_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            self._strays.add(task)
            task.add_done_callback(self._discard_stray)
            return _Failure(f"it took more than {self.schedule.call_seconds:g} s")
        if task.cancelled():
            return _Failure("it was cancelled")
        error = task.exception()
        if error is None:
            return None
        _log.warning("hook %r failed for the end %s", hook.name, ended.delivery_id, exc_info=error)
        asked = error.retry_after if isinstance(error, HookFailed) else None
        return _Failure(
            describe_failure(error), int(1000 * max(0.0, min(asked or 0.0, self.schedule.max_asked_seconds)))
        )

    def _discard_stray(self, task: asyncio.Task[Any]) -> None:
        self._strays.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it

    async def _extend_claim(self, store: Store, ending: Ending) -> Ending:
        """Extend the claim of a record if the remaining time is too short to call another hook. Return the record."""
        now, schedule = self._clock(), self.schedule
        if ending.due_at - now > schedule.call_seconds * 1000 + schedule.claim_ms // 3:
            return ending
        return await store.settle(ending.id, due_at=now + schedule.claim_ms)

    async def _settle_hook(self, store: Store, ending: Ending, name: str, outcome: str) -> Ending:
        """Remove a hook from the record, count the outcome, and return the updated record."""
        self.outcomes[name, outcome] += 1
        return await store.settle(ending.id, delivered=name)

    async def _conclude(self, store: Store, ending: Ending, failures: Sequence[tuple[str, _Failure]]) -> None:
        """Delete the record if no hooks remain, otherwise schedule the next attempt.

        A withdrawn session was kept only for its hooks, so it is deleted together with the record.
        """
        if failures and ending.attempts + 1 >= self.schedule.max_attempts:
            for name, error in failures:
                _log.error("hook %r is given up for the end %s after too many attempts: %s", name, ending.id, error.why)
                ending = await self._settle_hook(store, ending, name, "given_up")
        if not ending.hooks:
            if ending.withdrawn:
                await store.remove(ending.ref)
            await store.forget_ending(ending.id)
            return
        pauses = self.schedule.pauses_ms
        pause = pauses[min(ending.attempts, len(pauses) - 1)] if failures else self.schedule.recheck_ms
        due = self._clock() + int(pause * (1 + _JITTER * random.random()))  # noqa: S311 - not a secret
        due = max(due, *(self._clock() + error.retry_after_ms for _, error in failures)) if failures else due
        reasons = "; ".join(f"{name}: {error.why}" for name, error in failures) or None
        await store.settle(ending.id, due_at=due, error=reasons)
        heapq.heappush(self._retries, due)
        self._wake.set()

    async def _drop_deliveries(self, store: Store, ending: Ending) -> None:
        """Delete the record of a session that was deleted after it had ended.

        Its hooks are not called for this record; they are notified of the deletion separately.
        """
        for name in ending.hooks:
            _log.warning("hook %r is not notified of the end %s: the session has been deleted", name, ending.id)
            self.outcomes[name, "gone"] += 1
        await store.forget_ending(ending.id)

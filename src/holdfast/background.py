"""Repeat background work with pauses that the work itself chooses; also cancel and await tasks, and run slow work in a thread."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.to_thread

K = TypeVar("K", bound=Hashable)
_log = logging.getLogger("holdfast.background")
_AT_LEAST: Final = 0.05
"""Shortest time in seconds between two wake-ups of a `KeyedRepeater`, so that many keys do not wake it one by one."""
_AT_MOST: Final = 10.0
"""Longest time in seconds between two wake-ups of a `KeyedRepeater`, even if nothing is due. Its timer can outlive its last
key by this time.
"""
_AFTER_FAILURE: Final = 1_000
"""Milliseconds until work that raised an exception is tried again."""


class Repeater:
    """Repeats work, with pauses in between, until `stop` is called. No task exists until the first pause is over.

    Args:
        do: does the work once; returns the milliseconds until it must run again, or 0 to stop.
    """

    def __init__(self, do: Callable[[], Awaitable[int]]) -> None:
        self._do = do
        self._waiting: asyncio.TimerHandle | None = None
        self._doing: asyncio.Task[None] | None = None
        self._stopped = False

    def begin(self, pause: int) -> None:
        """Schedule the first run in `pause` milliseconds."""
        self._waiting = asyncio.get_running_loop().call_later(pause / 1000, self._due)

    def _due(self) -> None:
        self._doing = asyncio.ensure_future(self._once())

    async def _once(self) -> None:
        pause = await self._do()
        if pause and not self._stopped:
            self.begin(pause)

    def stop(self, *, midway: bool) -> None:
        """Stop repeating.

        Args:
            midway: True cancels work that is running; False lets it finish.
        """
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()
        if midway and self._doing is not None:
            self._doing.cancel()


class KeyedRepeater(Generic[K]):
    """Repeats work for each of many keys, with one timer for all.

    Each key's work runs in its own task, so work that waits or fails does not delay other keys. A key that is stopped before
    its first run never creates a task.

    Args:
        do: does the work for one key; returns the milliseconds until it must run again, or 0 to stop.
    """

    def __init__(self, do: Callable[[K], Awaitable[int]]) -> None:
        self._do = do
        self._due: dict[K, float] = {}
        """Time at which the work of each key is due, by the event loop's clock; infinity while the work runs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, key: K, pause: int) -> None:
        """Schedule the first run for a key in `pause` milliseconds."""
        loop = asyncio.get_running_loop()
        self._due[key] = due = loop.time() + pause / 1000
        if self._timer is None or due < self._timer.when():
            self._wake_at(min(due, loop.time() + _AT_MOST))

    def stop(self, key: K) -> None:
        """Stop repeating the work of a key. Work that is running finishes; unknown keys are ignored."""
        self._due.pop(key, None)

    def close(self) -> None:
        """Stop the work of all keys, and cancel work that is running."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._wake)

    def _wake(self) -> None:
        now, self._timer = asyncio.get_running_loop().time(), None
        for key in [key for key, due in self._due.items() if due <= now]:
            self._due[key] = math.inf
            task = asyncio.ensure_future(self._once(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        earliest = min(self._due.values(), default=math.inf)
        if earliest < math.inf:
            self._wake_at(now + min(max(earliest - now, _AT_LEAST), _AT_MOST))

    async def _once(self, key: K) -> None:
        try:
            pause = await self._do(key)
        except Exception as exc:  # noqa: BLE001 - nothing awaits the task, and the key must still be served
            _log.error("repeated work failed", exc_info=exc)
            pause = _AFTER_FAILURE
        if self._due.get(key) != math.inf:  # stopped or started again meanwhile
            return
        if pause:
            self.begin(key, pause)
        else:
            del self._due[key]


async def cancel_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait until it has ended; do nothing for None."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def wait_until_done(task: asyncio.Future[Any]) -> None:
    """Wait until `task` is done, even if the caller is cancelled meanwhile. The task's result or error is discarded."""
    while not task.done():
        with anyio.CancelScope(shield=True):
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
    if not task.cancelled():
        task.exception()


T = TypeVar("T")


async def run_in_thread(work: Callable[..., T], *args: object, long: bool = True) -> T:
    """Run `work` and return its result. Use a thread if `long` is True, so that the event loop is not blocked."""
    return await anyio.to_thread.run_sync(partial(work, *args)) if long else work(*args)

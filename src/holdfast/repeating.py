"""What is done beside what it belongs to: again and again, after pauses that it says itself; and how it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio


class Repeated:
    """Does something until it is stopped; it costs a task only when the first pause is over.

    Args:
        do: gives the milliseconds until the next time; 0: that was the last one.
    """

    def __init__(self, do: Callable[[], Awaitable[int]]) -> None:
        self._do = do
        self._waiting: asyncio.TimerHandle | None = None
        self._doing: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def begun(self) -> bool:
        """Whether it ever began."""
        return self._waiting is not None

    def begin(self, pause: int) -> None:
        """Do it in that many milliseconds for the first time."""
        self._waiting = asyncio.get_running_loop().call_later(pause / 1000, self._due)

    def _due(self) -> None:
        self._doing = asyncio.ensure_future(self._once())

    async def _once(self) -> None:
        pause = await self._do()
        if pause and not self._stopped:
            self.begin(pause)

    def stop(self, *, midway: bool) -> None:
        """Not any more. `midway`: what is being done just now is given up, too; else it comes to its end."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()
        if midway and self._doing is not None:
            self._doing.cancel()


async def given_up(task: asyncio.Task[None] | None) -> None:
    """Cancel what is under way, and wait until it has ended; None: nothing is."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def ended(task: asyncio.Future[Any]) -> None:
    """Return when `task` is done, however often its caller is told to give up; how it went does not matter any more."""
    while not task.done():
        with anyio.CancelScope(shield=True):
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
    if not task.cancelled():
        task.exception()

"""How fast an index is worked on: in small steps with rests between them, so that turns go on as if nobody did; at once while it is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Final

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

"""Limit the number of MCP calls of one principal that run at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from holdfast.accounting import Owner, get_owner
from holdfast.limits import MCP_CALLS, MCP_CALLS_WAITING


class TooManyCalls(Exception):
    """Raised if too many calls of one principal are running or waiting."""


class CallLimiter:
    """Lets a few calls of each principal run at the same time. Other calls wait in order of arrival.

    Args:
        most: maximum number of running calls of one principal.
        waiting: maximum number of waiting calls of one principal.
    """

    def __init__(self, most: int = MCP_CALLS, waiting: int = MCP_CALLS_WAITING) -> None:
        self._most = most
        self._waiting = waiting
        self._slots: dict[Owner, _Slots] = {}

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Wait until a call of the current task's principal may run. The call counts as running for the duration of the block.

        Raises:
            TooManyCalls: too many calls of the principal are waiting.
        """
        owner = get_owner()
        slots = self._slots.setdefault(owner, _Slots(self._most))
        if slots.calls >= self._most + self._waiting:
            message = f"{slots.calls} calls are running or waiting, the most that one caller may have; try again later"
            raise TooManyCalls(message)
        slots.calls += 1
        try:
            async with slots.running:
                yield
        finally:
            slots.calls -= 1
            if not slots.calls:
                del self._slots[owner]


class _Slots:
    """The running and waiting calls of one principal."""

    def __init__(self, most: int) -> None:
        self.running = anyio.Semaphore(most)
        self.calls = 0
        """Number of running and waiting calls."""

"""Waiting for a condition that nobody tells of: what another process, thread or server brings about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from itertools import count
from typing import Any

PAUSE = 0.005
"""Seconds between two looks, behind the first ones, between which others of the event loop go on at once."""
AT_ONCE = 50
"""The first ones."""
SECONDS = 30.0
"""A condition that does not hold by then never will."""


async def until(holds: Callable[[], Any], *running: asyncio.Task[Any], seconds: float = SECONDS) -> None:
    """Return when a condition holds.

    Args:
        holds: says whether it does, or is awaited for it.
        running: tasks that must not end before.
        seconds: after which to give up.

    Raises:
        TimeoutError: it does not hold.
    """
    async with asyncio.timeout(seconds):
        for look in count():
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            assert not any(task.done() for task in running), [task.exception() for task in running if task.done()]
            await asyncio.sleep(0 if look < AT_ONCE else PAUSE)


def block_until(holds: Callable[[], object], *, seconds: float = SECONDS) -> None:
    """The same where no event loop runs."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(PAUSE)

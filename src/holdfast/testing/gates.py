"""Synchronize tests without sleeping: a gate delays replies until a test opens it, and a bell announces changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Bell:
    """Wakes tasks that wait for a condition. The tasks may run in different event loops and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def ring(self) -> None:
        """Announce a change. All waiting tasks check their conditions again."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true. The function is called at once, and after each `ring()`."""
        while True:
            event = asyncio.Event()
            with self._lock:
                self._waiting.append((asyncio.get_running_loop(), event))
            if ready():
                return
            await event.wait()


class Gate:
    """Delays replies until `open()` is called. Any thread may call it. An open gate stays open."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._is_open = False

    def open(self) -> None:
        """Open the gate. It stays open."""
        self._is_open = True
        self._bell.ring()

    async def wait(self) -> None:
        """Wait until the gate is open."""
        await self._bell.until(lambda: self._is_open)

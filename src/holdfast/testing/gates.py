"""What tests wait with instead of time: a gate that holds replies back, a bell for whoever waits for something to become true."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Bell:
    """Wakes whoever waits for something to become true, in any event loop of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def ring(self) -> None:
        """Something changed: all that wait look again."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true; it is asked now and after each ring."""
        while True:
            event = asyncio.Event()
            with self._lock:
                self._waiting.append((asyncio.get_running_loop(), event))
            if ready():
                return
            await event.wait()


class Gate:
    """Holds replies back until `open()` is called, from any thread. A gate that was opened stays open."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._opened = False

    def open(self) -> None:
        """Let everybody through, from now on."""
        self._opened = True
        self._bell.ring()

    async def wait(self) -> None:
        """Return once the gate is open."""
        await self._bell.until(lambda: self._opened)

"""Synchronize tests without waiting for time: a gate that holds replies back, and a bell that announces changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Bell:
    """Wakes tasks that wait for a condition, in any event loop of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def ring(self) -> None:
        """Announce a change: all waiting tasks check their condition again."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true. It is called now and after each ring."""
        while True:
            event = asyncio.Event()
            with self._lock:
                self._waiting.append((asyncio.get_running_loop(), event))
            if ready():
                return
            await event.wait()


class Gate:
    """Holds replies back until `open()` is called, from any thread. An opened gate stays open."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._is_open = False

    def open(self) -> None:
        """Open the gate permanently."""
        self._is_open = True
        self._bell.ring()

    async def wait(self) -> None:
        """Wait until the gate is open."""
        await self._bell.until(lambda: self._is_open)

"""Connections to a database server, opened when they are needed and shared by turns; those that broke are thrown away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

IDLE: Final = 300.0
"""Seconds after which a connection that nobody needed is closed."""


class Pooled(Protocol):
    """What a pool asks of a connection."""

    @property
    def is_usable(self) -> bool:
        """Whether nothing is known against it: open, and no transaction left on it."""
        ...

    def kill(self) -> None:
        """Let go of it at once, whatever it is doing."""
        ...

    async def close(self) -> None:
        """Say goodbye to the server."""
        ...


L = TypeVar("L", bound=Pooled)


class Pool(Generic[L]):
    """At most `size` connections. The one that was used last goes first, so that those that are too many grow old."""

    def __init__(self, connect: Callable[[], Awaitable[L]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._count = 0
        """Connections, and those that are being opened."""
        self._idle: list[tuple[float, L]] = []
        self._waiting: deque[asyncio.Future[L | None]] = deque()
        self._closed = False

    def take_idle(self) -> L | None:
        """A connection that nobody uses, if there is one: nobody else's until it is released."""
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_usable:
                return connection
            self._count -= 1
            connection.kill()
        return None

    async def acquire(self) -> L:
        """A connection, as soon as there is one."""
        connection = self.take_idle()
        if connection is not None:
            return connection
        if self._count < self._size:
            self._count += 1
            return await self._open()
        connection_or_leave = await self._wait()
        return await self._open() if connection_or_leave is None else connection_or_leave

    def release(self, connection: L) -> None:
        """Give a connection back. The longest idle one is closed when it is too old."""
        if self._closed or not connection.is_usable:
            connection.kill()
            self._pass_on(None)
            return
        if not self._pass_on(connection):
            self._idle.append((monotonic(), connection))
        if self._idle[0:1] and monotonic() - self._idle[0][0] > IDLE:
            self._count -= 1
            self._idle.pop(0)[1].kill()

    def forget_idle(self) -> None:
        """Throw away the connections that nobody uses: one was found dead, and they are as old."""
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for _, connection in idle:
            connection.kill()

    async def close(self) -> None:
        """Close the connections; one that is used still goes when it is given back."""
        self._closed = True
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        await asyncio.gather(*(connection.close() for _, connection in idle))

    def kill(self) -> None:
        """Let go of what is idle without a word, where there is no time for one."""
        self.forget_idle()

    async def _open(self) -> L:
        """A new connection, for which there is leave."""
        try:
            return await self._connect()
        except BaseException:
            self._pass_on(None)
            raise

    async def _wait(self) -> L | None:
        """A connection that somebody releases, or leave to open one."""
        waiting: asyncio.Future[L | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():  # it came at the same moment
                self._hand_back(waiting.result())
            raise

    def _hand_back(self, connection: L | None) -> None:
        if connection is None:
            self._pass_on(None)
        else:
            self.release(connection)

    def _pass_on(self, connection: L | None) -> bool:
        """Give a connection, or leave to open one, to who waits longest; whether somebody did."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        if connection is None:
            self._count -= 1
        return False

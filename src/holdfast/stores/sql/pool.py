"""A pool of connections to a database server. Connections are opened on demand, and broken ones are discarded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

IDLE: Final = 300.0
"""Seconds after which an idle connection can be closed."""


class PooledConnection(Protocol):
    """The methods that a connection must have to be kept in a `Pool`."""

    @property
    def is_usable(self) -> bool:
        """True if the connection is open, not known to be broken, and not in a transaction."""
        ...

    def kill(self) -> None:
        """Close the connection at once, even in the middle of a statement."""
        ...

    async def close(self) -> None:
        """Notify the server and close the connection."""
        ...


L = TypeVar("L", bound=PooledConnection)


class Pool(Generic[L]):
    """A pool of at most `size` connections.

    Of the idle connections, the most recently used one is taken first, so that connections which are not needed stay idle and are
    closed.
    """

    def __init__(self, connect: Callable[[], Awaitable[L]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._count = 0
        """Number of open connections, and of those that are being opened."""
        self._idle: list[tuple[float, L]] = []
        self._waiting: deque[asyncio.Future[L | None]] = deque()
        self._closed = False

    def take_idle(self) -> L | None:
        """Return an idle connection, or None if there is none. The caller uses it alone until `release`."""
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_usable:
                return connection
            self._count -= 1
            connection.kill()
        return None

    async def acquire(self) -> L:
        """Return a connection. Open one, or wait if the maximum number is in use."""
        connection = self.take_idle()
        if connection is not None:
            return connection
        if self._count < self._size:
            self._count += 1
            return await self._open()
        connection_or_none = await self._wait()
        return await self._open() if connection_or_none is None else connection_or_none

    def release(self, connection: L) -> None:
        """Return a connection to the pool. Also close the connection that has been idle longest, if it was idle for more than `IDLE`."""
        if self._closed or not connection.is_usable:
            connection.kill()
            self._pass_on(None)
            return
        if not self._pass_on(connection):
            self._idle.append((monotonic(), connection))
        if self._idle[0:1] and monotonic() - self._idle[0][0] > IDLE:
            self._count -= 1
            self._idle.pop(0)[1].kill()

    def discard_idle(self) -> None:
        """Discard all idle connections. Used if one connection was found broken, because the others may be broken too."""
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for _, connection in idle:
            connection.kill()

    async def close(self) -> None:
        """Close the idle connections now, and those in use as soon as they are released."""
        self._closed = True
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        await asyncio.gather(*(connection.close() for _, connection in idle))

    def kill(self) -> None:
        """Close the idle connections at once, without notifying the server."""
        self.discard_idle()

    async def _open(self) -> L:
        """Open a connection. The caller has already added it to `_count`."""
        try:
            return await self._connect()
        except BaseException:
            self._pass_on(None)
            raise

    async def _wait(self) -> L | None:
        """Wait until a connection is released, and return it. Return None if the caller may open a new connection instead."""
        waiting: asyncio.Future[L | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():  # it arrived in the same moment
                connection = waiting.result()
                if connection is None:
                    self._pass_on(None)
                else:
                    self.release(connection)
            raise

    def _pass_on(self, connection: L | None) -> bool:
        """Give a connection to the caller that has waited longest. With None instead, permit that caller to open a connection.

        Returns:
            False if no caller was waiting.
        """
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        if connection is None:
            self._count -= 1
        return False

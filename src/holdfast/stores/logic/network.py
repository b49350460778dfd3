"""Helpers for stores whose database is a server: timeouts, queues, a cache, and the error for an unknown outcome."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from holdfast.errors import StoreError, StoreUnavailable

T = TypeVar("T")
PATIENCE: Final = 30.0
"""Maximum seconds to wait for a connection, for the reply to a statement, and for running jobs when a store is closed."""
RECONNECTING: Final = 3.0
"""Seconds for which connecting to an unreachable server is retried."""
NAME: Final = "the database"
"""Used in error messages instead of the server's address, which callers must not see."""


def check_loop(opened: asyncio.AbstractEventLoop) -> None:
    """Raise `StoreError` if the store was opened in another event loop, because connections can be used only in their own loop."""
    if asyncio.get_running_loop() is not opened:
        raise StoreError(f"{NAME} was opened in another event loop: open a store in each loop")


def make_unknown_outcome(name: str) -> StoreUnavailable:
    """Return the error for a write that may or may not have been committed."""
    return StoreUnavailable(
        f"the connection to {name} was lost during a commit: its outcome is unknown."
        " Read the session before you send the request again; with an idempotency key you can send it again safely"
    )


class Turnstile:
    """Lets one job per key run at a time, in order of arrival."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def enter(self, key: Hashable) -> None:
        """Wait until it is the caller's turn. The caller must call `leave` afterwards."""
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the caller was cancelled just when its turn came
                self.leave(key)
            raise

    def leave(self, key: Hashable) -> None:
        """Let the next waiting job with this key run."""
        queue = self._queues[key]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._queues[key]


class SessionCache(Generic[T]):
    """Caches the sessions that were written most recently.

    A cached session may be out of date, so every write that uses it must check its version.
    """

    MOST: Final = 2048
    LARGEST: Final = 8192
    """Maximum bytes of the profile of a cached session."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def take(self, key: Hashable) -> T | None:
        """Remove a session from the cache and return it; None if it is not cached."""
        return self._known.pop(key, None)

    def clear(self) -> None:
        """Remove all sessions."""
        self._known.clear()

    def put(self, key: Hashable, known: T, size: int) -> None:
        """Cache a session whose profile has `size` bytes. It stays until it is taken, or evicted by sessions written later."""
        if size <= self.LARGEST:
            self._known[key] = known
            if len(self._known) > self.MOST:
                self._known.popitem(last=False)

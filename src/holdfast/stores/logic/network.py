"""Helpers for stores whose database is a server: timeouts, queues, and the error for an unknown outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final

from holdfast.errors import StoreError, StoreUnavailable

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

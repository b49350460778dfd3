"""What databases behind a network share, whatever they speak: patience, queues, what is remembered, what nobody knows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from holdfast.errors import StoreError, StoreUnavailable

T = TypeVar("T")
PATIENCE: Final = 30.0
"""Seconds that a job may wait for a connection, a statement for its answer, and a closing store for its jobs."""
RECONNECTING: Final = 3.0
"""Seconds for which a server that cannot be reached is tried again."""
NAME: Final = "the database"
"""What a caller is told of it: its address is its owner's affair."""


def check_loop(opened: asyncio.AbstractEventLoop) -> None:
    """Refuse to work in another event loop than the one that a store was opened in: its connections are that one's."""
    if asyncio.get_running_loop() is not opened:
        raise StoreError(f"{NAME} was opened in another event loop: each needs a store of its own")


def make_unknown_outcome(name: str) -> StoreUnavailable:
    """The error of a write of which nobody can say whether it happened."""
    return StoreUnavailable(
        f"{name} was lost while this was being committed: its outcome is unknown."
        " Read the session before you send it again; with an idempotency key it can be sent again as it is"
    )


class Turnstile:
    """Lets one job of a kind through at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def enter(self, key: Hashable) -> None:
        """Wait until it is the caller's turn; who enters has to leave."""
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment
                self.leave(key)
            raise

    def leave(self, key: Hashable) -> None:
        """Let the next one through."""
        queue = self._queues[key]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._queues[key]


class SessionCache(Generic[T]):
    """What was last known of the sessions that were written last. Not believed: a guard tells whether it still holds."""

    MOST: Final = 2048
    LARGEST: Final = 8192
    """Bytes of a profile, above which nothing is kept of a session."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def take(self, key: Hashable) -> T | None:
        """What is known of a session, which is forgotten by that."""
        return self._known.pop(key, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()

    def put(self, key: Hashable, known: T, size: int) -> None:
        """Keep what is known of a session, whose profile has `size` bytes, until it is taken, or others have come."""
        if size <= self.LARGEST:
            self._known[key] = known
            if len(self._known) > self.MOST:
                self._known.popitem(last=False)

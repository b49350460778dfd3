"""Signals of recalls on their way to the store: nobody who recalls waits for them, and what comes together is written together.

What cannot be written is tried again with the next one, and at the end; a process that is killed loses the signals of its last
moments, which a dream can do without.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from holdfast.domain.memory import MemoryDelta, Owner, Signal
from holdfast.errors import HoldfastError
from holdfast.limits import PAGE, SIGNALS_WAITING
from holdfast.stores.memories import MemoryStore

_log = logging.getLogger("holdfast.memories")


class Signals:
    """Writes down what was recalled.

    Args:
        store: where to.
        clock: milliseconds since the epoch.
        most: how many may wait; the oldest are let go.
    """

    def __init__(self, store: MemoryStore, clock: Callable[[], int], most: int = SIGNALS_WAITING) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[tuple[Owner, Signal]] = deque(maxlen=most)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def soon(self, signals: Iterable[tuple[Owner, Signal]]) -> None:
        """Have signals written, behind whatever is going on."""
        self._waiting.extend(signals)
        if self._waiting and not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write(), name="signals of recalls")

    async def settled(self) -> None:
        """Return when there is nothing left to write, or it cannot be written now."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Write what is left. Closing twice is fine."""
        self._closed = True
        await self.settled()
        await self._write()

    async def _write(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(PAGE, len(self._waiting)))]
            owners: dict[Owner, list[Signal]] = {}
            for owner, signal in some:
                owners.setdefault(owner, []).append(signal)
            while owners:
                owner, signals = next(iter(owners.items()))
                try:
                    delta = MemoryDelta(signals=tuple(signals))
                    await self._store.change_memories(owner, delta, timestamp=self._clock())
                except HoldfastError as exc:
                    _log.warning("%d recalls could not be written down yet: %s", len(signals), exc.code)
                    self._put_back([(owner, signal) for owner, signal in some if owner in owners])
                    return
                del owners[owner]

    def _put_back(self, left: list[tuple[Owner, Signal]]) -> None:
        """Have them wait on, before those that came meanwhile; where these leave too little room, the oldest are let go."""
        most = self._waiting.maxlen or 0
        room = max(0, most - len(self._waiting))
        self._waiting.extendleft(reversed(left[max(0, len(left) - room) :]))

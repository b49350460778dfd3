"""What turns share: the store, the clock, a queue a session, and writes that outlive whoever asked for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.agents import Roster
from holdfast.compacting import Compactor
from holdfast.errors import InvalidRequest
from holdfast.learning import Learning
from holdfast.scoring import Scoring
from holdfast.session import SessionRef
from holdfast.stores.base import Store
from holdfast.warm import Warm

T = TypeVar("T")
_log = logging.getLogger("holdfast.turn")


class Engine:
    """What turns share: the store, the clock, a queue a session, and writes that outlive whoever asked for them.

    Args:
        store: where sessions live.
        clock: milliseconds since the epoch.
        roster: who can write summaries and rate messages.
    """

    def __init__(self, store: Store, clock: Callable[[], int], roster: Roster | None = None) -> None:
        self.store = store
        self.clock = clock
        self.warm = Warm()
        self.learning = Learning(store, clock)
        roster = roster or Roster()
        self.compactor = Compactor(store, clock, self.warm, roster)
        self.scoring = Scoring(store, roster.scorer, clock, self.warm.rate)
        self._queues: dict[SessionRef, tuple[asyncio.Lock, int]] = {}
        self._holders: dict[SessionRef, asyncio.Task[Any] | None] = {}
        self._settling: dict[SessionRef, set[asyncio.Task[Any]]] = {}

    @asynccontextmanager
    async def queue(self, ref: SessionRef) -> AsyncIterator[None]:
        """Turns of one session in this process, one after the other; the write of a turn given up included.

        Raises:
            InvalidRequest: this task has a turn of the session open, and would wait for itself.
        """
        if self._holders.get(ref) is asyncio.current_task():
            raise InvalidRequest(f"a turn of session {ref.id!r} is open in this task already: end it first")
        lock, users = self._queues.get(ref, (asyncio.Lock(), 0))
        self._queues[ref] = (lock, users + 1)
        try:
            async with lock:
                while left_over := self._settling.get(ref):
                    await asyncio.wait(tuple(left_over))
                self._holders[ref] = asyncio.current_task()
                try:
                    yield
                finally:
                    del self._holders[ref]
        finally:
            lock, users = self._queues.pop(ref)
            if users > 1:
                self._queues[ref] = (lock, users - 1)

    async def settle(self, ref: SessionRef, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end, whatever happens to the caller."""
        task = asyncio.ensure_future(work)
        self._settling.setdefault(ref, set()).add(task)
        task.add_done_callback(lambda done: self._settled(ref, done))
        return await asyncio.shield(task)

    def _settled(self, ref: SessionRef, task: asyncio.Task[Any]) -> None:
        tasks = self._settling[ref]
        tasks.discard(task)
        if not tasks:
            del self._settling[ref]
        if not task.cancelled() and task.exception() is not None:
            _log.error("a turn of session %r could not be written", ref.id, exc_info=task.exception())

    async def close(self) -> None:
        """Give up summaries and ratings under way, wait for every write, and write down what was learned."""
        await self.compactor.close()
        await self.scoring.close()
        while self._settling:
            await asyncio.wait([task for tasks in self._settling.values() for task in tasks])
        await self.learning.close()

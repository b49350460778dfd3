"""A queue of sources to index. A source is queued only once, no matter how often it is written to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator

from holdfast.indexes.sources import SourceName
from holdfast.indexes.throttle import compute_pause
from holdfast.limits import INDEX_AT_ONCE, INDEX_DELAY_SECONDS, INDEX_WAITING
from holdfast.recall.base import Space


class QueuedSource:
    """A source in the queue.

    Attributes:
        name: the source.
        since: the time of the first write that is not indexed yet, in milliseconds since the epoch.
        attempt: done when an attempt to index the source was made, or when it is certain that none will be made.
    """

    def __init__(self, name: SourceName, since: int) -> None:
        self.name = name
        self.since = since
        self.attempt = asyncio.get_running_loop().create_future()
        self.tries = 0
        self.is_due = False
        self.timer: asyncio.TimerHandle | None = None


class SourceQueue:
    """The sources that wait to be indexed, and the *active* sources, which are being indexed.

    Args:
        update: indexes a source.
        failed: called with the error of each failed attempt; with None if the queue is full.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(
        self,
        update: Callable[[SourceName], Awaitable[None]],
        failed: Callable[[Exception | None], None],
        clock: Callable[[], int],
    ) -> None:
        self._update = update
        self._failed = failed
        self._clock = clock
        self._waiting: dict[Space, dict[SourceName, QueuedSource]] = {}
        self._size = 0
        self._due: deque[QueuedSource] = deque()
        self._active: dict[SourceName, QueuedSource] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __iter__(self) -> Iterator[QueuedSource]:
        yield from list(self._active.values())
        for queued in list(self._waiting.values()):
            yield from list(queued.values())

    def list_space(self, space: Space) -> list[QueuedSource]:
        """Return the waiting and the active sources of a space."""
        active = [one for name, one in self._active.items() if name.space == space]
        return [*active, *self._waiting.get(space, {}).values()]

    def add(self, name: SourceName) -> None:
        """Queue a source that was written to. A source that is queued already keeps its time.

        If the queue is full, the source is not queued; the next backfill finds it.
        """
        if self._closed or self._get(name) is not None:
            return
        if self._size >= INDEX_WAITING:
            self._failed(None)
        else:
            self._schedule(QueuedSource(name, self._clock()), INDEX_DELAY_SECONDS)

    def _get(self, name: SourceName) -> QueuedSource | None:
        return self._waiting.get(name.space, {}).get(name)

    def _schedule(self, queued: QueuedSource, delay: float) -> None:
        self._size += self._get(queued.name) is None
        self._waiting.setdefault(queued.name.space, {})[queued.name] = queued
        if queued.timer is not None:
            queued.timer.cancel()
        queued.is_due = False
        queued.timer = asyncio.get_running_loop().call_later(delay, self._begin, queued)

    def hurry(self, some: Iterable[QueuedSource]) -> list[asyncio.Future[None]]:
        """Index sources as soon as possible. Return futures that are done when an attempt was made for each of them."""
        some = list(some)
        for queued in some:
            if not queued.is_due and self._get(queued.name) is queued:
                self._begin(queued)
        return [queued.attempt for queued in some]

    def _begin(self, queued: QueuedSource) -> None:
        queued.is_due = True
        if queued.timer is not None:
            queued.timer.cancel()
        self._due.append(queued)
        self._start_next()

    def _start_next(self) -> None:
        while self._due and len(self._active) < INDEX_AT_ONCE:
            queued = self._due.popleft()
            name = queued.name
            # A source that is active already begins again when that attempt has ended.
            if self._get(name) is queued and queued.is_due and name not in self._active:
                self._remove(queued)
                self._active[name] = queued
                task = asyncio.create_task(self._run(queued), name=f"indexing {name.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _remove(self, queued: QueuedSource) -> None:
        of_space = self._waiting[queued.name.space]
        del of_space[queued.name]
        self._size -= 1
        if not of_space:
            del self._waiting[queued.name.space]

    async def _run(self, queued: QueuedSource) -> None:
        try:
            await self._update(queued.name)
        except Exception as exc:  # noqa: BLE001 - the outermost handler: no write may fail because of an index
            self._failed(exc)
            if not self._closed and getattr(exc, "session_id", None) is None:  # a damaged session waits for its repair
                again = self._get(queued.name) or QueuedSource(queued.name, queued.since)
                again.since = min(again.since, queued.since)
                again.tries = queued.tries + 1
                self._schedule(again, compute_pause(queued.tries))
        finally:
            del self._active[queued.name]
            queued.attempt.set_result(None)
            newer = self._get(queued.name)
            if newer is not None and newer.is_due:
                self._due.append(newer)
            self._start_next()

    async def close(self, seconds: float) -> None:
        """Index the queued sources within a time limit, and stop. Closing twice is allowed."""
        self._closed = True
        attempts = self.hurry(self) if seconds else []
        if attempts:
            await asyncio.wait(attempts, timeout=seconds)
        self._due.clear()
        for queued in self:
            if queued.timer is not None:
                queued.timer.cancel()
            if queued.name not in self._active and not queued.attempt.done():
                queued.attempt.set_result(None)
        self._waiting.clear()
        self._size = 0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""A thread that runs jobs in batches for coroutines: one hop there and one back, however many jobs wait.

The thread takes all that has queued up while it was busy as one batch; how a batch is run (one transaction, a commit
for all) is its `Handler`'s affair. Outcomes reach each event loop in one call a batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import StoreClosed

T = TypeVar("T")
W_contra = TypeVar("W_contra", contravariant=True)
MAX_BATCH = 256
"""Jobs in one batch: bounds how long the first of them waits for the last."""


Job = tuple[T, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
"""Work for the thread, and the coroutine that waits for it: its loop and its future."""
Outcome = tuple[Any, BaseException | None]
"""What a job returned, or what it raised."""


class Handler(Protocol[W_contra]):
    """What a worker does; made, used and closed on the worker's own thread."""

    def run(self, works: Sequence[W_contra]) -> list[Outcome]:
        """Run all of `works`; an outcome for each, in order. Must not raise."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Worker(Generic[T]):
    """One thread and its queue. Make it, await `wait_until_open`, submit, and await `close` in the end."""

    def __init__(self, name: str, make_handler: Callable[[], Handler[T]]) -> None:
        self._queue: SimpleQueue[Job[T] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._stopped = False
        self._opened: Future[None] = Future()
        self._closed: Future[None] = Future()
        # The thread knows the queue, not the worker: an owner that is forgotten can be collected, and says so.
        arguments = (self._queue, make_handler, self._opened, self._closed)
        self._thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
        self._thread.start()

    async def wait_until_open(self) -> None:
        """Return when the handler is made; raises what making it raised."""
        await asyncio.shield(asyncio.wrap_future(self._opened))

    def submit(self, work: T) -> asyncio.Future[Any]:
        """Queue work; the future gets its result. Cancelling it leaves the work done or not done, never half."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._gate:  # nothing may be queued after the end
            if self._stopped:
                raise StoreClosed
            self._queue.put((work, loop, future))
        return future

    def stop(self) -> None:
        """Take no more jobs; the thread ends when it has done those it has."""
        with self._gate:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    async def close(self) -> None:
        """Stop, and return when everything accepted is done and the thread is gone."""
        self.stop()
        await asyncio.shield(asyncio.wrap_future(self._closed))
        self._thread.join()


def _serve(
    queue: SimpleQueue[Job[T] | None],
    make_handler: Callable[[], Handler[T]],
    opened: Future[None],
    closed: Future[None],
) -> None:
    """The thread: make the handler, run batches until told to stop, close the handler."""
    try:
        handler = make_handler()
    except BaseException as exc:  # noqa: BLE001  # it belongs to whoever opens
        closed.set_result(None)
        opened.set_exception(exc)
        return
    opened.set_result(None)
    try:
        going = True
        while going:
            batch, going = _take(queue)
            if batch:
                _deliver(batch, _run(handler, batch))
    finally:
        try:
            handler.close()
        finally:
            closed.set_result(None)


def _run(handler: Handler[T], batch: Sequence[Job[T]]) -> Sequence[Outcome]:
    try:
        return handler.run([job[0] for job in batch])
    except BaseException as exc:  # noqa: BLE001  # a handler that breaks its promise must not leave callers waiting
        return [(None, exc) for _ in batch]


def _take(queue: SimpleQueue[Job[T] | None]) -> tuple[list[Job[T]], bool]:
    """Return the jobs that wait, at least one of them or the end; and whether to go on."""
    jobs: list[Job[T]] = []
    job = queue.get()
    while job is not None:
        # A job whose caller is gone need not be done; looking from this thread is only a hint, and enough.
        if not job[2].cancelled():
            jobs.append(job)
        if len(jobs) >= MAX_BATCH or not queue.qsize():
            return jobs, True
        job = queue.get()
    return jobs, False


def _deliver(jobs: Sequence[Job[T]], outcomes: Sequence[Outcome]) -> None:
    """Wake the callers, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
    for (_, loop, future), outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(loop, []).append((future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:  # that loop is closed: no caller waits any more
            continue


def _settle(settled: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (result, error) in settled:
        if future.done():  # cancelled meanwhile
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

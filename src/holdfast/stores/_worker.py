"""Run jobs of coroutines on a thread, in batches.

The thread takes all jobs that were queued while it was busy as one batch. Its `Handler` decides how to run the batch, for
example in one transaction with one commit. Each event loop receives the outcomes of a batch in one call.
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
"""Maximum number of jobs in a batch. It limits how long the first job of a batch waits for the last one."""


Job = tuple[T, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
"""The work for the thread; then the event loop and the future of the coroutine that waits for its result."""
Outcome = tuple[Any, BaseException | None]
"""The result of a job, and None; or None, and the exception that the job raised."""


class Handler(Protocol[W_contra]):
    """Runs a worker's jobs. A handler is created and closed on the worker's own thread."""

    def run(self, works: Sequence[W_contra]) -> list[Outcome]:
        """Run all `works` and return the outcome of each, in order. Must not raise."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


H = TypeVar("H", bound=Handler[Any])


class Worker(Generic[T, H]):
    """One thread and its queue. Create it, await `wait_until_open`, submit jobs, and await `close` at the end."""

    def __init__(self, name: str, make_handler: Callable[[], H]) -> None:
        self._queue: SimpleQueue[Job[T] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._stopped = False
        self._opened: Future[H] = Future()
        self._closed: Future[None] = Future()
        # The thread refers to the queue, not to the worker, so an unclosed worker can be garbage-collected, with a warning.
        arguments = (self._queue, make_handler, self._opened, self._closed)
        self._thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
        self._thread.start()

    async def wait_until_open(self) -> H:
        """Wait until the thread has created the handler, and return it. Raises the error of creating it, if there was one."""
        return await asyncio.shield(asyncio.wrap_future(self._opened))

    def submit(self, work: T) -> asyncio.Future[Any]:
        """Queue `work` and return a future for its result.

        If the future is cancelled, the work is still either done completely or not at all.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._gate:  # nothing may be queued after the end marker
            if self._stopped:
                raise StoreClosed
            self._queue.put((work, loop, future))
        return future

    def stop(self) -> None:
        """Accept no more jobs. The thread ends once the queued jobs are done."""
        with self._gate:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    async def close(self) -> None:
        """Stop the worker; return when all queued jobs are done and the thread has ended."""
        self.stop()
        await asyncio.shield(asyncio.wrap_future(self._closed))
        self._thread.join()


def _serve(
    queue: SimpleQueue[Job[T] | None],
    make_handler: Callable[[], H],
    opened: Future[H],
    closed: Future[None],
) -> None:
    """Create the handler, run batches until the worker is stopped, then close the handler. This is the thread's main function."""
    try:
        handler = make_handler()
    except BaseException as exc:  # noqa: BLE001  # raised by `wait_until_open`
        closed.set_result(None)
        opened.set_exception(exc)
        return
    opened.set_result(handler)
    try:
        running = True
        while running:
            batch, running = _take(queue)
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
    except BaseException as exc:  # noqa: BLE001  # a handler that raises in spite of its contract must not leave callers waiting
        return [(None, exc) for _ in batch]


def _take(queue: SimpleQueue[Job[T] | None]) -> tuple[list[Job[T]], bool]:
    """Wait until a job is queued; return the queued jobs, at most `MAX_BATCH`.

    Returns:
        The jobs; then False if these are the last jobs, because the worker was stopped, otherwise True.
    """
    jobs: list[Job[T]] = []
    job = queue.get()
    while job is not None:
        # A cancelled job need not be run. From this thread the check may miss a cancellation, which is harmless.
        if not job[2].cancelled():
            jobs.append(job)
        if len(jobs) >= MAX_BATCH or not queue.qsize():
            return jobs, True
        job = queue.get()
    return jobs, False


def _deliver(jobs: Sequence[Job[T]], outcomes: Sequence[Outcome]) -> None:
    """Give the waiting coroutines their outcomes, with one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
    for (_, loop, future), outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(loop, []).append((future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:  # the loop is closed, so no caller waits
            continue


def _settle(settled: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (result, error) in settled:
        if future.done():  # cancelled in the meantime
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

"""Calls through a portal: errors, context variables, cancellation, Ctrl-C, busy loops, many threads, and iterators."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from tests.waits import block_until

MEMORY = "sqlite://:memory:"


@pytest.fixture
def portal() -> Iterator[holdfast.Portal]:
    with holdfast.Portal(MEMORY) as portal:
        yield portal


# -- errors and context ------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, concurrent.futures.CancelledError])
async def test_errors_of_any_kind_reach_the_caller_and_leave_the_portal_open(
    portal: holdfast.Portal, error: type[BaseException]
) -> None:
    """As in any coroutine, `StopIteration` becomes a `RuntimeError`."""

    def fail() -> Any:
        raise error

    raised = RuntimeError if error is StopIteration else error
    with pytest.raises(raised):
        portal.call(fail)
    with pytest.raises(asyncio.CancelledError if error is concurrent.futures.CancelledError else raised):
        await portal.run(fail)
    assert portal.call(portal.hf.sessions).sessions == ()


# -- cancellation ------------------------------------------------------------------


async def test_cancelled_turn_frees_its_session(portal: holdfast.Portal) -> None:
    session = await portal.run(portal.hf.session, "s")
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    async def work() -> None:
        async with session.turn("a"):
            loop.call_soon_threadsafe(started.set)
            await asyncio.Event().wait()

    task = asyncio.create_task(portal.run(work))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    popped = await portal.run(session.pop)
    assert popped is not None
    assert popped.message.text == "a"


# -- Ctrl-C --------------------------------------------------------------------------


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that does, in another thread, what Ctrl-C does to the main thread when this waits."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        pytest.skip("Ctrl-C interrupts only the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        block_until(lambda: sys._current_frames()[main].f_code.co_filename == threading.__file__)  # noqa: SLF001
        signal.pthread_kill(main, signal.SIGINT)

    yield send
    signal.signal(signal.SIGINT, before)


def test_interrupted_call_is_cancelled(portal: holdfast.Portal, interrupt: Any) -> None:
    ended = threading.Event()

    async def work() -> None:
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        portal.call(work)
    assert ended.is_set()

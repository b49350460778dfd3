"""Calls through a portal: errors, context variables, cancellation, Ctrl-C, busy loops, many threads, and iterators."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidRequest
from tests.waits import block_until

MEMORY = "sqlite://:memory:"
NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


@pytest.fixture
def portal() -> Iterator[holdfast.Portal]:
    with holdfast.Portal(MEMORY) as portal:
        yield portal


async def has_waiting(portal: holdfast.Portal) -> bool:
    return portal.hf.engine.locks.has_waiting


async def is_free(portal: holdfast.Portal) -> bool:
    return portal.hf.engine.locks.is_empty


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


def test_function_must_not_be_called_before(portal: holdfast.Portal) -> None:
    session = portal.call(portal.hf.session, "s")
    with pytest.raises(InvalidRequest, match=r"not coroutine: pass session\.append, 'text'"):
        portal.call(session.append("a"))  # type: ignore[arg-type]


async def test_function_sees_the_context_variables_of_its_caller(portal: holdfast.Portal) -> None:
    """Its changes of them stay in the call."""

    async def read() -> str:
        found = NAME.get()
        NAME.set("changed")
        return found

    @asynccontextmanager
    async def manager() -> AsyncIterator[str]:
        yield await read()

    assert portal.call(read) == "nobody"
    NAME.set("ada")
    assert portal.call(read) == "ada"
    assert await portal.run(read) == "ada"
    with portal.enter(manager()) as found:
        assert found == "ada"
    assert NAME.get() == "ada"


# -- cancellation ------------------------------------------------------------------


async def test_cancelled_caller_cancels_the_function_and_waits_for_its_end(portal: holdfast.Portal) -> None:
    started, ended = asyncio.Event(), False
    loop = asyncio.get_running_loop()

    async def work() -> None:
        nonlocal ended
        loop.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    task = asyncio.create_task(portal.run(work))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


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


async def test_busy_portal_does_not_block_the_loop_of_a_caller(portal: holdfast.Portal) -> None:
    """Whether it starts a call, waits for it, or cancels it."""
    gate, is_busy = threading.Event(), threading.Event()

    def block() -> Any:
        is_busy.set()
        assert gate.wait(30), "the loop of the caller went on"

    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(portal.call, block)
        is_busy.wait()
        kept = asyncio.create_task(portal.run(portal.hf.sessions))
        dropped = asyncio.create_task(portal.run(portal.hf.sessions))
        for _ in range(10):
            await asyncio.sleep(0)
        dropped.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not kept.done()
        assert not dropped.done()
        gate.set()
        assert (await kept).sessions == ()
        await asyncio.wait((dropped,))
        assert dropped.cancelled()
        blocked.result()


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


@pytest.mark.parametrize("is_written", [False, True])
def test_interrupted_entering_leaves_the_session_free(
    portal: holdfast.Portal, interrupt: Any, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """Whether the write that opens the turn and claims the session was done or not. The next turn begins at once."""
    session = portal.call(portal.hf.session, "s")
    store, append = portal.hf.store, portal.hf.store.append

    async def interrupt_append(ref: Any, write: Any) -> Any:
        monkeypatch.setattr(store, "append", append)
        if is_written:
            await append(ref, write)
        interrupt()
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "append", interrupt_append)
    with pytest.raises(KeyboardInterrupt), portal.enter(session.turn("a")):
        pytest.fail("the block was entered")
    with portal.enter(session.turn("b")) as turn:
        turn.add("B")
    assert portal.call(is_free, portal)
    assert portal.call(session.info).claim is None
    assert [one["content"] for one in portal.call(session.messages)] == [*(["a"] if is_written else []), "b", "B"]


def test_interrupted_wait_for_another_turn_leaves_the_queue(portal: holdfast.Portal, interrupt: Any) -> None:
    session = portal.call(portal.hf.session, "s")

    def interrupt_when_waiting() -> None:
        block_until(lambda: portal.call(has_waiting, portal))
        interrupt()

    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(portal.call, session.begin_turn, "a").result()
        interrupting = pool.submit(interrupt_when_waiting)
        with pytest.raises(KeyboardInterrupt), portal.enter(session.turn("b")):
            pytest.fail("the block was entered")
        interrupting.result()
    assert not portal.call(has_waiting, portal)
    portal.call(turn.end)
    assert [one["content"] for one in portal.call(session.messages)] == ["a"]


def test_turn_whose_end_was_interrupted_does_not_stop_the_next_one(
    portal: holdfast.Portal, interrupt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end goes on in the portal's loop, and the next turn of the thread waits for it."""
    session = portal.call(portal.hf.session, "s")
    store, append, go_on = portal.hf.store, portal.hf.store.append, threading.Event()

    async def interrupt_append(ref: Any, write: Any) -> Any:
        monkeypatch.setattr(store, "append", append)
        interrupt()
        await asyncio.to_thread(go_on.wait)
        return await append(ref, write)

    block = portal.enter(session.turn("a"))
    block.__enter__().add("A")
    monkeypatch.setattr(store, "append", interrupt_append)
    with pytest.raises(KeyboardInterrupt):
        block.__exit__(None, None, None)

    def let_go() -> None:
        block_until(lambda: portal.call(has_waiting, portal))
        go_on.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(let_go)
        with portal.enter(session.turn("b")) as turn:
            turn.add("B")
    assert [one["content"] for one in portal.call(session.messages)] == ["a", "A", "b", "B"]


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


@pytest.mark.parametrize("is_waiting", [True, False])
def test_interrupted_iteration_closes_the_iterator(
    portal: holdfast.Portal, interrupt: Any, monkeypatch: pytest.MonkeyPatch, *, is_waiting: bool
) -> None:
    """Whether the interruption arrives while the caller waits for an item, or before."""
    ended = threading.Event()

    def wait(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    async def produce() -> AsyncIterator[int]:
        try:
            if is_waiting:
                interrupt()
            await asyncio.Event().wait()
            yield 1
        finally:
            ended.set()

    if not is_waiting:
        monkeypatch.setattr("holdfast.loop_thread.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        assert list(portal.iterate(produce())) == []
    monkeypatch.undo()
    assert ended.is_set() or not is_waiting


# -- many callers, and iterators -------------------------------------------------------


def test_iterators_work_in_synchronous_code(portal: holdfast.Portal) -> None:
    session = portal.call(portal.hf.session, "s")
    records = session.records("orders")
    for number in range(3):
        portal.call(records.put, str(number), number)
    assert [one.value for one in portal.iterate(records.iterate())] == [0, 1, 2]
    pruned = [one.id for one, _ in portal.iterate(portal.hf.prune(0, status=None, dry_run=True))]
    assert pruned == ["s"]

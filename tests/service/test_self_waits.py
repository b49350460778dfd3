"""A call that waits for a lock of its own caller fails at once, and any other wait for a session ends after `queue_timeout`."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidRequest, SessionBusy, SessionNotFound
from tests.waits import block_until, until

MEMORY = "sqlite://:memory:"
Use = Callable[[Any], Awaitable[Any]]


async def open_turn(session: Any) -> None:
    async with session.turn("b"):
        pass


WAITING: dict[str, Use] = {
    "pop": lambda session: session.pop(),
    "clear": lambda session: session.clear(),
    "replace": lambda session: session.replace(0, "b"),
    "rewind": lambda session: session.rewind(0),
    "close": lambda session: session.close(),
    "turn": open_turn,
    "begin_turn": lambda session: session.begin_turn("b"),
    "send": lambda session: session.send("b"),
    "send interrupting": lambda session: session.send("b", session_queue="interrupt"),
    "speak": lambda session: session.speak("b", priority="APPEND"),
    "interrupt": lambda session: session.interrupt(),
}
"""Methods that wait for the session's running turn."""
OTHERS: dict[str, Use] = {
    "append": lambda session: session.append("b"),
    "context": lambda session: session.context(save=True),
    "messages": lambda session: session.messages(),
    "annotate": lambda session: session.annotate(0, pinned=True),
    "fork": lambda session: session.fork(),
    "delete": lambda session: session.delete(),
}
"""Methods that do not."""
LIMITED = ("pop", "clear", "replace", "rewind", "close", "turn", "send")


@pytest.mark.parametrize("method", WAITING)
async def test_method_that_would_wait_for_its_own_task_fails_at_once(method: str) -> None:
    """The error names the session and the task. The turn goes on."""
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            task = asyncio.current_task()
            assert task is not None
            message = rf"a turn of session 's' is open in this task already \('{task.get_name()}'\).*end the turn first"
            with pytest.raises(InvalidRequest, match=message):
                await WAITING[method](session)
            turn.add("A")
        assert [one["content"] for one in await session.messages()] == ["a", "A"]
        assert hf.engine.locks.is_empty


@pytest.mark.parametrize("method", OTHERS)
async def test_other_methods_work_inside_of_a_turn(method: str) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s")
        async with session.turn("a"):
            await OTHERS[method](session)
        assert hf.engine.locks.is_empty
        if method == "delete":
            with pytest.raises(SessionNotFound):
                await session.messages()


@pytest.mark.parametrize("method", LIMITED)
async def test_wait_for_the_turn_of_another_task_is_limited(method: str) -> None:
    """For example by `gather` inside of the turn, which starts tasks of its own."""
    async with holdfast.open(MEMORY, queue_timeout=0.001) as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            with pytest.raises(SessionBusy, match=r"still running after 0\.001 seconds \(queue_timeout\)"):
                await asyncio.gather(WAITING[method](session))
            turn.add("A")
        assert len(await session.messages()) == 2
        assert hf.engine.locks.is_empty


@pytest.mark.parametrize("method", LIMITED)
async def test_wait_for_the_write_of_an_abandoned_turn_is_limited(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost: later calls work as soon as the write is done."""
    async with holdfast.open(MEMORY, queue_timeout=0.001) as hf:
        session = await hf.session("s")
        append, writing, go_on = hf.store.append, asyncio.Event(), asyncio.Event()

        async def slow(ref: Any, write: Any) -> Any:
            if write.entries and write.entries[0].message.text == "A":
                writing.set()
                await go_on.wait()
            return await append(ref, write)

        monkeypatch.setattr(hf.store, "append", slow)

        async def run_turn() -> None:
            async with session.turn("a") as turn:
                turn.add("A")

        abandoned = asyncio.create_task(run_turn())
        await writing.wait()
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        with pytest.raises(SessionBusy, match="queue_timeout"):
            await WAITING[method](session)
        go_on.set()
        await until(lambda: hf.engine.locks.is_empty)
        assert [one["content"] for one in await session.messages()] == ["a", "A"]
        popped = await session.pop()
        assert popped is not None
        assert popped.message.text == "A"


async def test_turn_that_another_task_ends_excludes_only_its_own_task() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        other = asyncio.create_task(session.pop())
        await until(lambda: hf.engine.locks.has_waiting, other)
        await turn.end()
        popped = await other
        assert popped is not None
        assert popped.message.text == "a"


# -- through a portal ------------------------------------------------------------


@pytest.mark.parametrize("method", WAITING)
def test_call_that_would_wait_for_its_own_thread_fails_at_once(method: str) -> None:
    with holdfast.Portal(MEMORY) as portal:
        session = portal.call(portal.hf.session, "s")
        with portal.enter(session.turn("a")) as turn:
            name = threading.current_thread().name
            with pytest.raises(InvalidRequest, match=rf"is open in this thread already \('{name}'\)"):
                portal.call(WAITING[method], session)
            turn.add("A")
        assert len(portal.call(session.messages)) == 2


@pytest.mark.parametrize("method", OTHERS)
def test_other_calls_work_inside_of_a_block(method: str) -> None:
    with holdfast.Portal(MEMORY) as portal:
        session = portal.call(portal.hf.session, "s")
        with portal.enter(session.turn("a")):
            portal.call(OTHERS[method], session)


def test_turns_of_one_thread_cannot_be_nested() -> None:
    with holdfast.Portal(MEMORY) as portal:
        session = portal.call(portal.hf.session, "s")
        turn = portal.call(session.begin_turn, "a")
        with pytest.raises(InvalidRequest, match="in this thread"), portal.enter(session.turn("b")):
            pass
        with pytest.raises(InvalidRequest, match="in this thread"):
            portal.call(session.pop)
        portal.call(turn.end)
        assert portal.call(session.pop) is not None


async def test_run_that_would_wait_for_its_own_task_fails_at_once() -> None:
    """In a task of another event loop. Another task of that loop waits."""
    with holdfast.Portal(MEMORY) as portal:
        session = await portal.run(portal.hf.session, "s")
        turn = await portal.run(session.begin_turn, "a")
        with pytest.raises(InvalidRequest, match="is open in this task already"):
            await portal.run(session.pop)
        other = asyncio.create_task(portal.run(session.pop))
        await until(lambda: portal.run(_has_waiting, portal), other)
        await portal.run(turn.end)
        popped = await other
        assert popped is not None
        assert popped.message.text == "a"


async def _has_waiting(portal: holdfast.Portal) -> bool:
    return portal.hf.engine.locks.has_waiting


def test_another_thread_waits_for_the_turn() -> None:
    with holdfast.Portal(MEMORY) as portal, ThreadPoolExecutor(1) as pool:
        session = portal.call(portal.hf.session, "s")
        with portal.enter(session.turn("a")) as turn:
            other = pool.submit(portal.call, session.pop)
            block_until(lambda: portal.call(_has_waiting, portal))
            turn.add("A")
        popped = other.result()
        assert popped is not None
        assert popped.message.text == "A"


def test_thread_that_serves_another_request_waits_for_the_turn_of_the_first_one() -> None:
    """As a server does that runs the steps of a generator in any thread of a pool: the turn's block ends in another thread."""
    with holdfast.Portal(MEMORY) as portal, ThreadPoolExecutor(1) as pool:
        session = portal.call(portal.hf.session, "s")
        block = portal.enter(session.turn("a"))
        pool.submit(contextvars.copy_context().run, block.__enter__).result()
        other = pool.submit(contextvars.copy_context().run, lambda: portal.call(session.pop))
        block_until(lambda: portal.call(_has_waiting, portal))
        block.__exit__(None, None, None)
        popped = other.result()
        assert popped is not None
        assert popped.message.text == "a"


def test_tasks_that_a_call_starts_are_callers_of_their_own() -> None:
    """They may wait for a turn that the call has open, and interrupt it."""

    async def work(session: Any) -> list[Any]:
        async with AsyncExitStack() as stack:
            turn = await stack.enter_async_context(session.turn("a"))
            other = asyncio.create_task(session.send("b", session_queue="interrupt"))
            await until(lambda: turn.interrupted, other)
            with pytest.raises(InvalidRequest, match="in this thread"):
                await session.pop()
        await other
        messages: list[Any] = await session.messages()
        return messages

    with holdfast.Portal(MEMORY) as portal:
        session = portal.call(portal.hf.session, "s")
        assert [one["content"] for one in portal.call(work, session)][:2] == ["a", "b"]

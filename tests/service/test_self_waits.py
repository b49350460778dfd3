"""A call that waits for a lock of its own caller fails at once, and any other wait for a session ends after `queue_timeout`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidRequest, SessionBusy

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

"""`begin_turn`, `end` and `abort`: a turn without a block, which one task may open and another one end."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidRequest, SessionBusy
from holdfast.sessions.handle import SessionHandle


async def list_texts(session: SessionHandle) -> list[Any]:
    return [message["content"] for message in await session.messages()]


async def test_end_writes_what_was_added_and_gives_the_session_to_the_next_turn() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        assert [message["content"] for message in turn.messages] == ["a"]
        turn.add("b")
        await turn.end()
        await turn.end()
        async with session.turn("c") as following:
            assert [message["content"] for message in following.messages] == ["a", "b", "c"]
        with pytest.raises(InvalidRequest, match="the turn has ended"):
            turn.add("d")
        with pytest.raises(InvalidRequest, match="the turn has ended"):
            await turn.next()


async def test_another_task_may_end_the_turn() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turn = await asyncio.create_task(session.begin_turn("a"))

        async def answer() -> None:
            turn.add("b")
            await turn.next()
            turn.add("c")
            await turn.end()

        await asyncio.create_task(answer())
        assert await list_texts(session) == ["a", "b", "c"]
        async with asyncio.timeout(5), session.turn("d"):
            pass


async def test_other_turns_wait_until_the_turn_has_ended() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turn = await asyncio.create_task(session.begin_turn("a"))
        with pytest.raises(SessionBusy):
            await session.begin_turn("b", session_queue="reject")
        waiting = asyncio.create_task(session.begin_turn("b"))
        turn.add("answer")
        await turn.end()
        following = await waiting
        await following.end()
        assert await list_texts(session) == ["a", "answer", "b"]


async def test_the_same_task_cannot_wait_for_itself() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        with pytest.raises(InvalidRequest, match="end the turn first"):
            await session.begin_turn("b")
        await turn.end()


async def test_abort_keeps_what_was_added() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        turn.add("half an answer")
        await turn.abort(RuntimeError("the model failed"))
        assert await list_texts(session) == ["a", "half an answer"]
        turn = await session.begin_turn("b")
        await turn.abort()
        assert await list_texts(session) == ["a", "half an answer", "b"]


async def test_a_turn_may_be_ended_within_its_block() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            turn.add("b")
            await turn.end()
            async with session.turn("c") as inner:
                inner.add("d")
        assert await list_texts(session) == ["a", "b", "c", "d"]


async def test_a_turn_that_is_lost_is_ended_with_a_warning() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turns = [await session.begin_turn("a")]
        with pytest.warns(ResourceWarning, match="neither ended nor aborted"):
            turns.clear()
        async with asyncio.timeout(5):
            following = await session.begin_turn("b")
        await following.end()
        assert await list_texts(session) == ["a", "b"]


async def test_a_cancelled_end_still_writes() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        turn.add("b")
        ending = asyncio.create_task(turn.end())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        async with asyncio.timeout(5), session.turn("c") as following:
            assert [message["content"] for message in following.messages] == ["a", "b", "c"]


def test_its_parameters_are_those_of_turn() -> None:
    begun = inspect.signature(SessionHandle.begin_turn)
    assert begun.parameters == inspect.signature(SessionHandle.turn).parameters
    assert begun.return_annotation == "OpenTurn"

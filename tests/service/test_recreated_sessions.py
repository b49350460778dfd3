"""A session is deleted and created again under the same id: work in progress for the old session never reaches the
new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import EndReason
from holdfast.errors import SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.hooks import EndedSession
from holdfast.lifecycle.settings import LifeSettings
from tests.clocks import Clock

CLOSED: tuple[EndReason, ...] = ("close",)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chat.db"


def contents_of(messages: list[dict[str, Any]]) -> list[Any]:
    return [message.get("content") for message in messages]


async def test_another_process_with_the_old_session_cached_sends_nothing_of_it(url: str) -> None:
    clock = Clock()
    async with Holdfast(url, clock=clock) as a, Holdfast(url, clock=clock) as b:
        old = await a.session("x")
        async with old.turn("my salary is 123456") as turn:
            turn.add("Noted.")
        async with old.turn("what else?") as turn:
            turn.add("Nothing.")
        await b.delete(old.ref)
        new = await b.session("x")
        async with new.turn("hello") as turn:
            turn.add("hi")
        await new.append(["what is 2+2?"])
        await new.append([{"role": "assistant", "content": "4"}])
        async with old.turn("and 3+3?") as turn:
            assert contents_of(turn.messages) == ["hello", "hi", "what is 2+2?", "4", "and 3+3?"]


async def test_running_turn_does_not_store_its_reply_in_the_recreated_session(url: str) -> None:
    async with Holdfast(url, clock=Clock()) as hf:
        session = await hf.session("x")

        async def under_way() -> None:
            async with session.turn("my diagnosis is X") as turn:
                await hf.delete(session.ref)
                await (await hf.session("x")).append("hello, new topic")
                turn.add("About your diagnosis X: …")

        with pytest.raises(SessionNotFound):
            await under_way()
        assert contents_of(await session.messages()) == ["hello, new topic"]


async def test_running_turn_does_not_send_the_recreated_session(url: str) -> None:
    async with Holdfast(url, clock=Clock()) as hf:
        session = await hf.session("x")
        async with session.turn("my diagnosis is X") as turn:
            await hf.delete(session.ref)
            await (await hf.session("x")).append("hello, new topic")
            with pytest.raises(SessionNotFound):
                await turn.next()


async def test_summary_of_the_old_session_is_not_stored_for_the_recreated_one(url: str) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any, **__: Any) -> str:
        begun.set()
        await goes_on.wait()
        return "A summary of the deleted talk."

    async with Holdfast(url, clock=Clock(), summarizers={"slow": slow}) as hf:
        session = await hf.session("x")
        talk = [{"role": role, "content": f"{role} {'words ' * 20}"} for role in ("user", "assistant") * 40]
        await session.append(talk)
        work = asyncio.ensure_future(session.compact(summarizer_llm="slow", budget=1000, strategy="summary_buffer"))
        await begun.wait()
        await hf.delete(session.ref)
        await (await hf.session("x")).append(talk)
        goes_on.set()
        with pytest.raises(SessionNotFound):
            await work
        assert await session.compactions() == ()


async def test_artifact_of_the_old_session_is_not_stored_in_the_recreated_one(url: str) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"of the old "
        begun.set()
        await goes_on.wait()
        yield b"session"

    async with Holdfast(url, clock=Clock()) as hf:
        session = await hf.session("x")
        work = asyncio.ensure_future(session.artifacts.save("a.txt", body()))
        await begun.wait()
        await hf.delete(session.ref)
        await hf.session("x")
        goes_on.set()
        with pytest.raises(SessionNotFound):
            await work
        assert list(await session.artifacts.list()) == []


async def test_failed_end_hook_of_the_old_session_is_not_retried_with_the_new_one(url: str) -> None:
    """The ending of a deleted session is dropped, retries included."""
    clock, told = Clock(), []
    async with Holdfast(url, clock=clock, life=LifeSettings(sweep=False)) as hf:

        @hf.on_expire(name="down", reasons=CLOSED)
        async def down(session: EndedSession, reason: str) -> None:
            told.append([entry.message.text async for entry in session.entries()])
            raise RuntimeError("down")

        session = await hf.session("x")
        await session.append("old talk")
        await session.close()
        await hf.engine.hook_dispatcher.wait_until_idle()
        await hf.delete(session.ref)
        await (await hf.session("x")).append("new talk, still going on")
        clock.now += 3_600_000
        await hf.sweep()
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert told == [["old talk"]]
        assert await hf.store.endings(due=clock.now + 10**12) == ()

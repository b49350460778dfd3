"""`holdfast.Portal` for synchronous code and other event loops, and the error for a `Holdfast` in a foreign loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidRequest, SessionNotFound, StoreClosed, WrongEventLoop

MEMORY = "sqlite://:memory:"


def test_synchronous_code_runs_a_turn() -> None:
    with holdfast.Portal(MEMORY, strategy="token_window", budget=500) as portal:
        session = portal.call(portal.hf.session, "s", user_id="ada")
        with portal.enter(session.turn("a")) as turn:
            turn.add("b")
            assert [message["content"] for message in portal.call(turn.next)] == ["a", "b"]
        assert [message["content"] for message in portal.call(session.messages)] == ["a", "b"]
        assert portal.call(session.context).budget == 500


def test_errors_reach_the_caller() -> None:
    with holdfast.Portal(MEMORY) as portal:
        session = portal.call(portal.hf.session, "s")
        portal.call(session.delete)
        with pytest.raises(SessionNotFound):
            portal.call(session.append, "a")
        session = portal.call(portal.hf.session, "s")
        with pytest.raises(ZeroDivisionError), portal.enter(session.turn("a")):
            raise ZeroDivisionError
        assert len(portal.call(session.messages)) == 1
    with pytest.raises(InvalidRequest, match="did you mean 'digest'"):
        holdfast.Portal(MEMORY, strategy="digets").start()


def test_many_threads_share_it() -> None:
    with holdfast.Portal(MEMORY) as portal, ThreadPoolExecutor(8) as pool:
        session = portal.call(portal.hf.session, "s")

        def add(number: int) -> None:
            portal.call(session.append, {"role": "user", "content": str(number)})

        list(pool.map(add, range(40)))
        assert {message["content"] for message in portal.call(session.messages)} == {*map(str, range(40))}


async def test_another_event_loop_awaits_it() -> None:
    with holdfast.Portal(MEMORY) as portal:
        session = await portal.run(portal.hf.session, "s")
        await asyncio.gather(*(portal.run(session.append, text) for text in ("a", "b", "c")))
        assert len(await portal.run(session.messages)) == 3
        nested = await portal.run(lambda: portal.run(session.messages))
        assert len(nested) == 3, "in the portal's own loop it awaits the function directly"
        slow = asyncio.create_task(portal.run(asyncio.sleep, 60))
        await asyncio.sleep(0.01)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow


def test_a_closed_portal_says_so(tmp_path: Path) -> None:
    portal = holdfast.Portal(f"sqlite:///{tmp_path}/chat.db")
    with pytest.raises(StoreClosed, match="not open"):
        _ = portal.hf
    with portal:
        portal.call(portal.hf.session, "s")
        with pytest.raises(InvalidRequest, match="open already"):
            portal.start()
    portal.close()
    with pytest.raises(StoreClosed, match="not open"):
        portal.call(asyncio.sleep, 0)
    with portal:  # a second time
        assert len(portal.call(portal.hf.sessions).sessions) == 1


USES: dict[str, Callable[[Any], Any]] = {
    "append": lambda session: session.append("a"),
    "messages": lambda session: session.messages(),
    "context": lambda session: session.context(),
    "begin_turn": lambda session: session.begin_turn("a"),
    "info": lambda session: session.info(),
}


@pytest.mark.parametrize("use", USES)
async def test_a_session_in_a_foreign_loop_is_refused(use: str) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s")

        async def misuse() -> None:
            with pytest.raises(WrongEventLoop, match=r"holdfast\.Portal"):
                await USES[use](session)
            with pytest.raises(WrongEventLoop):
                await hf.session("t")

        await asyncio.to_thread(asyncio.run, misuse())
        assert await session.messages() == []


async def test_a_tenant_in_a_foreign_loop_is_refused() -> None:
    async with holdfast.open(MEMORY) as hf:
        async with hf.serve_tenant("shop") as shop:
            await shop.session("s")

        async def misuse() -> None:
            with pytest.raises(WrongEventLoop):
                async with hf.serve_tenant("shop"):
                    pass

        await asyncio.to_thread(asyncio.run, misuse())


async def test_a_turn_in_a_foreign_loop_is_refused_and_goes_on_in_its_own() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")

        async def misuse() -> None:
            turn.add("b")
            with pytest.raises(WrongEventLoop):
                await turn.next()
            with pytest.raises(WrongEventLoop):
                await turn.end()

        await asyncio.to_thread(asyncio.run, misuse())
        await turn.end()
        assert len(await session.messages()) == 2

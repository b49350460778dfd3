"""The layers of a turn with a scripted model: races, cancellation, and what is saved in one write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.context.settings import ContextSettings
from holdfast.domain.messages import Message
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.log.items import Delta, Finish, Usage
from holdfast.turns.respond import collect_reply, respond
from holdfast.turns.turn import Turn, TurnRequest
from tests.service.scripted_model import REF, make_chunks, open_session, texts


def make_turn(hf: Holdfast, *messages: Message, **fields: Any) -> Turn:
    return Turn(hf.engine, TurnRequest(ref=REF, responder=hf.roster.find_responder(), incoming=messages, **fields))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


async def run_and_collect(turn: Turn) -> str:
    """Run the turn and return the reply text."""
    reply = (await collect_reply(turn)).build_completion()
    return str(reply["choices"][0]["message"]["content"])


# -- write-ahead -------------------------------------------------------------


async def test_reply_is_durable_before_its_last_chunk_is_sent() -> None:
    """A client that has received the finish reason finds the reply in the log."""
    async with open_session(lambda _: make_chunks("one two", usage={"prompt_tokens": 3, "completion_tokens": 2})) as (
        hf,
        _,
    ):
        turn, ends = make_turn(hf, user("a")), 0

        async def receive(deltas: list[Delta]) -> None:
            nonlocal ends
            if any(isinstance(delta, Finish | Usage) for delta in deltas):
                assert await texts(hf) == ["a", "one two"]
                assert turn.closed
                ends += 1

        await respond(turn, receive)
        assert ends == 2
        assert (await hf.store.get(REF)).usage.prompt_tokens == 3


async def test_write_in_progress_outlives_its_cancelled_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The write of the reply continues; the next turn and `close` wait for it."""
    async with open_session() as (hf, _):
        append, begun, go_on = hf.store.append, asyncio.Event(), asyncio.Event()

        async def slow(ref: SessionRef, write: Any) -> Any:
            if write.entries and write.entries[0].message.role == "assistant":
                begun.set()
                await go_on.wait()
            return await append(ref, write)

        monkeypatch.setattr(hf.store, "append", slow)
        task = asyncio.create_task(run_and_collect(make_turn(hf, user("a"))))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        following = asyncio.create_task(run_and_collect(make_turn(hf, user("b"))))
        # The store has answered ten times: a turn that did not wait would have written by now.
        assert [await texts(hf) for _ in range(10)] == [["a"]] * 10
        go_on.set()
        await following
        assert await texts(hf) == ["a", "ok", "b", "ok"]
        begun.clear()
        go_on.clear()
        task = asyncio.create_task(run_and_collect(make_turn(hf, user("c"))))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        asyncio.get_running_loop().call_soon(go_on.set)
        await hf.engine.close()
        assert (await texts(hf))[-2:] == ["c", "ok"]


# -- races -------------------------------------------------------------------


async def test_transcript_is_reconciled_again_if_the_log_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer appended between the read and the write, so a new plan is made."""
    async with open_session() as (hf, _):
        session = await hf.session("s")
        await session.append([{"role": "user", "content": "a"}, {"role": "assistant", "content": "A"}])
        get, others = hf.store.get, ["b"]

        async def moving(ref: SessionRef) -> Any:
            found = await get(ref)
            if others:
                await session.append(others.pop())
            return found

        monkeypatch.setattr(hf.store, "get", moving)
        await run_and_collect(make_turn(hf, user("a"), assistant("A"), user("b"), assistant("B"), user("c")))
        assert await texts(hf) == ["a", "A", "b", "B", "c", "ok"]
        assert await session.verify() == 6


async def test_two_servers_on_one_database_store_each_message_once(tmp_path: Path) -> None:
    """Both run turns at once, and the chain verifies."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_session(url=url) as (one, _), open_session(url=url) as (two, _):
        await asyncio.gather(
            *(
                run_and_collect(make_turn(hf, user(f"{name}{at}")))
                for at in range(10)
                for name, hf in (("x", one), ("y", two))
            )
        )
        said = await texts(one)
        assert sorted(text for text in said if text != "ok") == sorted(
            f"{name}{at}" for at in range(10) for name in "xy"
        )
        assert said.count("ok") == 20
        assert await (await two.session("s")).verify() == 40


# -- what is sent and saved -------------------------------------------------------


async def test_views_build_the_same_prompts_as_the_whole_log() -> None:
    """Continued from turn to turn or built from the beginning, the bytes are the same."""
    for strategy, options in (
        ("digest", {"budget": 400}),
        ("token_window", {"budget": 400}),
        ("head_tail", {"window_size": 6}),
    ):
        async with open_session(context=ContextSettings(strategy, options)) as (hf, model):
            session = await hf.session("s")
            for at in range(25):
                await run_and_collect(make_turn(hf, user(f"Where is order A-{at}17? " + "word " * 10)))
                looked = await session.context(at_turn=at)
                assert looked.messages == model.prompts[-1]

"""Speaking and greeting: messages that no model turn generated, and the resulting log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast.agents import Agent, Roster
from holdfast.errors import (
    CallsOpen,
    InvalidRequest,
    SessionBusy,
    SessionExists,
    TooLarge,
    TurnInterrupted,
)
from holdfast.holdfast import Holdfast
from holdfast.sessions.speech import Speech
from tests.service.turns_kit import REF, log, open_stage, retry_at_once, start_turn, wait_for_waiting
from tests.service.voice_kit import MEMORY, NOW, calls, describe_log, make_reply, open_session, user
from tests.stores.servers import place

# -- speaking ------------------------------------------------------------------


async def test_speech_is_a_separate_turn() -> None:
    """Its source is recorded; the user's next message opens another turn."""
    async with open_session(user("a"), make_reply("A")) as session:
        done = await session.speak("Are you still there?")
        assert done.entry is not None
        assert (done.entry.turn_id, done.entry.metadata, done.stopped) == (1, {"source": "command"}, False)
        await session.append([user("b")])
        assert [turn for turn, *_ in await describe_log(session)] == [0, 0, 1, 2]
        done = await session.speak("Mind the gap.", interruptable=False)
        assert done.entry is not None
        assert done.entry.metadata == {"source": "command", "interruptable": False}
        assert (await session.history())[-1]["metadata"] == {"source": "command"}


async def test_speech_can_be_the_first_message_of_a_session() -> None:
    async with open_session() as session:
        await session.speak("Hello.")
        await session.append([user("a")])
        assert await describe_log(session) == [(0, "assistant", "Hello."), (1, "user", "a")]


async def test_priority_decides_what_happens_to_a_running_turn() -> None:
    """INTERRUPT stops it, APPEND waits for it, IGNORE drops the speech."""
    async with open_stage(MEMORY) as ([hf], stage):
        session = hf.handle(await hf.store.get(REF))
        running = await start_turn(hf, stage, "a")
        ignored = await session.speak("x", priority="IGNORE")
        assert (ignored.entry, ignored.stopped) == (None, False)
        behind = asyncio.create_task(session.speak("y", priority="APPEND"))
        await wait_for_waiting(hf, 1, running, behind)
        stage.go_on("a")
        assert await running == "re: a"
        assert (await behind).entry is not None
        running = await start_turn(hf, stage, "b")
        done = await session.speak("z")
        with pytest.raises(TurnInterrupted):
            await running
        assert done.stopped
        assert await log(hf) == ["a", "re: a", "y", "b", "re:|", "z"]
        assert [turn for turn, *_ in await describe_log(session)] == [0, 0, 1, 2, 2, 3]
        assert (await session.speak("w", priority="IGNORE")).entry is not None
        assert hf.engine.locks.is_empty
        await session.verify()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_running_turn_of_another_server_counts(kind: str, tmp_path: Any) -> None:
    with place(kind, tmp_path) as url:
        async with open_stage(url, openings=2) as ([one, two], stage):
            retry_at_once(one, two)
            session = two.handle(await two.store.get(REF))
            running = await start_turn(one, stage, "a")
            assert (await session.speak("x", priority="IGNORE")).entry is None
            behind = asyncio.create_task(session.speak("y", priority="APPEND"))
            stage.go_on("a")
            await running
            assert (await behind).entry is not None
            assert await log(two) == ["a", "re: a", "y"]


async def test_waiting_speech_times_out() -> None:
    async with open_stage(MEMORY, queue_timeout=0.001) as ([hf], stage):
        session = hf.handle(await hf.store.get(REF))
        running = await start_turn(hf, stage, "a")
        with pytest.raises(SessionBusy):
            await session.speak("x", priority="APPEND")
        stage.go_on()
        await running
        assert await log(hf) == ["a", "re: a"]


async def test_priority_decides_what_happens_to_open_calls() -> None:
    """APPEND is rejected, IGNORE drops the speech, INTERRUPT drops the calls."""
    async with open_session(user("a"), calls("Let me look.")) as session:
        with pytest.raises(CallsOpen):
            await session.speak("x", priority="APPEND")
        assert (await session.speak("x", priority="IGNORE")).entry is None
        assert (await session.info()).messages == 2
        await session.speak("Never mind.")
        assert await describe_log(session) == [
            (0, "user", "a"),
            (0, "assistant", "Let me look.", "Let me look."),
            (1, "assistant", "Never mind."),
        ]
        assert (await session.info()).tail.open_calls == ()


@pytest.mark.parametrize(
    ("given_", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": " "}, "text"),
        ({"text": 5}, "text"),
        ({"text": "a", "priority": "LATER"}, "priority"),
        ({"text": "a", "source": "asr"}, "source"),
        ({"text": "a", "source": "llm"}, "source"),
        ({"text": "a", "interruptable": "no"}, "interruptable"),
        ({"source": "greeting"}, "text"),
        ({"source": "silence"}, "text"),
    ],
)
async def test_invalid_speech_is_rejected(given_: dict[str, Any], param: str) -> None:
    async with open_session() as session:
        with pytest.raises(InvalidRequest) as refused:
            await session.speak(**given_)
        assert refused.value.param == param
        assert (await session.info()).messages == 0


def test_speech_size_is_limited() -> None:
    """In bytes; the error states the limit."""
    Speech(text="ü" * 8192).check_size()
    with pytest.raises(TooLarge, match="16386 bytes; the server accepts at most 16384"):
        Speech(text="ü" * 8193).check_size()


# -- greeting ------------------------------------------------------------------


BOT = Agent(name="bot", greeting="How can I help you today?", silence_message="Are you still there?")


@asynccontextmanager
async def with_bot(url: str = MEMORY, **settings: Any) -> AsyncIterator[Holdfast]:
    roster = Roster(agents={"bot": BOT, "mute": Agent(name="mute")})
    async with holdfast.open(url, roster=roster, clock=lambda: NOW, **settings) as hf:
        yield hf


async def test_session_begins_with_the_greeting_of_its_agent() -> None:
    """Created by `session` or `create`; the user's first message is turn 1. An existing session is not greeted again."""
    async with with_bot() as hf:
        for made in (await hf.session("a", agent="bot"), hf.handle(await hf.create("b", agent="bot"))):
            (record,) = await made.history()
            assert record == {
                "role": "assistant",
                "content": "How can I help you today?",
                "turn_id": 0,
                "timestamp": NOW,
                "metadata": {"source": "greeting"},
            }
            await made.append([user("hi")])
            assert (await describe_log(made))[1] == (1, "user", "hi")
            assert (await made.entries())[0].agent == "bot"
            await made.verify()
        assert len(await (await hf.session("a", agent="bot")).history()) == 2
        with pytest.raises(SessionExists):
            await hf.create("a", agent="bot")
        for agent in (None, "mute"):
            assert await (await hf.session(agent=agent)).history() == []


async def test_configured_messages_are_spoken_by_source() -> None:
    """The source is recorded."""
    async with with_bot() as hf:
        session = await hf.session("a", agent="bot")
        await session.speak(source="silence")
        await session.speak(source="greeting")
        await session.speak("Hm?", source="silence")
        records = [(one["content"], one["metadata"]["source"], one["turn_id"]) for one in await session.history()]
        assert records == [
            (BOT.greeting, "greeting", 0),
            (BOT.silence_message, "silence", 1),
            (BOT.greeting, "greeting", 2),
            ("Hm?", "silence", 3),
        ]
        mute = await hf.session("b", agent="mute")
        with pytest.raises(InvalidRequest, match="agent 'mute' has no silence_message"):
            await mute.speak(source="silence")


async def test_client_that_never_saw_the_greeting_continues_the_session() -> None:
    """It sends its whole history, which begins with the user."""
    async with with_bot() as hf:
        session = await hf.session("a", agent="bot")
        async with session.turn([user("hi")]) as turn:
            turn.add("Hello.")
        async with session.turn([user("hi"), make_reply("Hello."), user("more")]) as turn:
            turn.add("More.")
        async with session.turn(
            [make_reply(BOT.greeting), user("hi"), make_reply("Hello."), user("more"), make_reply("More."), user("x")]
        ):
            pass
        texts = [text for _, _, text, *_ in await describe_log(session)]
        assert texts == [BOT.greeting, "hi", "Hello.", "more", "More.", "x"]


async def test_greeting_can_be_interrupted() -> None:
    async with with_bot() as hf:
        session = await hf.session("a", agent="bot")
        await session.interrupt("How can I")
        (record,) = await session.history()
        assert (record["content"], record["turn_id"]) == ("How can I", 0)
        assert record["metadata"]["source"] == "greeting"
        assert record["metadata"]["original"] == BOT.greeting


async def test_greeted_session_counts_and_expires_like_any_other() -> None:
    now = [NOW]
    roster = Roster(agents={"bot": BOT})
    async with holdfast.open(MEMORY, roster=roster, clock=lambda: now[0], session_ttl=10, max_sessions=2) as hf:
        for name in "abc":
            await hf.session(name, agent="bot")
        assert {one.id for one in (await hf.sessions(status="active")).sessions} == {"b", "c"}
        now[0] += 10_000
        assert (await hf.sessions()).sessions == ()
        again = await hf.session("b", agent="bot")
        assert len(await again.history()) == 1

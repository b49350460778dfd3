"""Speaking and greeting: what an agent says without a model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import World, assistant, calls, refused, texts, through, user

DOORS = ("library", "connect", "rest")
GREETING, SILENCE = "How can I help you today?", "Are you still there?"
AGENTS = f"""agents:
  bot: {{greeting: "{GREETING}", silence_message: "{SILENCE}"}}
  mute: {{instruction: Be quiet.}}"""


@through(*DOORS)
async def test_speech_is_a_turn_of_its_own(world: World) -> None:
    """Its source is recorded, and it is in the next prompt."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("A"))
        done = await session.speak("Mind the gap.", interruptable=False)
        assert (done["spoken"], done["stopped"], done["entry"]["turn_id"]) == (True, False, 1)
        assert done["entry"]["metadata"]["source"] == "command"
        assert texts((await session.turn("b"))["messages"]) == ["a", "A", "Mind the gap.", "b"]
        assert [one["turn_id"] for one in await session.messages()] == [0, 0, 1, 2]
        assert (await session.history())[2]["metadata"] == {"source": "command"}


@through("library", "connect", "rest")
async def test_a_session_whose_state_is_refused_is_not_made_although_it_has_a_greeting(world: World) -> None:
    async with world.open(AGENTS) as hf:
        await hf.change_shared_state({f"user:{name}": "x" * 250_000 for name in "abcd"}, "default")
        with refused("too_large"):
            await hf.create("s", agent="bot", state={"user:e": "x" * 100_000})
        assert await hf.sessions() == []


@through(*DOORS)
async def test_speech_can_be_the_first_message(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        await session.speak("Hello.")
        await session.append(user("a"))
        assert [(one["turn_id"], one["content"]) for one in await session.messages()] == [(0, "Hello."), (1, "a")]


@through(*DOORS)
async def test_speech_can_be_interrupted(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("A"))
        await session.speak(SILENCE)
        await session.interrupt(chars=3)
        *_, last = await session.history()
        assert (last["content"], last["metadata"]["original"], last["metadata"]["source"]) == (
            "Are",
            SILENCE,
            "command",
        )


@through(*DOORS)
async def test_open_calls_decide_by_priority(world: World) -> None:
    """APPEND is refused, IGNORE says nothing, INTERRUPT drops the calls."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), {**calls(("c", "f", {})), "content": "Let me look."})
        with refused("calls_open"):
            await session.speak("x", priority="APPEND")
        ignored = await session.speak("x", priority="IGNORE")
        assert (ignored["spoken"], ignored["entry"], ignored["stopped"]) == (False, None, False)
        await session.speak("Never mind.")
        assert texts(await session.messages()) == ["a", "Let me look.", "Never mind."]
        assert "tool_calls" not in (await session.messages())[1]


@through(*DOORS)
async def test_a_running_turn_is_stopped_waited_for_or_left_alone(world: World) -> None:
    gates = [Gate(), Gate()]
    script = [Reply(text="re: a", hold=gates[0]), Reply(text="re: b", hold=gates[1])]
    async with world.open(script=script) as hf:
        session = await hf.given("s")
        running = asyncio.create_task(session.send(user("a")))
        await hf.upstream.until(lambda: len(hf.upstream.requests) == 1)
        assert not (await session.speak("x", priority="IGNORE"))["spoken"]
        waiting = asyncio.create_task(session.speak("y", priority="APPEND"))
        gates[0].open()
        await running
        assert (await waiting)["spoken"]
        running = asyncio.create_task(session.send(user("b")))
        await hf.upstream.until(lambda: len(hf.upstream.requests) == 2)
        done = await session.speak("z")
        assert (done["spoken"], done["stopped"]) == (True, True)
        with refused("turn_interrupted"):
            await running
        assert texts(await session.messages()) == ["a", "re: a", "y", "b", "z"]
        assert [one["turn_id"] for one in await session.messages()] == [0, 0, 1, 2, 3]
        assert (await session.speak("w", priority="IGNORE"))["spoken"]
        gates[1].open()


@through(*DOORS)
async def test_speech_that_waits_too_long_is_refused(world: World) -> None:
    gate = Gate()
    async with world.open("gateway: {queue_timeout: 50ms}", script=[Reply(text="re: a", hold=gate)]) as hf:
        session = await hf.given("s")
        running = asyncio.create_task(session.send(user("a")))
        await hf.upstream.until(lambda: hf.upstream.requests)
        with refused("session_busy"):
            await session.speak("x", priority="APPEND")
        gate.open()
        await running
        assert texts(await session.messages()) == ["a", "re: a"]


@through(*DOORS)
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": " "}, "text"),
        ({"text": 5}, "text"),
        ({"text": "a", "priority": "LATER"}, "priority"),
        ({"text": "a", "source": "asr"}, "source"),
        ({"text": "a", "source": "llm"}, "source"),
        ({"text": "a", "interruptable": "no"}, "interruptable"),
        ({"text": None, "source": "greeting"}, "text"),
        ({"text": None, "source": "silence"}, "text"),
    ],
)
async def test_invalid_speech_is_named(world: World, given: dict[str, Any], param: str) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        with refused("invalid_metadata" if param == "source" else "invalid_request", param=param):
            await session.speak(**given)
        assert await session.messages() == []


@through("connect", "rest")
async def test_the_size_of_speech_is_limited_in_bytes(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        await session.speak("ü" * 8192)
        with refused("too_large", "16386 bytes"):
            await session.speak("ü" * 8193)
        assert len(await session.messages()) == 1


@through(*DOORS)
async def test_a_session_begins_with_the_greeting_of_its_agent(world: World) -> None:
    """The first message of the user is turn 1. Nobody else is greeted, and nobody twice."""
    async with world.open(AGENTS) as hf:
        session = await hf.create("s", agent="bot")
        (greeting,) = await session.messages()
        assert (greeting["content"], greeting["turn_id"], greeting["agent"]) == (GREETING, 0, "bot")
        assert greeting["metadata"] == {"source": "greeting"}
        assert (await session.append(user("hi")))[0]["turn_id"] == 1
        for name, agent in (("t", None), ("u", "mute")):
            assert await (await hf.create(name, agent=agent)).messages() == []
        if world.driver != "rest":
            assert len(await (await hf.native.session("s", agent="bot")).messages()) == 2
            assert len(await (await hf.native.session("v", agent="bot")).messages()) == 1
        if world.driver == "library":
            made = await hf.native.create("w", agent="bot", greet=False)
            assert await hf.session(made.id).messages() == []


@through(*DOORS)
async def test_configured_texts_are_spoken_by_their_source(world: World) -> None:
    async with world.open(AGENTS) as hf:
        session = await hf.create("s", agent="bot")
        await session.speak(source="silence")
        await session.speak(source="greeting")
        await session.speak("Hm?", source="silence")
        records = [(one["content"], one["metadata"]["source"], one["turn_id"]) for one in await session.history()]
        assert records == [
            (GREETING, "greeting", 0),
            (SILENCE, "silence", 1),
            (GREETING, "greeting", 2),
            ("Hm?", "silence", 3),
        ]
        mute = await hf.create("t", agent="mute")
        with refused("invalid_request", "agent 'mute' has no silence_message"):
            await mute.speak(source="silence")


@through(*DOORS)
async def test_a_client_that_never_saw_the_greeting_continues_the_session(world: World) -> None:
    """It sends its whole history, which begins with the user."""
    async with world.open(AGENTS) as hf:
        session = await hf.create("s", agent="bot")
        await session.turn(user("hi"), reply="Hello.")
        await session.turn(user("hi"), assistant("Hello."), user("more"), reply="More.")
        known = [assistant(GREETING), user("hi"), assistant("Hello."), user("more"), assistant("More."), user("x")]
        await session.turn(*known)
        assert texts(await session.messages()) == texts(known)


@through(*DOORS)
async def test_a_greeting_can_be_interrupted(world: World) -> None:
    async with world.open(AGENTS) as hf:
        session = await hf.create("s", agent="bot")
        await session.interrupt(content="How can I")
        (record,) = await session.history()
        assert (record["content"], record["turn_id"], record["metadata"]["source"]) == ("How can I", 0, "greeting")
        assert record["metadata"]["original"] == GREETING

"""Document 003: the memory of a voice agent. Its records, their fields, what an agent says, and interruptions."""

from __future__ import annotations

from typing import Any, Final

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import Served, World, assistant, calls, gateway, refused, result, system, texts, through, user
from tests.behaviour.kit.rest import ask
from tests.behaviour.kit.voice import CONTENTS, CUT, HEARD, JOKE, SOURCES

DOORS: Final = ("library", "connect", "rest")
AGENT: Final = """agents:
  bot: {greeting: "How can I help you today?", silence_message: "Are you still there?", failure_message: Sorry.}"""
NOW_MS: Final = range(10**12, 10**13)
"""Times with 13 digits."""


def sources(history: list[dict[str, Any]]) -> list[Any]:
    return [one["metadata"].get("source") for one in history]


# -- records -------------------------------------------------------------------------


async def read_contents(world: World) -> list[dict[str, Any]]:
    """Put in the document's example in the way of the driver; return the history."""
    async with world.open() as hf:
        session = await hf.given("s", *CONTENTS)
        found: list[dict[str, Any]] = await session.history()
        return found


@through(*DOORS)
async def test_003_1_each_message_has_content_and_role(world: World) -> None:
    found = await read_contents(world)
    assert [(one["role"], one["content"]) for one in found] == [(one["role"], one["content"]) for one in CONTENTS]


@through(*DOORS)
async def test_003_2_turns_are_tracked(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        for text in "abc":
            await session.turn(text, reply=text.upper())
        assert [one["turn_id"] for one in await session.history()] == [0, 0, 1, 1, 2, 2]


async def interrupt_running(served: Served, gate: Gate) -> dict[str, Any]:
    """Begin a streamed reply, read its first words, and say that `one` was heard."""
    stream = await served.openai.chat.completions.create(
        model="gpt-4o", messages=[user("Count.")], stream=True, extra_body={"session_id": "s"}
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    done: dict[str, Any] = await ask(served.http, "POST", "/v1/sessions/s/interrupt", {"content": "one"})
    gate.open()
    async for _ in stream:
        pass
    return done


async def test_003_3_interruptions_are_tracked() -> None:
    """After a reply, and during one."""
    gate = Gate()
    async with gateway([JOKE, Reply(text="one two three", hold=gate, hold_after=2)]) as served:
        await served.chat("A joke?")
        after = await ask(served.http, "POST", "/v1/sessions/s/interrupt", {"chars": 22})
        assert (after["interrupted"], after["stopped"]) == (True, False)
        during = await interrupt_running(served, gate)
        assert (during["interrupted"], during["stopped"]) == (True, True)
        history = await served.rest.session().history()
        assert texts(history) == ["A joke?", HEARD, "Count.", "one"]
        assert [one["metadata"].get("interrupted") for one in history] == [None, True, None, True]


@through(*DOORS)
async def test_003_4_times_are_stored(world: World) -> None:
    assert [one["timestamp"] for one in await read_contents(world)] == [one["timestamp"] for one in CONTENTS]


@through(*DOORS)
async def test_003_5_sources_are_stored(world: World) -> None:
    assert sources(await read_contents(world)) == ["greeting", "asr", "llm", "asr", "llm", "command"]


@pytest.mark.parametrize("way", ["chat", "append", "import"])
async def test_003_6_the_format_builds_on_chat_completions(way: str) -> None:
    async with gateway(["Hm."]) as served:
        if way == "chat":
            assert (await served.chat(CONTENTS[:4]))["status"] == 200
        elif way == "append":
            await served.rest.given("s", *CONTENTS[:4])
        else:
            await ask(served.http, "PUT", "/v1/sessions/s", {"messages": CONTENTS[:4]})
        assert (await served.rest.session().history())[:4] == CONTENTS[:4]


@pytest.mark.parametrize("way", ["chat", "append", "import", "library"])
async def test_003_7_the_memory_is_an_object_with_contents(way: str) -> None:
    async with gateway(["Hm."]) as served:
        memory = {"contents": CONTENTS[:4]}
        if way == "chat":
            await ask(served.http, "POST", "/v1/chat/completions", {**memory, "session_id": "s"})
        elif way == "append":
            await served.rest.create("s")
            await ask(served.http, "POST", "/v1/sessions/s/messages", memory)
        elif way == "import":
            await ask(served.http, "PUT", "/v1/sessions/s", memory)
        else:
            await (await served.native.session("s")).append(memory)
        found = await ask(served.http, "GET", "/v1/sessions/s/history")
        assert set(found) == {"contents"}
        assert found["contents"][:4] == CONTENTS[:4]


@through("cli")
async def test_003_7_the_command_line_imports_contents(world: World) -> None:
    async with world.open() as hf:
        await hf.import_session({"id": "s", "contents": CONTENTS})
        assert [one["metadata"] for one in await hf.session().messages()] == [one["metadata"] for one in CONTENTS]


@pytest.mark.parametrize("way", ["PUT", "POST"])
async def test_003_8_the_example_is_returned_exactly(way: str) -> None:
    async with gateway() as served:
        if way == "PUT":
            await ask(served.http, "PUT", "/v1/sessions/s", {"contents": CONTENTS})
        else:
            await served.rest.create("s")
            await ask(served.http, "POST", "/v1/sessions/s/messages", {"contents": CONTENTS})
        assert await ask(served.http, "GET", "/v1/sessions/s/history") == {"contents": CONTENTS}


@through(*DOORS)
async def test_003_9_only_user_and_assistant_are_in_it(world: World) -> None:
    log = [user("a"), calls(("c", "f", {})), result("c", "x"), {**calls(("d", "f", {})), "content": "Look."}]
    async with world.open() as hf:
        session = await hf.given("s", *log, result("d", "y"), assistant("b"))
        assert [(one["role"], one["content"]) for one in await session.history()] == [
            ("user", "a"),
            ("assistant", "Look."),
            ("assistant", "b"),
        ]


@through(*DOORS)
async def test_003_10_system_messages_are_not_in_it(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), system("Be kind."), system_messages=["Be brief."])
        assert texts(await session.history()) == ["a"]


@through(*DOORS)
async def test_003_11_content_is_text_and_other_media_are_ignored(world: World) -> None:
    picture = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "https://e.com/a.png"}}]
    async with world.open() as hf:
        session = await hf.given("s", user(picture))
        assert texts(await session.history()) == ["Look."]
        assert texts(await session.messages()) == [picture]


@through(*DOORS)
async def test_003_12_turns_start_at_0(world: World) -> None:
    async with world.open() as hf:
        assert (await (await hf.given("s", user("a"))).history())[0]["turn_id"] == 0


@through(*DOORS)
async def test_003_13_a_turn_has_the_number_after_the_one_before(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
        assert [one["turn_id"] for one in await session.history()] == [0, 0, 1, 1, 2]


@through(*DOORS)
async def test_003_14_a_reply_has_the_turn_of_its_message_and_speech_its_own(world: World) -> None:
    async with world.open(AGENT) as hf:
        session = await hf.create("s", agent="bot")
        for text in "ab":
            await session.turn(text, reply=text.upper())
        await session.speak(source="silence")
        await session.speak("Mind the gap.")
        assert [one["turn_id"] for one in await session.history()] == [0, 1, 1, 2, 2, 3, 4]


@through(*DOORS)
async def test_003_15_times_have_milliseconds(world: World) -> None:
    """A time that is given is kept as it was sent."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), user("b", timestamp=1678901234))
        first, second = [one["timestamp"] for one in await session.history()]
        assert first in NOW_MS
        assert second == 1678901234


async def check_source(source: str) -> None:
    """Check that the source is accepted of its roles only."""
    async with gateway() as served:
        session = await served.rest.create("s")
        for role in ("user", "assistant"):
            message = {"role": role, "content": "a", "metadata": {"source": source}}
            if role in SOURCES[source]:
                await session.append(message)
                continue
            with refused("invalid_metadata", param="messages[0].metadata.source") as caught:
                await session.append(message)
            assert caught.value.status == 422
        assert {(one["role"], one["metadata"]["source"]) for one in await session.history()} == {
            (role, source) for role in SOURCES[source]
        }


async def test_003_16_asr_is_of_users() -> None:
    await check_source("asr")


async def test_003_17_message_is_of_users_and_their_default() -> None:
    await check_source("message")
    async with gateway() as served:
        assert sources(await (await served.rest.given("s", user("a"))).history()) == ["message"]


async def test_003_18_command_is_of_both() -> None:
    await check_source("command")


async def test_003_19_llm_is_of_replies_and_their_default() -> None:
    await check_source("llm")
    async with gateway(["Hm."]) as served:
        await served.chat("a")
        assert sources(await served.rest.session().history()) == ["message", "llm"]


async def test_003_20_greeting_is_of_replies() -> None:
    await check_source("greeting")
    async with gateway((), AGENT) as served:
        assert sources(await (await served.rest.create("s", agent="bot")).history()) == ["greeting"]


async def test_003_21_llm_failure_is_of_replies() -> None:
    await check_source("llm_failure")
    async with gateway([Reply(status=400, error="no")], AGENT) as served:
        await served.chat("a", model="bot")
        assert sources(await served.rest.session().history()) == ["message", "llm_failure"]


async def test_003_22_silence_is_of_replies() -> None:
    await check_source("silence")
    async with gateway((), AGENT) as served:
        session = await served.rest.create("s", agent="bot")
        await session.speak(source="silence")
        assert sources(await session.history()) == ["greeting", "silence"]


@through(*DOORS, "cli")
async def test_003_23_other_sources_are_refused(world: World) -> None:
    async with world.open() as hf:
        with refused("invalid_metadata", "metadata.source"):
            await hf.given("s", user("a", metadata={"source": "telepathy"}))


# -- what an agent says ----------------------------------------------------------------


@through(*DOORS)
async def test_003_24_a_greeting_opens_the_session(world: World) -> None:
    async with world.open(AGENT) as hf:
        session = await hf.create("s", agent="bot")
        (greeting,) = await session.history()
        expected = {"role": "assistant", "content": "How can I help you today?", "turn_id": 0}
        assert greeting == {**expected, "timestamp": world.clock.now, "metadata": {"source": "greeting"}}


async def test_003_25_a_failed_model_call_is_spoken_and_recorded() -> None:
    async with gateway([Reply(status=400, error="no")], AGENT) as served:
        answer = await served.chat("a", model="bot")
        assert (answer["status"], answer["choices"][0]["message"]["content"]) == (200, "Sorry.")
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert texts(await served.rest.session().history()) == ["a", "Sorry."]


@through(*DOORS)
async def test_003_26_a_silence_reminder_can_be_spoken(world: World) -> None:
    async with world.open(AGENT) as hf:
        session = await hf.create("s", agent="bot")
        done = await session.speak(source="silence")
        assert (done["spoken"], done["entry"]["content"]) == (True, "Are you still there?")


@through(*DOORS)
async def test_003_27_a_text_can_be_spoken(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        await session.speak("Are you still there?")
        assert [(one["content"], one["metadata"]) for one in await session.history()] == [
            ("Are you still there?", {"source": "command"})
        ]


# -- interrupted replies ------------------------------------------------------------------


async def interrupt_joke(world: World, **heard: Any) -> list[dict[str, Any]]:
    async with world.open() as hf:
        session = await hf.given("s", user("A joke?"), assistant(JOKE))
        await session.interrupt(**heard)
        found: list[dict[str, Any]] = await session.history()
        assert texts((await session.context())["messages"]) == texts(found)
        return found


@through(*DOORS)
async def test_003_28_an_interrupted_reply_is_marked(world: World) -> None:
    question, reply = await interrupt_joke(world, chars=22)
    assert reply["metadata"]["interrupted"] is True
    assert "interrupted" not in question["metadata"]


@through(*DOORS, "cli")
async def test_003_29_false_is_hidden(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("b", metadata={"source": "llm", "interrupted": False}))
        assert (await session.messages())[1]["metadata"] == {"source": "llm"}
        if world.driver != "cli":
            assert (await session.history())[1]["metadata"] == {"source": "llm"}


async def check_refused(world: World, message: dict[str, Any], field: str) -> None:
    async with world.open() as hf:
        with refused("invalid_metadata", f"metadata.{field}"):
            await hf.given("s", message)


@through(*DOORS, "cli")
async def test_003_30_only_replies_can_be_interrupted(world: World) -> None:
    await check_refused(world, user("a", metadata={"interrupted": True}), "interrupted")


@through(*DOORS)
async def test_003_31_the_time_of_the_interruption_is_stored(world: World) -> None:
    """In milliseconds; a time that is given is kept."""
    assert (await interrupt_joke(world, chars=22))[1]["metadata"]["interrupt_timestamp"] in NOW_MS


@through(*DOORS)
async def test_003_31_a_given_time_of_an_interruption_is_kept(world: World) -> None:
    assert (await interrupt_joke(world, chars=22, timestamp=1678905225))[1]["metadata"] == CUT


@through(*DOORS, "cli")
async def test_003_32_a_time_of_interruption_needs_an_interruption(world: World) -> None:
    await check_refused(world, assistant("a", metadata={"interrupt_timestamp": 5}), "interrupt_timestamp")


@through(*DOORS)
async def test_003_33_the_generated_text_is_stored(world: World) -> None:
    assert (await interrupt_joke(world, content=HEARD))[1]["metadata"]["original"] == JOKE


async def test_003_33_of_a_running_reply_it_is_what_was_generated_so_far() -> None:
    gate = Gate()
    async with gateway([Reply(text="one two three", hold=gate, hold_after=2)]) as served:
        await interrupt_running(served, gate)
        reply = (await served.rest.session().history())[1]
        assert (reply["content"], reply["metadata"]["original"]) == ("one", "one ")


@through(*DOORS, "cli")
async def test_003_34_a_generated_text_needs_an_interruption(world: World) -> None:
    await check_refused(world, assistant("a", metadata={"original": "abc"}), "original")


@through(*DOORS)
async def test_003_35_content_is_what_was_heard(world: World) -> None:
    """In the history and in prompts."""
    assert texts(await interrupt_joke(world, content=HEARD)) == ["A joke?", HEARD]

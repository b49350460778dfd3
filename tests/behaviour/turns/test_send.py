"""Turns with a model that Holdfast calls: what is durable when, and what happens if no model answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.testing import Gate, Reply
from tests.behaviour.kit import World, answer_of, assistant, calls, gateway, refused, result, texts, through, user
from tests.behaviour.kit.voice import CONTENTS, HEARD, JOKE

DOORS = ("library", "connect", "rest")
SORRY = "I am sorry, I cannot answer right now."
AGENT = f"agents: {{bot: {{llm: default, failure_message: '{SORRY}'}}}}"


@through(*DOORS)
async def test_the_message_is_durable_before_the_model_is_called(world: World) -> None:
    gate = Gate()
    async with world.open(script=[Reply(text="Hello.", hold=gate)], store="file") as hf:
        session = await hf.given("s")
        task = asyncio.create_task(session.send(user("Hi"), temperature=0))
        await hf.upstream.until(lambda: hf.upstream.requests)
        assert texts(await session.messages()) == ["Hi"]
        gate.open()
        assert answer_of(await task) == "Hello."
        assert hf.upstream.requests[0].body["temperature"] == 0
        assert texts(await session.messages()) == ["Hi", "Hello."]
        usage = (await session.info())["usage"]
        assert (usage["calls"], usage["prompt_tokens"], usage["completion_tokens"]) == (1, 10, 5)


@pytest.mark.parametrize(
    ("reply", "code", "kept"),
    [
        (Reply(status=500, error="down"), "upstream_unavailable", []),
        (Reply(status=400, error="no"), "upstream_rejected", []),
        (Reply(text="one two three", cut_after=2), "upstream_protocol_error", ["one "]),
        (Reply(raw=[b"data: nonsense\n\n"], content_type="text/event-stream"), "upstream_protocol_error", []),
        (Reply(chunks=[{"choices": [{"index": 0, "delta": {"content": 5}}]}]), "upstream_protocol_error", []),
    ],
)
@through(*DOORS)
async def test_a_failing_model_leaves_the_message_and_what_arrived(
    world: World, reply: Any, code: str, kept: list[str]
) -> None:
    """The same message again is a retry."""
    async with world.open(script=[reply, "Back."]) as hf:
        session = await hf.given("s")
        with refused(code):
            await session.send(user("Hi"))
        found = await session.messages()
        assert texts(found) == ["Hi", *kept]
        assert all(one["metadata"]["interrupted"] for one in found[1:])
        await session.send(user("Hi"))
        assert texts(await session.messages()) == ["Hi", "Back."] if not kept else ["Hi", *kept, "Hi", "Back."]


@through(*DOORS)
async def test_unusable_figures_of_a_provider_cost_no_reply(world: World) -> None:
    usage = {"prompt_tokens": -5, "completion_tokens": "many", "prompt_tokens_details": {"cached_tokens": True}}
    async with world.open(script=[Reply(text="fine", usage=usage)]) as hf:
        session = await hf.given("s")
        assert answer_of(await session.send(user("a"))) == "fine"
        (call,) = await session.calls()
        assert (call["prompt_tokens"], call["completion_tokens"]) == (0, 0)


@through("library", "connect", "rest")
async def test_fields_of_new_messages_are_stored(world: World) -> None:
    """In a turn, and of the last message of a whole history."""
    spoken = user("Where is it?", metadata={"source": "asr", "user": "u1"}, turn_id=9, timestamp=7)
    async with world.open(script=lambda _: "Here.") as hf:
        session = await hf.given("s")
        await session.send(spoken)
        await session.turn(user("And now?", timestamp=8), reply="There.")
        first, _, second, _ = await session.messages()
        assert (first["metadata"], first["turn_id"], first["timestamp"]) == (spoken["metadata"], 9, 7)
        assert (second["turn_id"], second["timestamp"]) == (10, 8)
        whole = [user("Where is it?"), assistant("Here."), user("And now?"), assistant("There.")]
        await session.send(*whole, user("Sure?", metadata={"source": "command"}))
        assert (await session.messages())[4]["metadata"] == {"source": "command"}


@through(*DOORS)
async def test_a_turn_id_that_the_log_has_already_is_renumbered(world: World) -> None:
    async with world.open(script=lambda _: "Hm.") as hf:
        session = await hf.given("s")
        for text in ("One", "Two"):
            await session.send({**CONTENTS[1], "turn_id": 7, "content": text})
        await session.turn({**CONTENTS[1], "turn_id": 7, "content": "Three"}, reply="Hm.")
        assert [one["turn_id"] for one in await session.history()] == [7, 7, 8, 8, 9, 9]


@through(*DOORS)
async def test_strategy_and_budget_hold_for_one_call(world: World) -> None:
    long = [message for _ in range(10) for message in (user("word " * 60), assistant("word " * 60))]
    async with world.open(script=lambda _: "ok") as hf:
        session = await hf.given("s", *long)
        await session.send(user("short"), budget=300, strategy="token_window")
        await session.send(user("whole"))
        short, whole = [len(one.body["messages"]) for one in hf.upstream.requests]
        assert short < 8 < whole == len(long) + 3
        with refused("invalid_request", "digets"):
            await session.send(user("none"), strategy="digets")


@through(*DOORS)
@pytest.mark.parametrize("body", [{"tools": "abc"}, {"tools": [{"function": "x"}]}, {"max_tokens": 10**6}])
async def test_a_wrong_parameter_is_named_before_anything_is_written(world: World, body: dict[str, Any]) -> None:
    async with world.open(script=["never"]) as hf:
        session = await hf.given("s")
        with refused("invalid_request", next(iter(body))):
            await session.send(user("a"), **body)
        assert await session.messages() == []
        assert hf.upstream.requests == []


@through(*DOORS)
async def test_entries_name_the_agent_that_replied(world: World) -> None:
    async with world.open("agents: {kim: {llm: default}}", script=["ok"]) as hf:
        session = await hf.create("s", agent="kim")
        await session.send(user("hi"))
        assert [one.get("agent") for one in await session.messages()] == [None, "kim"]


@through(*DOORS)
async def test_offline_is_always_the_built_in_model(world: World) -> None:
    async with world.open("agents: {kim: {llm: offline}}", script=["never"]) as hf:
        session = await hf.create("s", agent="kim")
        assert "offline model" in answer_of(await session.send(user("What do you see?")))
        assert hf.upstream.requests == []


@through(*DOORS)
async def test_an_agent_says_its_failure_message(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is stored with its source and the error, and in the next prompt. The server's log has none of the upstream's words."""
    script = [Reply(status=503, error="secret words"), "Here I am."]
    async with world.open(AGENT, script=script) as hf:
        session = await hf.create("s", agent="bot")
        answer = await session.send(user("Hi"))
        assert (answer_of(answer), answer["choices"][0]["finish_reason"]) == (SORRY, "stop")
        if world.driver != "library":
            assert answer["session"]["failure"]["code"] == "upstream_unavailable"
        assert "the agent's failure message was said" in caplog.text
        assert "secret words" not in caplog.text
        reply = (await session.messages())[-1]
        assert (reply["content"], reply["agent"]) == (SORRY, "bot")
        assert reply["metadata"] == {"source": "llm_failure", "error": "upstream_unavailable"}
        assert answer_of(await session.send(user("Hello?"))) == "Here I am."
        assert texts(hf.upstream.requests[-1].body["messages"]) == ["Hi", SORRY, "Hello?"]


@through(*DOORS)
async def test_a_reply_that_breaks_off_gets_no_failure_message(world: World) -> None:
    async with world.open(AGENT, script=[Reply(text="one two three", cut_after=2)]) as hf:
        session = await hf.create("s", agent="bot")
        with refused("upstream_protocol_error"):
            await session.send(user("Hi"))
        assert texts(await session.messages()) == ["Hi", "one "]


async def test_a_failure_message_follows_the_text_from_before_the_tools_and_is_repeated_by_its_key() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    script = [Reply(text="Let me see.", tool_calls=[("look", {})]), Reply(status=500, error="down"), "Fine."]
    async with gateway(script, AGENT, tools=[look]) as served:
        answers = [
            await served.chat("Hi", model="bot", headers={"idempotency-key": "k" * 20}, stream=False) for _ in range(2)
        ]
        for answer in answers:
            assert (answer["status"], answer_of(answer)) == (200, f"Let me see.\n\n{SORRY}")
            assert answer["session"]["failure"]["code"] == "upstream_unavailable"
        assert len(served.upstream.requests) == 2
        sent = [user("Hi"), assistant(answer_of(answers[0])), user("And now?")]
        third = await served.chat(sent, model="bot")
        assert (answer_of(third), third["session"]["reconciled"]) == ("Fine.", "continued")


@through("rest")
async def test_an_empty_request_answers_the_last_message(world: World) -> None:
    """Each time again, but once for a key. Without anything to answer it is refused, and nothing is created."""
    async with world.open(script=["Good.", "As I said."]) as hf:
        with refused("session_not_found", "nowhere"):
            await hf.session("nowhere").send()
        with refused("invalid_request", "messages", param="messages"):
            await (await hf.given("empty")).send()
        session = await hf.given("s", user("Yes, I am."))
        for answer in ("Good.", "As I said."):
            assert answer_of(await session.send()) == answer
        assert texts(await session.messages()) == ["Yes, I am.", "Good.", "As I said."]
        assert {row["id"] for row in await hf.sessions()} == {"s", "empty"}


@through("rest")
async def test_a_result_without_its_call_creates_no_session(world: World) -> None:
    async with world.open(script=["never"]) as hf:
        for first in ((), (user("Find it."), calls(("c2", "find", {})))):
            with refused("invalid_message", "the result of call 'c1' has no matching call"):
                await hf.session("s").send(*first, result("c1", "found"))
        assert await hf.sessions() == []
        assert hf.upstream.requests == []


@pytest.mark.parametrize("knows", [JOKE, HEARD, "Why did the scarecrow win"])
@pytest.mark.parametrize("named", [True, False])
async def test_a_client_continues_after_an_interruption_whatever_it_knows(knows: str, named: bool) -> None:
    """By session id or recognised: one session, and the model sees what was heard."""
    async with gateway([JOKE, "A story.", "The end."], "gateway: {single_user: true}") as served:
        await served.chat("joke?")
        await served.rest.session().interrupt(content=HEARD)
        messages = [user("joke?"), assistant(knows), user("A story!")]
        for reply in ("A story.", "The end."):
            answer = await served.chat(messages, session_id="s" if named else None)
            assert (answer["session_id"], answer["session"]["reconciled"]) == ("s", "continued")
            messages += [assistant(reply), user("And then?")]
        found = texts(await served.rest.session().messages())
        assert found == ["joke?", HEARD, "A story!", "A story.", "And then?", "The end."]
        assert texts(served.upstream.requests[-1].body["messages"]) == found[:-1]
        assert len(await served.rest.sessions()) == 1


async def test_a_library_is_used_while_it_is_open() -> None:
    for hf in (holdfast.open("sqlite://:memory:"), holdfast.connect("http://127.0.0.1:1")):
        with refused("store_closed", "async with"):
            await hf.session("s")
        async with hf:
            pass
        await hf.close()
        with refused("store_closed"):
            await hf.session("s")

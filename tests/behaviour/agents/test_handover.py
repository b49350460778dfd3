"""Agents that hand a conversation over: which one answers, with what, and what each sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import (
    Served,
    Speakers,
    World,
    answer_of,
    assistant,
    bearer,
    gateway,
    result,
    texts,
    through,
    user,
)

pytestmark = through("library", "rest")
Row = dict[str, Any]
TEAM = """
agents:
  chief: {instruction: I am chief, description: Decides., sub_agents: [finder, writer], output_key: plan}
  finder: {instruction: "I am finder {plan?}", description: Looks things up., output_key: "user:found"}
  writer: {instruction: I am writer, tools: []}
"""
DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def over(name: str, text: str | None = None, **more: Any) -> Reply:
    """Return a reply that hands the conversation over."""
    return Reply(text=text, tool_calls=[("transfer_to_agent", {"agent_name": name, **more})])


def team(world: World, lines: Row, *config: str, **settings: Any) -> tuple[Speakers, Any]:
    """Return the model, and a gateway with the team."""
    model = Speakers(lines)
    return model, world.gateway(model, *(config or (TEAM,)), **settings)


async def say(served: Served, text: str | list[Row], model: str = "chief", **fields: Any) -> Row:
    answer: Row = await served.chat(text, model=model, **fields)
    assert answer["status"] == 200, answer
    return answer


FOUND: Row = {"chief": [over("finder")], "finder": ["Found."]}
"""A first turn that ends with the finder."""


def found_then(finder: Any = (), chief: Any = (), **others: Any) -> Row:
    return {"chief": [*FOUND["chief"], *chief], "finder": [*FOUND["finder"], *finder], **others}


# -- within a turn --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@through("rest")
async def test_after_a_handover_the_other_agent_answers(world: World, stream: bool) -> None:
    """The client gets one reply; the header names the agent that began it, the body the one that ended it."""
    model, opened = team(
        world, {"chief": [over("finder", "One moment.", message="See page 3.")], "finder": ["Found it."]}
    )
    async with opened as served:
        if stream:
            events = await served.openai.chat.completions.create(
                model="chief", messages=[user("Find it")], stream=True, extra_body={"session_id": "s"}
            )
            chunks = [chunk async for chunk in events]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            session = chunks[-1].session
            assert len({chunk.id for chunk in chunks}) == 1
        else:
            answer = await say(served, "Find it")
            text, session = answer_of(answer), answer["session"]
            assert answer["headers"]["x-session-agent"] == "finder"
            assert answer["usage"]["total_tokens"] == 30
        assert (text, session["agent"], model.called) == ("One moment.\n\nFound it.", "finder", ["chief", "finder"])
        quoted = "\n".join(model.prompt("finder"))
        assert "[agent chief]: One moment." in quoted
        assert "See page 3." in quoted
        rows = await served.entries()
        assert [row.get("agent") for row in rows] == [None, "chief", "chief", "finder"]
        assert rows[-1]["metadata"] == {"preface": "One moment.\n\n"}


async def test_the_tool_lists_the_agents_that_can_take_over(world: World) -> None:
    model, opened = team(world, FOUND, tools=[shout])
    async with opened as served:
        await say(served, "Find it")
        first, second = (
            {tool["function"]["name"]: tool["function"] for tool in body["tools"]} for body in model.bodies
        )
        assert list(first) == ["shout", "transfer_to_agent"]
        assert "- finder: Looks things up.\n- writer" in first["transfer_to_agent"]["description"]
        names = second["transfer_to_agent"]["parameters"]["properties"]["agent_name"]["enum"]
        assert names == ["chief", "writer"]


async def test_an_agent_of_two_teams_can_hand_over_to_those_of_its_session(world: World) -> None:
    agents = "agents: {one: {sub_agents: [clerk]}, two: {sub_agents: [clerk]}, clerk: {instruction: I am clerk}}"
    model, opened = team(world, {"clerk": "Yes."}, agents)
    async with opened as served:
        await served.rest.create("s", agent="two")
        await say(served, "x", "clerk")
        (tool,) = model.bodies[0]["tools"]
        assert tool["function"]["parameters"]["properties"]["agent_name"]["enum"] == ["two"]


async def test_an_unknown_agent_is_reported_with_the_known_ones(world: World) -> None:
    _, opened = team(world, {"chief": [over("findr"), "Myself then."]})
    async with opened as served:
        assert answer_of(await say(served, "x")) == "Myself then."
        told = (await served.entries())[2]["content"]
        assert "there is no agent 'findr' to transfer to; possible agents: finder, writer" in told


async def test_other_calls_of_the_message_run_and_one_agent_takes_over(world: World) -> None:
    calls = [
        ("shout", {"text": "x"}),
        *[("transfer_to_agent", {"agent_name": name}) for name in ("nobody", "finder", "writer")],
    ]
    _, opened = team(world, {"chief": [Reply(tool_calls=calls)], "finder": ["Here."]}, tools=[shout])
    async with opened as served:
        assert answer_of(await say(served, "x")) == "Here."
        told = texts((await served.entries())[2:6])
        assert any("X" in text for text in told)
        assert any("finder already takes over; only one agent can" in text for text in told)


async def test_handovers_of_a_turn_are_limited(world: World) -> None:
    model, opened = team(
        world,
        {"chief": [*[over("finder")] * 6, "Enough."], "finder": over("chief")},
        TEAM,
        "gateway: {max_tool_rounds: 50}",
    )
    async with opened as served:
        assert answer_of(await say(served, "x")) == "Enough."
        assert "transferred 10 times in this turn: answer yourself now" in texts(await served.entries())[-2]
        assert len(model.called) == 12


async def test_rounds_are_counted_across_agents(world: World) -> None:
    model, opened = team(
        world, {"chief": over("finder"), "finder": over("chief")}, TEAM, "gateway: {max_tool_rounds: 1}"
    )
    async with opened as served:
        answer = await say(served, "x")
        assert answer["choices"][0]["finish_reason"] == "length"
        assert model.bodies[1]["tool_choice"] == "none"


async def test_a_call_of_a_client_tool_goes_to_the_client_and_its_result_to_the_agent(world: World) -> None:
    model, opened = team(world, {"chief": [over("finder")], "finder": [Reply(tool_calls=[("open_door", {})]), "Open."]})
    async with opened as served:
        answer = await say(served, "x", tools=[DOOR], tool_choice="required")
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "open_door"
        assert [body.get("tool_choice") for body in model.bodies] == ["required", "auto"]
        assert answer_of(await say(served, [result(call["id"], "opened")], tools=[DOOR])) == "Open."
        assert model.called[-1] == "finder"


async def test_an_agent_that_cannot_serve_the_request_does_not_take_over(world: World) -> None:
    config = TEAM.replace("tools: []", "tools: [typewriter]")
    _, opened = team(world, {"chief": [over("writer"), "Myself then."]}, config)
    async with opened as served:
        assert answer_of(await say(served, "x")) == "Myself then."
        assert "typewriter" in texts(await served.entries())[2]


@through("rest")
async def test_a_workflow_with_a_model_that_must_not_get_the_clients_key_does_not_take_over(world: World) -> None:
    agents = """
agents:
  chief: {instruction: I am chief, sub_agents: [line]}
  line: {sequence: [finder]}
  finder: {instruction: I am finder, llm: other}
"""
    model = Speakers({"chief": [over("line"), "Myself then."], "finder": "Never."})
    other: Any = (ScriptedUpstream(model), {})
    async with world.gateway(model, agents, "gateway: {upstream_auth: passthrough}", models={"other": other}) as served:
        answer = await say(served, "x", headers=bearer("sk-of-the-client"))
        assert (answer_of(answer), model.called) == ("Myself then.", ["chief", "chief"])
        assert "line cannot take over: the user's own key" in texts(model.bodies[-1]["messages"])[-1]


async def test_a_choice_of_tools_in_the_settings_of_the_next_agents_model_applies_to_its_first_call(
    world: World,
) -> None:
    """Not to its later ones, in which it could never answer."""
    agents = TEAM.replace('instruction: "I am finder', 'llm: other, instruction: "I am finder')
    model = Speakers({"chief": [over("finder")], "finder": [Reply(tool_calls=[("shout", {"text": "x"})]), "Found."]})
    models = {"other": (ScriptedUpstream(model), {"params": {"tool_choice": "required"}})}
    async with world.gateway(model, agents, models=models, tools=[shout]) as served:
        assert answer_of(await say(served, "x")) == "Found."
        assert [body.get("tool_choice") for body in model.bodies] == [None, "required", "auto"]


@pytest.mark.parametrize(
    ("config", "fields", "words"),
    [
        (TEAM, {"tools": [{"type": "function", "function": {"name": "transfer_to_agent"}}]}, "transfer_to_agent"),
        ("agents: {chief: {sub_agents: [findr], agent_tools: [x]}}", {}, "agents that do not exist: findr, x"),
        ("agents: {chief: {sequence: [a, nobody]}, a: {}}", {}, "nobody"),
    ],
)
@through("rest")
async def test_what_a_team_cannot_do_is_refused_before_anything_is_written(
    world: World, config: str, fields: Row, words: str
) -> None:
    _, opened = team(world, {}, config)
    async with opened as served:
        answer = await served.chat("x", model="chief", **fields)
        assert (answer["status"], words in answer["error"]["message"]) == (400, True), answer
        assert await served.rest.sessions() == []


@through("rest")
async def test_an_interruption_after_a_handover_leaves_the_conversation_with_the_next_agent(world: World) -> None:
    gate = Gate()
    slow = Reply(text="A long story.", hold=gate, hold_after=2)
    model, opened = team(world, {"chief": [over("finder")], "finder": [slow, "Fine."]})
    async with opened as served:
        running = asyncio.create_task(served.chat("x", model="chief"))
        await served.upstream.until(lambda: len(model.called) == 2)
        assert answer_of(await say(served, "Stop", session_queue="interrupt")) == "Fine."
        gate.open()
        assert (await running)["error"]["code"] == "turn_interrupted"
        assert model.called == ["chief", "finder", "finder"]


# -- the next turn --------------------------------------------------------------------------------


async def test_the_agent_that_spoke_last_answers_next_unless_another_is_named(world: World) -> None:
    model, opened = team(world, found_then(["More.", "Again."], writer=["A poem."]))
    async with opened as served:
        await say(served, "find")
        await say(served, "and?")
        assert answer_of(await say(served, "a poem", "writer")) == "A poem."
        await say(served, "more", "finder")
        assert model.called == ["chief", "finder", "finder", "writer", "finder"]


async def test_an_agent_below_the_named_one_continues(world: World) -> None:
    deep = """
agents:
  root: {instruction: I am root, sub_agents: [middle]}
  middle: {instruction: I am middle, sub_agents: [leaf]}
  leaf: {instruction: I am leaf}
"""
    model, opened = team(
        world, {"root": "I.", "middle": [over("leaf"), "Me."], "leaf": ["1", "2", over("middle")]}, deep
    )
    async with opened as served:
        for text, name in (("a", "middle"), ("b", "middle"), ("c", "root")):
            await say(served, text, name)
        assert model.called == ["middle", "leaf", "leaf", "leaf", "middle"]


async def test_speech_from_outside_does_not_change_the_agent(world: World) -> None:
    _, opened = team(world, found_then(["More."]))
    async with opened as served:
        await say(served, "find")
        session = served.rest.session()
        for source in ("command", "silence", "greeting"):
            await session.speak("Are you still there?", source=source, priority="APPEND")
        await session.append(assistant("Of nobody in particular."))
        assert answer_of(await say(served, "yes")) == "More."


async def test_a_rewind_a_fork_and_an_edit_have_the_agent_of_their_place(world: World) -> None:
    _, opened = team(
        world,
        {
            "chief": ["Hello.", over("finder"), "Fork.", "Edited.", "Rewound."],
            "finder": ["Found.", "Late fork.", "Revived."],
        },
    )
    async with opened as served:
        await say(served, "hi")
        await say(served, "find")
        session = served.rest.session()
        early, late = await session.fork(0, id="early"), await session.fork(1, id="late")
        assert answer_of(await say(served, "?", session_id=early.id)) == "Fork."
        assert answer_of(await say(served, "?", session_id=late.id)) == "Late fork."
        begun = [user("hi"), assistant("Hello.")]
        assert answer_of(await say(served, [*begun, user("no, wait")])) == "Edited."
        assert answer_of(await say(served, [*begun, user("find"), assistant("Found."), user("well")])) == "Revived."
        await session.rewind(0)
        assert answer_of(await say(served, "still you?")) == "Rewound."


@through("rest")
async def test_a_regenerated_reply_comes_from_the_same_agent(world: World) -> None:
    model, opened = team(world, found_then(["Found, otherwise."]))
    async with opened as served:
        await say(served, "find")
        again = await say(served, "find", session_mode="transcript")
        assert (answer_of(again), again["session"]["reconciled"]) == ("Found, otherwise.", "regenerated")
        assert model.called == ["chief", "finder", "finder"]


@pytest.mark.parametrize("store", ["file", "postgres", "mysql"])
@through("rest")
async def test_a_handover_that_was_cut_is_completed_by_another_server(world: World, store: str) -> None:
    model = Speakers({"chief": [over("finder")], "finder": [Reply(status=500), "Found after all.", "More."]})
    async with world.gateway(model, TEAM, store=store) as one:
        assert (await one.chat("find", model="chief"))["status"] == 502
        async with world.gateway(model, TEAM, store=one.store) as two:
            assert answer_of(await say(two, "find")) == "Found after all."
            assert answer_of(await say(one, "and?")) == "More."
    assert model.called == ["chief", "finder", "finder", "finder"]


@through("rest")
async def test_a_keyed_retry_returns_the_same_reply_and_agent(world: World) -> None:
    model, opened = team(world, FOUND)
    async with opened as served:
        answers = [await say(served, "find", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [(answer_of(one), one["session"]["agent"]) for one in answers] == [("Found.", "finder")] * 2
        assert len(model.called) == 2


@through("rest")
async def test_a_client_with_its_whole_history_reaches_the_current_agent(world: World) -> None:
    _, opened = team(world, found_then(["More."]))
    async with opened as served:
        await say(served, "find", session_id=None)
        history = [user("find"), assistant("Found."), user("and?")]
        answer = await say(served, history, session_id=None)
        assert (answer_of(answer), answer["session"]["agent"]) == ("More.", "finder")
        assert len(await served.rest.sessions()) == 1


# -- state ----------------------------------------------------------------------------------------


async def test_replies_are_stored_under_the_output_key_of_their_agent(world: World) -> None:
    """Text next to calls does not count. The next instruction can use it."""
    model, opened = team(world, {"chief": ["First look.", over("finder", "Ask her.")], "finder": ["Found it."]})
    async with opened as served:
        await say(served, "plan")
        await say(served, "go")
        assert await served.rest.session().state() == {"plan": "First look.", "user:found": "Found it."}
        assert model.bodies[-1]["messages"][0]["content"] == "I am finder First look."


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        (Reply(text="A long way to go", cut_after=3), {}),
        (Reply(text="Wait.", tool_calls=[("open_door", {})]), {"tools": [DOOR]}),
        (Reply(status=503), {}),
        (Reply(text="Cut short", finish_reason="length"), {}),
    ],
    ids=["cut", "client tool", "failed", "truncated"],
)
async def test_only_complete_replies_are_stored(world: World, reply: Reply, fields: Row) -> None:
    config = "agents: {chief: {instruction: I am chief, output_key: plan, failure_message: Sorry.}}"
    _, opened = team(world, {"chief": [reply]}, config)
    async with opened as served:
        await served.chat("x", model="chief", **fields)
        assert await served.rest.session().state() == {}


async def test_a_session_begins_with_the_state_of_its_agent(world: World) -> None:
    """Whatever creates it. Shared keys are written only if they are missing, and what a request gives goes first."""
    agents = {"a": {"state": {"topic": "kelp", "user:language": "en"}}, "b": {}}
    async with world.gateway(lambda _: "ok", f"agents: {json.dumps(agents)}") as served:
        await served.chat("x", "chat", model="a")
        await served.rest.change_shared_state({"user:language": "de"}, "default")
        await served.rest.create("rest", agent="a", state={"topic": "fish"})
        await served.chat("x", "other", model="b")
        assert await served.rest.session("chat").state() == {"topic": "kelp", "user:language": "de"}
        assert await served.rest.session("rest").state() == {"topic": "fish", "user:language": "de"}
        assert await served.rest.session("other").state() == {"user:language": "de"}


@through("rest")
async def test_the_list_of_models_has_the_descriptions_of_agents(world: World) -> None:
    _, opened = team(world, {})
    async with opened as served:
        rows = {row["id"]: row for row in (await served.http.get("/v1/models")).json()["data"]}
        assert rows["finder"]["description"] == "Looks things up."
        assert "description" not in rows["writer"]


@pytest.mark.parametrize("finder", ["Found.", Reply(status=500)], ids=["answered", "failed"])
@pytest.mark.parametrize("line", ["", "  line: {sequence: [finder]}"], ids=["gone", "part of a workflow"])
async def test_the_conversation_of_an_agent_that_was_removed_returns_to_the_root(
    world: World, finder: Any, line: str
) -> None:
    model = Speakers({"chief": [over("finder"), "I am back."], "finder": [finder]})
    async with world.gateway(model, TEAM, store="file") as served:
        await served.chat("find", model="chief")
        config = TEAM.replace("[finder, writer]", "[writer, line]" if line else "[writer]") + line
        async with world.gateway(model, config, store=served.store) as later:
            assert answer_of(await say(later, "thanks")) == "I am back."


async def test_a_turn_of_a_program_belongs_to_the_agent_that_has_the_conversation(world: World) -> None:
    _, opened = team(world, FOUND)
    async with opened as served:
        await say(served, "find")
        session = await served.native.session("s")
        async with session.turn("How tall?") as turn:
            assert turn.agent == "finder"
            assert turn.messages[0]["content"].startswith("I am finder")
            turn.add("Up to 60 m.")
        assert (await served.rest.session().state())["user:found"] == "Up to 60 m."
        assert (await served.entries())[-1]["agent"] == "finder"


async def test_a_reply_that_is_too_long_for_the_state_is_in_the_log_only(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * 300_000
    _, opened = team(world, {"chief": [long, "short"]})
    async with opened as served:
        assert answer_of(await say(served, "x")) == long
        assert "a reply could not be stored under its agent's output_key" in caplog.text
        assert texts(await served.entries())[-1] == long
        assert await served.rest.session().state() == {}
        await say(served, "y")
        assert await served.rest.session().state() == {"plan": "short"}


async def test_an_ended_session_begins_again_with_the_state_and_greeting_of_its_agent(world: World) -> None:
    agents = {"a": {"state": {"name": "Ada"}, "greeting": "Hello {name}."}}
    async with world.gateway(lambda _: "ok", f"agents: {json.dumps(agents)}", "sessions: {ttl: 1m}") as served:
        await served.rest.create(agent="a")
        await served.rest.session().change_state(name="Bob")
        served.clock.now += 60_000
        await served.rest.create(agent="a")
        assert await served.rest.session().state() == {"name": "Ada"}
        assert texts(await served.entries()) == ["Hello Ada."]


async def test_an_agent_does_not_see_what_another_one_thought() -> None:
    thought = {"type": "thinking", "thinking": "They will never pay.", "signature": "s"}
    said = [thought, {"type": "text", "text": "It costs nine."}]
    async with gateway((), "agents: {seller: {}, clerk: {}}") as served:
        session = await served.rest.given("s", user("How much?"), assistant(said, agent="seller"), user("Fine."))
        for agent, knows in (("seller", True), ("clerk", False)):
            sent = str((await session.context(agent=agent, dialect="anthropic"))["messages"])
            assert ("It costs nine." in sent, "never pay" in sent) == (True, knows)

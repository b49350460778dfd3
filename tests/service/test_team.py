"""Handovers between agents within a turn: which agent answers, with what, and what each sees."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.agents.team import make_transfer_tool
from holdfast.domain.session import TRANSFER
from holdfast.errors import InvalidRequest
from holdfast.limits import TRANSFERS
from holdfast.tools.tool import ToolLimits
from holdfast.turns.respond import respond
from tests.service.scripted_model import REF
from tests.service.team_kit import TEAM, hand_over, open_team
from tests.service.tools_kit import THEIRS, content, make_reply, shout


async def test_after_a_handover_the_other_agent_answers() -> None:
    """With its own model, instruction, tools and view; the client gets one reply."""
    async with open_team(
        {"coordinator": [make_reply("One moment.", hand_over("researcher"))], "researcher": [make_reply("Found it.")]}
    ) as bench:
        turn = bench.turn("find it")
        reply = [chunk async for chunk in respond(turn)]
        assert bench.told_by.order == ["coordinator", "researcher"]
        assert bench.told_by.prompt(0)[0] == ("system", "You coordinate.")
        assert bench.told_by.prompt(1)[0] == ("system", "You research.")
        assert turn.summarize()["agent"] == turn.agent == "researcher"
        text = "".join(choice["delta"].get("content") or "" for chunk in reply for choice in chunk["choices"])
        assert text == "One moment.\n\nFound it."
        assert reply[-1]["usage"]["total_tokens"] == 2 * 15
        assert len({chunk["id"] for chunk in reply}) == 1


async def test_next_agent_gets_the_text_and_message_of_the_handover() -> None:
    async with open_team(
        {
            "coordinator": [make_reply("Hm.", hand_over("researcher", message="Look at page 3."))],
            "researcher": [make_reply("Found it.")],
        }
    ) as bench:
        await bench.ask("find it")
        told = str(bench.told_by.prompt()[-1][1])
        assert bench.told_by.prompt()[-1][0] == "user"
        assert "Hm." in told
        assert "Look at page 3." in told
        assert not any("tool_calls" in one for one in bench.told_by.asked[-1][1]["messages"])


async def test_tool_lists_the_reachable_agents() -> None:
    async with open_team(
        {"coordinator": [make_reply(None, hand_over("researcher"))], "researcher": [make_reply("ok")]}, shout
    ) as bench:
        await bench.ask("x")
        first, second = (request["tools"] for _, request in bench.told_by.asked)
        assert [one["function"]["name"] for one in first] == ["shout", TRANSFER]
        told = first[-1]["function"]["description"]
        assert "- researcher: Looks things up.\n- writer" in told
        assert second[-1]["function"]["parameters"]["properties"]["agent_name"]["enum"] == ["coordinator", "writer"]


async def test_text_before_a_handover_is_a_preface_of_the_reply() -> None:
    async with open_team(
        {"coordinator": [make_reply("Hm.", hand_over("writer"))], "writer": [make_reply("A poem.")]}
    ) as bench:
        assert content(await bench.ask("write")) == "Hm.\n\nA poem."
        assert (await bench.log())[-1].metadata == {"preface": "Hm.\n\n"}


async def test_unknown_agent_name_is_reported_with_the_known_ones() -> None:
    async with open_team(
        {"coordinator": [make_reply(None, hand_over("resercher")), make_reply("Myself then.")]}
    ) as bench:
        assert content(await bench.ask("x")) == "Myself then."
        log = await bench.log()
        assert (
            "there is no agent 'resercher' to transfer to; possible agents: researcher, writer" in log[2].message.text
        )
        assert (log[2].metadata, log[3].agent) == (None, "coordinator")


async def test_other_calls_of_the_message_run_and_only_one_agent_takes_over() -> None:
    calls = [("a", "shout", {"text": "x"}), hand_over("researcher", "b"), hand_over("writer", "c")]
    async with open_team(
        {"coordinator": [make_reply(None, *calls)], "researcher": [make_reply("Here.")]}, shout
    ) as bench:
        assert content(await bench.ask("x")) == "Here."
        told = {entry.message.tool_call_id: entry for entry in await bench.log() if entry.message.role == "tool"}
        assert told["a"].message.text == "X"
        assert (told["b"].metadata, told["c"].metadata) == ({"transfer": "researcher"}, None)
        assert "researcher already takes over; only one agent can" in told["c"].message.text
        assert all(entry.agent == "coordinator" for entry in told.values())


async def test_unknown_name_in_a_first_call_does_not_block_a_valid_second_one() -> None:
    async with open_team(
        {
            "coordinator": [make_reply(None, hand_over("x", "a"), hand_over("writer", "b"))],
            "writer": [make_reply("Here.")],
        }
    ) as bench:
        assert content(await bench.ask("x")) == "Here."


async def test_number_of_handovers_in_a_turn_is_limited() -> None:
    """At the limit the current agent must answer, and the tool result says so."""
    there, back = make_reply(None, hand_over("researcher")), make_reply(None, hand_over("coordinator"))
    scripts = {"coordinator": [there] * 6 + [make_reply("Enough.")], "researcher": [back] * 6}
    async with open_team(scripts, tool_limits=ToolLimits(rounds=50)) as bench:
        assert content(await bench.ask("x")) == "Enough."
        log = await bench.log()
        assert sum("transfer" in (entry.metadata or {}) for entry in log) == TRANSFERS == 10
        assert f"transferred {TRANSFERS} times in this turn: answer yourself now" in log[-2].message.text


async def test_rounds_are_counted_across_agents() -> None:
    scripts = {
        "coordinator": [make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply(None, hand_over("coordinator"))],
    }
    async with open_team(scripts, tool_limits=ToolLimits(rounds=1)) as bench:
        assert "called tools 1 times" in content(await bench.ask("x"))
        assert bench.told_by.asked[1][1]["tool_choice"] == "none"


async def test_client_tools_are_passed_on_but_forced_tool_choice_is_not() -> None:
    """A call of a client tool by the next agent is returned to the client as usual."""
    scripts: dict[str, Any] = {
        "coordinator": [make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply(None, ("d", "open_door", {})), make_reply("Open.")],
    }
    async with open_team(scripts) as bench:
        body = {"tools": THEIRS, "tool_choice": "required"}
        completion = await bench.ask("x", body=body)
        assert [request.get("tool_choice") for _, request in bench.told_by.asked] == ["required", "auto"]
        assert "open_door" in bench.told_by.tools(1)
        (call,) = completion["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "open_door"
        reply = await bench.ask({"role": "tool", "tool_call_id": call["id"], "content": "opened"}, body=body)
        assert (content(reply), bench.told_by.order[-1]) == ("Open.", "researcher")


async def test_tool_choice_of_the_next_agents_llm_applies_to_its_first_call() -> None:
    scripts: dict[str, Any] = {
        "coordinator": [make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply(None, ("a", "shout", {"text": "x"})), make_reply("ok")],
    }
    async with open_team(scripts, shout) as bench:
        roster = bench.hf.roster
        roster.llms["researcher"] = msgspec.structs.replace(
            roster.llms["researcher"], params={"tool_choice": "required"}
        )
        await bench.ask("x")
        assert [request.get("tool_choice") for _, request in bench.told_by.asked] == [None, "required", "auto"]


async def test_result_of_a_client_call_next_to_a_handover_goes_to_the_next_agent() -> None:
    scripts: dict[str, Any] = {
        "coordinator": [make_reply(None, hand_over("researcher", "t"), ("d", "open_door", {}))],
        "researcher": [make_reply("Open.")],
    }
    async with open_team(scripts) as bench:
        completion = await bench.ask("x", body={"tools": THEIRS})
        assert [call["id"] for call in completion["choices"][0]["message"]["tool_calls"]] == ["d"]
        assert bench.told_by.order == ["coordinator"]
        reply = await bench.ask({"role": "tool", "tool_call_id": "d", "content": "opened"}, body={"tools": THEIRS})
        assert (content(reply), bench.told_by.order) == ("Open.", ["coordinator", "researcher"])


async def test_agent_that_cannot_serve_the_request_does_not_take_over() -> None:
    lame = {**TEAM, "writer": msgspec.structs.replace(TEAM["writer"], tools=("typewriter",))}
    async with open_team(
        {"coordinator": [make_reply(None, hand_over("writer")), make_reply("Myself.")]}, agents=lame
    ) as bench:
        assert content(await bench.ask("x")) == "Myself."
        assert (
            "writer cannot take over: the agent's tools typewriter do not exist" in (await bench.log())[2].message.text
        )
        with pytest.raises(InvalidRequest, match="typewriter"):
            await bench.ask("x", agent="writer")


async def test_no_other_tool_may_have_the_name_of_the_handover_tool() -> None:
    theirs = {"type": "function", "function": {"name": TRANSFER, "parameters": {"type": "object"}}}
    async with open_team({}) as bench:
        with pytest.raises(
            InvalidRequest, match="tools\\[0\\] has the name 'transfer_to_agent' of a tool that runs here"
        ):
            await bench.ask("x", body={"tools": [theirs]})
        assert await bench.log() == []
        with pytest.raises(InvalidRequest, match="two tools are named 'transfer_to_agent', one of them built in"):
            bench.hf.roster.find_responder(agent="coordinator").tools.add(make_transfer_tool([TEAM["writer"]]))


async def test_agent_with_unknown_sub_agents_is_rejected_before_anything_is_written() -> None:
    async with open_team({}, agents={"a": msgspec.structs.replace(TEAM["coordinator"], name="a")}) as bench:
        with pytest.raises(InvalidRequest, match="agent 'a' refers to agents that do not exist: researcher, writer"):
            await bench.ask("x", agent="a")
        assert await bench.log() == []


async def test_key_of_the_caller_is_only_sent_to_its_upstream() -> None:
    """An agent whose model is at another upstream does not get it; one at the same upstream does."""
    async with open_team({"coordinator": [make_reply(None, hand_over("researcher")), make_reply("Myself.")]}) as bench:
        assert content(await bench.ask("x", headers={"authorization": "Bearer theirs"})) == "Myself."
        assert "the user's own key may not be sent" in (await bench.log())[2].message.text
    async with open_team(
        {"coordinator": [make_reply(None, hand_over("pipeline")), make_reply("Myself.")]}, agents=PIPELINE
    ) as bench:
        assert content(await bench.ask("x", headers={"authorization": "Bearer theirs"})) == "Myself."
    near = {**TEAM, "researcher": msgspec.structs.replace(TEAM["researcher"], llm="coordinator")}
    async with open_team(
        {"coordinator": [make_reply(None, hand_over("researcher")), make_reply("Found.")]}, agents=near
    ) as bench:
        await bench.ask("x", headers={"authorization": "Bearer theirs"})
        assert (await bench.agents())[-1] == "researcher"


async def test_interruption_after_a_handover_leaves_the_conversation_with_the_next_agent() -> None:
    """The partial reply is stored."""
    scripts: dict[str, Any] = {
        "coordinator": [make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply("Let me think about it"), make_reply("Back.")],
    }
    async with open_team(scripts) as bench:
        heard: list[str] = []
        chunks = respond(bench.turn("x"))
        async for chunk in chunks:
            heard += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
            if "think" in "".join(heard):
                break
        await chunks.aclose()
        last = (await bench.log())[-1]
        assert (last.agent, (last.metadata or {}).get("interrupted")) == ("researcher", True)
        assert content(await bench.ask("well?")) == "Back."


# -- to a workflow -----------------------------------------------------------------------

PIPELINE = {
    "coordinator": Agent(name="coordinator", llm="coordinator", sub_agents=("pipeline", "panel")),
    "pipeline": Agent(name="pipeline", sequence=("draft", "polish")),
    "panel": Agent(name="panel", parallel=("pro", "contra")),
    **{name: Agent(name=name, llm=name, instruction=f"You {name}.") for name in ("draft", "polish", "pro", "contra")},
}


async def test_workflow_takes_over_and_the_next_turn_belongs_to_the_root() -> None:
    """Text before the handover is part of the one reply, and agents of a workflow hand nothing over."""
    scripts: dict[str, Any] = {
        "coordinator": [make_reply("Well.", hand_over("pipeline")), make_reply("I again.")],
        "draft": [make_reply("A draft.")],
        "polish": [make_reply("Polished.")],
    }
    async with open_team(scripts, agents=PIPELINE) as bench:
        completion = await bench.ask("write", body={"tool_choice": "required", "tools": THEIRS})
        assert content(completion) == "Well.\n\nPolished."
        assert completion["usage"]["total_tokens"] == 3 * 15
        assert bench.told_by.order == ["coordinator", "draft", "polish"]
        assert [TRANSFER in bench.told_by.tools(at) for at in range(3)] == [True, False, False]
        assert [request.get("tool_choice") for _, request in bench.told_by.asked] == ["required", "auto", "auto"]
        assert (await bench.log())[-1].metadata["preface"] == "Well.\n\n"  # type: ignore[index]
        history = [{"role": "user", "content": "write"}, {"role": "assistant", "content": "Well.\n\nPolished."}]
        assert content(await bench.ask(*history, {"role": "user", "content": "thanks"})) == "I again."
        assert [entry.retired_by for entry in await bench.hf.store.entries(REF, retired=True)] == [None] * len(
            await bench.log()
        )


async def test_parallel_agents_can_take_over() -> None:
    scripts: dict[str, Any] = {
        "coordinator": [make_reply("Well.", hand_over("panel")), make_reply("I again.")],
        "pro": [make_reply("Yes.")],
        "contra": [make_reply("No.")],
    }
    async with open_team(scripts, agents=PIPELINE) as bench:
        whole = "Well.\n\n**pro**\n\nYes.\n\n**contra**\n\nNo."
        assert content(await bench.ask("judge")) == whole
        history = [{"role": "user", "content": "judge"}, {"role": "assistant", "content": whole}]
        assert content(await bench.ask(*history, {"role": "user", "content": "thanks"})) == "I again."
        assert len(await bench.log()) == len(await bench.hf.store.entries(REF, retired=True))

"""Agents that are called like tools: each call is a turn in a session of its own."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from holdfast import ToolContext
from holdfast.testing import Gate, Reply
from tests.behaviour.kit import (
    Served,
    Speakers,
    World,
    answer_of,
    assistant,
    bearer,
    refused,
    texts,
    through,
    until,
    user,
)

pytestmark = through("library", "rest")
Row = dict[str, Any]
PAIR = """
agents:
  chief: {instruction: I am chief, agent_tools: [helper], tools: []}
  helper: {instruction: I am helper, description: Makes it short., greeting: Welcome!}
"""
DOWN = Reply(status=503, error="down")
DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}


def ask(*requests: Any, name: str = "helper") -> Reply:
    """Return a reply that calls an agent."""
    return Reply(tool_calls=[(name, {"request": request}) for request in requests])


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def pair(world: World, lines: Row, config: str = PAIR, **settings: Any) -> tuple[Speakers, Any]:
    model = Speakers(lines)
    return model, world.gateway(model, config, **{"store": "file", **settings})


async def say(served: Served, text: str = "Go", **fields: Any) -> Any:
    answer = await served.chat(text, **{"model": "chief", **fields})
    assert answer["status"] == 200, answer
    return answer


async def children(served: Served) -> list[Row]:
    return [row for row in await served.rest.sessions() if "parent" in row["metadata"]]


async def results(served: Served) -> list[Row]:
    return [row for row in await served.entries() if row["role"] == "tool"]


async def test_a_call_runs_in_a_linked_session_of_its_own(world: World) -> None:
    """Its reply is the result. It has its own tools, no greeting and none of the client's tools, and is closed afterwards."""
    helper = [Reply(tool_calls=[("shout", {"text": "kelp"})]), "Kelp."]
    model, opened = pair(
        world, {"chief": [ask("Shorten: kelp is a plant."), "In short: kelp."], "helper": helper}, tools=[shout]
    )
    async with opened as served:
        answer = await say(served, tools=[DOOR])
        assert (answer_of(answer), answer["usage"]["total_tokens"]) == ("In short: kelp.", 30)
        tool = next(one["function"] for one in model.bodies[0]["tools"] if one["function"]["name"] == "helper")
        assert (tool["description"], list(tool["parameters"]["properties"])) == ("Makes it short.", ["request"])
        assert model.tools(1) == ["shout"]
        (child,) = await children(served)
        (made,) = await results(served)
        assert (made["content"], made["metadata"]) == ("Kelp.", {"child": child["id"]})
        assert child["metadata"] == {"parent": {"session_id": "s", "seq": 1, "call_id": made["tool_call_id"]}}
        assert (child["agent"], child["status"], child["id"].endswith("~call")) == ("helper", "closed", True)
        assert texts(await served.entries(child["id"])) == ["Shorten: kelp is a plant.", None, "KELP", "Kelp."]
        assert (child["usage"]["calls"], (await served.rest.session().info())["usage"]["calls"]) == (2, 2)


async def test_its_state_begins_as_a_copy_and_its_changes_come_back(world: World) -> None:
    """Keys of the user are shared; `temp:` keys are only passed down."""
    seen: list[Row] = []

    def note(ctx: ToolContext) -> str:
        """Note it."""
        seen.append({key: ctx.state.get(key) for key in ("kept", "gone", "count", "user:seen", "temp:hint")})
        ctx.state["found"] = {"pages": 3}
        ctx.state.increment("count")
        ctx.state.increment("user:seen")
        ctx.state["temp:hint"] = "changed"
        del ctx.state["gone"]
        return "ok"

    def hint(ctx: ToolContext) -> str:
        """Leave a hint."""
        ctx.state["temp:hint"] = "look"
        return "ok"

    def peek(ctx: ToolContext) -> Any:
        """Look."""
        return {key: ctx.state.get(key) for key in ("count", "gone", "temp:hint", "user:seen")}

    config = PAIR.replace("tools: []", "tools: [hint, peek]").replace(
        "greeting: Welcome!", "tools: [note], state: {mine: 1}"
    )
    lines = {
        "chief": [Reply(tool_calls=[("hint", {})]), ask("Go."), Reply(tool_calls=[("peek", {})]), "Done."],
        "helper": [Reply(tool_calls=[("note", {})]), "Noted."],
    }
    _, opened = pair(world, lines, config, tools=[note, hint, peek])
    async with opened as served:
        await served.rest.create("s", state={"kept": "k", "gone": "g", "count": 2, "user:seen": 1})
        await say(served)
        assert seen == [{"kept": "k", "gone": "g", "count": 2, "user:seen": 1, "temp:hint": "look"}]
        state = {"kept": "k", "count": 3, "found": {"pages": 3}, "user:seen": 2}
        assert await served.rest.session().state() == state
        peeked = json.loads((await results(served))[-1]["content"])
        assert peeked == {"count": 3, "gone": None, "temp:hint": "look", "user:seen": 2}


@pytest.mark.parametrize(
    ("config", "words"),
    [(PAIR, "503"), (PAIR.replace("greeting: Welcome!", "failure_message: Sorry!"), "the agent did not answer")],
    ids=["error", "failure message"],
)
async def test_an_agent_that_fails_is_an_error_result(world: World, config: str, words: str) -> None:
    _, opened = pair(world, {"chief": [ask("Go."), "Never mind."], "helper": DOWN}, config)
    async with opened as served:
        assert answer_of(await say(served)) == "Never mind."
        (made,) = await results(served)
        assert words in made["content"]
        assert "Sorry!" not in made["content"]
        (child,) = await children(served)
        assert (child["status"], made["metadata"]["child"]) == ("closed", child["id"])


@pytest.mark.parametrize("arguments", [{}, {"request": " "}, {"request": 1}, {"wanted": "x"}])
async def test_a_call_without_a_request_makes_no_session(world: World, arguments: Row) -> None:
    _, opened = pair(world, {"chief": [Reply(tool_calls=[("helper", arguments)]), "Ok."]})
    async with opened as served:
        await say(served)
        assert "request is missing" in (await results(served))[0]["content"]
        assert await children(served) == []


async def test_calls_are_nested_at_most_five_levels_deep(world: World) -> None:
    names = [f"a{at}" for at in range(7)]
    agents: Row = {
        name: {"instruction": f"I am {name}", "agent_tools": [after], "tools": []} for name, after in pairwise(names)
    }
    agents["a6"] = {"instruction": "I am a6", "tools": []}
    lines = {name: [ask("deeper", name=after), f"{name} is done."] for name, after in pairwise(names)}
    _, opened = pair(world, lines, f"agents: {json.dumps(agents)}")
    async with opened as served:
        assert answer_of(await say(served, model="a0")) == "a0 is done."
        made = await children(served)
        assert len(made) == 5
        deepest = next(row for row in made if row["agent"] == "a5")
        assert any("nested 5 levels deep" in str(text) for text in texts(await served.entries(deepest["id"])))
        await served.rest.session().delete()
        assert await served.rest.sessions() == []


async def test_several_calls_run_at_the_same_time(world: World) -> None:
    gate = Gate()
    model, opened = pair(world, {"chief": [ask(*"abcd"), "All."], "helper": Reply(text="Short.", hold=gate)})
    async with opened as served:
        running = asyncio.create_task(say(served))
        await served.upstream.until(lambda: len(model.called) == 5)
        gate.open()
        assert answer_of(await running) == "All."
        made = {row["id"] for row in await children(served)}
        assert (len(made), {row["metadata"]["child"] for row in await results(served)}) == (4, made)


@through("rest")
async def test_the_session_of_a_call_goes_with_its_caller_even_if_another_one_has_the_name(world: World) -> None:
    gate = Gate()
    model, opened = pair(world, {"chief": [ask("Go."), "Never."], "helper": Reply(text="Done.", hold=gate)})
    async with opened as served:
        running = asyncio.create_task(served.chat("Go", model="chief"))
        await served.upstream.until(lambda: len(model.called) == 2)
        await served.rest.session().delete()
        await served.rest.given("s", user("Another."))
        gate.open()
        assert (await running)["status"] == 404
        assert [row["id"] for row in await served.rest.sessions()] == ["s"]


@through("rest")
async def test_the_budget_of_the_callers_key_limits_the_called_agent(world: World) -> None:
    rounds = [Reply(tool_calls=[("shout", {"text": f"{at} " + "kelp " * 100})]) for at in range(6)]
    config = PAIR.replace("description: Makes", "context: {strategy: token_window}, description: Makes")
    model, opened = pair(world, {"chief": [ask("Go."), "Ok."], "helper": [*rounds, "Done."]}, config, tools=[shout])
    async with opened as served:
        await say(served, headers=bearer(await served.create_key(budget=600)))
        seen = [text for text in model.prompt("helper") if "KELP" in text]
        assert 1 <= len(seen) < 6


async def test_a_client_that_goes_away_ends_the_call(world: World) -> None:
    gate = Gate()
    model, opened = pair(world, {"chief": [ask("Go."), "Never."], "helper": Reply(text="Never.", hold=gate)})
    async with opened as served:
        running = asyncio.create_task(say(served))
        await served.upstream.until(lambda: len(model.called) == 2)
        running.cancel()
        await until(lambda: served.upstream.disconnects == 1)

        async def closed() -> bool:
            return [row["status"] for row in await children(served)] == ["closed"]

        await until(closed)
        await until(lambda: results(served))
        (made,) = await results(served)
        assert "cancelled" in made["content"]


@through("rest")
async def test_requests_without_a_session_never_find_the_session_of_a_call(world: World) -> None:
    _, opened = pair(world, {"chief": [ask("Hi"), "Ok."], "helper": "Hello!"}, PAIR.replace(", greeting: Welcome!", ""))
    async with opened as served:
        await say(served)
        (child,) = await children(served)
        history = [user("Hi"), assistant("Hello!"), user("And now?")]
        answer = await served.chat(history, None, model="helper")
        assert (answer["session_id"] == child["id"], answer["session"]["reconciled"]) == (False, "new")
        assert (await served.chat("Go on", child["id"], model="helper"))["status"] in (200, 409)


@pytest.mark.parametrize("how", ["session", "call", "result"])
async def test_the_session_of_a_call_is_deleted_with_what_names_it(world: World, how: str) -> None:
    """Not with a fork or an imported copy. Erasing the call or its result deletes it, too, because it has the same text."""
    _, opened = pair(world, {"chief": [ask("Go."), "Ok."], "helper": "Done."})
    async with opened as served:
        await say(served)
        (child,) = await children(served)
        session = served.rest.session()
        fork = await session.fork(0, id="f")
        if how == "session":
            await served.rest.import_session(await session.export(retired=True, calls=True), session_id="copy")
            for one in (fork, served.rest.session("copy")):
                await one.delete()
            assert (await served.rest.session(child["id"]).info())["id"] == child["id"]
            assert (await session.delete())["sessions"] == 2
        else:
            await fork.erase(1 if how == "call" else 2)
        with refused("session_not_found"):
            await served.rest.session(child["id"]).info()


async def test_a_workflow_can_be_called_too(world: World) -> None:
    config = """
agents:
  chief: {instruction: I am chief, agent_tools: [panel], tools: []}
  panel: {parallel: [friend, critic]}
  friend: {instruction: I am friend}
  critic: {instruction: I am critic}
"""
    _, opened = pair(
        world, {"chief": [ask("Kelp?", name="panel"), "Done."], "friend": "Nice.", "critic": "Short."}, config
    )
    async with opened as served:
        assert answer_of(await say(served)) == "Done."
        assert [row["content"] for row in await results(served)] == ["**friend**\n\nNice.\n\n**critic**\n\nShort."]

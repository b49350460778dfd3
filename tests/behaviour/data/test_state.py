"""State: values next to the log, shared by session, user or app."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast import ToolContext, tool_from
from holdfast.errors import InvalidRequest
from holdfast.testing import Reply
from tests.behaviour.kit import World, refused, texts, through, until, user
from tests.behaviour.kit.data import Files, State

HERE = ("library", "connect", "rest")
NATIVE = ("library", "connect")


@through(*HERE)
async def test_concurrent_changes_of_two_sessions_are_all_kept(world: World) -> None:
    async with world.open() as hf:
        for name in ("s", "t"):
            await hf.given(name, user("Hi."), user="ada")
        states = [State(hf, name, "ada") for name in ("s", "t")]
        one = [state.increment("user:visits") for _ in range(5) for state in states]
        two = [state.set(**{f"user:{at}{number}": number}) for number in range(5) for at, state in enumerate(states)]
        await asyncio.gather(*one, *two)
        found = await State(hf, user="ada").all()
        assert found.pop("user:visits") == 10
        assert found == {f"user:{at}{number}": number for number in range(5) for at in range(2)}


@through(*NATIVE)
async def test_one_value_is_read_by_its_key(world: World) -> None:
    async with world.open() as hf:
        state = (await hf.native.session("s", user_id="ada")).state
        await state.set("prefs", {"a": [1]})
        value = await state["prefs"]
        value["a"].append(2)
        assert await state.get("prefs") == {"a": [1]}
        assert (await state.get("no"), await state.get("no", 7)) == (None, 7)
        with pytest.raises(KeyError, match="no"):
            await state["no"]


@through(*HERE)
async def test_lists_and_exports_have_only_the_sessions_own_keys(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Hi."))
        await State(hf, "s", "default").set(**{"a": 1, "user:a": 2, "app:a": 3})
        assert (await session.export())["state"] == {"a": 1}
        assert [row["state"] for row in await hf.sessions()] == [{"a": 1}]


@through(*HERE)
async def test_state_of_a_deleted_session_is_gone_and_shared_state_stays(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Hi."), user="ada")
        state = State(hf, "s", "ada")
        await state.set(**{"own": 1, "user:a": 1})
        await session.delete()
        with refused("session_not_found"):
            await state.all()
        with refused("session_not_found"):
            await state.set(**{"user:a": 2, "temp:a": 2})
        await hf.given("s", user("Hi."), user="ada")
        assert await state.all() == {"user:a": 1}


@through(*HERE)
async def test_secrets_in_state_are_masked_before_they_are_stored(world: World) -> None:
    secret = "sk-" + "a1B2c3D4" * 6
    async with world.open("redaction: {enabled: true}") as hf:
        await hf.given("s", user("Hi."), user="ada")
        await State(hf, "s", "ada").set(**{"a": secret, "user:a": {"b": [secret]}})
        await State(hf, user="ada").append("user:l", secret)
        await State(hf).set(**{"app:a": secret})
        found = json.dumps(await State(hf, "s", "ada").all())
        assert secret not in found
        assert found.count("[REDACTED") == 4


# -- in a turn -----------------------------------------------------------------------


@through("library", "rest")
async def test_tools_change_all_scopes_and_see_each_others_changes(world: World) -> None:
    seen: list[Any] = []

    async def start(context: ToolContext) -> str:
        context.state["topic"] = "moon"
        context.state["user:theme"] = "dark"
        context.state["temp:step"] = {"n": 1}
        context.state.increment("app:runs")
        context.state.append("user:places", "Lisbon")
        return "started"

    async def look(context: ToolContext) -> str:
        seen.append([context.state.get(key) for key in ("topic", "temp:step", "user:places", "app:runs")])
        return "looked"

    calls = [Reply(tool_calls=[("start", {})]), Reply(tool_calls=[("look", {})]), "Done."]
    again = [Reply(tool_calls=[("look", {})]), "Done."]
    tools = [tool_from(start), tool_from(look)]
    async with world.open(script=[*calls, *again], tools=tools) as hf:
        await hf.session("s", "ada").send(user("Go."))
        await hf.session("s", "ada").send(user("Again."))
        assert seen == [["moon", {"n": 1}, ["Lisbon"], 1], ["moon", None, ["Lisbon"], 1]]
        assert await State(hf, "s", "ada").all() == {
            "topic": "moon", "user:theme": "dark", "user:places": ["Lisbon"], "app:runs": 1,
        }  # fmt: skip
        assert "temp:step" not in json.dumps(await hf.session("s", "ada").export(retired=True, calls=True))


@through("library", "rest")
async def test_the_rest_of_a_turn_sees_what_a_tool_changed_and_deleted(world: World) -> None:
    """A tool of the same message that still runs, tools of later messages, and the instruction, in all scopes."""
    keys = [f"{scope}{name}" for scope in ("", "user:", "app:") for name in ("old", "new", "gone")]
    seen: list[Any] = []

    async def change(context: ToolContext) -> str:
        for scope in ("", "user:", "app:"):
            context.state[f"{scope}old"], context.state[f"{scope}new"] = "later", "made"
            del context.state[f"{scope}gone"]
        return "changed"

    async def look(context: ToolContext) -> str:
        seen.append([context.state.get(key) for key in keys])
        return "looked"

    async def watch(context: ToolContext) -> str:
        await until(lambda: context.state.get("app:new") == "made")
        return await look(context)

    agent = "agents: {a: {instruction: '" + ",".join(f"{{{key}?}}" for key in keys) + "'}}"
    called = (["look"], ["change", "watch"], ["look"])
    script = [*(Reply(tool_calls=[(name, {}) for name in names]) for names in called), "Done."]
    async with world.open(agent, script=script, tools=[*map(tool_from, (change, look, watch))]) as hf:
        session = await hf.create("s", user="ada", agent="a")
        await State(hf, "s", "ada").set(**{key: "first" for key in keys if "new" not in key})
        await session.send(user("Go."))
        before, after = ["first", None, "first"] * 3, ["later", "made", None] * 3
        assert seen == [before, after, after]
        shown = [texts(request.body["messages"])[0] for request in hf.upstream.requests]
        assert shown == [",".join(value or "" for value in values) for values in (before, before, after, after)]


@through(*NATIVE)
async def test_a_turn_of_the_program_stores_state_with_its_messages(world: World) -> None:
    async with world.open() as hf:
        session = await hf.native.session("s", user_id="ada")
        async with session.turn("Dark mode, please.") as turn:
            state = await turn.load_state() if world.driver == "library" else turn.state
            state["user:theme"] = "dark"
            state.increment("user:requests")
            state["temp:started"] = True
            assert state.get("temp:started") is True
            assert await session.state.get("user:theme") is None
            turn.add("It is dark now.")
        assert await session.state.all() == {"user:theme": "dark", "user:requests": 1}


@through("library")
async def test_each_prompt_of_a_turn_sees_the_newest_state(world: World) -> None:
    async with world.open() as hf:
        session = await hf.native.session("s", user_id="ada")
        async with session.turn("Hi.") as turn:
            await turn.load_state()
            turn.state.increment("app:turns")
            turn.add("Hello.")
            await turn.next()
            assert await session.state.all() == {"app:turns": 1}
            await hf.native.app_state().increment("app:turns")
            await turn.next()
            assert turn.state["app:turns"] == 2
            turn.state["late"] = True
        assert await session.state.all() == {"app:turns": 2, "late": True}
        with pytest.raises(InvalidRequest, match="ended"):
            turn.state["later"] = True


@through("library")
async def test_a_refused_change_of_state_does_not_lose_the_reply(world: World) -> None:
    async with world.open() as hf:
        session = await hf.native.session("s", user_id="ada")
        await session.state.set("user:word", "w")
        open_turn = session.turn("Hi.")
        turn = await open_turn.__aenter__()
        turn.add("Hello.")
        turn.state.increment("user:word")
        turn.state["topic"] = "x"
        with pytest.raises(InvalidRequest, match="user:word"):
            await open_turn.__aexit__(None, None, None)
        assert texts(await session.messages()) == ["Hi.", "Hello."]
        assert await session.state.all() == {"user:word": "w"}


@through("library")
async def test_shared_keys_are_read_only_after_they_were_loaded(world: World) -> None:
    async with world.open() as hf:
        session = await hf.native.session("s")
        async with session.turn("Hi.") as turn:
            turn.state["topic"] = "x"
            assert turn.state.get("topic") == "x"
            with pytest.raises(InvalidRequest, match="load_state"):
                turn.state.get("user:theme")
            turn.add("Hello.")


@through("library")
async def test_a_turn_that_fails_stores_no_state(world: World) -> None:
    async with world.open() as hf:
        session = await hf.native.session("s")
        with pytest.raises(ZeroDivisionError):
            async with session.turn("Hi.") as turn:
                turn.state["a"] = 1 // 0
        assert await session.state.all() == {}


@through("library", "rest")
async def test_an_append_carries_state_in_the_same_write(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Hi."))
        await session.append(user("Two."), state={"a": 1, "user:a": 2})
        assert await State(hf, "s", "default").all() == {"a": 1, "user:a": 2}
        with refused("too_large", "big"):
            await session.append(user("Three."), state={"big": "x" * (256 * 1024)})
        assert texts(await session.messages()) == ["Hi.", "Two."]


# -- in instructions -------------------------------------------------------------------

TEMPLATE = """
agents:
  guide:
    greeting: "Hello {user:name}!"
    instruction: |-
      Speak {user:language}. Topic: {topic?}. Version {app:version?}. {{topic}} {"a": {"b": 1}} {} { x } {a.b}
"""


@through(*HERE)
async def test_an_instruction_has_the_values_of_the_moment(world: World) -> None:
    async with world.open(TEMPLATE, script=["One.", "Two."]) as hf:
        await State(hf, user="ada").set(**{"user:language": "Portuguese", "user:name": "Ada"})
        session = await hf.create("s", user="ada", agent="guide")
        assert texts(await session.messages()) == ["Hello Ada!"]
        await session.send(user("Olá"))
        await State(hf, "s", "ada").set(**{"topic": "{user:name}", "app:version": {"n": 2}})
        await session.send(user("Olá"))
        rest = '{topic} {"a": {"b": 1}} {} { x } {a.b}'
        assert [texts(request.body["messages"])[0] for request in hf.upstream.requests] == [
            f"Speak Portuguese. Topic: . Version . {rest}",
            f'Speak Portuguese. Topic: {{user:name}}. Version {{"n": 2}}. {rest}'.replace('{"n": 2}', '{"n":2}'),
        ]


@through(*HERE)
async def test_a_value_that_an_instruction_needs_is_named_if_it_is_missing(world: World) -> None:
    async with world.open("agents: {guide: {instruction: 'Speak {user:language}.'}}", script=["One."]) as hf:
        session = await hf.create("s", user="ada", agent="guide")
        with refused("missing_state", "user:language"):
            await session.send(user("Olá"))
        assert hf.upstream.requests == []


@through("library", "connect", "rest")
async def test_an_instruction_takes_texts_of_artifacts(world: World) -> None:
    template = "agents: {guide: {instruction: 'Plan: {artifact.plan.md}. Style: {artifact.user:style.md?}'}}"
    async with world.open(template, script=["One.", "Two."]) as hf:
        session = await hf.create("s", user="ada", agent="guide")
        with refused("missing_state", "plan.md"):
            await session.send(user("Go."))
        await Files(session).save("plan.md", "walk")
        await session.send(user("Go."))
        await Files(session).save("plan.md", "swim")
        await Files(session).save("user:style.md", "brief")
        await session.send(user("Go."))
        assert [texts(request.body["messages"])[0] for request in hf.upstream.requests] == [
            "Plan: walk. Style: ", "Plan: swim. Style: brief",
        ]  # fmt: skip


@through("library", "connect", "rest")
async def test_only_null_counts_as_missing_in_an_instruction(world: World) -> None:
    agent = "agents: {a: {instruction: '{zero}, {no}, ({text}), ({gone?})'}}"
    async with world.open(agent, script=["Yes."]) as hf:
        session = await hf.create("s", user="ada", agent="a")
        await session.change_state(zero=0, no=False, text="", gone=None)
        await session.send(user("Go."))
        assert texts(hf.upstream.requests[0].body["messages"])[0] == "0, false, (), ()"


@through(*NATIVE)
async def test_a_shared_key_is_gone_after_it_was_read_and_deleted(world: World) -> None:
    async with world.open() as hf:
        state = hf.native.user_state("ada")
        await state.set("user:a", 1)
        assert await state.all() == {"user:a": 1}
        await state.delete("user:a")
        assert await state.get("user:a") is None

"""Agents that answer one after the other, or at the same time: what the client sees, what the log has, what each sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.testing import Gate, Reply
from tests.behaviour.kit import (
    Served,
    Speakers,
    World,
    answer_of,
    assistant,
    result,
    texts,
    through,
    until,
    user,
)

pytestmark = through("library", "rest")
Row = dict[str, Any]
PIPELINE = """
agents:
  pipeline: {sequence: [draft, check, polish]}
  draft: {instruction: I am draft, output_key: "temp:draft"}
  check: {instruction: "I am check of {temp:draft?}", output_key: checked}
  polish: {instruction: I am polish}
"""
PANEL = """
agents:
  panel: {parallel: [hope, doubt]}
  hope: {instruction: I am hope}
  doubt: {instruction: I am doubt}
"""
NESTED = """
agents:
  whole: {sequence: [plan, panel, verdict]}
  plan: {instruction: I am plan}
  panel: {parallel: [hope, grounds]}
  hope: {instruction: I am hope}
  grounds: {sequence: [facts, inner]}
  facts: {instruction: I am facts}
  inner: {parallel: [left, right]}
  left: {instruction: I am left}
  right: {instruction: I am right}
  verdict: {instruction: I am verdict}
"""
STEPS = {"draft": "A draft.", "check": "A check.", "polish": "Polished."}
VOICES = {"hope": "All is well.", "doubt": "All is lost."}
JOINED = "**hope**\n\nAll is well.\n\n**doubt**\n\nAll is lost."
DOWN = Reply(status=503, error="down")
DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def call(name: str, said: str | None = None, /, **arguments: Any) -> Reply:
    return Reply(text=said, tool_calls=[(name, arguments)])


def work(world: World, lines: Row, config: str = PIPELINE, *more: str, **settings: Any) -> tuple[Speakers, Any]:
    model = Speakers(lines)
    return model, world.gateway(model, config, *more, **settings)


async def say(served: Served, text: str | list[Row], model: str = "pipeline", **fields: Any) -> Row:
    answer: Row = await served.chat(text, model=model, **fields)
    assert answer["status"] == 200, answer
    return answer


def marks(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return agent, role, and what the metadata says of the workflow, of each message."""
    names = ("step", "branch", "joined")
    return [(row.get("agent"), row["role"], *((row.get("metadata") or {}).get(name) for name in names)) for row in rows]


def check_units(rows: list[Row]) -> None:
    """Every result directly follows the message with its call."""
    waiting: list[str] = []
    for row in rows:
        if row["role"] == "tool":
            waiting.remove(row["tool_call_id"])
        else:
            assert not waiting
            waiting = [one["id"] for one in row.get("tool_calls") or ()]
    assert not waiting


# -- sequence -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@through("rest")
async def test_the_reply_of_a_sequence_is_that_of_its_last_agent(world: World, stream: bool) -> None:
    model, opened = work(world, STEPS)
    async with opened as served:
        if stream:
            events = await served.openai.chat.completions.create(
                model="pipeline",
                messages=[user("Go")],
                stream=True,
                extra_body={"session_id": "s"},
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in events]
            assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "Polished."
            session, total = chunks[-1].session, chunks[-1].usage.total_tokens
        else:
            answer = await say(served, "Go")
            assert answer_of(answer) == "Polished."
            session, total = answer["session"], answer["usage"]["total_tokens"]
        assert (session["agent"], total) == ("polish", 45)
        assert model.called == ["draft", "check", "polish"]
        assert marks(await served.entries()) == [
            (None, "user", None, None, None),
            *[("draft", role, "draft", None, None) for role in ("assistant", "tool")],
            *[("check", role, "check", None, None) for role in ("assistant", "tool")],
            ("polish", "assistant", None, None, None),
        ]
        assert model.prompt("polish") == ["Go", "[agent draft]: A draft.", "[agent check]: A check."]
        assert texts(await served.rest.session().history("plain")) == ["Go", "Polished."]


async def test_values_reach_later_agents_and_temporary_ones_end_with_the_turn(world: World) -> None:
    model, opened = work(world, STEPS)
    async with opened as served:
        await say(served, "Go")
        assert model.bodies[1]["messages"][0]["content"] == "I am check of A draft."
        assert await served.rest.session().state() == {"checked": "A check."}


@through("rest")
async def test_the_next_turn_runs_the_whole_sequence_again(world: World) -> None:
    model, opened = work(world, STEPS)
    async with opened as served:
        for history in ([user("Go")], [user("Go"), assistant("Polished."), user("Again")]):
            answer = await say(served, history, session_id=None)
        assert answer["session"]["reconciled"] == "continued"
        assert model.called == ["draft", "check", "polish"] * 2
        own = [one for one in model.bodies[3]["messages"] if one["role"] == "assistant"]
        assert texts(own) == ["A draft."]


async def test_only_the_tools_of_the_last_agent_show_in_the_reply(world: World) -> None:
    lines = {
        "draft": [call("shout", "Hm.", text="a"), "A draft."],
        "check": "C.",
        "polish": [call("shout", "Wait.", text="b"), "Done."],
    }
    _, opened = work(world, lines, tools=[shout])
    async with opened as served:
        assert answer_of(await say(served, "Go")) == "Wait.\n\nDone."
        assert [text for text in texts(await served.entries()) if text in ("A", "B")] == ["A", "B"]


@through("rest")
async def test_progress_names_the_agents_and_nothing_that_they_say(world: World) -> None:
    _, opened = work(
        world,
        {**STEPS, **VOICES},
        PIPELINE.replace("[draft, check, polish]", "[draft, panel, polish]") + PANEL.replace("\nagents:\n", ""),
    )
    async with opened as served:
        body = {"model": "pipeline", "messages": [user("Go")], "stream": True}
        text = (
            await served.http.post("/v1/chat/completions", json={**body, "stream_options": {"include_progress": True}})
        ).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        told = [event["holdfast"] for event in events if "holdfast" in event]
        assert told[:2] == [{"agent": "draft", "status": "running"}, {"agent": "draft", "status": "done"}]
        assert {(one["agent"], one["status"], one["branch"]) for one in told[2:]} == {
            (name, status, f"panel.{name}") for name in VOICES for status in ("running", "done")
        }
        assert "All is well" not in text
        assert events[-1]["session"]["agent"] == "polish"
        assert '"holdfast"' not in (await served.http.post("/v1/chat/completions", json=body)).text


@through("rest")
async def test_a_client_tool_in_the_middle_is_returned_and_resumed(world: World) -> None:
    """The same agent goes on with the result. A retry with the key gets the same call, without the text next to it."""
    model, opened = work(world, {**STEPS, "check": [call("open_door", "I look."), "It is open."]})
    async with opened as served:
        key = {"Idempotency-Key": "k"}
        first, again = [await say(served, "Go", tools=[DOOR], headers=key) for _ in range(2)]
        for answer in (first, again):
            message = answer["choices"][0]["message"]
            assert (message.get("content"), answer["choices"][0]["finish_reason"]) == (None, "tool_calls")
        (asked,) = first["choices"][0]["message"]["tool_calls"]
        assert again["choices"][0]["message"]["tool_calls"] == [asked]
        assert answer_of(await say(served, [result(asked["id"], "opened")], tools=[DOOR])) == "Polished."
        assert model.called == ["draft", "check", "check", "polish"]


# -- parallel -------------------------------------------------------------------------------------


async def test_parallel_agents_do_not_see_each_other_and_the_reply_joins_them(world: World) -> None:
    model, opened = work(world, VOICES, PANEL)
    async with opened as served:
        answer = await say(served, "How is it?", "panel")
        assert (answer_of(answer), answer["usage"]["total_tokens"]) == (JOINED, 30)
        rows = await served.entries()
        assert sorted(marks(rows[1:5]), key=str) == sorted(
            [(name, role, name, f"panel.{name}", True) for name in VOICES for role in ("assistant", "tool")], key=str
        )
        assert (rows[5]["agent"], rows[5]["content"]) == ("panel", JOINED)
        assert model.prompt("hope") == model.prompt("doubt") == ["How is it?"]


async def test_all_models_of_a_parallel_are_called_at_the_same_time(world: World) -> None:
    """Each answers only when the others were called, too; their tools run side by side, and every unit is complete."""
    names = [f"b{at}" for at in range(6)]
    agents = {"many": {"parallel": names}, **{name: {"instruction": f"I am {name}"} for name in names}}
    gate = Gate()
    lines = {name: [Reply(tool_calls=[("shout", {"text": name})] * 2, hold=gate), f"{name} is done."] for name in names}
    model, opened = work(world, lines, f"agents: {json.dumps(agents)}", tools=[shout])
    async with opened as served:
        running = asyncio.create_task(say(served, "Go", "many"))
        await served.upstream.until(lambda: len(model.called) == 6)
        gate.open()
        text = answer_of(await running)
        assert all(f"**{name}**\n\n{name} is done." in text for name in names)
        rows = await served.entries()
        check_units(rows)
        assert len(rows) == 1 + 6 * (3 + 2) + 1


async def test_a_failed_agent_is_named_and_the_others_go_on(world: World) -> None:
    _, opened = work(world, {"hope": "All is well.", "doubt": DOWN}, PANEL)
    async with opened as served:
        gone = "[agent doubt did not answer: upstream_unavailable]"
        assert answer_of(await say(served, "Go", "panel")) == f"**hope**\n\nAll is well.\n\n**doubt**\n\n{gone}"


async def test_a_turn_fails_with_the_first_error_if_all_agents_fail(world: World) -> None:
    _, opened = work(world, {"hope": DOWN, "doubt": Reply(status=500)}, PANEL)
    async with opened as served:
        assert (await served.chat("Go", model="panel"))["status"] == 503
        assert texts(await served.entries()) == ["Go"]


@pytest.mark.parametrize(("whose", "said_by"), [("panel", "panel"), ("hope", "hope"), ("doubt", None)])
async def test_a_failure_message_is_that_of_the_workflow_or_of_the_first_agent(
    world: World, whose: str, said_by: str | None
) -> None:
    config = PANEL.replace(f"  {whose}: {{", f"  {whose}: {{failure_message: Sorry!, ")
    _, opened = work(world, {"hope": DOWN, "doubt": DOWN}, config)
    async with opened as served:
        answer = await served.chat("Go", model="panel")
        assert answer["status"] == (200 if said_by else 503)
        if said_by:
            assert answer_of(answer) == "Sorry!"
            last = (await served.entries())[-1]
            assert last["agent"] == said_by
            assert last["metadata"] == {"source": "llm_failure", "error": "upstream_unavailable"}


# -- nested ---------------------------------------------------------------------------------------

SAYING = {name: f"{name}!" for name in ("plan", "hope", "facts", "left", "right", "verdict")}


@pytest.mark.parametrize("store", ["file", "postgres", "mysql"])
async def test_nested_workflows(world: World, store: str) -> None:
    """Branches have the path to their agent. Each agent sees its own branch, those around it, and what came before."""
    lines = {**SAYING, "left": [call("shout", text="x"), "left!"]}
    model, opened = work(world, lines, NESTED, store=store, tools=[shout])
    async with opened as served:
        assert answer_of(await say(served, "Go", "whole")) == "verdict!"
        rows = await served.entries()
        check_units(rows)
        assert {row["agent"]: (row.get("metadata") or {}).get("branch") for row in rows[1:]} == {
            "plan": None,
            "hope": "panel.hope",
            "facts": "panel.grounds",
            "left": "panel.grounds.inner.left",
            "right": "panel.grounds.inner.right",
            "verdict": None,
        }
        assert model.prompt("hope") == ["Go", "[agent plan]: plan!"]
        assert model.prompt("right") == ["Go", "[agent plan]: plan!", "[agent facts]: facts!"]
        seen = "\n".join(model.prompt("verdict"))
        assert all(f"[agent {name}]: {name}!" in seen for name in ("plan", "facts", "hope", "left", "right"))


@pytest.mark.parametrize("root", ["outer", "chief"])
async def test_a_client_tool_of_a_nested_workflow_resumes_the_outermost(world: World, root: str) -> None:
    """Also if the outermost workflow took over from an agent."""
    agents: dict[str, Any] = {"outer": {"sequence": ["inner", "end"]}, "inner": {"sequence": ["deep", "after"]}}
    agents |= {"deep": {"sequence": ["asks"]}, "chief": {"instruction": "I am chief", "sub_agents": ["outer"]}}
    agents |= {name: {"instruction": f"I am {name}"} for name in ("asks", "after", "end")}
    lines: dict[str, Any] = {"asks": [call("open_door"), "Opened."], "after": "After.", "end": "End."}
    lines |= {"chief": Reply(tool_calls=[("transfer_to_agent", {"agent_name": "outer"})])}
    model, opened = work(world, lines, f"agents: {json.dumps(agents)}")
    async with opened as served:
        asked = (await say(served, "Go", root, tools=[DOOR]))["choices"][0]["message"]["tool_calls"][0]
        assert answer_of(await say(served, [result(asked["id"], "opened")], root, tools=[DOOR])) == "End."
        assert model.called[-4:] == ["asks", "asks", "after", "end"]


async def test_a_parallel_at_the_end_is_the_reply(world: World) -> None:
    model, opened = work(world, SAYING, NESTED.replace("[plan, panel, verdict]", "[plan, panel]"))
    async with opened as served:
        inner = "**left**\n\nleft!\n\n**right**\n\nright!"
        assert answer_of(await say(served, "Go", "whole")) == f"**hope**\n\nhope!\n\n**grounds**\n\n{inner}"
        await say(served, "Again", "whole")
        assert model.prompt("plan")[2].startswith("[agent panel]: **hope**\n\n  hope!")


@pytest.mark.parametrize("target", ["pipeline", "panel"])
async def test_a_workflow_can_take_over_and_the_next_turn_belongs_to_the_root(world: World, target: str) -> None:
    config = (
        PIPELINE + PANEL.replace("\nagents:\n", "") + f"  chief: {{instruction: I am chief, sub_agents: [{target}]}}\n"
    )
    over = Reply(text="Over.", tool_calls=[("transfer_to_agent", {"agent_name": target})])
    model, opened = work(world, {**STEPS, **VOICES, "chief": [over, "Me again."]}, config)
    async with opened as served:
        last = "Polished." if target == "pipeline" else JOINED
        assert answer_of(await say(served, "Go", "chief")) == f"Over.\n\n{last}"
        assert not any("transfer_to_agent" in model.tools(at) for at in range(1, len(model.called)))
        assert answer_of(await say(served, "And?", "chief")) == "Me again."


# -- cut and retried ------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"session_mode": "transcript"}, {"headers": {"Idempotency-Key": "k"}}])
@through("rest")
async def test_a_retry_goes_on_after_the_finished_agents(world: World, fields: Row) -> None:
    model, opened = work(world, {**STEPS, "check": [DOWN, "A check."]})
    async with opened as served:
        assert (await served.chat("Go", model="pipeline", **fields))["status"] == 503
        assert answer_of(await say(served, "Go", **fields)) == "Polished."
        assert model.called == ["draft", "check", "check", "polish"]
        assert model.bodies[2]["messages"][0]["content"] == "I am check of A draft."
        assert texts(await served.entries()).count("Go") == 1


async def test_partial_text_of_an_agent_is_stored_and_said_again(world: World) -> None:
    model, opened = work(world, {**STEPS, "draft": [Reply(text="Half a draft.", cut_after=2), "A draft."]})
    async with opened as served:
        assert (await served.chat("Go", model="pipeline"))["status"] == 502
        cut = (await served.entries())[1]
        assert (cut["metadata"]["interrupted"], cut["content"].strip()) == (True, "Half")
        assert texts(await served.rest.session().history("plain")) == ["Go"]
        assert answer_of(await say(served, "Go")) == "Polished."
        assert "Half" not in str(model.bodies[1]["messages"])
        assert model.called == ["draft", "draft", "check", "polish"]


@through("rest")
async def test_a_joined_reply_that_is_regenerated_runs_every_agent_again(world: World) -> None:
    model, opened = work(world, VOICES, PANEL)
    async with opened as served:
        await say(served, "Go", "panel")
        again = await say(served, "Go", "panel", session_mode="transcript")
        assert (again["session"]["reconciled"], answer_of(again)) == ("regenerated", JOINED)
        assert len(model.called) == 4


@through("rest")
async def test_all_agents_stop_when_the_client_goes_away(world: World) -> None:
    gate = Gate()
    _, opened = work(world, {**VOICES, "hope": Reply(text="All is well.", hold=gate)}, PANEL)
    async with opened as served:
        body = {"model": "panel", "session_id": "s", "messages": [user("Go")], "stream": True}
        async with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if "doubt done" in line:
                    break
        await until(lambda: served.upstream.disconnects == 1)
        assert answer_of(await say(served, "And now?", "doubt")) == "All is lost."
        check_units(await served.entries())


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "n must be 1"),
        ({"tools": [{"type": "function", "function": {"name": "shout"}}]}, "tools[0] has the name 'shout'"),
    ],
)
@through("rest")
async def test_what_no_workflow_can_serve_is_refused_before_anything_is_written(
    world: World, fields: Row, words: str
) -> None:
    _, opened = work(world, {}, tools=[shout])
    async with opened as served:
        answer = await served.chat("Go", model="pipeline", **fields)
        assert (answer["status"], words in answer["error"]["message"]) == (400, True)
        assert await served.rest.sessions() == []


async def test_a_turn_of_a_program_cannot_be_a_workflow(world: World) -> None:
    _, opened = work(world, STEPS)
    async with opened as served:
        session = await served.native.session("s", agent="pipeline")
        with pytest.raises(InvalidRequest, match=r"use session\.send\(\)"):
            async with session.turn("Go"):
                pass
        assert answer_of(await session.send("Go")) == "Polished."

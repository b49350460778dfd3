"""The middleware in graphs: agents in subgraphs, as tools and in parallel branches have sessions of their own; a killed process goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="LangChain is not installed here: make adapters")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

import holdfast
from holdfast.adapters.langchain import HoldfastMiddleware
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.test_langchain import CONFIG, MEMORY, ScriptedModel, check_prompt

LOOP = 40


def make_agent(hf: Any, name: str | None, *replies: AIMessage | str, tools: Any = (), **options: Any) -> Any:
    given = [one if isinstance(one, AIMessage) else AIMessage(one) for one in replies]
    model = ScriptedModel(messages=iter(given), prompts=[])
    middleware = [] if hf is None else [HoldfastMiddleware(hf)]
    return create_agent(model, list(tools), middleware=middleware, name=name, **options)


def call(name: str, *arguments: dict[str, Any]) -> AIMessage:
    calls = [{"name": name, "args": given, "id": f"{name}{at}"} for at, given in enumerate(arguments)]
    return AIMessage("", tool_calls=calls)  # type: ignore[arg-type]


class WaitingModel(ScriptedModel):
    """A chat model that calls the tool `wait` once in each conversation, and then answers."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        waited = isinstance(messages[-1], ToolMessage)
        self.messages = iter([AIMessage("Done.") if waited else call("wait", {})])
        return super()._generate(messages, *args, **kwargs)


async def read_sessions(hf: holdfast.Holdfast) -> dict[str, list[str]]:
    """Return the texts of each session, and check that no message was retired."""
    found = {}
    for session in (await hf.sessions(user_id="ada")).sessions:
        handle = await hf.get(session.ref.id, user_id="ada")
        live = await handle.messages()
        assert len(await handle.entries(retired=True)) == len(live), session.ref.id
        found[session.ref.id] = [str(message["content"]) for message in live]
    return found


@pytest.mark.parametrize("questions", [["a", "b"], ["a", "a"]])
async def test_parallel_calls_of_an_agent_as_a_tool_have_sessions_of_their_own(questions: list[str]) -> None:
    async with holdfast.open(MEMORY) as hf:
        inner = make_agent(hf, "researcher", *["Found."] * 4)

        @tool
        async def ask(question: str) -> str:
            """Ask the researcher."""
            result = await inner.ainvoke({"messages": [HumanMessage(question)]})
            return str(result["messages"][-1].content)

        asked = [{"question": one} for one in questions]
        outer = make_agent(
            hf,
            "outer",
            call("ask", *asked),
            "One.",
            call("ask", *asked),
            "Two.",
            tools=[ask],
            checkpointer=InMemorySaver(),
        )
        for number in range(2):
            await outer.ainvoke({"messages": [HumanMessage(f"Question {number}?")]}, CONFIG)
        sessions = await read_sessions(hf)
        assert len(sessions.pop("t")) == 10
        assert len(sessions) == 4
        assert all(name.startswith("t:tools:researcher:") for name in sessions)
        assert sorted(texts[0] for texts in sessions.values()) == sorted(questions * 2)


async def test_two_agents_as_tools_that_get_the_outer_messages_do_not_share_a_session() -> None:
    async with holdfast.open(MEMORY) as hf:
        shared = [HumanMessage("Shared question?", id="m1")]
        agents = {name: make_agent(hf, name, *[f"{name}."] * 3) for name in ("one", "two")}

        @tool
        async def ask(name: str) -> str:
            """Ask an agent."""
            result = await agents[name].ainvoke({"messages": shared})
            return str(result["messages"][-1].content)

        outer = make_agent(
            hf,
            "outer",
            call("ask", {"name": "one"}),
            call("ask", {"name": "two"}),
            "Done.",
            tools=[ask],
            checkpointer=InMemorySaver(),
        )
        await outer.ainvoke({"messages": [HumanMessage("Hello")]}, CONFIG)
        sessions = await read_sessions(hf)
        assert sessions["t:tools:one:m1"] == ["Shared question?", "one."]
        assert sessions["t:tools:two:m1"] == ["Shared question?", "two."]


@pytest.mark.parametrize("own_checkpoints", [None, True])
async def test_agents_in_subgraphs_continue_one_session_each(own_checkpoints: bool | None) -> None:
    async with holdfast.open(MEMORY) as hf:
        builder: Any = StateGraph(MessagesState)
        for name in ("alice", "bob"):
            replies = [f"{name} {at}." for at in range(9)]
            builder.add_node(name, make_agent(hf, name, *replies, checkpointer=own_checkpoints))
        builder.add_edge(START, "alice")
        builder.add_edge("alice", "bob")
        graph = builder.compile(checkpointer=InMemorySaver())
        for number in range(4):
            await graph.ainvoke({"messages": [HumanMessage(f"Question {number}?", id=f"q{number}")]}, CONFIG)
        sessions = await read_sessions(hf)
        assert set(sessions) == {"t:alice:q0", "t:bob:q0"}
        assert sessions["t:bob:q0"][-3:] == ["Question 3?", "alice 3.", "bob 3."]


async def test_parallel_branches_with_different_agents_have_sessions_of_their_own() -> None:
    async with holdfast.open(MEMORY) as hf:
        builder: Any = StateGraph(MessagesState)
        for name in ("alice", "bob"):
            builder.add_node(name, make_agent(hf, name, *[f"{name}."] * 9))
            builder.add_edge(START, name)
        graph = builder.compile(checkpointer=InMemorySaver())
        await graph.ainvoke({"messages": [HumanMessage("Question?", id="q0")]}, CONFIG)
        sessions = await read_sessions(hf)
        assert sessions == {"t:alice:q0": ["Question?", "alice."], "t:bob:q0": ["Question?", "bob."]}


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["without a checkpointer", "with a checkpointer"])
async def test_copies_of_an_agent_that_run_at_the_same_time_do_not_retire_each_others_messages(saver: Any) -> None:
    @tool
    async def wait() -> str:
        """Let the other copies run."""
        await asyncio.sleep(0)
        return "Waited."

    async with holdfast.open(MEMORY) as hf:
        model = WaitingModel(messages=iter([]), prompts=[])
        worker = create_agent(model, [wait], middleware=[HoldfastMiddleware(hf)], name="worker")
        builder: Any = StateGraph(MessagesState)
        builder.add_node("work", worker)
        builder.add_conditional_edges(START, lambda state: [Send("work", state)] * 3)
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke({"messages": [HumanMessage("Question?", id="q0")]}, CONFIG)
        sessions = await read_sessions(hf)
        assert len(sessions) == 3
        assert "t:work:worker:q0" in sessions
        for texts in sessions.values():
            assert (texts[0], *texts[2:]) == ("Question?", "Waited.", "Done.")


async def test_a_session_id_that_was_given_is_used_in_subgraphs_too() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = ScriptedModel(messages=iter([AIMessage("Here.")] * 3), prompts=[])
        named = HoldfastMiddleware(hf, session_id=lambda request: "notes")
        builder: Any = StateGraph(MessagesState)
        builder.add_node("alice", create_agent(model, [], middleware=[named]))
        builder.add_edge(START, "alice")
        graph = builder.compile(checkpointer=InMemorySaver())
        await graph.ainvoke({"messages": [HumanMessage("Question?")]}, CONFIG)
        assert set(await read_sessions(hf)) == {"notes"}


# -- kill -9 ---------------------------------------------------------------------

CRASHING = """
import asyncio, os, signal, sys
import holdfast
from tests.adapters import test_langchain_graphs as tests

async def main():
    async with holdfast.open(sys.argv[1], budget=700) as hf:
        agent, model = tests.open_loop(hf, 0, stop=25)
        await agent.ainvoke({"messages": [tests.HumanMessage("Find all.")]}, tests.LONG, durability="sync")

asyncio.run(main())
"""
LONG: Any = {**CONFIG, "recursion_limit": 500}


def open_loop(hf: holdfast.Holdfast, start: int, *, stop: int | None = None) -> tuple[Any, ScriptedModel]:
    """Return an agent with both adapters, whose model calls a tool up to 40 times; order `stop` kills the process."""

    def find(order: int) -> str:
        """Find an order."""
        import os

        if order == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"Order {order} is on its way. " * 8

    calls = [
        AIMessage("", tool_calls=[{"name": "find", "args": {"order": number}, "id": f"call_{number}"}])
        for number in range(start, LOOP)
    ]
    model = ScriptedModel(messages=iter([*calls, AIMessage("Found all.")]), prompts=[])
    return create_agent(model, [find], middleware=[HoldfastMiddleware(hf)], checkpointer=HoldfastSaver(hf)), model


async def test_a_tool_loop_continues_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASHING, url], check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url, budget=700) as hf:
        agent, model = open_loop(hf, 26)  # the call of order 25 is stored, its result is not
        state = await agent.ainvoke(None, LONG)
        messages: list[BaseMessage] = state["messages"]
        assert messages[-1].content == "Found all."
        results = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
        assert results == [f"call_{number}" for number in range(LOOP)]
        for prompt in model.prompts:
            check_prompt(prompt)
        session = await hf.get("t", user_id="ada")
        stored = [message["tool_call_id"] for message in await session.messages() if message["role"] == "tool"]
        assert stored == results
        assert (await session.info()).messages == len(messages) == 2 + 2 * LOOP

"""Statements of document 001 about frameworks. They run where the framework is installed: `make adapters`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.behaviour.kit.dialogues import TASK

SEVEN: Any = {"configurable": {"thread_id": "session-7"}}


async def test_001_73_a_wrapper_compacts_any_session_of_the_agents_sdk() -> None:
    """The SDK's own wrapper decides when, over a session of Holdfast."""
    agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed here: make adapters")
    from agents.memory import OpenAIResponsesCompactionSession

    from holdfast.adapters.openai_agents import HoldfastSession

    asked: list[Any] = []

    def should_compact(context: Any) -> bool:
        asked.append(context)
        return False

    async with holdfast.open("sqlite://:memory:") as hf:
        inner = HoldfastSession(hf, "s")
        wrapper = OpenAIResponsesCompactionSession("s", inner, should_trigger_compaction=should_compact)
        await wrapper.add_items([{"role": "user", "content": TASK}])
        await wrapper.run_compaction({"response_id": "resp_1"})
        assert len(asked) == 1
        assert [one["content"] for one in await inner.get_items()] == [TASK]
    assert agents is not None


async def test_001_109_each_call_is_trimmed_and_the_task_is_remembered() -> None:
    pytest.importorskip("langchain", reason="LangChain is not installed here: make adapters")
    from langchain.agents import create_agent
    from langchain.agents.middleware import wrap_model_call
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver

    from holdfast.adapters.langchain import HoldfastMiddleware

    sent: list[Any] = []

    @wrap_model_call
    async def watch(request: Any, handler: Any) -> Any:
        sent.append([one.content for one in request.messages])
        return await handler(request)

    replies = iter([AIMessage("It is done. " * 20) for _ in range(40)])
    async with holdfast.open("sqlite://:memory:", budget=500) as hf:
        model = GenericFakeChatModel(messages=replies)
        agent = create_agent(model, middleware=[HoldfastMiddleware(hf), watch], checkpointer=InMemorySaver())
        for number in range(40):
            words = TASK if number == 0 else f"Step {number}: what is next?"
            state = await agent.ainvoke({"messages": [{"role": "user", "content": words}]}, SEVEN)
    assert len(state["messages"]) == 80
    assert len(sent[-1]) < 20
    assert (sent[-1][0], sent[-1][-1]) == (TASK, "Step 39: what is next?")


async def test_001_132_a_checkpointer_keeps_the_state(tmp_path: Path) -> None:
    pytest.importorskip("langgraph", reason="LangGraph is not installed here: make adapters")
    from langgraph.graph import START, MessagesState, StateGraph

    from holdfast.adapters.langgraph import HoldfastSaver

    builder: Any = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [("ai", f"Reply {len(state['messages'])}.")]})
    builder.add_edge(START, "reply")
    for turn in range(2):
        async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
            graph = builder.compile(checkpointer=HoldfastSaver(hf))
            state = await graph.ainvoke({"messages": [("user", f"Turn {turn}.")]}, SEVEN)
    assert [one.content for one in state["messages"]] == ["Turn 0.", "Reply 1.", "Turn 1.", "Reply 3."]

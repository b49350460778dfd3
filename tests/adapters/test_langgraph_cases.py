"""The cases of `AdapterCases` for the checkpointer and the store of LangGraph, in a graph with a tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="LangGraph is not installed here: make adapters")

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from holdfast.adapters.langgraph import HoldfastSaver, HoldfastStore
from tests.adapters.cases import AdapterCases, Conversation, Sent, find
from tests.adapters.langchain_kit import describe, make_question, reply


class LangGraphConversation(Conversation):
    """A graph with a model and a tool, which keeps the number of each order in the store."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.config: Any = {"configurable": {"thread_id": self.session}}
        self.store: BaseStore = InMemoryStore() if self.hf is None else HoldfastStore(self.hf)
        saver: Any = InMemorySaver() if self.hf is None else HoldfastSaver(self.hf)
        builder: Any = StateGraph(MessagesState)
        builder.add_node("reply", self.reply)
        builder.add_node("find", self.find)
        builder.add_edge(START, "reply")
        builder.add_conditional_edges("reply", lambda state: "find" if state["messages"][-1].tool_calls else END)
        builder.add_edge("find", "reply")
        self.graph: Any = builder.compile(checkpointer=saver, store=self.store)

    def reply(self, state: MessagesState) -> Any:
        messages = drop_unanswered(state["messages"])
        self.prompts.append([describe(one) for one in messages])
        return {"messages": [reply(messages[-1])]}

    async def find(self, state: MessagesState, *, store: BaseStore) -> Any:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        order = last.tool_calls[0]["args"]["order"]
        found = ToolMessage(find(order), tool_call_id=str(last.tool_calls[0]["id"]))
        await store.aput(("orders", self.session), f"{order:02}", {"order": order})
        return {"messages": [found]}

    async def ask(self, text: str, image: bytes | None = None) -> None:
        await self.graph.ainvoke({"messages": [make_question(text, image)]}, self.config, durability="sync")

    async def read(self) -> list[Sent]:
        state = await self.graph.aget_state(self.config)
        return [describe(one) for one in state.values.get("messages", ())]


def drop_unanswered(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Leave out calls without a result, which a killed or cancelled run leaves. LangGraph leaves this to the graph."""
    answered = {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}
    return [
        one
        for one in messages
        if not (isinstance(one, AIMessage) and {call["id"] for call in one.tool_calls} - answered)
    ]


class TestLangGraph(AdapterCases):
    """`HoldfastSaver` and `HoldfastStore`. They change no prompt: the middleware of LangChain bounds prompts."""

    kind = LangGraphConversation
    is_bounded = False
    inapplicable: ClassVar[dict[str, str]] = {
        "test_ten_concurrent_adds_are_all_kept": "a thread has one run at a time; tests/adapters/test_langgraph_oracle.py puts"
        " checkpoints, writes and items at the same time",
        "test_ten_concurrent_pops_return_different_messages": "checkpointers cannot remove messages",
    }

"""A LangGraph chat graph with `AsyncSqliteSaver`, LangGraph's checkpointer for a file.

The graph has one node, which stands for the model call. With the argument `delta`, the messages are in a `DeltaChannel` (beta)
instead of the default channel.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

from benchmarks.systems.turns import main

CONFIG: Any = {"configurable": {"thread_id": "s"}}


class FullState(TypedDict):
    """State whose messages are stored whole in every checkpoint, which is the default."""

    messages: Annotated[list[Any], add_messages]
    answer: str


class DeltaState(TypedDict):
    """State of which a checkpoint stores only the new messages."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]
    answer: str


class LangGraphSystem:
    """A thread."""

    def __init__(self, graph: Any, connection: aiosqlite.Connection) -> None:
        self._graph = graph
        self._connection = connection

    async def run_turn(self, user: str, answer: str) -> None:
        await self._graph.ainvoke({"messages": [HumanMessage(user)], "answer": answer}, CONFIG)

    async def read_texts(self) -> Sequence[str]:
        state = await self._graph.aget_state(CONFIG)
        return [message.content for message in state.values["messages"]]

    async def close(self) -> None:
        await self._connection.close()


def _reply(state: Any) -> dict[str, Any]:
    return {"messages": [AIMessage(state["answer"])]}


async def open_system(_: str, folder: Path) -> LangGraphSystem:
    connection = await aiosqlite.connect(folder / "checkpoints.db")
    builder: Any = StateGraph(DeltaState if "delta" in sys.argv[4:] else FullState)
    builder.add_node("model", _reply)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return LangGraphSystem(builder.compile(checkpointer=AsyncSqliteSaver(connection)), connection)


if __name__ == "__main__":
    main(open_system)

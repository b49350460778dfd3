"""The cases of `AdapterCases` for the middleware of LangChain, with Holdfast's checkpointer."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

pytest.importorskip("langchain.agents", reason="LangChain is not installed here: make adapters")

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

import holdfast
from holdfast.adapters.langchain import HoldfastMiddleware
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import WrongEventLoop
from tests.adapters.cases import (
    MEMORY,
    AdapterCases,
    Conversation,
    Sent,
    ask_for,
    find,
    find_cause,
    run_in_thread,
)
from tests.adapters.langchain_kit import describe, make_question, reply


class ScriptedModel(BaseChatModel):
    """A model that calls the tool for the order in the newest question."""

    prompts: list[list[Sent]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.prompts.append([describe(one) for one in messages])
        return ChatResult(generations=[ChatGeneration(message=reply(messages[-1]))])


class LangChainConversation(Conversation):
    """An agent with the middleware and a checkpointer."""

    def __init__(self, *args: Any, saver: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.config: Any = {"configurable": {"thread_id": self.session}}
        model = ScriptedModel(prompts=[])
        middleware = [] if self.hf is None else [HoldfastMiddleware(self.hf, budget=self.budget)]
        saver = saver or (InMemorySaver() if self.hf is None else HoldfastSaver(self.hf))
        self.agent: Any = create_agent(model, [find], middleware=middleware, checkpointer=saver)
        self.prompts = model.prompts

    async def ask(self, text: str, image: bytes | None = None) -> None:
        await self.agent.ainvoke({"messages": [make_question(text, image)]}, self.config, durability="sync")

    async def read(self) -> list[Sent]:
        state = await self.agent.aget_state(self.config)
        return [describe(one) for one in state.values.get("messages", ())]


class TestLangChain(AdapterCases):
    """`HoldfastMiddleware` and `HoldfastSaver`."""

    kind = LangChainConversation
    inapplicable: ClassVar[dict[str, str]] = {
        "test_ten_concurrent_adds_are_all_kept": "LangGraph's thread has one run at a time; a second run continues from the same checkpoint",
        "test_ten_concurrent_pops_return_different_messages": "a middleware cannot remove messages; `RemoveMessage` changes the agent's state",
    }

    async def test_another_event_loop_is_refused_by_the_middleware_alone(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            await LangChainConversation(hf, saver=InMemorySaver()).ask(ask_for(1))
            other = LangChainConversation(hf, saver=InMemorySaver())
            raised = await asyncio.to_thread(run_in_thread, lambda: other.ask(ask_for(2)))
            assert find_cause(raised, WrongEventLoop) is not None, repr(raised)
            assert (await (await hf.get("s")).info()).messages == 4

"""The middleware for LangChain agents, with real agents, checkpointers and scripted models."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="LangChain is not installed here: make adapters")

from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

import holdfast
from holdfast.adapters.langchain import HoldfastMiddleware
from tests.adapters.pages import run_page

MEMORY = "sqlite://:memory:"
CONFIG: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}


class ScriptedModel(GenericFakeChatModel):
    """A chat model that plays a script and keeps the prompts that it got."""

    prompts: list[list[BaseMessage]]
    longest: int = 10**9
    """Characters of a prompt that is accepted."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.prompts.append(messages)
        if sum(len(str(message.content)) for message in messages) > self.longest:
            raise ContextOverflowError("too long")
        return super()._generate(messages, *args, **kwargs)


def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


def play_orders(signed: bool = True) -> Iterator[AIMessage]:
    """Yield for each order a call of the tool, then a reply."""
    for number in itertools.count():
        thinking: Any = [{"type": "thinking", "thinking": "Let me see.", "signature": f"sig{number}"}] if signed else ""
        call = {"name": "find", "args": {"order": number}, "id": f"call_{number}"}
        yield AIMessage(content=thinking, tool_calls=[call])
        usage: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        yield AIMessage(content=f"Order {number} is on its way.", usage_metadata=usage)


def make_agent(middleware: HoldfastMiddleware, **options: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(messages=play_orders(), prompts=[], **options)
    agent = create_agent(
        model, [find], system_prompt="You help with orders.", middleware=[middleware], checkpointer=InMemorySaver()
    )
    return agent, model


async def ask(agent: Any, number: int, config: Any = CONFIG) -> list[BaseMessage]:
    result = await agent.ainvoke({"messages": [HumanMessage(f"Where is order {number}?")]}, config)
    messages: list[BaseMessage] = result["messages"]
    return messages


def check_prompt(prompt: list[BaseMessage]) -> None:
    """Check that each call is followed by its results, and each result follows its call."""
    waiting: list[str] = []
    for message in prompt:
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
            continue
        assert not waiting
        waiting = [str(call["id"]) for call in message.tool_calls] if isinstance(message, AIMessage) else []
    assert not waiting


async def test_a_changed_system_prompt_replaces_the_stored_one() -> None:
    async with holdfast.open(MEMORY, budget=700) as hf:
        for system in ("You help with orders.", "You help with parcels.", None):
            model = ScriptedModel(messages=play_orders(), prompts=[])
            agent = create_agent(model, [find], system_prompt=system, middleware=[HoldfastMiddleware(hf)])
            await ask(agent, 1)
        stored = (await (await hf.get("t", user_id="ada")).info()).system_messages
        assert [message.content for message in stored] == ["You help with parcels."]


async def test_kept_messages_are_the_agents_own_objects() -> None:
    async with holdfast.open(MEMORY, budget=700) as hf:
        agent, model = make_agent(HoldfastMiddleware(hf))
        for number in range(10):
            state = await ask(agent, number)
        known = {message.id for message in state}
        sent = [message for message in model.prompts[-1] if message.id in known]
        assert len(sent) >= 3
        signed = [message.content for message in sent if isinstance(message, AIMessage) and message.tool_calls]
        assert signed[-1] == [{"type": "thinking", "thinking": "Let me see.", "signature": "sig9"}]


async def test_users_do_not_share_threads() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent, _ = make_agent(HoldfastMiddleware(hf))
        for user in ("ada", "bob"):
            await ask(agent, 1, {"configurable": {"thread_id": f"thread-{user}", "user_id": user}})
        assert (await (await hf.get("thread-bob", user_id="bob")).info()).messages == 4
        with pytest.raises(holdfast.HoldfastError):
            await hf.get("thread-bob", user_id="ada")


async def test_a_run_without_a_thread_needs_a_session_id() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = ScriptedModel(messages=play_orders(), prompts=[])
        agent = create_agent(model, [find], middleware=[HoldfastMiddleware(hf)])
        with pytest.raises(ValueError, match="thread_id"):
            await agent.ainvoke({"messages": [HumanMessage("Where?")]})
        named = create_agent(
            model, [find], middleware=[HoldfastMiddleware(hf, session_id="s", user_id=lambda _: "ada")]
        )
        await named.ainvoke({"messages": [HumanMessage("Where?")]})
        assert (await (await hf.get("s", user_id="ada")).info()).messages > 1


async def test_a_prompt_that_the_provider_rejects_is_made_smaller() -> None:
    async with holdfast.open(MEMORY, budget=4_000) as hf:
        agent, model = make_agent(HoldfastMiddleware(hf), longest=4_000)
        for number in range(20):
            await ask(agent, number)
        sizes = [sum(len(str(message.content)) for message in prompt) for prompt in model.prompts]
        assert any(size > 4_000 for size in sizes)
        accepted = [size for size in sizes if size <= 4_000]
        assert len(accepted) == 40
        for prompt in model.prompts:
            check_prompt(prompt)


async def test_a_smaller_prompt_has_the_strategy_of_the_holdfast() -> None:
    async with holdfast.open(MEMORY, budget=4_000, strategy="token_window") as hf:
        agent, model = make_agent(HoldfastMiddleware(hf), longest=4_000)
        for number in range(20):
            state = await ask(agent, number)
        known = {message.id for message in state}
        rejected = [prompt for prompt in model.prompts if sum(len(str(one.content)) for one in prompt) > 4_000]
        assert rejected
        for prompt in model.prompts:
            assert all(message.id in known for message in prompt[1:])  # `digest` would add a message


async def test_the_last_rejection_is_raised_and_the_session_goes_on() -> None:
    async with holdfast.open(MEMORY, budget=4_000) as hf:
        agent, model = make_agent(HoldfastMiddleware(hf), longest=10)
        with pytest.raises(ContextOverflowError):
            await ask(agent, 1)
        assert 1 <= len(model.prompts) <= 4
        model.longest = 10**9
        async with asyncio.timeout(5):
            await ask(agent, 1)


async def test_removed_messages_leave_the_live_path() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent, _ = make_agent(HoldfastMiddleware(hf))
        state = await ask(agent, 0)
        await agent.aupdate_state(CONFIG, {"messages": [RemoveMessage(id=str(message.id)) for message in state[1:]]})
        await ask(agent, 1)
        session = await hf.get("t", user_id="ada")
        texts = [message["content"] for message in await session.messages()]
        assert "Where is order 1?" in str(texts)
        assert "Order 0 is on its way." not in texts
        assert len(await session.entries(retired=True)) > len(texts)


def test_invoke_works_with_a_portal(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db", budget=700) as portal:
        agent, model = make_agent(HoldfastMiddleware(portal))
        for number in range(12):
            agent.invoke({"messages": [HumanMessage(f"Where is order {number}?")]}, CONFIG)
        assert len(model.prompts[-1]) < 12
        asyncio.run(ask(agent, 12))
        session = portal.call(portal.hf.get, "t", user_id="ada")
        assert portal.call(session.info).messages == 52


async def test_a_providers_own_tool_is_passed_on() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = ScriptedModel(messages=play_orders(), prompts=[])
        agent = create_agent(model, [find, {"type": "web_search"}], middleware=[HoldfastMiddleware(hf, session_id="s")])
        await agent.ainvoke({"messages": [HumanMessage("Where?")]})
        assert len(model.prompts) == 2


async def test_invoke_without_a_portal_says_what_to_do() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent, _ = make_agent(HoldfastMiddleware(hf))
        with pytest.raises(TypeError, match=r"holdfast\.portal"):
            agent.invoke({"messages": [HumanMessage("Where?")]}, CONFIG)


async def test_without_a_store_the_messages_are_only_fitted() -> None:
    agent, model = make_agent(HoldfastMiddleware(budget=700, strategy="token_window"))
    for number in range(20):
        await ask(agent, number)
    assert len(model.prompts[-1]) < 12
    for prompt in model.prompts:
        check_prompt(prompt)


async def test_a_run_continues_after_a_restart(tmp_path: Path) -> None:
    """The checkpointer and the session agree again, whichever of both got further before the process ended."""
    url, saver = f"sqlite:///{tmp_path}/chat.db", InMemorySaver()
    for first in range(0, 6, 2):
        async with holdfast.open(url, budget=700) as hf:
            model = ScriptedModel(messages=play_orders(), prompts=[])
            agent = create_agent(model, [find], middleware=[HoldfastMiddleware(hf)], checkpointer=saver)
            for number in (first, first + 1):
                state = await ask(agent, number)
            if first == 2:  # the process was killed after the log's write and before the checkpoint's
                await (await hf.get("t", user_id="ada")).append({"role": "user", "content": "Lost?"})
            assert len(state) == 4 * (first + 2)
            check_prompt(model.prompts[-1])


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("langchain")

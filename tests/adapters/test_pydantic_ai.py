"""The capability for Pydantic AI agents, with real agents and scripted models."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed here: make adapters")

from pydantic_ai import Agent, ModelRequest, ModelResponse
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import ModelMessage, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import holdfast
from holdfast.adapters.pydantic_ai import HoldfastCapability, read_history
from tests.adapters.pages import run_page

MEMORY = "sqlite://:memory:"


class Orders:
    """A scripted model that calls the tool for the order in the newest question, and then answers."""

    def __init__(self, longest: int = 10**9) -> None:
        self.prompts: list[list[ModelMessage]] = []
        self.longest = longest

    def reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.prompts.append(messages)
        if len(str([part for message in messages for part in message.parts])) > self.longest:
            raise ModelContextWindowExceededError("scripted", "too long")
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse([TextPart(f"Found {last.tool_call_id}.")])
        assert isinstance(last, UserPromptPart)
        number = int(str(last.content).split()[-1])
        call = ToolCallPart("find", {"order": number}, tool_call_id=f"call_{number}")
        return ModelResponse([ThinkingPart("Hm.", signature=f"sig{number}"), call])

    def make_agent(self, hf: Any, **options: Any) -> Agent[None, str]:
        capability = HoldfastCapability(hf, user_id="ada", budget=700, **options)
        agent = Agent(
            FunctionModel(self.reply), system_prompt="You help.", instructions="Be brief.", capabilities=[capability]
        )
        agent.tool_plain(find)
        return agent


def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


async def ask(agent: Agent[None, str], numbers: range, history: list[ModelMessage] | None = None) -> list[ModelMessage]:
    history = history or []
    for number in numbers:
        result = await agent.run(f"Where is order {number}", message_history=history, conversation_id="t")
        history = result.all_messages()
    return history


def list_parts(messages: list[ModelMessage]) -> list[Any]:
    return [[*message.parts] for message in messages]


def check_prompt(prompt: list[ModelMessage]) -> None:
    """Check that calls and results alternate, and that the prompt ends with a request."""
    waiting: list[str] = []
    for message in prompt:
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                waiting.remove(part.tool_call_id)
            elif isinstance(part, ToolCallPart):
                waiting.append(part.tool_call_id)
            elif isinstance(part, UserPromptPart):
                assert not waiting
    assert not waiting
    assert isinstance(prompt[-1], ModelRequest)


async def test_kept_messages_are_the_runs_own_with_signatures() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders()
        history = await ask(model.make_agent(hf), range(10))
        sent = [message for message in model.prompts[-1] if message in history]
        assert len(sent) == 2  # Pydantic AI joins the requests before them
        thinking = [part for message in sent for part in message.parts if isinstance(part, ThinkingPart)]
        assert thinking[-1].signature == "sig9"


async def test_the_history_can_be_read_again() -> None:
    async with holdfast.open(MEMORY) as hf:
        history = await ask(Orders().make_agent(hf), range(5))
        read = await read_history(hf, "t", user_id="ada")
        assert list_parts(read)[1:] == list_parts(history)[1:]
        assert [part.content for part in read[0].parts] == ["You help.", "Where is order 0"]  # type: ignore[union-attr]
        assert await read_history(hf, "t", user_id="bob") == []
        assert await read_history(hf, "other", user_id="ada") == []


async def test_a_prompt_that_the_provider_rejects_is_made_smaller() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders(longest=3_000)
        history = await ask(model.make_agent(hf), range(20))
        assert len(history) == 80
        assert len(model.prompts) > 40
        for prompt in model.prompts:
            check_prompt(prompt)


async def test_the_last_rejection_is_raised_and_the_session_goes_on() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders(longest=10)
        agent = model.make_agent(hf)
        with pytest.raises(ModelContextWindowExceededError):
            await ask(agent, range(1))
        assert 1 <= len(model.prompts) <= 4
        model.longest = 10**9
        async with asyncio.timeout(5):
            await ask(agent, range(1))


async def test_streamed_runs_are_stored_too() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        check_prompt(messages)
        if isinstance(messages[-1].parts[-1], ToolReturnPart):
            yield "Fou"
            yield "nd."
        else:
            yield {0: DeltaToolCall("find", json.dumps({"order": 1}), tool_call_id=f"c{len(messages)}")}

    async with holdfast.open(MEMORY) as hf:
        agent = Agent(FunctionModel(stream_function=stream), capabilities=[HoldfastCapability(hf, budget=700)])
        agent.tool_plain(find)
        history: list[ModelMessage] = []
        for number in range(12):
            async with agent.run_stream(f"Where {number}", message_history=history, conversation_id="t") as run:
                assert await run.get_output() == "Found."
            history = run.all_messages()
        assert list_parts(await read_history(hf, "t")) == list_parts(history)


@pytest.mark.parametrize("where", ["question", "reply", "result"])
async def test_half_a_surrogate_pair_becomes_a_replacement_character(where: str) -> None:
    half = "a\ud83d"

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if where == "result" and isinstance(messages[-1].parts[-1], UserPromptPart):
            return ModelResponse([ToolCallPart("find", {}, tool_call_id="c1")])
        return ModelResponse([TextPart(half if where == "reply" else "Yes.")])

    async with holdfast.open(MEMORY) as hf:
        agent = Agent(FunctionModel(reply), capabilities=[HoldfastCapability(hf)])
        agent.tool_plain(lambda: half, name="find")
        await agent.run(half if where == "question" else "Where?", conversation_id="t")
        assert "a\ufffd" in str(await read_history(hf, "t"))


async def test_users_do_not_share_sessions() -> None:
    async with holdfast.open(MEMORY) as hf:
        for user in ("ada", "bob"):
            capability = HoldfastCapability(hf, user_id=lambda ctx: ctx.deps, session_id="s")
            agent = Agent(
                FunctionModel(lambda *_: ModelResponse([TextPart("Yes.")])), deps_type=str, capabilities=[capability]
            )
            await agent.run(f"I am {user}", deps=user)
        assert (await (await hf.get("s", user_id="bob")).messages())[0]["content"] == "I am bob"
        assert len(await (await hf.get("s", user_id="ada")).messages()) == 2


CRASHING = """
import asyncio, os, signal, sys
import holdfast
from pydantic_ai.messages import ToolReturnPart
from tests.adapters.test_pydantic_ai import Orders, ask

class Crashing(Orders):
    def reply(self, messages, info):
        if len(self.prompts) == 51:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reply(messages, info)

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        await ask(Crashing().make_agent(hf), range(40))

asyncio.run(main())
"""
"""Its 52nd call is the second of turn 25, after the tool's result."""


async def test_a_conversation_continues_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    command = [sys.executable, "-c", CRASHING, url]
    ended = await asyncio.to_thread(subprocess.run, command, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        history = await read_history(hf, "t", user_id="ada")
        assert len(history) == 103
        assert history[-1].parts[0].tool_call_id == "call_25"  # type: ignore[union-attr]
        model = Orders()
        agent = model.make_agent(hf)
        result = await agent.run(message_history=history, conversation_id="t")  # continues the interrupted turn
        assert result.output == "Found call_25."
        history = await ask(agent, range(26, 40), result.all_messages())
        for prompt in model.prompts:
            check_prompt(prompt)
        session = await hf.get("t", user_id="ada")
        assert (await session.info()).messages == len(history) == 160
        assert len(await session.entries(retired=True)) == 160


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("pydantic-ai")

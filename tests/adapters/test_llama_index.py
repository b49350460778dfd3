"""The memory and the agent for LlamaIndex, with real agents and scripted models."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index", reason="LlamaIndex is not installed here: make adapters")

from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, SimpleAgentContext, ToolCallResult
from llama_index.core.base.llms.types import (
    AudioBlock,
    CachePoint,
    ChatMessage,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool, ToolOutput
from llama_index.core.workflow import Context, JsonSerializer
from sqlalchemy.ext.asyncio import create_async_engine

import holdfast
from holdfast.adapters.llama_index import HoldfastFunctionAgent, HoldfastMemory
from holdfast.errors import BudgetTooSmall, WrongEventLoop
from tests.adapters.pages import run_page

pytestmark = pytest.mark.filterwarnings(
    "ignore::pydantic.PydanticDeprecationWarning"
)  # an agent lists all its attributes

MEMORY = "sqlite://:memory:"
PNG = b"\x89PNG\r\n\x1a\n" + os.urandom(2_000_000)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(5_000)
EVERYTHING = [
    ChatMessage(role="user", content="Where?", additional_kwargs={"name": "Ada", "tags": [1, None, {"x": 1.5}]}),
    ChatMessage(role="user", blocks=[TextBlock(text="Here:"), ImageBlock(image=PNG, detail="high")]),
    ChatMessage(role="user", blocks=[ImageBlock(url="https://example.org/a.png"), AudioBlock(audio=WAV, format="wav")]),
    ChatMessage(
        role="user",
        blocks=[
            DocumentBlock(data=b"%PDF-1.4 x", title="bill", document_mimetype="application/pdf"),
            VideoBlock(url="https://example.org/a.mp4"),
            CitableBlock(title="Orders", source="shop", content=[TextBlock(text="Order 1.")]),
            CachePoint(cache_control={"type": "ephemeral"}),
        ],
    ),
    ChatMessage(
        role="assistant",
        blocks=[
            ThinkingBlock(content="Hm.", num_tokens=3, additional_information={"signature": "gAAA"}),
            TextBlock(text="Wait."),
            ToolCallBlock(tool_call_id="c1", tool_name="find", tool_kwargs={"order": 1}),
            ToolCallBlock(tool_call_id="c2", tool_name="find", tool_kwargs='{"order": 2}'),
        ],
        additional_kwargs={"refusal": None},
    ),
    ChatMessage(role="tool", content="On its way.", additional_kwargs={"tool_call_id": "c1", "name": "find"}),
    ChatMessage(
        role="tool",
        blocks=[TextBlock(text="Drawn:"), ImageBlock(image=PNG)],
        additional_kwargs={"tool_call_id": "c2"},
    ),
    ChatMessage(
        role="assistant",
        content="",
        additional_kwargs={
            "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        },
    ),
    ChatMessage(role="function", content="Called.", additional_kwargs={"tool_call_id": "c3"}),
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="developer", content="Very brief."),
    ChatMessage(role="model", content="Yes."),
    ChatMessage(role="chatbot", content="No."),
    ChatMessage(role="assistant", blocks=[]),
    ChatMessage(role="user", content=""),
]


class Orders:
    """A scripted model that calls the tool for the order in the newest question, and then answers. It keeps all prompts."""

    def __init__(self, calls: int = 1) -> None:
        self.prompts: list[list[ChatMessage]] = []
        self.calls = calls

    def reply(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.prompts.append(list(messages))
        last = messages[-1]
        if last.role != "tool":
            number = int((last.content or "").split()[-1])
        else:
            number = int(last.additional_kwargs["tool_call_id"].split("_")[1]) + 1
            if number % self.calls == 0:
                return ChatMessage(role="assistant", content=f"Found until {number}.")
        thinking = ThinkingBlock(content="Hm.", additional_information={"signature": f"sig{number}"})
        call = ToolCallBlock(tool_call_id=f"call_{number}", tool_name="find", tool_kwargs={"order": number})
        return ChatMessage(role="assistant", blocks=[thinking, call])

    def make_agent(self, kind: type[FunctionAgent] = FunctionAgent, **options: Any) -> FunctionAgent:
        llm = MockFunctionCallingLLM(response_generator=self.reply, is_chat_model=True)
        return kind(
            name="orders", llm=llm, tools=[FunctionTool.from_defaults(find)], system_prompt="You help.", **options
        )


def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


async def ask(agent: FunctionAgent, memory: Any, numbers: range) -> None:
    for number in numbers:
        await agent.run(f"Where is order {number}", memory=memory, max_iterations=100)


def check_prompt(prompt: Sequence[ChatMessage]) -> None:
    """Check that each call has its result after it, each result its call before it, and that no calls are open at the end."""
    waiting: list[str | None] = []
    for message in prompt:
        if message.role == "user":
            assert not waiting
        if message.role == "tool":
            waiting.remove(message.additional_kwargs["tool_call_id"])
        waiting += [block.tool_call_id for block in message.blocks if isinstance(block, ToolCallBlock)]
    assert not waiting
    assert prompt[-1].role in ("user", "tool")


def count_tokens(prompt: Sequence[ChatMessage]) -> int:
    """Return the tokens of a prompt's texts and calls."""
    texts = [message.content or "" for message in prompt]
    texts += [
        str(block.tool_kwargs) for message in prompt for block in message.blocks if isinstance(block, ToolCallBlock)
    ]
    return holdfast.fit([{"role": "user", "content": text} for text in texts], budget=2**31).conversation_tokens


def count_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("chat.db*"))


async def test_a_long_run_sends_bounded_prompts() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders(calls=40)
        memory = HoldfastMemory(hf, "s", budget=700)
        await ask(model.make_agent(HoldfastFunctionAgent), memory, range(1))
        assert len(model.prompts) == 41
        for prompt in model.prompts:
            check_prompt(prompt)
            assert count_tokens(prompt) < 800
        assert len(await memory.aget_all()) == 82


async def test_the_agent_works_with_other_memories() -> None:
    model = Orders(calls=4)
    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    memory = Memory.from_defaults(token_limit=2_000, token_flush_size=300, async_engine=engine)
    await ask(model.make_agent(HoldfastFunctionAgent), memory, range(1))
    assert [len(prompt) for prompt in model.prompts] == [2, 4, 6, 8, 10]
    assert len(await memory.aget_all()) == 10
    await engine.dispose()


async def test_a_workflow_of_agents_shares_the_memory() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders(calls=10)
        memory = HoldfastMemory(hf, "s", budget=700)
        workflow = AgentWorkflow(agents=[model.make_agent(HoldfastFunctionAgent)], root_agent="orders")
        for number in range(0, 40, 10):
            await workflow.run(user_msg=f"Where is order {number}", memory=memory)
        for prompt in model.prompts:
            check_prompt(prompt)
            assert count_tokens(prompt) < 800
        assert len(await memory.aget_all()) == 4 * 22


async def test_a_step_that_is_repeated_sees_the_steps_before() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders(calls=3)
        agent = model.make_agent(HoldfastFunctionAgent)
        memory = HoldfastMemory(hf, "s")
        question = ChatMessage(role="user", content="Where is order 0")
        await memory.aput(question)
        context, prompt = SimpleAgentContext(), [ChatMessage(role="system", content="You help."), question]
        tools: Any = agent.tools
        await agent.take_step(context, prompt, tools, memory)
        output = ToolOutput(tool_name="find", content="Here.", raw_input={}, raw_output="Here.")
        result = ToolCallResult(
            tool_name="find", tool_kwargs={}, tool_id="call_0", tool_output=output, return_direct=False
        )
        await agent.handle_tool_call_results(context, [result], memory)  # type: ignore[arg-type]
        for _ in range(2):
            await context.store.set("scratchpad", (await context.store.get("scratchpad"))[:2])
            await agent.take_step(context, prompt, tools, memory)
            await context.store.set("scratchpad", [])  # the reply is lost
        assert model.prompts[2] == model.prompts[1]
        assert [message.role for message in model.prompts[1]] == ["system", "user", "assistant", "tool"]


async def test_messages_come_back_as_they_were(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        memory = HoldfastMemory(hf, "s")
        await memory.aput_messages(EVERYTHING)
        assert await memory.aget_all() == EVERYTHING
    assert count_bytes(tmp_path) < 3_500_000  # the image is stored once


async def test_messages_are_sent_as_they_were() -> None:
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s", budget=20_000)
        turn = [*EVERYTHING[:2], *EVERYTHING[4:9]]
        await memory.aput_messages([*turn, ChatMessage(role="user", content="And now?")])
        assert (await memory.aget())[:-1] == turn


async def test_streams_and_files_are_stored_too(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG[:5_000])
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s", budget=5_000)
        blocks = [ImageBlock(image=BytesIO(PNG[:5_000])), ImageBlock(path=file)]
        await memory.aput(ChatMessage(role="user", blocks=blocks))
        read = (await memory.aget_all())[0].blocks
        assert [block.resolve_image().read() for block in read] == [PNG[:5_000]] * 2  # type: ignore[union-attr]
        file.unlink()
        read = (await memory.aget())[0].blocks
        assert [block.resolve_image().read() for block in read] == [PNG[:5_000]] * 2  # type: ignore[union-attr]


async def test_a_message_that_is_shortened_keeps_its_thinking() -> None:
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s", budget=300)
        thinking = ThinkingBlock(content="Hm.", additional_information={"signature": "gAAA"})
        call = ToolCallBlock(tool_call_id="c1", tool_name="write", tool_kwargs={"text": "word " * 3_000})
        await memory.aput_messages(
            [
                ChatMessage(role="user", content="Write it."),
                ChatMessage(role="assistant", blocks=[thinking, TextBlock(text="word " * 3_000), call]),
                ChatMessage(
                    role="tool", content="word " * 3_000, additional_kwargs={"tool_call_id": "c1", "name": "write"}
                ),
            ]
        )
        prompt = await memory.aget()
        check_prompt(prompt)
        assert count_tokens(prompt) < 350
        assert prompt[-2].blocks[0] == thinking
        assert prompt[-1].additional_kwargs == {"tool_call_id": "c1", "name": "write"}


async def test_setting_the_history_writes_only_what_changes() -> None:
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s")
        history = [
            ChatMessage(role="user" if at % 2 == 0 else "assistant", content=f"Message {at}.") for at in range(6)
        ]
        await memory.aset(history[:4])
        await memory.aset(history)
        await memory.aset([*history[:5], ChatMessage(role="assistant", content="Another.")])
        await memory.aset(history[:2])
        assert await memory.aget_all() == history[:2]
        session = await hf.get("s")
        assert len(await session.entries(retired=True)) == 7
        await memory.areset()
        assert await memory.aget_all() == []
        assert await memory.aget() == []


async def test_an_unknown_session_is_empty_and_is_not_created() -> None:
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s")
        assert await memory.aget() == await memory.aget_all() == []
        await memory.areset()
        await memory.aput_messages([])
        assert not (await hf.sessions()).sessions


async def test_users_do_not_share_sessions() -> None:
    async with holdfast.open(MEMORY) as hf:
        await HoldfastMemory(hf, "s", user_id="ada").aput(ChatMessage(role="user", content="secret"))
        assert await HoldfastMemory(hf, "s", user_id="bob").aget() == []


async def test_sessions_of_other_programs_are_converted() -> None:
    async with holdfast.open(MEMORY) as hf:
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"order": 1}'}}
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUFB"}}
        handle = await hf.session("s", system="Be brief.")
        await handle.append(
            [
                {"role": "user", "content": [{"type": "text", "text": "Where?"}, image]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "Here."},
                {"role": "note", "origin": {"event": "handoff"}},
            ]
        )
        memory = HoldfastMemory(hf, "s")
        read = await memory.aget_all()
        assert [[block.block_type for block in message.blocks] for message in read] == [
            ["text", "image"],
            ["tool_call"],
            ["text"],
        ]
        assert read[1].blocks[0].tool_kwargs == {"order": 1}  # type: ignore[union-attr]
        assert (await memory.aget())[1:] == read
        assert (await memory.aget())[0].role == "system"


async def test_a_cancelled_put_writes_all_messages_or_none() -> None:
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s")
        for waits in range(40):
            before = len(await memory.aget_all())
            putting = asyncio.create_task(memory.aput_messages(EVERYTHING[4:7]))
            for _ in range(waits):
                await asyncio.sleep(0)
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
            assert len(await memory.aget_all()) - before in (0, 3)


async def test_another_event_loop_is_refused() -> None:
    async with holdfast.open(MEMORY) as hf:
        memory = HoldfastMemory(hf, "s")
        with pytest.raises(WrongEventLoop):
            await asyncio.to_thread(lambda: asyncio.run(memory.aput(EVERYTHING[0])))
        with pytest.raises(TypeError, match=r"holdfast\.portal"):
            memory.put(EVERYTHING[0])


def test_synchronous_code_uses_a_portal(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db") as portal:
        memory = HoldfastMemory(portal, "s", budget=500)
        llm = MockFunctionCallingLLM(
            response_generator=lambda messages: ChatMessage(role="assistant", content="Yes. " * 9)
        )
        engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
        for number in range(30):
            engine.chat(f"Is parcel {number} on its way?")
        assert len(engine.chat_history) == len(memory.get_all()) == 60
        assert count_tokens(memory.get()) < 600
        memory.set(memory.get_all()[:2])
        memory.put_messages([ChatMessage(role="user", content="Sure?")])
        memory.put(ChatMessage(role="assistant", content="Yes."))
        assert len(asyncio.run(memory.aget_all())) == 4
        engine.reset()
        assert memory.get_all() == []


async def test_a_context_can_be_used_again() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = Orders()
        agent = model.make_agent()
        context = Context(agent)
        await agent.run("Where is order 1", memory=HoldfastMemory(hf, "s", user_id="ada", budget=900), ctx=context)
        await agent.run("Where is order 2", ctx=context)
        assert len(await HoldfastMemory(hf, "s", user_id="ada").aget_all()) == 8
        loaded = Context.from_dict(agent, context.to_dict(serializer=JsonSerializer()), serializer=JsonSerializer())
        memory = await loaded.store.get("memory")
        assert (memory.session_id, memory.user_id, memory.options) == ("s", "ada", {"budget": 900})
        assert len(await memory.aget_all()) == 8


async def test_a_context_of_another_process_needs_the_memory_again() -> None:
    async with holdfast.open(MEMORY) as hf:
        saved = {**HoldfastMemory(hf, "s").to_dict(), "opened": "elsewhere"}
        with pytest.raises(ValueError, match="another process"):
            await HoldfastMemory.from_dict(saved).aget()


def make_turn(number: int, calls: int, words: int) -> list[ChatMessage]:
    """Return the messages of a turn: a question, a reply with parallel calls, their results, and an answer."""
    made = [ChatMessage(role="user", content=f"Question {number}. " + "word " * words)]
    names = [f"c{number}_{at}" for at in range(calls)]
    thinking = ThinkingBlock(content="Hm.", additional_information={"signature": f"sig{number}"})
    blocks = [thinking, *(ToolCallBlock(tool_call_id=name, tool_name="find", tool_kwargs={}) for name in names)]
    made += [ChatMessage(role="assistant", blocks=blocks)] if calls else []
    for name in names:
        made.append(ChatMessage(role="tool", content="found " * words, additional_kwargs={"tool_call_id": name}))
    return [*made, ChatMessage(role="assistant", content=f"Answer {number}.")]


@given(
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), min_size=1, max_size=12),
    budget=st.integers(300, 2_000),
    strategy=st.sampled_from(["digest", "token_window", "buffer_window", "salience", "head_tail"]),
)
def test_every_prompt_is_valid(turns: list[Any], budget: int, strategy: str) -> None:
    messages = [message for number, turn in enumerate(turns) for message in make_turn(number, *turn)]

    async def check() -> None:
        async with holdfast.open(MEMORY) as hf:
            model = Orders(calls=4)
            memory = HoldfastMemory(hf, "s", budget=budget, strategy=strategy)
            await memory.aset(messages)
            assert await memory.aget_all() == messages
            try:
                await ask(model.make_agent(HoldfastFunctionAgent), memory, range(1))
            except BudgetTooSmall:
                return
            for prompt in model.prompts:
                check_prompt(prompt)
                assert any(message.content == "Where is order 0" for message in prompt)

    asyncio.run(check())


CRASHING = """
import asyncio, os, signal, sys
import holdfast
from holdfast.adapters.llama_index import HoldfastFunctionAgent, HoldfastMemory
from tests.adapters.test_llama_index import Orders, ask

class Crashing(Orders):
    def reply(self, messages, **kwargs):
        if len(self.prompts) == 25:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reply(messages, **kwargs)

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        memory = HoldfastMemory(hf, "s", budget=700)
        await ask(Crashing(calls=40).make_agent(HoldfastFunctionAgent), memory, range(1))

asyncio.run(main())
"""
"""The 26th call of its model ends the process, after the 25th result was stored."""


async def test_a_run_continues_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    command = [sys.executable, "-c", CRASHING, url]
    ended = await asyncio.to_thread(subprocess.run, command, check=False, timeout=90)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        memory = HoldfastMemory(hf, "s", budget=700)
        stored = await memory.aget_all()
        assert len(stored) == 1 + 25 * 2
        assert stored[-1].additional_kwargs["tool_call_id"] == "call_24"
        model = Orders(calls=40)
        await ask(model.make_agent(HoldfastFunctionAgent), memory, range(25, 26))
        assert len(model.prompts) == 16
        for prompt in model.prompts:
            check_prompt(prompt)
        assert len(await memory.aget_all()) == 51 + 1 + 15 * 2 + 1


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("llama-index")

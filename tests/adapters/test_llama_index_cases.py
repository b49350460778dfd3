"""The cases of `AdapterCases` for the memory and the agent of LlamaIndex."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("llama_index", reason="LlamaIndex is not installed here: make adapters")

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool

from holdfast.adapters.llama_index import HoldfastChatStore, HoldfastFunctionAgent, HoldfastMemory
from tests.adapters.cases import AdapterCases, Conversation, Sent, answer, find, parse_number

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning")


def describe(message: ChatMessage) -> Sent:
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    thoughts = [block for block in message.blocks if isinstance(block, ThinkingBlock)]
    role = message.role.value
    return Sent(
        role,
        message.content or "",
        tuple(str(call.tool_call_id) for call in calls),
        "".join(json.dumps(call.tool_kwargs, separators=(",", ":")) for call in calls),
        (message.additional_kwargs["tool_call_id"],) if role == "tool" else (),
        tuple(block.additional_information["signature"] for block in thoughts),
        tuple(block.resolve_image().read() for block in message.blocks if isinstance(block, ImageBlock)),
    )


class LlamaIndexConversation(Conversation):
    """An agent with a memory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        llm = MockFunctionCallingLLM(response_generator=self.reply, is_chat_model=True)
        given: Any = {"llm": llm, "tools": [FunctionTool.from_defaults(find)]}
        if self.hf is None:
            self.memory: Any = ChatMemoryBuffer.from_defaults(token_limit=10**9)
            self.agent = FunctionAgent(**given)
        else:
            self.memory = HoldfastMemory(self.hf, self.session, budget=self.budget)
            self.agent = HoldfastFunctionAgent(**given)

    def reply(self, messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
        self.prompts.append([describe(one) for one in messages])
        last = messages[-1]
        if last.role == "tool":
            return ChatMessage(role="assistant", content=answer(last.additional_kwargs["tool_call_id"]))
        number = parse_number(last.content or "")
        if number is None:
            return ChatMessage(role="assistant", content="I see.")
        thinking = ThinkingBlock(content="Hm.", additional_information={"signature": f"sig{number}"})
        call = ToolCallBlock(tool_call_id=f"call_{number}", tool_name="find", tool_kwargs={"order": number})
        return ChatMessage(role="assistant", blocks=[thinking, call])

    async def ask(self, text: str, image: bytes | None = None) -> None:
        blocks: list[Any] = [TextBlock(text=text), *([ImageBlock(image=base64.b64encode(image))] if image else [])]
        others = asyncio.all_tasks()
        handler = self.agent.run(ChatMessage(role="user", blocks=blocks), memory=self.memory)
        try:
            await handler
        except asyncio.CancelledError:  # LlamaIndex stops no run whose caller is cancelled, and waits for no step
            await handler.cancel_run()
            await asyncio.gather(*asyncio.all_tasks() - others, return_exceptions=True)
            raise

    async def read(self) -> list[Sent]:
        return [describe(one) for one in await self.memory.aget_all()]

    async def add(self, texts: Sequence[str]) -> None:
        await self.memory.aput_messages([ChatMessage(role="user", content=text) for text in texts])

    async def pop(self) -> list[Sent]:
        return [describe(one) for one in await HoldfastChatStore(self.hf).delete_oldest_messages(self.session, 1)]


class TestLlamaIndex(AdapterCases):
    """The memory `HoldfastMemory` and the agent `HoldfastFunctionAgent`; `pop` is the chat store's `delete_oldest_messages`."""

    kind = LlamaIndexConversation

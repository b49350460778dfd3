"""The cases of `AdapterCases` for the capability of Pydantic AI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed here: make adapters")

from pydantic_ai import Agent, BinaryContent, ModelResponse
from pydantic_ai.messages import ModelMessage, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast.adapters.pydantic_ai import HoldfastCapability, read_history
from tests.adapters.cases import AdapterCases, Conversation, Sent, answer, find, parse_number


def describe(messages: Sequence[ModelMessage]) -> list[Sent]:
    """Return messages. A request of Pydantic AI can have several: results and a question."""
    described: list[Sent] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            described.append(describe_reply(message))
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                described.append(Sent("tool", str(part.content), results=(part.tool_call_id,)))
            elif isinstance(part, UserPromptPart):
                items = [part.content] if isinstance(part.content, str) else part.content
                text = "".join(item for item in items if isinstance(item, str))
                images = tuple(item.data for item in items if isinstance(item, BinaryContent))
                described.append(Sent("user", text, images=images))
            else:
                described.append(Sent("system", str(part.content)))
    return described


def describe_reply(message: ModelResponse) -> Sent:
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
    return Sent(
        "assistant",
        "".join(part.content for part in message.parts if isinstance(part, TextPart)),
        tuple(call.tool_call_id for call in calls),
        "".join(json.dumps(call.args_as_dict(), separators=(",", ":")) for call in calls),
        signatures=tuple(str(part.signature) for part in thoughts),
    )


class PydanticAIConversation(Conversation):
    """An agent with the capability. Each run reads its history, as the page shows."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        capabilities = [] if self.hf is None else [HoldfastCapability(self.hf, budget=self.budget)]
        self.agent = Agent(FunctionModel(self.reply), capabilities=capabilities)
        self.agent.tool_plain(find)
        self.history: list[ModelMessage] = []

    def reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.prompts.append(describe(messages))
        last = self.prompts[-1][-1]
        if last.results:
            return ModelResponse([TextPart(answer(last.results[0]))])
        number = parse_number(last.text)
        if number is None:
            return ModelResponse([TextPart("I see.")])
        call = ToolCallPart("find", {"order": number}, tool_call_id=f"call_{number}")
        return ModelResponse([ThinkingPart("Hm.", signature=f"sig{number}"), call])

    async def load(self) -> list[ModelMessage]:
        return self.history if self.hf is None else await read_history(self.hf, self.session)

    async def ask(self, text: str, image: bytes | None = None) -> None:
        question = [text, BinaryContent(image, media_type="image/png")] if image else text
        history = await self.load()
        if history and isinstance(history[-1], ModelResponse) and history[-1].tool_calls:
            history = history[:-1]  # Pydantic AI refuses a new question after calls without results
        result = await self.agent.run(question, message_history=history, conversation_id=self.session)
        self.history = result.all_messages()

    async def read(self) -> list[Sent]:
        return describe(await self.load())


class TestPydanticAI(AdapterCases):
    """`HoldfastCapability` and `read_history`."""

    kind = PydanticAIConversation
    inapplicable: ClassVar[dict[str, str]] = {
        "test_ten_concurrent_adds_are_all_kept": "a run has one history; of concurrent saves of a conversation one wins, see"
        " tests/adapters/test_pydantic_ai_oracle.py",
        "test_ten_concurrent_pops_return_different_messages": "neither capabilities nor conversation stores can remove messages",
    }

"""The cases of `AdapterCases` for the session manager and the conversation manager of Strands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("strands", reason="Strands is not installed here: make adapters")

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

import holdfast
from holdfast.adapters.strands import HoldfastConversationManager, HoldfastSessionManager
from tests.adapters import cases
from tests.adapters.cases import AdapterCases, Conversation, Sent, answer, parse_number
from tests.adapters.strands_kit import Json, ScriptedModel

find = tool(cases.find)


def describe(message: Json) -> Sent:
    content = message["content"]
    calls = [block["toolUse"] for block in content if "toolUse" in block]
    results = [block["toolResult"] for block in content if "toolResult" in block]
    thoughts = [block["reasoningContent"]["reasoningText"] for block in content if "reasoningContent" in block]
    texts = [block.get("text", "") for block in content]
    texts += [one.get("text", "") for result in results for one in result["content"]]
    return Sent(
        "tool" if results else message["role"],
        "".join(texts),
        tuple(call["toolUseId"] for call in calls),
        "".join(json.dumps(call["input"], separators=(",", ":")) for call in calls),
        tuple(result["toolUseId"] for result in results),
        tuple(thought["signature"] for thought in thoughts),
        tuple(block["image"]["source"]["bytes"] for block in content if "image" in block),
    )


class OrdersModel(ScriptedModel):
    """A model that calls the tool for the order in the newest question."""

    def __init__(self, prompts: list[list[Sent]]) -> None:
        super().__init__()
        self.prompts = prompts

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.prompts.append([describe(one) for one in messages])
        last = self.prompts[-1][-1]
        number = parse_number("".join(block.get("text", "") for block in messages[-1]["content"]))
        if number is None:  # a question may be in one message with the result of an interrupted call
            self.replies = [[{"text": answer(last.results[0]) if last.results else "I see."}]]
        else:
            thought = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": f"sig{number}"}}}
            use = {"toolUse": {"toolUseId": f"call_{number}", "name": "find", "input": {"order": number}}}
            self.replies = [[thought, use]]
        async for chunk in super().stream(messages, *args, **kwargs):
            yield chunk


class StrandsConversation(Conversation):
    """An agent with both managers. It is created when it is first used, because an open `Holdfast` must be read first."""

    agent: Agent | None = None

    async def open(self) -> Agent:
        if self.agent is None:
            given: Json = {"conversation_manager": NullConversationManager()}
            if self.hf is not None:
                sessions = HoldfastSessionManager(self.hf, self.session)
                if isinstance(self.hf, holdfast.Holdfast):
                    await sessions.load()
                given = {"session_manager": sessions}
                given["conversation_manager"] = HoldfastConversationManager(sessions, budget=self.budget)
            self.agent = Agent(OrdersModel(self.prompts), tools=[find], callback_handler=None, **given)
        return self.agent

    async def ask(self, text: str, image: bytes | None = None) -> None:
        blocks: Any = [{"text": text}]
        if image:
            blocks.append({"image": {"format": "png", "source": {"bytes": image}}})
        await (await self.open()).invoke_async(blocks)

    async def read(self) -> list[Sent]:
        again = self if self.hf is None else StrandsConversation(self.hf, self.session)
        return [describe(message) for message in (await again.open()).messages]  # type: ignore[arg-type]


class TestStrands(AdapterCases):
    """`HoldfastSessionManager` and `HoldfastConversationManager`."""

    kind = StrandsConversation
    inapplicable: ClassVar[dict[str, str]] = {
        "test_ten_concurrent_adds_are_all_kept": "an agent refuses a second call while one runs; if another agent object writes to the"
        " session, the next write raises `SessionException`",
        "test_ten_concurrent_pops_return_different_messages": "session managers cannot remove messages",
    }

"""The cases of `AdapterCases` for the history provider of the Agent Framework."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

pytest.importorskip("agent_framework", reason="the Agent Framework is not installed here: make adapters")

from agent_framework import Agent, AgentSession, Content, InMemoryHistoryProvider, Message, tool

from holdfast.adapters.agent_framework import HoldfastHistoryProvider
from tests.adapters import cases
from tests.adapters.cases import AdapterCases, Conversation, Sent, answer, parse_number
from tests.adapters.test_agent_framework import ScriptedClient

find = tool(approval_mode="never_require")(cases.find)


def describe(message: Message) -> Sent:
    calls = [one for one in message.contents if one.type == "function_call"]
    results = [one for one in message.contents if one.type == "function_result"]
    return Sent(
        str(message.role),
        message.text + "".join(str(one.result) for one in results),
        tuple(str(one.call_id) for one in calls),
        "".join(str(one.arguments).replace("'", '"').replace(" ", "") for one in calls),
        tuple(str(one.call_id) for one in results),
        tuple(str(one.protected_data) for one in message.contents if one.type == "text_reasoning"),
        tuple(base64.b64decode(str(one.uri).partition(",")[2]) for one in message.contents if one.type == "data"),
    )


class AgentFrameworkConversation(Conversation):
    """An agent that stores each step before the next one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.own = AgentSession(session_id=self.session)
        provider: Any = InMemoryHistoryProvider("history")
        if self.hf is not None:
            provider = HoldfastHistoryProvider(self.hf, budget=self.budget, source_id="history")
        self.provider = provider
        self.agent: Any = Agent(
            ScriptedClient(self.reply),
            tools=[find],
            context_providers=[provider],
            require_per_service_call_history_persistence=True,
        )

    def reply(self, messages: Sequence[Message]) -> list[Content]:
        self.prompts.append([describe(one) for one in messages])
        last = messages[-1]
        if last.role == "tool":
            return [Content.from_text(answer(str(last.contents[-1].call_id)))]
        number = parse_number(last.text)
        if number is None:
            return [Content.from_text("I see.")]
        reasoning = Content.from_text_reasoning(text="Hm.", protected_data=f"sig{number}")
        return [reasoning, Content.from_function_call(f"call_{number}", "find", arguments={"order": number})]

    async def ask(self, text: str, image: bytes | None = None) -> None:
        contents: list[Any] = [text, *([Content.from_data(image, "image/png")] if image else [])]
        await self.agent.run(Message("user", contents), session=self.own)

    async def read(self) -> list[Sent]:
        state = self.own.state.get("history", {}) if self.hf is None else None
        return [describe(one) for one in await self.provider.get_messages(self.session, state=state)]

    async def add(self, texts: Sequence[str]) -> None:
        await self.provider.save_messages(self.session, [Message("user", [text]) for text in texts])


class TestAgentFramework(AdapterCases):
    """The provider `HoldfastHistoryProvider`."""

    kind = AgentFrameworkConversation
    inapplicable: ClassVar[dict[str, str]] = {
        "test_ten_concurrent_pops_return_different_messages": "history providers of the framework cannot remove messages"
    }

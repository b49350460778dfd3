"""The cases of `AdapterCases` for the session and the filter of the OpenAI Agents SDK."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed here: make adapters")

from agents import Agent, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from openai.types.responses import ResponseReasoningItem

from holdfast.adapters.openai_agents import HoldfastSession, working_set_filter
from tests.adapters import cases
from tests.adapters.cases import AdapterCases, Conversation, Sent, answer, parse_number

find = function_tool(cases.find)


def describe(items: Sequence[Any]) -> list[Sent]:
    """Return messages. Reasoning and the calls after it are one message, as in the log."""
    messages: list[Sent] = []
    signatures: tuple[str, ...] = ()
    for item in items:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            signatures = (item["encrypted_content"],)
        elif kind == "function_call":
            arguments = item["arguments"].replace(" ", "")
            messages.append(Sent("assistant", calls=(item["call_id"],), arguments=arguments, signatures=signatures))
            signatures = ()
        elif kind == "function_call_output":
            messages.append(Sent("tool", str(item["output"]), results=(item["call_id"],)))
        else:
            content = item["content"]
            parts = [{"text": content}] if isinstance(content, str) else content
            text = "".join(part.get("text", "") for part in parts)
            urls = [part["image_url"] for part in parts if "image_url" in part]
            images = tuple(base64.b64decode(url.partition(",")[2]) for url in urls)
            messages.append(Sent(item["role"], text, images=images))
    return messages


class ScriptedModel(Model):
    """A model that calls the tool for the order in the newest question."""

    def __init__(self, prompts: list[list[Sent]]) -> None:
        self.prompts = prompts

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items = kwargs["input"] if "input" in kwargs else args[1]
        return ModelResponse(output=self.reply(items), usage=Usage(), response_id=None)

    def reply(self, items: Sequence[Any]) -> list[Any]:
        self.prompts.append(describe(items))
        last = items[-1]
        if "output" in last:
            return [assistant_message(answer(last["call_id"]))]
        number = parse_number(self.prompts[-1][-1].text)
        if number is None:
            return [assistant_message("I see.")]
        reasoning = ResponseReasoningItem(
            id=f"rs_{number}", type="reasoning", summary=[], encrypted_content=f"sig{number}"
        )
        return [reasoning, function_call("find", json.dumps({"order": number}), call_id=f"call_{number}")]

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class OpenAIAgentsConversation(Conversation):
    """An agent with a session and a filter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.agent = Agent("orders", model=ScriptedModel(self.prompts), tools=[find])
        self.items: Any = SQLiteSession(self.session)
        config: Any = {"tracing_disabled": True}
        if self.hf is not None:
            self.items.close()
            self.items = HoldfastSession(self.hf, self.session)
            config["call_model_input_filter"] = working_set_filter(self.items, budget=self.budget)
        self.config = RunConfig(**config)

    async def ask(self, text: str, image: bytes | None = None) -> None:
        content: Any = text
        if image:
            url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
            content = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
        question: Any = [{"role": "user", "content": content}]
        config = self.config
        await Runner.run(self.agent, question, session=self.items, run_config=config)

    async def read(self) -> list[Sent]:
        return describe(await self.items.get_items())

    async def add(self, texts: Sequence[str]) -> None:
        await self.items.add_items([{"role": "user", "content": text} for text in texts])

    async def pop(self) -> list[Sent]:
        item = await self.items.pop_item()
        return describe([item] if item else [])


class TestOpenAIAgents(AdapterCases):
    """`HoldfastSession` and `working_set_filter`."""

    kind = OpenAIAgentsConversation

"""The cases of `AdapterCases` for the session service and the plugin of Google's ADK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

import holdfast
from holdfast.adapters.adk import HoldfastSessionService, WorkingSetPlugin
from tests.adapters.cases import MEMORY, AdapterCases, Conversation, Sent, answer, find, parse_number
from tests.adapters.test_adk import ADA


def describe(content: types.Content) -> Sent:
    parts = content.parts or []
    calls = [part.function_call for part in parts if part.function_call]
    results = [part.function_response for part in parts if part.function_response]
    texts = [part.text or "" for part in parts] + [str((one.response or {}).get("result")) for one in results]
    return Sent(
        "tool" if results else {"model": "assistant"}.get(str(content.role), "user"),
        "".join(texts),
        tuple(str(call.id) for call in calls),
        "".join(json.dumps(call.args, separators=(",", ":")) for call in calls),
        tuple(str(one.id) for one in results),
        tuple(part.thought_signature.decode() for part in parts if part.thought_signature),
        tuple(part.inline_data.data or b"" for part in parts if part.inline_data),
    )


class ScriptedModel(BaseLlm):
    """A model that calls the tool for the order in the newest question."""

    prompts: list[list[Sent]]

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:
        self.prompts.append([describe(one) for one in llm_request.contents])
        last = self.prompts[-1][-1]
        number = parse_number(last.text)
        part = types.Part(text="I see.")
        if last.results:
            part = types.Part(text=answer(last.results[0]))
        elif number is not None:
            call = types.FunctionCall(id=f"call_{number}", name="find", args={"order": number})
            part = types.Part(function_call=call, thought_signature=f"sig{number}".encode())
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class ADKConversation(Conversation):
    """A runner with the session service and the plugin."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        model = ScriptedModel(model="scripted", prompts=[])
        self.prompts = model.prompts
        self.service: Any = InMemorySessionService() if self.hf is None else HoldfastSessionService(self.hf)
        agent = LlmAgent(name="helper", model=model, tools=[find])
        plugins = [] if self.hf is None else [WorkingSetPlugin(budget=self.budget)]
        app = App(name="shop", root_agent=agent, plugins=plugins)
        self.runner = Runner(app=app, session_service=self.service, auto_create_session=True)

    async def ask(self, text: str, image: bytes | None = None) -> None:
        parts = [types.Part(text=text)]
        if image:
            parts.append(types.Part(inline_data=types.Blob(data=image, mime_type="image/png")))
        message = types.Content(role="user", parts=parts)
        async for _ in self.runner.run_async(user_id="ada", session_id=self.session, new_message=message):
            pass

    async def read(self) -> list[Sent]:
        session = await self.service.get_session(**ADA, session_id=self.session)
        return [describe(event.content) for event in session.events if event.content] if session else []


class TestADK(AdapterCases):
    """`HoldfastSessionService` and `WorkingSetPlugin`."""

    kind = ADKConversation
    inapplicable: ClassVar[dict[str, str]] = {
        "test_ten_concurrent_pops_return_different_messages": "session services cannot remove events",
    }

    async def test_ten_concurrent_adds_are_all_kept(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            service = HoldfastSessionService(hf)
            session = await service.create_session(**ADA, session_id="s")
            events = [Event(author="user", content=types.UserContent(f"Message {at}.")) for at in range(10)]
            await asyncio.gather(*(service.append_event(session, event) for event in events))
            stored = await ADKConversation(hf).read()
            assert sorted(one.text for one in stored) == [f"Message {at}." for at in range(10)]

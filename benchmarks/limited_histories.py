"""Prompts of an agent when a framework's own limit bounds its history, compared with Holdfast at a budget.

An agent answers 40 questions, and calls a tool once for each. The first question states a rule that holds for all of them. A prompt
is broken if it contains a tool result without its call or a call without its result: providers reject such prompts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import Trimmer
from benchmarks.tables import Column, Figure, Table, format_count, format_share
from benchmarks.timing import report
from holdfast.domain.messages import Message, ToolCall
from holdfast.holdfast import Holdfast

TURNS = 40
RULE = "Prices are always in euros, never in dollars."
LIMITS = range(5, 21)
"""Limits in items or events."""
BUDGETS = range(400, 2_001, 100)
"""Limits in tokens."""


class Sent(NamedTuple):
    """One item of a prompt: its text, and the id of the call that it makes or answers."""

    text: str
    call: str = ""
    result: str = ""


Prompts = list[list[Sent]]
Play = Callable[[int, Path], Coroutine[Any, Any, tuple[Prompts, int]]]
"""Runs the conversation with a limit; returns the prompts and the number of questions that raised an error."""


async def measure_limits(folder: Path, *, quick: bool) -> Table:
    """Return the table of all frameworks whose packages are in the benchmark's environment."""
    logging.getLogger("google_adk").setLevel(logging.CRITICAL)
    step = 3 if quick else 1  # not a divisor of the four items of a question
    rows = []
    for name, play, limits in _CANDIDATES:
        prompts: Prompts = []
        failed = 0
        for limit in limits[::step]:
            one, errors = await play(limit, folder)
            prompts += one
            failed += errors
        report(f"compared: {name}")
        rows.append(_make_row(name, limits[::step], prompts, failed))
    title = f"Prompts of an agent with a limited history: {TURNS} questions with one tool call each, for each limit"
    return Table("compared_limits", title, _COLUMNS, rows, _NOTES)


_COLUMNS = [
    Column("what", ""),
    Column("limits", "limits"),
    Column("prompts", "prompts", format_count),
    Column("broken", "broken prompts", format_share),
    Column("without_rule", "prompts without the rule", format_share),
    Column("failed", "questions that failed", format_count),
]
_NOTES = (
    "Broken: a tool result without its call, or a call without its result. The rule is in the first question.",
    "A failed question raised an error in the framework, before the model was called.",
)


def _make_row(name: str, limits: Sequence[int], prompts: Prompts, failed: int) -> dict[str, Figure]:
    unit = "tokens" if limits[0] >= BUDGETS[0] else "items"
    return {
        "what": name,
        "limits": f"{limits[0]:,} to {limits[-1]:,} {unit}",
        "prompts": len(prompts),
        "broken": sum(map(is_broken, prompts)) / len(prompts),
        "without_rule": sum(not any(RULE in sent.text for sent in prompt) for prompt in prompts) / len(prompts),
        "failed": failed,
    }


def is_broken(prompt: Sequence[Sent]) -> bool:
    """Return True if a tool result has no call before it, or a call has no result after it."""
    is_open: set[str] = set()
    for sent in prompt:
        if sent.result and sent.result not in is_open:
            return True
        is_open.discard(sent.result)
        if sent.call:
            is_open.add(sent.call)
    return bool(is_open)


def _make_question(number: int) -> str:
    return f"Where is order {number}?" + (f" {RULE}" if number == 0 else "")


def find(order: int) -> str:
    """Find an order."""
    return json.dumps({"order": order, "status": "shipped", "items": [f"item {order}.{at}" for at in range(8)]})


# -- OpenAI Agents SDK ---------------------------------------------------------


async def _play_agents(limit: int, folder: Path) -> tuple[Prompts, int]:
    from agents import RunConfig, SessionSettings, SQLiteSession

    session = SQLiteSession("s", session_settings=SessionSettings(limit=limit))
    try:
        return await _run_agents(session, RunConfig(tracing_disabled=True))
    finally:
        session.close()


async def _play_holdfast(budget: int, folder: Path) -> tuple[Prompts, int]:
    from agents import RunConfig

    from holdfast.adapters.openai_agents import HoldfastSession, working_set_filter

    async with Holdfast("sqlite://:memory:") as hf:
        session = HoldfastSession(hf, "s")
        filtered: Any = working_set_filter(session, budget=budget)
        return await _run_agents(session, RunConfig(tracing_disabled=True, call_model_input_filter=filtered))


async def _run_agents(session: Any, config: Any) -> tuple[Prompts, int]:
    from agents import Agent, ModelResponse, Runner, Usage, function_tool
    from agents.models.interface import Model
    from agents.testing import assistant_message, function_call

    prompts: Prompts = []

    class ScriptedModel(Model):  # type: ignore[misc]  # the SDK is not in the environment of mypy
        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            items: Any = kwargs["input"] if "input" in kwargs else args[1]
            prompts.append([_describe_item(item) for item in items])
            if "output" in items[-1]:
                return ModelResponse(output=[assistant_message("Shipped.")], usage=Usage(), response_id=None)
            number = len(prompts)
            call = function_call("find", json.dumps({"order": number}), call_id=f"call_{number}")
            return ModelResponse(output=[call], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    agent = Agent("orders", model=ScriptedModel(), tools=[function_tool(find)])
    failed = 0
    for number in range(TURNS):
        try:
            await Runner.run(agent, _make_question(number), session=session, run_config=config)
        except Exception:  # noqa: BLE001 - any error of the framework is what is counted
            failed += 1
    return prompts, failed


def _describe_item(item: Mapping[str, Any]) -> Sent:
    kind = item.get("type")
    call = str(item["call_id"]) if kind == "function_call" else ""
    result = str(item["call_id"]) if kind == "function_call_output" else ""
    return Sent(json.dumps(item, default=str, ensure_ascii=False), call, result)


# -- Google ADK ------------------------------------------------------------------


async def _play_adk(limit: int, folder: Path) -> tuple[Prompts, int]:
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.genai import types

    prompts: Prompts = []

    class ScriptedModel(BaseLlm):  # type: ignore[misc]  # ADK is not in the environment of mypy
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[Any]:  # noqa: FBT001, FBT002 - ADK's signature
            prompts.append([_describe_part(part) for one in llm_request.contents for part in one.parts or ()])
            part = types.Part(text="Shipped.")
            if not prompts[-1][-1].result:
                number = len(prompts)
                part = types.Part(
                    function_call=types.FunctionCall(id=f"c{number}", name="find", args={"order": number})
                )
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    agent = LlmAgent(name="orders", model=ScriptedModel(model="scripted"), tools=[find])
    service = InMemorySessionService()
    runner = Runner(app_name="bench", agent=agent, session_service=service, auto_create_session=True)
    config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=limit))
    failed = 0
    for number in range(TURNS):
        message = types.Content(role="user", parts=[types.Part(text=_make_question(number))])
        try:
            async for _ in runner.run_async(user_id="u", session_id="s", new_message=message, run_config=config):
                pass
        except Exception:  # noqa: BLE001 - any error of the framework is what is counted
            failed += 1
    return prompts, failed


def _describe_part(part: Any) -> Sent:
    call, result = part.function_call, part.function_response
    return Sent(
        part.text or "", str(call.id or call.name) if call else "", str(result.id or result.name) if result else ""
    )


# -- langchain-core --------------------------------------------------------------


async def _play_trimmer(budget: int, folder: Path, start_on: str | None = None) -> tuple[Prompts, int]:
    trimmer = Trimmer([Message(role="system", content="You help with orders.")])
    prompts: Prompts = []
    for number in range(TURNS):
        call = ToolCall(id=f"call_{number}", name="find", arguments=json.dumps({"order": number}))
        trimmer.append(Message(role="user", content=_make_question(number)))
        prompts.append([_describe_message(message) for message in trimmer.trim(budget, exact=True, start_on=start_on)])
        trimmer.append(Message(role="assistant", content=None, tool_calls=(call,)))
        trimmer.append(Message(role="tool", content=find(number), tool_call_id=call.id))
        prompts.append([_describe_message(message) for message in trimmer.trim(budget, exact=True, start_on=start_on)])
        trimmer.append(Message(role="assistant", content="Shipped."))
    return prompts, 0


def _describe_message(message: Message) -> Sent:
    calls = [call.id for call in message.tool_calls]
    return Sent(message.text, calls[0] if calls else "", message.tool_call_id or "")


_CANDIDATES: Sequence[tuple[str, Play, Sequence[int]]] = (
    ("OpenAI Agents, SessionSettings(limit)", _play_agents, LIMITS),
    ("Google ADK, num_recent_events", _play_adk, LIMITS),
    ("langchain-core, trim_messages", _play_trimmer, BUDGETS),
    ('langchain-core, trim_messages(start_on="human")', partial(_play_trimmer, start_on="human"), BUDGETS),
    ("OpenAI Agents with Holdfast's session and filter", _play_holdfast, BUDGETS),
)

"""Whole runs of agents: the same scripts with ADK's own services (the oracles) and with ours must leave the same events, state and prompts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")
pytest.importorskip("sqlalchemy", reason="google-adk[db] is not installed here: make adapters")

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig, ResumabilityConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools import load_memory
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

import holdfast
from holdfast.adapters.adk import (
    HoldfastArtifactService,
    HoldfastMemoryService,
    HoldfastSessionService,
    WorkingSetPlugin,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated in favor of Workflow"),
    pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL"),
]
ADA: Any = {"app_name": "shop", "user_id": "ada"}
S: Any = {"user_id": "ada", "session_id": "s"}
Services = dict[str, Any]
Outcome = dict[str, Any]
Script = Callable[[Services], Awaitable[Outcome]]
_MADE_UP: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Model(BaseLlm):
    """A model that gives replies in order, and keeps the contents that it got."""

    replies: Iterator[Any]
    prompts: list[list[types.Content]]

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:
        self.prompts.append([content.model_copy(deep=True) for content in llm_request.contents])
        reply = next(self.replies)
        parts = [types.Part(text=reply)] if isinstance(reply, str) else reply
        if stream and isinstance(reply, str):
            for at in (len(reply) // 2, len(reply)):
                partial = types.Content(role="model", parts=[types.Part(text=reply[:at])])
                yield LlmResponse(content=partial, partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def script(*replies: Any) -> Model:
    return Model(model="scripted", replies=iter(replies), prompts=[])


def call(name: str, **args: Any) -> list[types.Part]:
    return [types.Part(function_call=types.FunctionCall(name=name, args=args))]


def make_runner(agent: Any, services: Services, **app: Any) -> Runner:
    return Runner(app=App(name="shop", root_agent=agent, **app), auto_create_session=True, **services)


async def ask(runner: Runner, text: str | types.Content | None, **more: Any) -> list[Any]:
    message = types.Content(role="user", parts=[types.Part(text=text)]) if isinstance(text, str) else text
    return [event async for event in runner.run_async(**S, new_message=message, **more)]


def normalize(value: Any) -> Any:
    """Return JSON in which made-up ids are numbered in the order of their appearance, without times."""
    text = json.dumps(value, sort_keys=True)
    names: dict[str, str] = {}
    text = _MADE_UP.sub(lambda found: names.setdefault(found[0], f"id{len(names)}"), text)
    return json.loads(re.sub(r'"([a-z_]*timestamp|last_update_time)": [0-9.e]+', r'"\1": 0', text))


async def describe(services: Services, *models: Model) -> Outcome:
    """Return everything that a run left: the session, the user's state, artifacts, and what the models got."""
    session = await services["session_service"].get_session(**ADA, session_id="s")
    artifacts = services["artifact_service"]
    names = await artifacts.list_artifact_keys(**ADA, session_id="s")
    loaded = {name: await artifacts.load_artifact(**ADA, session_id="s", filename=name) for name in names}
    stored = [event.model_dump(mode="json", exclude_none=True) for event in session.events]
    for event in stored:
        event["long_running_tool_ids"] = sorted(event.get("long_running_tool_ids", ()))
    return {
        "session": normalize([stored, session.state]),
        "user": await services["session_service"].get_user_state(**ADA),
        "artifacts": {name: part and part.model_dump(mode="json") for name, part in loaded.items()},
        "prompts": normalize(
            [[content.model_dump(mode="json") for content in prompt] for model in models for prompt in model.prompts]
        ),
    }


# -- scripts ---------------------------------------------------------------------------------


def note(text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Note a text."""
    for key in ("last", "user:last", "app:last", "temp:last"):
        tool_context.state[key] = text
    tool_context.state["count"] = (tool_context.state.get("count") or 0) + 1
    return {"noted": text, "nothing": None}


async def save(text: str, tool_context: ToolContext) -> str:
    """Save a text as a file."""
    version = await tool_context.save_artifact("file.txt", types.Part(text=text))
    await tool_context.save_artifact("user:file.txt", types.Part(text=text))
    return f"saved {version}"


async def use_tools(services: Services) -> Outcome:
    """Call tools, one after the other and in parallel, that change state and save artifacts."""
    model = script(call("note", text="a"), [*call("note", text="b"), *call("save", text="c")], "Done.", "Yes.")
    runner = make_runner(LlmAgent(name="helper", model=model, tools=[note, save], output_key="answer"), services)
    await ask(runner, "Note a, b, c.")
    await ask(runner, "Did you?", state_delta={"given": {"n": None}, "user:given": 1})
    return await describe(services, model)


async def rewind(services: Services) -> Outcome:
    """Rewind to before the second of three questions, then ask again."""
    model = script(
        *(reply for n in "abc" for reply in (call("note", text=n), call("save", text=n), f"Done {n}.")), "Which?"
    )
    runner = make_runner(LlmAgent(name="helper", model=model, tools=[note, save]), services)
    first = [(await ask(runner, f"Note {n}."))[0].invocation_id for n in "abc"]
    await runner.rewind_async(**S, rewind_before_invocation_id=first[1])
    await ask(runner, "What did I say?")
    return await describe(services, model)


async def rewind_everything(services: Services) -> Outcome:
    """Rewind to before the first question: its artifact is gone."""
    model = script(call("save", text="a"), "Done.", "Which?")
    runner = make_runner(LlmAgent(name="helper", model=model, tools=[save]), services)
    first = await ask(runner, "Save a.")
    await runner.rewind_async(**S, rewind_before_invocation_id=first[0].invocation_id)
    await ask(runner, "What did I say?")
    return await describe(services, model)


def approve(amount: int) -> dict[str, str] | None:
    """Ask a person for approval."""
    return {"status": "pending", "ticket": f"t{amount}"}


async def answer_later(services: Services) -> Outcome:
    """Call a long-running tool, whose result comes with a later message."""
    model = script(call("approve", amount=5), "I asked.", "Meanwhile.", "Approved.")
    runner = make_runner(LlmAgent(name="helper", model=model, tools=[LongRunningFunctionTool(approve)]), services)
    events = await ask(runner, "Approve 5.")
    name = next(iter(next(event.long_running_tool_ids for event in events if event.long_running_tool_ids)))
    await ask(runner, "And now?")
    done = types.FunctionResponse(id=name, name="approve", response={"status": "approved"})
    await ask(runner, types.Content(role="user", parts=[types.Part(function_response=done)]))
    return await describe(services, model)


async def resume(services: Services) -> Outcome:
    """Pause a resumable run of several agents, and resume it by the id of its invocation."""
    first, second = script(call("approve", amount=5), "I asked.", "Approved."), script("Sent.")
    steps = [
        LlmAgent(name="asker", model=first, tools=[LongRunningFunctionTool(approve)], output_key="asked"),
        LlmAgent(name="sender", model=second, instruction="Send {asked}."),
    ]
    runner = make_runner(
        SequentialAgent(name="root", sub_agents=steps),
        services,
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    events = await ask(runner, "Approve 5.")
    name = next(iter(next(event.long_running_tool_ids for event in events if event.long_running_tool_ids)))
    done = types.FunctionResponse(id=name, name="approve", response={"status": "approved"})
    await ask(
        runner,
        types.Content(role="user", parts=[types.Part(function_response=done)]),
        invocation_id=events[0].invocation_id,
    )
    return await describe(services, first, second)


async def transfer(services: Services) -> Outcome:
    """Hand the conversation to another agent and back."""
    root = script(call("transfer_to_agent", agent_name="expert"), "Back.")
    expert = script("I know.", call("transfer_to_agent", agent_name="helper"))
    agent = LlmAgent(
        name="helper", model=root, sub_agents=[LlmAgent(name="expert", model=expert, description="Knows it.")]
    )
    runner = make_runner(agent, services)
    for text in ("Who knows?", "Hand me back."):
        await ask(runner, text)
    return await describe(services, root, expert)


async def work_in_parallel(services: Services) -> Outcome:
    """Run agents in branches, then one that sees both."""
    models = [script(call("note", text="a"), "Noted a."), script("Said b."), script("Both.")]
    workers = [
        LlmAgent(name="a", model=models[0], tools=[note], output_key="a"),
        LlmAgent(name="b", model=models[1], output_key="user:b"),
    ]
    last = LlmAgent(name="last", model=models[2], instruction="{a} and {user:b}")
    agent = SequentialAgent(name="root", sub_agents=[ParallelAgent(name="both", sub_agents=workers), last])
    await ask(make_runner(agent, services), "Go.")
    outcome = await describe(services, *models)
    # Branches run at the same time, so their order may differ.
    events, state = outcome["session"]
    outcome["session"] = [sorted(json.dumps([event.get("content"), event.get("branch")]) for event in events), state]
    return outcome


def leave(tool_context: ToolContext) -> None:
    """Leave the loop."""
    tool_context.actions.escalate = True


async def loop(services: Services) -> Outcome:
    """Repeat two agents that pass temporary state, until one leaves the loop."""
    writer, checker = script("Draft 1.", "Draft 2."), script("Again.", call("leave"), "Good.")
    steps = [
        LlmAgent(name="writer", model=writer, output_key="temp:draft"),
        LlmAgent(name="checker", model=checker, instruction="Check {temp:draft}", tools=[leave]),
    ]
    await ask(make_runner(LoopAgent(name="root", sub_agents=steps, max_iterations=3), services), "Write.")
    return await describe(services, writer, checker)


async def compact(services: Services) -> Outcome:
    """Let ADK replace old events by summaries."""
    model, summarizer = script(*(f"Answer {n}." for n in range(6))), script(*(f"Summary {n}." for n in range(6)))
    config = EventsCompactionConfig(
        compaction_interval=2, overlap_size=1, summarizer=LlmEventSummarizer(llm=summarizer)
    )
    runner = make_runner(LlmAgent(name="helper", model=model), services, events_compaction_config=config)
    for number in range(6):
        await ask(runner, f"Question {number}?")
    return await describe(services, model, summarizer)


async def stream(services: Services) -> Outcome:
    """Stream replies: partial events are not stored."""
    from google.adk.agents.run_config import StreamingMode

    model = script("It is on its way.", "Yes.")
    runner = make_runner(LlmAgent(name="helper", model=model), services)
    for text in ("Where is it?", "Sure?"):
        events = await ask(runner, text, run_config=RunConfig(streaming_mode=StreamingMode.SSE))
        assert any(event.partial for event in events)
    return await describe(services, model)


async def save_blobs(services: Services) -> Outcome:
    """Store files that the user sends as artifacts, before the first event of the session."""
    model = script("A picture.")
    runner = make_runner(LlmAgent(name="helper", model=model), services)
    picture = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n123", mime_type="image/png")
    content = types.Content(role="user", parts=[types.Part(text="What is it?"), picture])
    await ask(runner, content, run_config=RunConfig(save_input_blobs_as_artifacts=True))
    return await describe(services, model)


async def remember(services: Services) -> Outcome:
    """Add a session to the memory, and load it in another session with ADK's tool."""
    model = script("Noted.", call("load_memory", query="parcel colour"), "It is blue.")
    runner = make_runner(LlmAgent(name="helper", model=model, tools=[load_memory]), services)
    message = types.Content(role="user", parts=[types.Part(text="My parcel has the colour blue.")])
    async for _ in runner.run_async(user_id="ada", session_id="earlier", new_message=message):
        pass
    earlier = await services["session_service"].get_session(**ADA, session_id="earlier")
    await services["memory_service"].add_session_to_memory(earlier)
    await ask(runner, "Which colour?")
    parts = model.prompts[-1][-1].parts
    assert parts
    assert parts[0].function_response is not None
    assert "colour blue" in str(parts[0].function_response.response)
    return {
        "agents": [
            event.author for event in (await services["session_service"].get_session(**ADA, session_id="s")).events
        ]
    }


async def fail(services: Services) -> Outcome:
    """Let a tool and a model fail in the middle of a run, then go on."""

    def explode() -> None:
        """Fail."""
        raise RuntimeError("no")

    model = script(call("note", text="a"), call("explode"), "Again.", "Done.")
    runner = make_runner(LlmAgent(name="helper", model=model, tools=[note, explode]), services)
    with pytest.raises(RuntimeError):
        await ask(runner, "Note a.")
    await ask(runner, "And now?")
    return await describe(services, model)


async def read_few_events(services: Services) -> Outcome:
    """Let the runner read only the newest events."""
    model = script(*(f"Answer {n}." for n in range(4)))
    runner = make_runner(LlmAgent(name="helper", model=model), services)
    config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=2))
    for number in range(4):
        await ask(runner, f"Question {number}?", run_config=config)
    return await describe(services, model)


SCRIPTS: Final[list[Script]] = [
    use_tools,
    rewind,
    rewind_everything,
    answer_later,
    resume,
    transfer,
    work_in_parallel,
    loop,
    compact,
    stream,
    save_blobs,
    remember,
    fail,
    read_few_events,
]


@asynccontextmanager
async def open_services(kind: str) -> AsyncIterator[Services]:
    if kind == "holdfast":
        async with holdfast.open("sqlite://:memory:") as hf:
            yield {
                "session_service": HoldfastSessionService(hf),
                "artifact_service": HoldfastArtifactService(hf),
                "memory_service": HoldfastMemoryService(hf),
            }
        return
    async with DatabaseSessionService("sqlite+aiosqlite:///:memory:") as database:
        yield {
            "session_service": InMemorySessionService() if kind == "in_memory" else database,
            "artifact_service": InMemoryArtifactService(),
            "memory_service": InMemoryMemoryService(),
        }


@pytest.mark.parametrize("run", SCRIPTS, ids=[one.__name__ for one in SCRIPTS])
@pytest.mark.parametrize("kind", ["database", "holdfast"])
async def test_a_run_leaves_the_same_as_with_adks_services_in_memory(run: Script, kind: str) -> None:
    async with open_services("in_memory") as oracle, open_services(kind) as services:
        expected, left = await run(oracle), await run(services)
    for part, value in expected.items():
        assert left[part] == value, part


@pytest.mark.parametrize("run", SCRIPTS, ids=[one.__name__ for one in SCRIPTS])
async def test_the_working_set_changes_no_short_run(run: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_runner
    async with open_services("holdfast") as without, open_services("holdfast") as services:
        expected = await run(without)
        monkeypatch.setitem(
            globals(),
            "make_runner",
            lambda agent, given, **app: plain(agent, given, plugins=[WorkingSetPlugin(budget=8_000)], **app),
        )
        assert await run(services) == expected

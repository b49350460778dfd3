"""The session and the input filter for the OpenAI Agents SDK, with real agents and scripted models."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed here: make adapters")

from agents import Agent, RunConfig, RunContextWrapper, Runner, SQLiteSession, function_tool, handoff
from agents.extensions import handoff_filters
from agents.memory import Session
from agents.run_config import CallModelData, ModelInputData
from agents.testing import ModelCall, ScriptedModel, assistant_message, function_call
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseReasoningItem

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession, working_set_filter
from holdfast.errors import BudgetTooSmall, InvalidMessage
from tests.adapters.pages import run_page

MEMORY = "sqlite://:memory:"
IMAGE = "data:image/png;base64," + "QUFB" * 500_000
REPLY: list[Any] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", "odd": None},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Wait."}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"order": 1}'},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "find", "arguments": '{"order": 2}'},
]
OUTPUTS: list[Any] = [
    {"type": "function_call_output", "call_id": "c1", "output": "Order 1 is on its way."},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_image", "image_url": IMAGE}]},
]
OTHERS: list[Any] = [
    {"role": "user", "content": "Where?"},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Here:"}, {"type": "input_image", "image_url": IMAGE}],
    },
    {"role": "assistant", "content": "plain"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "parcel"}},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c3",
        "action": {"type": "screenshot"},
        "pending_safety_checks": [],
    },
    {"type": "computer_call_output", "call_id": "c3", "output": {"type": "computer_screenshot", "image_url": "data:"}},
    {"type": "mcp_approval_request", "id": "ap_1", "name": "buy", "arguments": "{}", "server_label": "shop"},
    {"type": "mcp_approval_response", "approval_request_id": "ap_1", "approve": True},
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [], "odd": {"x": [1, None]}},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
    {"role": "user", "content": "", "name": "ada"},
]
EVERYTHING = [*OTHERS[:2], *REPLY, *OUTPUTS, *OTHERS[2:]]


@function_tool
def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


def play_orders(count: int, start: int = 0) -> ScriptedModel:
    """Return a model that calls the tool for each order, after reasoning, and then answers."""
    model = ScriptedModel()
    for number in range(start, start + count):
        reasoning = ResponseReasoningItem(id=f"rs_{number}", type="reasoning", summary=[], encrypted_content="x" * 40)
        call = function_call("find", {"order": number}, call_id=f"call_{number}", item_id=f"fc_{number}")
        model.enqueue([reasoning, call])
        model.enqueue([assistant_message(f"Order {number} is on its way.", item_id=f"msg_{number}")])
    return model


def check_prompt(call: ModelCall) -> None:
    """Check that calls have outputs after them, outputs have calls before them, and reasoning is followed by its reply."""
    open_calls: set[str] = set()
    items = call.input
    for at, item in enumerate(items):
        kind = item.get("type")
        if kind == "function_call":
            open_calls.add(item["call_id"])
        elif kind == "function_call_output":
            open_calls.remove(item["call_id"])
        elif kind == "reasoning":
            assert items[at + 1]["type"] in ("function_call", "message", "reasoning")
        elif item.get("role") == "user":
            assert not open_calls
    assert not open_calls


async def test_it_is_a_session() -> None:
    async with holdfast.open(MEMORY) as hf:
        assert isinstance(HoldfastSession(hf, "s"), Session)


async def test_the_model_gets_the_objects_of_the_run() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        seen: list[Any] = []
        agent = Agent("orders", model=play_orders(1), tools=[find])
        filtered = working_set_filter(session, budget=700)

        async def watch(data: Any) -> Any:
            made = await filtered(data)
            seen.append([any(item is given for given in data.model_data.input) for item in made.input])
            return made

        config = RunConfig(call_model_input_filter=watch, tracing_disabled=True)
        await Runner.run(agent, "Where is order 0?", session=session, run_config=config)
        assert seen == [[True], [True] * 4]


async def test_streamed_runs_send_the_same_prompts() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        model = play_orders(12)
        agent = Agent("orders", model=model, tools=[find])
        config = RunConfig(call_model_input_filter=working_set_filter(session, budget=700), tracing_disabled=True)
        for number in range(12):
            run = Runner.run_streamed(agent, f"Where is order {number}?", session=session, run_config=config)
            async for _ in run.stream_events():
                pass
        for call in model.calls:
            check_prompt(call)
        assert len(model.calls[-1].input) < 20
        assert len(await session.get_items()) == 60


async def test_a_handoff_that_rewrites_the_history_is_respected() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        await session.add_items([{"role": "user", "content": f"Earlier message {at}."} for at in range(100)])
        other = Agent("refunds", model=ScriptedModel([[assistant_message("Refunded.")]]))
        to_other = handoff(other, input_filter=handoff_filters.remove_all_tools)
        first = ScriptedModel([[function_call("transfer_to_refunds", {}, call_id="h1")]])
        agent = Agent("front", model=first, handoffs=[to_other])
        config = RunConfig(call_model_input_filter=working_set_filter(session, budget=300), tracing_disabled=True)
        result = await Runner.run(agent, "Refund me.", session=session, run_config=config)
        assert result.final_output == "Refunded."
        prompt = other.model.calls[0].input  # type: ignore[union-attr]
        assert len(prompt) < 50
        assert not any(item.get("type") == "function_call" for item in prompt)
        assert prompt[-1] == {"role": "user", "content": "Refund me."}


async def test_items_are_returned_unchanged() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        await session.add_items(EVERYTHING)
        assert await session.get_items() == EVERYTHING
        for limit in range(len(EVERYTHING) + 2):
            assert await session.get_items(limit=limit) == (EVERYTHING[-limit:] if limit else [])
        for left in range(len(EVERYTHING), 0, -1):
            assert await session.pop_item() == EVERYTHING[left - 1]
            assert await session.get_items() == EVERYTHING[: left - 1]
        assert await session.pop_item() is None


async def test_the_items_of_a_reply_are_one_message() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s", user_id="ada")
        await session.add_items([*REPLY, *OUTPUTS])
        messages = await (await hf.get("s", user_id="ada")).messages()
        assert [message["role"] for message in messages] == ["assistant", "tool", "tool"]
        assert [call["id"] for call in messages[0]["tool_calls"]] == ["c1", "c2"]
        assert messages[0]["content"] == "Wait."


async def test_images_in_outputs_stay_there() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        await session.add_items([*OTHERS[:1], *REPLY, *OUTPUTS, {"role": "user", "content": "And now?"}])
        data = CallModelData(ModelInputData(await session.get_items(), None), Agent("a"), None)
        made = await working_set_filter(session, budget=8000)(data)
        assert made.input == data.model_data.input


async def cancel_after(waits: int, call: Coroutine[Any, Any, Any]) -> bool:
    """Cancel a call twice after a number of steps of the event loop, and return True if it raised the cancellation."""
    task = asyncio.create_task(call)
    for _ in range(waits):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


@pytest.mark.parametrize("with_portal", [False, True], ids=["in its loop", "with a portal"])
async def test_a_cancelled_write_ends_only_after_it_is_done(with_portal: bool, tmp_path: Path) -> None:
    """A caller that was cancelled can read at once what was written, and nothing changes later."""
    url = f"sqlite:///{tmp_path}/chat.db"
    async with contextlib.AsyncExitStack() as stack:
        hf: Any = (
            stack.enter_context(holdfast.Portal(url))
            if with_portal
            else await stack.enter_async_context(holdfast.open(url))
        )
        session = HoldfastSession(hf, "s")
        await session.get_items()
        cancelled = 0
        for waits in range(1, 30):
            cancelled += await cancel_after(waits, session.add_items([*REPLY, *OUTPUTS[:1]]))
            assert await session.get_items() == [*REPLY, *OUTPUTS[:1]]
            cancelled += await cancel_after(waits, session.pop_item())
            assert await session.get_items() == REPLY
            cancelled += await cancel_after(waits, session.clear_session())
            assert await session.get_items() == []
        assert cancelled > 20


async def test_a_failed_add_writes_nothing_and_the_session_goes_on() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        for bad in ({"role": "user", "content": object()}, {"type": "reasoning", "id": "rs_1", "summary": object()}):
            with pytest.raises((TypeError, InvalidMessage)):
                await session.add_items([*OTHERS[:1], bad])
            assert await session.get_items() == []
        await session.add_items(REPLY)
        assert await session.get_items() == REPLY


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "a\ud83d"},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "a\ud83d"},
        {"type": "function_call_output", "call_id": "c1", "output": "a\ud83d"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a\ud83d"}]},
    ],
)
async def test_half_a_surrogate_pair_becomes_a_replacement_character(item: Any) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        await session.add_items([*REPLY, item])
        assert "a\ufffd" in str((await session.get_items())[-1])


async def test_users_do_not_share_sessions() -> None:
    async with holdfast.open(MEMORY) as hf:
        await HoldfastSession(hf, "s", user_id="ada").add_items([{"role": "user", "content": "secret"}])
        assert await HoldfastSession(hf, "s", user_id="bob").get_items() == []


async def test_sessions_of_other_programs_are_converted() -> None:
    async with holdfast.open(MEMORY) as hf:
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        handle = await hf.session("s")
        await handle.append(
            [
                {"role": "user", "content": "Where?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "Here."},
            ]
        )
        assert [item.get("type") for item in await HoldfastSession(hf, "s").get_items()] == [
            None,
            "function_call",
            "function_call_output",
        ]


async def test_clearing_removes_all_items() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = HoldfastSession(hf, "s")
        await session.add_items(EVERYTHING)
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items(REPLY)
        assert await session.get_items() == REPLY


def test_run_sync_works_with_a_portal(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db") as portal:
        session = HoldfastSession(portal, "s")
        agent = Agent("orders", model=play_orders(3), tools=[find])
        config = RunConfig(call_model_input_filter=working_set_filter(session, budget=700), tracing_disabled=True)
        for number in range(3):
            Runner.run_sync(agent, f"Where is order {number}?", session=session, run_config=config)
        asyncio.get_event_loop_policy().get_event_loop().close()  # run_sync leaves its loop open
        assert len(asyncio.run(session.get_items())) == 15


ITEMS = st.lists(st.sampled_from([*REPLY, *OUTPUTS[:1], *OTHERS[:1], *OTHERS[2:]]), max_size=6)


@given(st.lists(ITEMS | st.none(), max_size=8))
def test_a_session_behaves_like_the_sdks_own(steps: list[list[Any] | None]) -> None:
    """Each step adds items, or pops one."""

    async def compare() -> None:
        async with holdfast.open(MEMORY) as hf:
            ours, theirs = HoldfastSession(hf, "s"), SQLiteSession("s")
            for step in steps:
                if step is None:
                    assert await ours.pop_item() == await theirs.pop_item()
                else:
                    await ours.add_items(step)
                    await theirs.add_items(step)
                for limit in (None, 1, 3):
                    assert await ours.get_items(limit=limit) == await theirs.get_items(limit=limit)
            theirs.close()

    asyncio.run(compare())


def make_turn(number: int, calls: int, words: int, reasoning: bool) -> list[Any]:
    """Return the items of a turn: a question, a reply with parallel calls, their outputs, and an answer."""
    made: list[Any] = [{"role": "user", "content": f"Question {number}. " + "word " * words}]
    if reasoning:
        made.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "x"})
    names = [f"c{number}_{at}" for at in range(calls)]
    made += [
        {"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": "find", "arguments": "{}"}
        for name in names
    ]
    made += [{"type": "function_call_output", "call_id": name, "output": "found " * words} for name in names]
    answer = {"type": "output_text", "text": f"Answer {number}."}
    return [*made, {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [answer]}]


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.booleans()), min_size=1, max_size=12)


@given(
    turns=TURNS,
    state=st.sampled_from(["asked", "not saved", "in a tool loop"]),
    limit=st.integers(1, 60),
    budget=st.integers(300, 2000),
    strategy=st.sampled_from(["digest", "token_window", "buffer_window", "salience", "head_tail"]),
)
def test_every_prompt_is_valid(turns: list[Any], state: str, limit: int, budget: int, strategy: str) -> None:
    """Whatever the log is, and however much of it the runner has read."""
    *before, last = [make_turn(number, *turn) for number, turn in enumerate(turns)]
    history = [item for turn in before for item in turn]
    current = last[:-1] if state == "in a tool loop" else last[:1]

    async def check() -> None:
        async with holdfast.open(MEMORY) as hf:
            session = HoldfastSession(hf, "s")
            await session.add_items(history)
            reader = RunContextWrapper(None)
            read = await session.get_items(limit=limit, wrapper=reader)
            known = {item["call_id"] for item in read if item.get("type") == "function_call"}
            read = [item for item in read if "output" not in item or item["call_id"] in known]  # as the runner does
            if state != "not saved":
                await session.add_items(current)
            apply = working_set_filter(session, budget=budget, strategy=strategy)
            try:
                made = await apply(CallModelData(ModelInputData([*read, *current], "Help."), Agent("a"), None))
            except BudgetTooSmall:
                return
            check_prompt(SimpleNamespace(input=made.input))  # type: ignore[arg-type]
            assert current[0]["content"][:12] in str(made.input)
            if strategy == "digest" and read:  # it keeps the first question, which the limit may have cut off
                assert "Question 0." in str(made.input)

    asyncio.run(check())


CRASHING = """
import asyncio, os, signal, sys
import holdfast
from agents import Agent, RunConfig, Runner, function_tool
from holdfast.adapters.openai_agents import HoldfastSession, working_set_filter
from tests.adapters.test_openai_agents import play_loop

@function_tool
def find(order: int) -> str:
    if order == 25:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"Order {order} is on its way. " * 8

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        session = HoldfastSession(hf, "s")
        config = RunConfig(call_model_input_filter=working_set_filter(session, budget=700), tracing_disabled=True)
        await Runner.run(Agent("a", model=play_loop(0), tools=[find]), "Find all.", session=session, run_config=config, max_turns=99)

asyncio.run(main())
"""


def play_loop(start: int) -> ScriptedModel:
    """Return a model that calls the tool for orders up to 39 in one run, and then answers."""
    calls = [[function_call("find", {"order": number}, call_id=f"call_{number}")] for number in range(start, 40)]
    return ScriptedModel([*calls, [assistant_message("Found all.")]])


async def test_a_tool_loop_continues_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASHING, url], check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        session = HoldfastSession(hf, "s")
        items = await session.get_items()
        assert len(items) == 1 + 25 * 2
        assert items[-1]["call_id"] == "call_24"
        model = play_loop(25)
        agent = Agent("a", model=model, tools=[find])
        config = RunConfig(call_model_input_filter=working_set_filter(session, budget=700), tracing_disabled=True)
        result = await Runner.run(agent, "Go on.", session=session, run_config=config, max_turns=99)
        assert result.final_output == "Found all."
        for call in model.calls:
            check_prompt(call)
        assert len(await session.get_items()) == 1 + 40 * 2 + 2


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("openai-agents")

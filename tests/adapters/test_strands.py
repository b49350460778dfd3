"""The working set for agents of Strands, with real agents and a scripted model."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from asyncio import run, to_thread
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="Strands is not installed here: make adapters")

from hypothesis import given
from hypothesis import strategies as st
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.agent.conversation_manager.compression.pin_message import pin_message, unpin_message
from strands.hooks import BeforeToolCallEvent
from strands.middleware import InvokeModelStage
from strands.session import FileSessionManager
from strands.types.exceptions import ContextWindowOverflowException

import holdfast
from holdfast.adapters.strands import HoldfastConversationManager, HoldfastSessionManager
from holdfast.errors import BudgetTooSmall
from tests.adapters.pages import run_page
from tests.adapters.strands_kit import ScriptedModel, call_find, check_prompt, find, get_texts, make_agent, play_orders

MEMORY = "sqlite://:memory:"


async def open_agent(hf: Any, model: ScriptedModel, *, budget: int | None = 700, **settings: Any) -> Any:
    sessions = await HoldfastSessionManager(hf, "s", user_id="ada").load()
    manager = HoldfastConversationManager(sessions, budget=budget)
    return make_agent(model, session_manager=sessions, conversation_manager=manager, **settings)


async def test_reasoning_with_signatures_reaches_the_model() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(12)
        agent = await open_agent(hf, model)
        for order in range(12):
            await agent.invoke_async(f"Where is order {order}?")
        reasoning = model.calls[-1][-2]["content"][0]["reasoningContent"]["reasoningText"]
        assert reasoning == {"text": "I need order 11.", "signature": "signature of I need order 11."}


async def test_a_short_conversation_is_sent_unchanged() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(3)
        agent = await open_agent(hf, model, budget=None)
        image = {"image": {"format": "png", "source": {"bytes": bytes(2_000_000)}}}
        await agent.invoke_async([image, {"text": "Where?"}, {"cachePoint": {"type": "default"}}])
        await agent.invoke_async("And now?")
        sent = [{"role": one["role"], "content": one["content"]} for one in agent.messages[:-1]]
        assert model.calls[-1] == sent


async def test_nothing_in_the_agents_messages_changes() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = ScriptedModel([*play_orders(20).replies, ValueError("broken"), ContextWindowOverflowException("long")])
        model.replies += [ContextWindowOverflowException("long")] * 5
        agent = await open_agent(hf, model)
        for order in range(20):
            before = copy.deepcopy(agent.messages)
            objects = list(agent.messages)
            await agent.invoke_async(f"Where is order {order}?")
            assert agent.messages[: len(before)] == before
            assert all(a is b for a, b in zip(objects, agent.messages, strict=False))
        for error in (ValueError, ContextWindowOverflowException):
            before = copy.deepcopy(agent.messages)
            with pytest.raises(error):
                await agent.invoke_async("Again?")
            assert agent.messages[:-1] == before


async def test_an_interrupt_changes_no_message() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(6)
        agent = await open_agent(hf, model)
        for order in range(5):
            await agent.invoke_async(f"Where is order {order}?")

        def ask(event: BeforeToolCallEvent) -> None:
            event.interrupt("approval", reason="May I?")

        agent.add_hook(ask, BeforeToolCallEvent)
        before = copy.deepcopy(agent.messages)
        result = await agent.invoke_async("Where is order 5?")
        assert result.stop_reason == "interrupt"
        assert agent.messages[:-2] == before


async def test_a_prompt_that_is_too_long_is_made_smaller() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(21)
        model.replies[40:40] = [ContextWindowOverflowException("too long")] * 2
        agent = await open_agent(hf, model, budget=2_000)
        for order in range(21):
            await agent.invoke_async(f"Where is order {order}?")
        sizes = [len(json.dumps(prompt)) for prompt in model.calls[40:43]]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[2] < sizes[0] * 0.7
        for prompt in model.calls:
            check_prompt(prompt)
        assert model.calls[42][-1]["content"][-1] == {"text": "Where is order 20?"}


async def test_an_error_is_raised_if_no_prompt_is_short_enough() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = ScriptedModel([*play_orders(5).replies, *[ContextWindowOverflowException("too long")] * 9])
        agent = await open_agent(hf, model)
        for order in range(5):
            await agent.invoke_async(f"Where is order {order}?")
        with pytest.raises(ContextWindowOverflowException, match="too long"):
            await agent.invoke_async("Where is order 5?")
        assert 1 < len(model.calls) - 10 <= 4


async def test_a_budget_that_is_too_small_is_reported() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent = await open_agent(hf, ScriptedModel(), budget=10)
        with pytest.raises(BudgetTooSmall):
            await agent.invoke_async("Where is my order? " * 50)


async def test_it_works_without_a_session() -> None:
    model = play_orders(15)
    agent = make_agent(model, conversation_manager=HoldfastConversationManager(budget=700))
    for order in range(15):
        await agent.invoke_async(f"Where is order {order}?")
    for prompt in model.calls:
        check_prompt(prompt)
    assert len(agent.messages) == 60
    assert max(len(json.dumps(prompt)) for prompt in model.calls) < 5_000


async def test_it_works_with_another_session_manager(tmp_path: Path) -> None:
    for start in (0, 15):
        sessions = FileSessionManager("s", storage_dir=str(tmp_path))
        model = play_orders(15, start)
        agent = make_agent(
            model, session_manager=sessions, conversation_manager=HoldfastConversationManager(budget=700)
        )
        for order in range(start, start + 15):
            await agent.invoke_async(f"Where is order {order}?")
        assert len(agent.messages) == 4 * (start + 15)
        assert len(json.dumps(model.calls[-1])) < 5_000


async def test_messages_that_another_conversation_manager_removed_come_back() -> None:
    async with holdfast.open(MEMORY) as hf:
        sessions = await HoldfastSessionManager(hf, "s").load()
        window = SlidingWindowConversationManager(window_size=4)
        agent = make_agent(play_orders(5), session_manager=sessions, conversation_manager=window)
        for order in range(5):
            await agent.invoke_async(f"Where is order {order}?")
        assert len(agent.messages) <= 4
        sessions = await HoldfastSessionManager(hf, "s").load()
        agent = make_agent(session_manager=sessions, conversation_manager=HoldfastConversationManager(sessions))
        assert len(agent.messages) == 20


async def test_messages_that_differ_from_the_log_are_fitted() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(21)
        agent = await open_agent(hf, model)
        for order in range(20):
            await agent.invoke_async(f"Where is order {order}?")
        agent.messages[:] = agent.messages[-8:]
        await agent.invoke_async("Where is order 20?")
        assert "order 0" not in get_texts(model.calls[-1])
        check_prompt(model.calls[-1])


async def test_what_a_middleware_hides_is_hidden() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(20)
        agent = await open_agent(hf, model)

        def mask(context: Any) -> Any:
            return context.replace(messages=json.loads(json.dumps(context.messages).replace("parcel 17", "parcel #")))

        agent.add_middleware(InvokeModelStage.Input, mask)
        for order in range(20):
            await agent.invoke_async(f"Where is order {order}?")
        assert "parcel 17." in get_texts(agent.messages)
        assert not any("parcel 17." in get_texts(prompt) for prompt in model.calls)


async def test_injected_text_is_sent_with_the_newest_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdfast, "fit", None)
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(20)
        agent = await open_agent(hf, model)

        def inject(context: Any) -> Any:
            *before, last = context.messages
            injected = {**last, "content": [*last["content"], {"text": "It is Monday."}]}
            return context.replace(messages=[*before, injected], dynamic_trailing_blocks=1)

        agent.add_middleware(InvokeModelStage.Input, inject)
        for order in range(20):
            await agent.invoke_async(f"Where is order {order}?")
        for prompt in model.calls:
            check_prompt(prompt)
            assert prompt[-1]["content"][-1] == {"text": "It is Monday."}
        assert "toolResult" in model.calls[-1][-1]["content"][0]


async def test_pinned_messages_stay() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(32)
        agent = await open_agent(hf, model)
        for order in range(30):
            if order == 6:
                pin_message(agent.messages, 4)
            await agent.invoke_async(f"Where is order {order}?")
        assert "Where is order 1?" in [block.get("text") for one in model.calls[-1] for block in one["content"]]
        again = await open_agent(hf, model)
        assert again.messages[4] == agent.messages[4]
        unpin_message(again.messages, 4)
        await again.invoke_async("Where is order 30?")
        assert not any(entry.pinned for entry in await (await hf.get("s", user_id="ada")).entries())


async def test_no_prompt_begins_with_the_assistant() -> None:
    async with holdfast.open(MEMORY) as hf:
        greeting: Any = {"role": "assistant", "content": [{"text": "How can I help?"}]}
        model = play_orders(1)
        agent = await open_agent(hf, model, messages=[greeting])
        await agent.invoke_async("Where is order 0?")
        assert agent.messages[0]["content"] == greeting["content"]
        for prompt in model.calls:
            check_prompt(prompt)


async def test_the_strategy_can_be_chosen() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(20)
        sessions = await HoldfastSessionManager(hf, "s").load()
        manager = HoldfastConversationManager(sessions, strategy="buffer_window", window_size=2)
        agent = make_agent(model, session_manager=sessions, conversation_manager=manager)
        for order in range(20):
            await agent.invoke_async(f"Where is order {order}?")
        assert len(model.calls[-1]) <= 7
        assert "Condensed" not in get_texts(model.calls[-1])
        check_prompt(model.calls[-1])


def test_agents_without_await_use_a_portal() -> None:
    with holdfast.Portal(MEMORY) as portal:
        sessions = HoldfastSessionManager(portal, "s")
        model = play_orders(6)
        manager = HoldfastConversationManager(sessions, budget=700)
        agent = make_agent(model, session_manager=sessions, conversation_manager=manager)
        for order in range(6):
            agent(f"Where is order {order}?")
        again = HoldfastSessionManager(portal, "s")
        assert make_agent(session_manager=again, conversation_manager=manager).messages == agent.messages
        for prompt in model.calls:
            check_prompt(prompt)


async def test_streams_work() -> None:
    async with holdfast.open(MEMORY) as hf:
        model = play_orders(3)
        agent = await open_agent(hf, model)
        for order in range(3):
            said = [event["data"] async for event in agent.stream_async(f"Where is order {order}?") if "data" in event]
            assert said[-1] == f"Order {order} is on its way."


# -- all prompts are valid -----------------------------------------------------------


def make_turn(number: int, calls: int, words: int, reasoning: bool) -> list[Any]:
    """Return the messages of a turn: a question, a reply with parallel calls, their results, and an answer."""
    names = [f"c{number}_{at}" for at in range(calls)]
    uses = [{"toolUse": {"toolUseId": name, "name": "find", "input": {"order": number}}} for name in names]
    signed = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}
    result = [{"text": "found " * words}]
    results = [{"toolResult": {"toolUseId": name, "status": "success", "content": result}} for name in names]
    made = [{"role": "user", "content": [{"text": f"Question {number}. " + "word " * words}]}]
    if calls:
        made += [{"role": "assistant", "content": [*([signed] if reasoning else []), *uses]}]
        made += [{"role": "user", "content": results}]
    return [*made, {"role": "assistant", "content": [{"text": f"Answer {number}."}]}]


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.booleans()), min_size=1, max_size=12)


@given(
    turns=TURNS,
    in_a_loop=st.booleans(),
    stored=st.booleans(),
    budget=st.integers(300, 2000),
    strategy=st.sampled_from(["digest", "token_window", "buffer_window", "salience", "head_tail"]),
)
def test_every_prompt_is_valid(turns: Any, in_a_loop: bool, stored: bool, budget: int, strategy: str) -> None:
    messages = [one for number, turn in enumerate(turns) for one in make_turn(number, *turn)]
    question: Any = "Question last."
    if in_a_loop and turns[-1][0]:
        messages, question = messages[:-1], None

    async def check() -> None:
        async with holdfast.open(MEMORY) as hf:
            model = ScriptedModel([[{"text": "Done."}]])
            settings: dict[str, Any] = {"messages": messages}
            sessions = None
            if stored:
                sessions = settings["session_manager"] = await HoldfastSessionManager(hf, "s").load()
            settings["conversation_manager"] = HoldfastConversationManager(sessions, budget=budget, strategy=strategy)
            agent = make_agent(model, **settings)
            before = copy.deepcopy(messages)
            try:
                await agent.invoke_async(question)
            except BudgetTooSmall:
                return
            check_prompt(model.calls[0])
            assert "Question last." in get_texts(model.calls[0][-1:]) or question is None
            assert [{"role": one["role"], "content": one["content"]} for one in agent.messages[: len(before)]] == before

    run(check())


# -- crashes ---------------------------------------------------------------------------

CRASHING = """
import asyncio, os, signal, sys
import holdfast
from strands import tool
from tests.adapters.strands_kit import make_agent
from tests.adapters.test_strands import open_agent, play_loop

@tool
def find(order: int) -> str:
    if order == 25:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"Order {order} is on its way. " * 8

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        agent = await open_agent(hf, play_loop(0), tools=[find])
        await agent.invoke_async("Find all.")

asyncio.run(main())
"""


def play_loop(start: int) -> ScriptedModel:
    """Return a model that calls the tool for orders up to 39 in one run, and then answers."""
    return ScriptedModel([*([call_find(order)] for order in range(start, 40)), [{"text": "Found all."}]])


@pytest.mark.parametrize("prompt", ["Go on.", None])
async def test_a_tool_loop_continues_after_the_process_was_killed(tmp_path: Path, prompt: str | None) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    ended = await to_thread(subprocess.run, [sys.executable, "-c", CRASHING, url], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        model = play_loop(26 if prompt is None else 25)
        agent = await open_agent(hf, model)
        assert len(agent.messages) == 1 + 25 * 2 + 1
        assert agent.messages[-1]["content"] == [call_find(25)]
        result = await agent.invoke_async(prompt)  # None repeats the call that was interrupted
        assert str(result).strip() == "Found all."
        for sent in model.calls:
            check_prompt(sent)
        again = await open_agent(hf, ScriptedModel())
        assert again.messages == agent.messages
        assert len(again.messages) == 1 + 40 * 2 + 1 + (0 if prompt is None else 3)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = ScriptedModel([[{"text": "It is on its way."}]] * 2)
    run_page("strands", model=model)
    assert not model.replies


assert find, "for the program that is killed"

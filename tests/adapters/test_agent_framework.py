"""The history provider and the middleware for Microsoft's Agent Framework, with real agents and scripted clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="the Agent Framework is not installed here: make adapters")

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    tool,
)
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.adapters.agent_framework import HoldfastHistoryProvider, WorkingSetMiddleware
from holdfast.errors import BudgetTooSmall
from tests.adapters.pages import run_page

MEMORY = "sqlite://:memory:"
PNG = b"\x89PNG\r\n\x1a\n" + os.urandom(2_000_000)
Script = Callable[[Sequence[Message]], list[Content]]


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[type-arg]
    """A chat client whose replies a function chooses. It keeps all prompts."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.prompts: list[list[Message]] = []
        self.function_invocation_configuration["max_iterations"] = 100

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any
    ) -> Awaitable[ChatResponse[Any]]:
        self.prompts.append(list(messages))

        async def stream_reply() -> AsyncIterator[ChatResponseUpdate]:
            for content in self.script(messages):
                yield ChatResponseUpdate(role="assistant", contents=[content])

        async def reply() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", self.script(messages))])

        return self._build_response_stream(stream_reply()) if stream else reply()  # type: ignore[return-value]


@tool(approval_mode="never_require")
def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


def find_once(messages: Sequence[Message]) -> list[Content]:
    """Call the tool for the order in the newest question, after reasoning, and then answer."""
    last = messages[-1]
    if last.role == "tool":
        return [Content.from_text(f"Found {last.contents[-1].call_id}.")]
    number = int(last.text.split()[-1])
    reasoning = Content.from_text_reasoning(text="Hm.", protected_data=f"sig{number}")
    return [reasoning, Content.from_function_call(f"call_{number}", "find", arguments={"order": number})]


def find_all(messages: Sequence[Message]) -> list[Content]:
    """Call the tool for orders 0 to 39, one after the other, and then answer."""
    ids = [one.call_id for message in messages for one in message.contents if one.type == "function_result"]
    number = int(str(ids[-1]).split("_")[1]) + 1 if ids else 0
    if number == 40:
        return [Content.from_text("Found all.")]
    return [Content.from_function_call(f"call_{number}", "find", arguments={"order": number})]


def make_agent(provider: Any, client: ScriptedClient, *, per_call: bool, **options: Any) -> Agent[Any]:
    return Agent(
        client,
        instructions="You help with orders.",
        name="orders",
        tools=[find],
        context_providers=[provider],
        require_per_service_call_history_persistence=per_call,
        **options,
    )


def check_prompt(prompt: Sequence[Message]) -> None:
    """Check that each call has its result after it, each result its call before it, and that no calls are open at the end."""
    waiting: list[str | None] = []
    for message in prompt:
        if message.role == "user":
            assert not waiting
        for content in message.contents:
            if content.type == "function_call":
                assert content.call_id not in waiting
                waiting.append(content.call_id)
            elif content.type == "function_result":
                waiting.remove(content.call_id)
    assert not waiting
    assert prompt[-1].role in ("user", "tool")


def count_tokens(prompt: Sequence[Message]) -> int:
    """Return the tokens of a prompt's texts, calls and results."""
    texts = []
    for message in prompt:
        for content in message.contents:
            texts.append(str(content.text or content.result or content.arguments or ""))
    return holdfast.fit([{"role": "user", "content": text} for text in texts], budget=2**31).conversation_tokens


def count_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("chat.db*"))


def list_contents(messages: Sequence[Message]) -> list[Any]:
    return [(message.role, message.contents) for message in messages]


PER_CALL = pytest.mark.parametrize("per_call", [False, True], ids=["stored after the run", "stored after each call"])


@PER_CALL
async def test_a_long_tool_loop_sends_bounded_prompts(per_call: bool) -> None:
    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(find_all)
        provider = HoldfastHistoryProvider(hf, budget=900)
        agent = make_agent(provider, client, per_call=per_call)
        rule = "Never pay by card. Find all my orders."
        result = await agent.run(rule, session=AgentSession(session_id="s"))
        assert result.text.endswith("Found all.")
        assert len(client.prompts) == 41
        for prompt in client.prompts:
            check_prompt(prompt)
            assert prompt[0].text == rule
            assert count_tokens(prompt) < 1000
        assert len(await provider.get_messages("s")) == 82


@PER_CALL
async def test_streamed_runs_are_stored_and_bounded_too(per_call: bool) -> None:
    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(find_once)
        provider = HoldfastHistoryProvider(hf, budget=700)
        agent = make_agent(provider, client, per_call=per_call)
        for number in range(12):
            stream = agent.run(f"Where is order {number}", session=AgentSession(session_id="s"), stream=True)
            assert "".join([update.text async for update in stream]) == f"Found call_{number}."
            await stream.get_final_response()
        for prompt in client.prompts:
            check_prompt(prompt)
        assert count_tokens(client.prompts[-1]) < 800
        assert [message.role for message in await provider.get_messages("s")] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ] * 12


async def test_a_loop_after_a_long_conversation_keeps_what_holdfast_wrote_for_the_prompt() -> None:
    async with holdfast.open(MEMORY) as hf:
        provider = HoldfastHistoryProvider(hf, budget=1_500)
        client = ScriptedClient(lambda messages: [Content.from_text("Yes. " * 20)])
        agent = make_agent(provider, client, per_call=False)
        await agent.run("Help me.", session=AgentSession(session_id="s"))
        await agent.run("I never pay by card.", session=AgentSession(session_id="s"))
        for number in range(40):
            await agent.run(f"Tell me about parcel {number}. " * 5, session=AgentSession(session_id="s"))
        client.script = find_all
        client.prompts.clear()
        await agent.run("Find all.", session=AgentSession(session_id="s"))
        assert len(client.prompts) == 41
        for prompt in client.prompts:
            check_prompt(prompt)
            assert count_tokens(prompt) < 1_700
            assert any("never pay by card" in message.text for message in prompt)
            assert any(message.text == "Find all." for message in prompt)
        assert len(await provider.get_messages("s")) == 84 + 82


async def test_prompts_begin_like_the_ones_before() -> None:
    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(find_once)
        agent = make_agent(HoldfastHistoryProvider(hf, budget=2_000), client, per_call=True)
        for number in range(20):
            await agent.run(f"Where is order {number}", session=AgentSession(session_id="s"))
        pairs = list(zip(client.prompts, client.prompts[1:], strict=False))
        same = [list_contents(before) == list_contents(after[: len(before)]) for before, after in pairs]
        assert same.count(False) <= 4


@PER_CALL
async def test_a_large_result_is_shortened_for_the_call_and_stored_whole(per_call: bool) -> None:
    @tool(approval_mode="never_require")
    def read() -> str:
        """Read a file."""
        return "word " * 5_000

    def script(messages: Sequence[Message]) -> list[Content]:
        if messages[-1].role == "tool":
            return [Content.from_text("Read.")]
        return [Content.from_function_call("c1", "read", arguments="{}")]

    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(script)
        provider = HoldfastHistoryProvider(hf, budget=600)
        agent = Agent(
            client, tools=[read], context_providers=[provider], require_per_service_call_history_persistence=per_call
        )
        await agent.run("Read it.", session=AgentSession(session_id="s"))
        check_prompt(client.prompts[1])
        assert count_tokens(client.prompts[1]) < 700
        stored = await provider.get_messages("s")
        assert [message.role for message in stored] == ["user", "assistant", "tool", "assistant"]
        assert stored[2].contents[0].result == "word " * 5_000


async def test_a_large_question_is_shortened_for_the_call_and_stored_whole() -> None:
    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
        provider = HoldfastHistoryProvider(hf, budget=300)
        agent = make_agent(provider, client, per_call=False)
        await agent.run("word " * 5_000, session=AgentSession(session_id="s"))
        assert count_tokens(client.prompts[0]) < 300
        assert (await provider.get_messages("s"))[0].text == "word " * 5_000


async def test_a_budget_that_is_too_small_is_an_error() -> None:
    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
        agent = make_agent(HoldfastHistoryProvider(hf, budget=3), client, per_call=False)
        with pytest.raises(BudgetTooSmall):
            await agent.run("Where is my order?", session=AgentSession(session_id="s"))
        assert not client.prompts


async def test_reasoning_in_a_message_of_its_own_is_sent_with_the_message_after_it() -> None:
    async with holdfast.open(MEMORY) as hf:
        provider = HoldfastHistoryProvider(hf, budget=2_000)
        reasoning = Message("assistant", [Content.from_text_reasoning(text="Hm.", protected_data="sig")])
        call = Message("assistant", [Content.from_function_call("c1", "find", arguments={"order": 1})])
        result = Message("tool", [Content.from_function_result("c1", result="Here.")])
        messages = [Message("user", ["Where?"]), reasoning, call, result, Message("assistant", ["Here."])]
        await provider.save_messages("s", messages)
        client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
        await make_agent(provider, client, per_call=False).run("Sure?", session=AgentSession(session_id="s"))
        assert list_contents(client.prompts[0][:-1]) == list_contents(messages)


async def test_images_are_sent_and_stored_once(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        provider = HoldfastHistoryProvider(hf, budget=8_000)
        image = Content.from_data(PNG, "image/png")
        result = Content.from_function_result("c1", result=[Content.from_text("Here:"), image])
        messages = [
            Message("user", ["What is it?", image]),
            Message("assistant", [Content.from_function_call("c1", "find", arguments="{}")]),
            Message("tool", [result]),
            Message("assistant", ["A parcel."]),
        ]
        await provider.save_messages("s", messages)
        client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
        await make_agent(provider, client, per_call=True).run("And now?", session=AgentSession(session_id="s"))
        assert list_contents(client.prompts[0][:-1]) == list_contents(messages)
        assert list_contents((await provider.get_messages("s"))[:4]) == list_contents(messages)
    assert count_bytes(tmp_path) < 3_500_000


async def test_the_middleware_alone_bounds_agents_with_another_history() -> None:
    client = ScriptedClient(find_once)
    agent = make_agent(InMemoryHistoryProvider(), client, per_call=False, middleware=[WorkingSetMiddleware(budget=700)])
    session = AgentSession(session_id="s")
    for number in range(20):
        await agent.run(f"Where is order {number}", session=session)
    for prompt in client.prompts:
        check_prompt(prompt)
        assert count_tokens(prompt) < 800
    assert len(session.state["in_memory"]["messages"]) == 80


async def test_the_middleware_keeps_the_objects_that_it_does_not_change() -> None:
    client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
    messages = [
        Message("system", ["Be brief."]),
        Message("user", ["Hello."], message_id="m1"),
        Message("assistant", [Content.from_function_call(f"c{at}", "find", arguments="{}") for at in range(3)]),
        Message("tool", [Content.from_function_result(f"c{at}", result="Here.") for at in range(3)]),
        Message("user", ["Thanks."]),
    ]
    await Agent(client, middleware=[WorkingSetMiddleware(budget=1_000)]).run(messages)
    assert [one.contents for one in client.prompts[0]] == [one.contents for one in messages]
    assert client.prompts[0][1].message_id == "m1"


async def test_a_failed_run_can_be_repeated_without_storing_its_input_twice() -> None:
    def fail(messages: Sequence[Message]) -> list[Content]:
        raise ConnectionError

    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(fail)
        provider = HoldfastHistoryProvider(hf)
        agent = make_agent(provider, client, per_call=True)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await agent.run("Where is order 1", session=AgentSession(session_id="s"))
        client.script = find_once
        await agent.run("Where is order 1", session=AgentSession(session_id="s"))
        assert [message.role for message in await provider.get_messages("s")] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert [len(prompt) for prompt in client.prompts] == [1, 1, 1, 3]


async def test_a_caller_that_repeats_the_history_does_not_double_the_prompt() -> None:
    async with holdfast.open(MEMORY) as hf:
        client = ScriptedClient(lambda messages: [Content.from_text(f"Reply {len(messages)}.")])
        agent = make_agent(HoldfastHistoryProvider(hf), client, per_call=False)
        history: list[Any] = []
        for number in range(4):
            history.append(Message("user", [f"Question {number}."]))
            result = await agent.run(history, session=AgentSession(session_id="s"))
            history += result.messages
        assert [len(prompt) for prompt in client.prompts] == [1, 3, 5, 7]


async def test_users_do_not_share_sessions() -> None:
    async with holdfast.open(MEMORY) as hf:
        provider = HoldfastHistoryProvider(hf, user_id=lambda session: str(session.state["user"]))
        client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
        agent = make_agent(provider, client, per_call=False)
        for user in ("ada", "bob"):
            session = AgentSession(session_id="s")
            session.state["user"] = user
            await agent.run(f"I am {user}.", session=session)
        assert [len(prompt) for prompt in client.prompts] == [1, 1]
        assert (await provider.get_messages("s", user_id="bob"))[0].text == "I am bob."
        with pytest.raises(ValueError, match="user_id"):
            await provider.get_messages("s")


async def test_sessions_of_other_programs_are_converted() -> None:
    async with holdfast.open(MEMORY) as hf:
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        handle = await hf.session("s", system="Be brief.")
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUFB"}}
        await handle.append(
            [
                {"role": "user", "content": [{"type": "text", "text": "Where?"}, image]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "Here."},
                {"role": "note", "origin": {"event": "handoff"}},
            ]
        )
        provider = HoldfastHistoryProvider(hf)
        read = await provider.get_messages("s")
        assert [[content.type for content in message.contents] for message in read] == [
            ["text", "data"],
            ["function_call"],
            ["function_result"],
        ]
        client = ScriptedClient(lambda messages: [Content.from_text("Yes.")])
        await make_agent(provider, client, per_call=False).run("Sure?", session=AgentSession(session_id="s"))
        assert [message.role for message in client.prompts[0]] == ["system", "user", "assistant", "tool", "user"]


async def test_a_cancelled_save_writes_all_messages_or_none() -> None:
    async with holdfast.open(MEMORY) as hf:
        provider = HoldfastHistoryProvider(hf)
        for waits in range(40):
            before = len(await provider.get_messages("s"))
            messages = [Message("user", ["Where?"], message_id=f"u{waits}"), Message("assistant", ["Here."])]
            saving = asyncio.create_task(provider.save_messages("s", messages))
            for _ in range(waits):
                await asyncio.sleep(0)
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            assert len(await provider.get_messages("s")) - before in (0, 2)


def make_turn(number: int, calls: int, words: int, *, separate: bool) -> list[Message]:
    """Return the messages of a turn: a question, a reply with parallel calls, their results, and an answer."""
    made = [Message("user", [f"Question {number}. " + "word " * words])]
    names = [f"c{number}_{at}" for at in range(calls)]
    reasoning = Content.from_text_reasoning(text="Hm.", protected_data=f"sig{number}")
    requests = [Content.from_function_call(name, "find", arguments="{}") for name in names]
    results = [Content.from_function_result(name, result="found " * words) for name in names]
    if calls and separate:
        made += [Message("assistant", [reasoning]), Message("assistant", requests)]
        made += [Message("tool", [result]) for result in results]
    elif calls:
        made += [Message("assistant", [reasoning, *requests]), Message("tool", results)]
    return [*made, Message("assistant", [f"Answer {number}."])]


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.booleans()), min_size=1, max_size=12)


@given(
    turns=TURNS,
    budget=st.integers(300, 2_000),
    strategy=st.sampled_from(["digest", "token_window", "buffer_window", "salience", "head_tail"]),
    per_call=st.booleans(),
)
def test_every_prompt_is_valid(turns: list[Any], budget: int, strategy: str, per_call: bool) -> None:
    messages = [
        message
        for number, (calls, words, separate) in enumerate(turns)
        for message in make_turn(number, calls, words, separate=separate)
    ]

    async def check() -> None:
        async with holdfast.open(MEMORY) as hf:
            provider = HoldfastHistoryProvider(hf, budget=budget, strategy=strategy)
            await provider.save_messages("s", messages)
            assert list_contents(await provider.get_messages("s")) == list_contents(messages)
            client = ScriptedClient(find_once)
            agent = make_agent(provider, client, per_call=per_call)
            try:
                await agent.run("Where is order 7", session=AgentSession(session_id="s"))
            except BudgetTooSmall:
                return
            for prompt in client.prompts:
                check_prompt(prompt)
                assert any(message.text == "Where is order 7" for message in prompt)

    asyncio.run(check())


CRASHING = """
import asyncio, os, signal, sys
import holdfast
from agent_framework import AgentSession
from holdfast.adapters.agent_framework import HoldfastHistoryProvider
from tests.adapters.test_agent_framework import ScriptedClient, find_all, make_agent

def crash(messages):
    contents = find_all(messages)
    if contents[0].call_id == "call_25":
        os.kill(os.getpid(), signal.SIGKILL)
    return contents

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        agent = make_agent(HoldfastHistoryProvider(hf, budget=700), ScriptedClient(crash), per_call=True)
        await agent.run("Find all.", session=AgentSession(session_id="s"))

asyncio.run(main())
"""
"""Its 26th call of the model ends the process, after the 25th result was stored."""


async def test_a_tool_loop_continues_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    command = [sys.executable, "-c", CRASHING, url]
    ended = await asyncio.to_thread(subprocess.run, command, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        provider = HoldfastHistoryProvider(hf, budget=700)
        stored = await provider.get_messages("s")
        assert len(stored) == 1 + 25 * 2
        assert stored[-1].contents[0].call_id == "call_24"
        client = ScriptedClient(find_all)
        agent = make_agent(provider, client, per_call=True)
        result = await agent.run(session=AgentSession(session_id="s"))  # continues the interrupted loop
        assert result.text.endswith("Found all.")
        assert len(client.prompts) == 16
        for prompt in client.prompts:
            check_prompt(prompt)
        assert len(await provider.get_messages("s")) == 1 + 40 * 2 + 1


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("agent-framework")

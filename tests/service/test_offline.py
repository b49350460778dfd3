"""The built-in model is honest, deterministic, and useful for a first look."""

from __future__ import annotations

import json
from typing import Any

import pytest

import holdfast
from holdfast import Roster
from holdfast.agents import Agent
from holdfast.context.digest.pool import HEADER
from holdfast.context.recalled import RecallSettings
from holdfast.context.summaries import LABEL
from holdfast.models import OfflineModel, collect, to_chunks
from holdfast.models.offline import CONFESSION
from holdfast.settings import ContextSettings

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


async def ask(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return await collect(OfflineModel().stream({"model": "offline", "messages": list(messages), **more}))


async def ask_for_text(*messages: dict[str, Any], **more: Any) -> str:
    return str((await ask(*messages, **more))["choices"][0]["message"]["content"])


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


ANYTHING: list[dict[str, Any]] = [
    {},
    {"messages": []},
    {"messages": None, "tools": None},
    {"messages": [user("hi")]},
    {"messages": [user(None), {"role": "assistant"}, {"role": "tool", "content": "x"}]},
    {"messages": [user([{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "look"}])]},
    {"messages": [user("call get_weather {}")], "tools": [TOOL]},
    {"messages": [user("call nobody {}")], "tools": [TOOL, {"type": "custom"}]},
    {"messages": [user("what do you see?"), "no message"]},
    {"messages": [user("help")]},
]


@pytest.mark.parametrize("request_", ANYTHING)
async def test_every_answer_says_it_is_not_a_language_model(request_: dict[str, Any]) -> None:
    completion = await collect(OfflineModel().stream(request_))
    message = completion["choices"][0]["message"]
    assert message["content"].startswith(CONFESSION)
    assert "not a language model" in message["content"]
    assert completion["choices"][0]["finish_reason"] in ("stop", "tool_calls")


@pytest.mark.parametrize("request_", ANYTHING)
async def test_equal_requests_give_equal_bytes(request_: dict[str, Any]) -> None:
    first = [chunk async for chunk in OfflineModel().stream(request_)]
    before = json.dumps(request_)
    assert first == [chunk async for chunk in OfflineModel().stream(request_)]
    assert json.dumps(request_) == before


@pytest.mark.parametrize("label", [HEADER, LABEL], ids=["digest", "summary"])
async def test_reply_describes_the_conversation(label: str) -> None:
    text = await ask_for_text(
        {"role": "system", "content": "You are kind.\nAlways."},
        user("Find my order A-17"),
        user(f"{label.format(first=2, last=9, tag=' #qwertzui')}\norder A-17"),
        {"role": "assistant", "content": "Looking."},
        user("Any  news?"),
        tools=[TOOL],
    )
    assert "5 messages (1 system, 3 user, 1 assistant)" in text
    assert 'begins: "You are kind."' in text
    assert 'your first message that I see: "Find my order A-17"' in text
    assert "condensed form" in text
    assert 'You just said: "Any news?"' in text
    assert "get_weather" in text


async def test_reply_recognises_a_digest() -> None:
    """Uses a real digest: the conversation is longer than its budget."""
    roster = Roster(context=ContextSettings("digest", {"budget": 400}))
    async with holdfast.open("sqlite://:memory:", roster=roster) as hf:
        session = await hf.session()
        replies = [
            (await session.send(f"Order {number} goes to Lyon."))["choices"][0]["message"]["content"]
            for number in range(8)
        ]
    assert "condensed form" not in replies[0]
    assert "condensed form" in replies[-1]
    assert 'your first message that I see: "Order 0 goes to Lyon."' in replies[-1]
    assert 'You just said: "Order 7 goes to Lyon."' in replies[-1]


async def test_reply_quotes_recalled_text_separately_from_user_text() -> None:
    """Uses a real block: a memory from one session is recalled in another."""
    agent = Agent(name="assistant", recalls={"memory": RecallSettings()})
    async with holdfast.open("sqlite://:memory:", roster=Roster(agents={"assistant": agent})) as hf:
        await hf.memories.remember("Ada is allergic to [peanuts]", user_id="default")
        session = await hf.session(agent="assistant")
        first = (await session.send("Hello!"))["choices"][0]["message"]["content"]
        asked = (await session.send("Any allergic reaction to peanuts?"))["choices"][0]["message"]["content"]
    assert "Recalled" not in first
    assert 'Recalled for me from earlier, 1 item: "Ada is allergic to [peanuts]"' in asked
    assert 'your first message that I see: "Hello!"' in asked
    assert 'You just said: "Any allergic reaction to peanuts?"' in asked


async def test_messages_of_other_agents_are_not_taken_for_user_text() -> None:
    theirs = [user("[agent desk]: Hello."), user("[agent desk]: It is\n  there.")]
    text = await ask_for_text(theirs[0], user("Find A-17"), user("Any news?"), theirs[1])
    assert 'your first message that I see: "Find A-17"' in text
    assert 'given 2 messages from other agents; the last one: "[agent desk]: It is there."' in text
    assert 'You just said: "Any news?"' in text


async def test_messages_are_listed_one_per_line() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    text = await ask_for_text(
        {"role": "system", "content": "S"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x" * 500},
        user("What do you see?"),
    )
    lines = text.splitlines()[3:]
    assert lines[0].startswith('1. system "S" (')
    assert lines[1].startswith("2. assistant calls get_weather (")
    assert lines[2].startswith('3. tool "xxx')
    assert len(lines[2]) < 120
    assert lines[3].startswith('4. user "What do you see?" (')
    assert len(lines) == 4


async def test_tool_is_called_on_request_and_its_result_summarised() -> None:
    question = user('call get_weather {"city": "Paris"}')
    completion = await ask(question, tools=[TOOL])
    choice = completion["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"}
    text = await ask_for_text(question, choice["message"], result, tools=[TOOL])
    assert 'get_weather answered with 10 characters: "18 degrees"' in text


async def test_reply_is_streamed_word_by_word_with_usage_last() -> None:
    chunks = [chunk async for chunk in OfflineModel().stream({"messages": [user("hi")]})]
    assert len(chunks) > 20
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_different_requests_have_different_ids() -> None:
    one, other = await ask(user("a")), await ask(user("b"))
    assert one["id"] != other["id"]
    assert one["created"] == 0


async def test_streamed_chunks_equal_the_completion() -> None:
    completion = await ask(user("hi"))
    assert list(to_chunks(completion, by_word=True)) == [
        c async for c in OfflineModel().stream({"messages": [user("hi")]})
    ]

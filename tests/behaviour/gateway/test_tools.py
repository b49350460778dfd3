"""Tools that run in the gateway, with the official client and on the wire: streamed and not, mixed, interrupted, and
killed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast import Tool, ToolContext
from holdfast.testing import Reply
from tests.behaviour.kit import Served, gateway

HI: list[Any] = [{"role": "user", "content": "Where is order 7?"}]
THEIRS: list[Any] = [{"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}]
SESSION = {"session_id": "s"}


async def ask(served: Served, streamed: bool, messages: list[Any] = HI, **fields: Any) -> Any:
    """Return a completion of the official client, streamed and collected, or whole."""
    ask: dict[str, Any] = {"model": "gpt-4o", "messages": messages, "extra_body": SESSION, **fields}
    if not streamed:
        return await served.openai.chat.completions.create(**ask)
    async with served.openai.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_completion()


async def find_order(number: int) -> dict[str, Any]:
    """Find an order.

    Args:
        number: the order's
    """
    return {"order": number, "status": "sent"}


def note(context: ToolContext, text: str) -> str:
    """Keep a note."""
    context.state["note"] = text
    return "kept"


TOOLS_HERE = [find_order, note]


# -- replies -------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_sees_one_reply(streamed: bool) -> None:
    """With its text, finish reason and usage; the calls are not sent to it."""
    calls = [("find_order", {"number": 7}), ("note", {"text": "asked for 7"})]
    script = [Reply(text="Let me look.", tool_calls=calls), "It was sent."]
    async with gateway(script, tools=TOOLS_HERE) as served:
        completion = await ask(served, streamed)
        choice = completion.choices[0]
        assert choice.message.content == "Let me look.\n\nIt was sent."
        assert choice.message.role == "assistant"
        assert not choice.message.tool_calls
        assert choice.finish_reason == "stop"
        assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (20, 30)
        assert [message["role"] for message in served.upstream.requests[1].body["messages"]] == [
            "user",
            "assistant",
            *["tool"] * 2,
        ]
        assert [tool["function"]["name"] for tool in served.upstream.requests[0].body["tools"]] == [
            "find_order",
            "note",
        ]
        entries = await served.entries()
        assert entries[-1]["metadata"] == {"preface": "Let me look.\n\n"}
        assert await served.rest.session().state() == {"note": "asked for 7"}
        assert (await served.rest.session().info())["usage"]["calls"] == 2
        assert await (await served.native.session("s")).verify() == 5


@pytest.mark.parametrize("streamed", [False, True])
async def test_resent_reply_with_joined_texts_is_matched(streamed: bool) -> None:
    """The log continues, tool messages included."""
    script = [Reply(text="Let me look.", tool_calls=[("find_order", {"number": 7})]), "It was sent.", "Yes."]
    async with gateway(script, tools=TOOLS_HERE) as served:
        first = await ask(served, streamed)
        messages = [*HI, {"role": "assistant", "content": first.choices[0].message.content}]
        again = await ask(served, streamed, [*messages, {"role": "user", "content": "Sure?"}])
        assert again.choices[0].message.content == "Yes."
        roles = [role for role, _ in await served.log()]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert [message["role"] for message in served.upstream.requests[2].body["messages"]] == roles[:-1]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("resends", ["the results alone", "all of it", "all of it, no id"])
async def test_calls_of_both_kinds(streamed: bool, resends: str) -> None:
    """The client gets its own calls, and its result continues the turn with the server's results in place."""
    calls = [("open_door", {"which": "front"}), ("find_order", {"number": 7}), ("open_door", {"which": "back"})]
    async with gateway([Reply(text="Wait.", tool_calls=calls), "All done."], tools=TOOLS_HERE) as served:
        choice = (await ask(served, streamed, tools=THEIRS)).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert [json.loads(call.function.arguments)["which"] for call in choice.message.tool_calls] == ["front", "back"]
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"opened {call.id}"}
            for call in choice.message.tool_calls
        ]
        resent = [*HI, choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})]
        messages = results if resends == "the results alone" else [*resent, *results]
        unnamed: Any = {"extra_body": {}} if resends.endswith("no id") else {}
        answer = await ask(served, streamed, messages, tools=THEIRS, **unnamed)
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 1
        assert answer.choices[0].message.content == "All done."
        entries = await served.entries()
        assert [entry["role"] for entry in entries] == ["user", "assistant", *["tool"] * 3, "assistant"]
        assert {entry["turn_id"] for entry in entries} == {0}
        sent = served.upstream.requests[1].body["messages"]
        assert [call["id"] for call in sent[1]["tool_calls"]] == ["call_1_0", "call_1_1", "call_1_2"]
        assert sorted(message["tool_call_id"] for message in sent[2:]) == ["call_1_0", "call_1_1", "call_1_2"]


@pytest.mark.parametrize("named", [True, False])
async def test_client_call_after_a_server_round(named: bool) -> None:
    """A round that the client never saw stays in place when the client resends what it saw."""
    script = [
        Reply(text="First.", tool_calls=[("find_order", {"number": 7})]),
        Reply(text="Then.", tool_calls=[("open_door", {})]),
        Reply(text="And.", tool_calls=[("find_order", {"number": 8})]),
        "Done.",
        "Bye.",
    ]
    async with gateway(script, tools=TOOLS_HERE) as served:
        extra: Any = {"extra_body": SESSION if named else {}}
        message = (await ask(served, False, tools=THEIRS)).choices[0].message
        assert message.content == "First.\n\nThen."
        messages = [*HI, message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})]
        messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "open"})
        answer = await ask(served, False, messages, tools=THEIRS, **extra)
        assert answer.choices[0].message.content == "And.\n\nDone."
        kinds = ["user", *["assistant", "tool"] * 3, "assistant"]
        entries = await served.entries()
        assert [entry["role"] for entry in entries] == kinds
        messages += [{"role": "assistant", "content": "And.\n\nDone."}, {"role": "user", "content": "Thanks"}]
        await ask(served, False, messages, tools=THEIRS, **extra)
        entries = await served.entries()
        assert [entry["role"] for entry in entries] == [*kinds, "user", "assistant"]
        assert {entry["turn_id"] for entry in entries[:8]} == {0}


async def test_tool_errors_and_wrong_arguments_go_to_the_model() -> None:
    """The client sees none of them."""

    async def breaks() -> None:
        raise ValueError("broke")

    async def slow() -> None:
        await asyncio.Event().wait()

    calls = [("breaks", {}), ("slow", {}), ("find_order", {"number": "x"}), ("nowhere", {}), ("note", "{half")]
    script = [Reply(tool_calls=calls), "I could not."]
    async with gateway(script, "gateway: {tool_timeout: 50ms}", tools=[breaks, slow, find_order, note]) as served:
        completion = await ask(served, False)
        assert completion.choices[0].message.content == "I could not."
        results = [message for message in served.upstream.requests[1].body["messages"] if message["role"] == "tool"]
        errors = {result["tool_call_id"]: json.loads(result["content"])["error"] for result in results}
        words = ["broke", "took longer than", "Expected `int`", "no tool 'nowhere'", "not valid JSON"]
        assert all(word in errors[f"call_1_{at}"] for at, word in enumerate(words))


async def test_the_limit_of_a_tools_results_is_its_own_or_that_of_the_server() -> None:
    async def read(*_: Any) -> str:
        return "x" * 9_000

    limits = {"short": 2_000, "usual": None, "long": 8_000}
    tools = [Tool(name=name, call=read, max_result=most) for name, most in limits.items()]
    script = [Reply(tool_calls=[(name, {}) for name in limits]), "Done."]
    async with gateway(script, "gateway: {max_tool_result: 4KiB}", tools=tools) as served:
        await served.chat("Go")
        sizes = [len(row["content"].encode()) for row in await served.entries() if row["role"] == "tool"]
        assert [limit - 9 < size <= limit for size, limit in zip(sizes, (2_000, 4_096, 8_000), strict=True)] == [
            True
        ] * 3


async def test_max_tool_rounds_ends_the_turn() -> None:
    """The model must answer then; if it calls again, the reply is cut."""
    replies = [Reply(tool_calls=[("find_order", {"number": n})]) for n in range(3)]
    async with gateway(replies, "gateway: {max_tool_rounds: 2}", tools=TOOLS_HERE) as served:
        completion = await ask(served, False, tool_choice="required")
        assert completion.choices[0].finish_reason == "length"
        assert "stopped" in completion.choices[0].message.content
        assert [received.body["tool_choice"] for received in served.upstream.requests] == ["required", "auto", "none"]


async def test_secrets_in_results_are_redacted() -> None:
    """Before they are stored and before the model sees them; also in errors, arguments and state."""
    secret = "hunter2-hunter2"

    async def leaks(context: ToolContext) -> str:
        context.state["seen"] = secret
        return f"the word is {secret}"

    async def breaks() -> None:
        raise ValueError(f"no login with {secret}")

    redaction = 'redaction: {enabled: true, rules: [], patterns: [{regex: "hunter2-hunter2", label: word}]}'
    script = [Reply(tool_calls=[("leaks", {}), ("breaks", {})]), "ok"]
    async with gateway(script, redaction, tools=[leaks, breaks]) as served:
        await ask(served, False)
        assert secret.encode() not in served.upstream.requests[1].raw
        exported = (await served.http.get("/v1/sessions/s")).text
        assert secret not in exported
        assert "the word is" in exported


# -- progress ------------------------------------------------------------------


async def lines(served: Served, **fields: Any) -> list[str]:
    """Return the lines of a stream as sent over the wire."""
    body = {"messages": HI, "stream": True, **SESSION, **fields}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return [line for line in response.text.split("\n") if line]


async def test_progress_is_sent_as_comments() -> None:
    """Clients ignore them; an invented tool name with a line break is never sent."""
    calls = [("find_order", {"number": 7}), ("x\n\ndata: {}", {})]
    async with gateway([Reply(tool_calls=calls), "ok"], tools=TOOLS_HERE) as served:
        told = await lines(served)
        assert [line for line in told if line.startswith(":")] == [
            ": tool find_order running",
            ": tool find_order done",
        ]
        assert all(line.startswith((":", "data: ")) for line in told)
        events = [json.loads(line[6:]) for line in told if line.startswith("data: {")]
        assert not any("holdfast" in event for event in events)
        assert all(event["choices"] for event in events)


async def test_progress_is_sent_as_events_on_request() -> None:
    """Chunks without choices, which the official client accepts; the option is not sent served.upstream."""
    script = [Reply(tool_calls=[("find_order", {"number": 7})]), "ok"]
    async with gateway(script, tools=TOOLS_HERE) as served:
        stream = await served.openai.chat.completions.create(
            model="gpt-4o", messages=HI, stream=True, stream_options={"include_progress": True}, extra_body=SESSION
        )
        chunks = [chunk async for chunk in stream]
        told = [(chunk.model_extra or {})["holdfast"] for chunk in chunks if "holdfast" in (chunk.model_extra or {})]
        assert [(step["tool"], step["status"]) for step in told] == [("find_order", "running"), ("find_order", "done")]
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "ok"
        assert all(chunk.usage is None for chunk in chunks)
        assert served.upstream.requests[0].body["stream_options"] == {"include_usage": True}


# -- disconnecting clients and killed servers ------------------------------------


async def test_client_that_disconnects_during_a_tool_cancels_it() -> None:
    """The call gets a result, and the next turn continues."""
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with gateway([Reply(tool_calls=[("waits", {})]), "Hello again."], tools=[waits]) as served:
        task = asyncio.create_task(ask(served, True))
        await running.wait()
        task.cancel()
        await asyncio.wait([task])
        await cancelled.wait()
        completion = await ask(served, False, [{"role": "user", "content": "Still there?"}])
        assert completion.choices[0].message.content == "Hello again."
        sent = served.upstream.requests[1].body["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
        assert "cancelled" in sent[2]["content"]

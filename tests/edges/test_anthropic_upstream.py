"""The gateway in front of an upstream with Anthropic's Messages API: what OpenAI's client sees, what is logged, what
is sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import AnthropicUpstream, PromptCache, Reply, ScriptedUpstream, Tokenizer
from tests.edges.keys import bearer
from tests.edges.server import Served, serving

Json = dict[str, Any]
KEY, CLIENTS = "sk-ant-api03-server-0123456789", "sk-ant-api03-client-9876543210"
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="


def llm(url: str, **fields: Any) -> Json:
    return {"provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": url, "api_key": KEY, **fields}


@asynccontextmanager
async def claude(
    script: Any = (), *more: str, fields: Json | None = None, options: Json | None = None, **serve: Any
) -> AsyncIterator[tuple[Served, AnthropicUpstream]]:
    """Run a server whose default model is a scripted Anthropic upstream; the test fails if it refuses a request."""
    async with AnthropicUpstream(script, **(options or {})) as upstream:
        text = "\n".join([f"llms: {json.dumps({'default': llm(upstream.url, **(fields or {}))})}", *more])
        async with serving(text, **serve) as served:
            yield served, upstream
    assert upstream.violations == []


def read_sent_messages(upstream: ScriptedUpstream, at: int = -1) -> list[Json]:
    """Return the messages of a request without cache marks."""
    told = json.loads(json.dumps(upstream.requests[at].body["messages"]))
    for message in told:
        for block in message["content"]:
            block.pop("cache_control", None)
    return list(told)


async def test_official_openai_client_works_with_claude() -> None:
    """Streamed and whole; the log has both turns, and the next prompt includes them."""
    async with claude(["Good morning, Ada.", "Still here."]) as (served, upstream):
        ask: Json = {"model": "default", "extra_body": {"session_id": "s"}}
        stream = await served.client.chat.completions.create(
            messages=[{"role": "user", "content": "Hello"}], stream=True, stream_options={"include_usage": True}, **ask
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Good morning, Ada."
        assert chunks[-1].usage.prompt_tokens == 10
        reply = await served.client.chat.completions.create(messages=[{"role": "user", "content": "And now?"}], **ask)
        assert reply.choices[0].message.content == "Still here."
        assert reply.choices[0].finish_reason == "stop"
        assert await served.log() == [
            ("user", "Hello"),
            ("assistant", "Good morning, Ada."),
            ("user", "And now?"),
            ("assistant", "Still here."),
        ]
        assert [message["role"] for message in read_sent_messages(upstream)] == ["user", "assistant", "user"]
        assert upstream.requests[0].headers["x-api-key"] == KEY
        assert "prompt_cache_key" not in upstream.requests[0].body


async def test_client_tool_round_keeps_signed_reasoning() -> None:
    """The reasoning is sent back signed and before its calls, though the client never resends it."""
    first = Reply(
        text="One moment.", message={"thinking_blocks": [THOUGHT]}, tool_calls=[("find", {"n": 7}), ("find", {})]
    )
    async with claude([first, "Found."]) as (served, upstream):
        thinking = {"type": "enabled", "budget_tokens": 2_000}
        answer = await served.chat("Where is it?", tools=[FIND], thinking=thinking, max_tokens=4_000)
        calls = answer["choices"][0]["message"]["tool_calls"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "here"} for call in calls]
        answer = await served.chat(results, tools=[FIND], thinking=thinking, max_tokens=4_000)
        assert answer["choices"][0]["message"]["content"] == "Found."
        assert upstream.requests[1].body["thinking"] == thinking
        assert [block["type"] for block in read_sent_messages(upstream)[1]["content"]] == [
            "thinking",
            "text",
            "tool_use",
            "tool_use",
        ]
        assert read_sent_messages(upstream)[1]["content"][0] == THOUGHT
        assert [block["type"] for block in read_sent_messages(upstream)[2]["content"]] == ["tool_result", "tool_result"]


async def test_images_and_documents() -> None:
    """OpenAI's parts become Anthropic's blocks, are stored once, and are restored for each call."""
    parts: list[Json] = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    async with claude(["A dot.", "Grey."]) as (served, upstream):
        await served.chat([{"role": "user", "content": parts}])
        await served.chat("Which colour?")
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        for at in (0, 1):
            assert read_sent_messages(upstream, at)[0]["content"][1] == image


async def test_each_call_reads_the_cache_of_the_previous_call() -> None:
    """The answer reports it in OpenAI's fields, and so does the recorded call."""
    async with claude(lambda _: "A long answer about harbours. " * 20, options={"cache": PromptCache()}) as (served, _):
        before: Json = {}
        for turn in range(5):
            answer = await served.chat(f"Question {turn}, and some words.", tools=[FIND])
            usage = answer["usage"]
            if before:
                written = before["cache_read_input_tokens"] + before["cache_creation_input_tokens"]
                assert usage["prompt_tokens_details"]["cached_tokens"] == usage["cache_read_input_tokens"] == written
            before = usage
        newest = (await served.hf.store.calls(SessionRef("default", "s"), limit=1))[0]
        assert newest.cached_tokens == before["cache_read_input_tokens"] > 0


async def test_context_preview_equals_the_sent_prompt() -> None:
    """`POST …/context` returns the same messages in the same shape, marks included."""
    async with claude(["Well.", "Then."]) as (served, upstream):
        for text in ("One", "Two"):
            await served.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])
        context = await served.http.post("/v1/sessions/s/context", json={"dialect": "anthropic", "at_turn": 1})
        assert context.json()["messages"] == upstream.requests[1].body["messages"]


async def test_cache_control_can_be_disabled() -> None:
    """With `params.cache_control: false` of the llm; the context preview shows it too."""
    async with claude(["Well."], fields={"params": {"cache_control": False}}) as (served, upstream):
        await served.chat("One")
        context = await served.http.post("/v1/sessions/s/context", json={"dialect": "anthropic"})
        assert "cache_control" not in json.dumps([upstream.requests[0].body, context.json()])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", ["anthropic", "anthropic-reply"])
async def test_too_long_prompt_is_reduced_and_sent_again(refusal: str, stream: bool) -> None:
    """The refusal gives the window; the client sees an answer."""
    tokenizer = Tokenizer(window=3_000, refusal=refusal)
    options = {"tokenizer": tokenizer}
    async with claude(lambda _: "Noted.", fields={"max_tokens": 300}, options=options) as (served, upstream):
        for turn in range(12):
            answer = await served.http.post(
                "/v1/chat/completions",
                json={
                    "session_id": "s",
                    "stream": stream,
                    "messages": [{"role": "user", "content": f"{turn} " + "harbour kelp anchor " * 100}],
                },
            )
            assert answer.status_code == 200, answer.text
            assert "Noted." in answer.text
            assert "error" not in answer.text
        assert any(received.refused for received in upstream.requests)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 2}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ],
)
async def test_fields_that_anthropic_lacks_are_refused_before_any_write(param: str, fields: Json) -> None:
    async with claude(["never"]) as (served, upstream):
        answer = await served.chat("Hello", **fields)
        assert (answer["status"], answer["error"]["param"]) == (400, param)
        assert upstream.requests == []
        assert (await served.http.get("/v1/sessions/s")).status_code == 404


async def test_client_key_is_sent_in_anthropics_header() -> None:
    """With `upstream_auth: passthrough`; the server's key is not sent, and errors do not contain the client's key."""
    refused = Reply(status=401, error=f"invalid x-api-key: {CLIENTS}")
    async with claude(["ok", refused], "gateway: {upstream_auth: passthrough}") as (served, upstream):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert (await served.http.post("/v1/chat/completions", json=body, headers=bearer(CLIENTS))).status_code == 200
        failed = await served.http.post("/v1/chat/completions", json=body, headers=bearer(CLIENTS))
        assert failed.status_code == 401
        assert CLIENTS not in failed.text
        for received in upstream.requests:
            assert received.headers["x-api-key"] == CLIENTS
            assert KEY not in str(received.headers)


async def test_prompts_are_counted_by_the_provider() -> None:
    """`count: provider` calls Anthropic's endpoint with its key and shape."""
    options = {"counts": lambda _: 1_234}
    async with claude(["ok"], fields={"count": "provider"}, options=options) as (served, upstream):
        await served.chat("Hello")
        (asked,) = upstream.counted
        assert asked.path == "/v1/messages/count_tokens"
        assert asked.headers["x-api-key"] == KEY
        assert asked.body["messages"][0]["content"][0]["text"] == "Hello"


async def test_session_alternates_between_models_of_two_dialects() -> None:
    """Tools and reasoning are in the log; each upstream gets what it accepts, with its own key."""
    thinking = Reply(text="Wait.", message={"thinking_blocks": [THOUGHT]}, tool_calls=[("find", {"n": 1})])
    async with (
        AnthropicUpstream([thinking, "Found.", "Yes."]) as one,
        ScriptedUpstream([Reply(tool_calls=[("find", {"n": 2})]), "There."]) as two,
    ):
        other = {"model": "gpt-4o", "base_url": two.url, "api_key": "sk-other-0123456789"}
        text = f"llms: {json.dumps({'default': llm(one.url), 'other': other})}"
        async with serving(text) as served:

            async def turn(model: str, text: str) -> None:
                answer = await served.chat(text, model=model, tools=[FIND])
                for call in answer["choices"][0]["message"].get("tool_calls") or ():
                    result = {"role": "tool", "tool_call_id": call["id"], "content": "here"}
                    assert (await served.chat([result], model=model, tools=[FIND]))["status"] == 200

            for model, said in (("default", "Find it."), ("other", "Once more."), ("default", "Sure?")):
                await turn(model, said)
            log = await served.log()
        assert one.violations == []
        assert [role for role, _ in log].count("assistant") == 5
        assert {received.headers["authorization"] for received in two.requests} == {"Bearer sk-other-0123456789"}
        assert "signature" not in json.dumps([received.body for received in two.requests])
        last = read_sent_messages(one)
        assert last[1]["content"][0] == THOUGHT
        assert [message["role"] for message in last] == ["user", "assistant"] * 4 + ["user"]

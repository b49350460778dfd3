"""The official OpenAI client against the gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import CLIENT_KEY, UPSTREAM_KEY, Served, bearer, gateway, user

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "Find an order.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}},
        },
    }
]
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64},
}
HI: list[Any] = [{"role": "user", "content": "Hi"}]


async def test_whole_answer_names_the_session() -> None:
    """The completion is the model's; the session is in body and header."""
    async with gateway([Reply(text="Hello there.", usage=USAGE)]) as served:
        raw = await served.openai.chat.completions.with_raw_response.create(model="gpt-4o", messages=HI)
        completion = raw.parse()
        assert completion.choices[0].message.content == "Hello there."
        assert completion.choices[0].finish_reason == "stop"
        assert completion.usage is not None
        assert completion.usage.total_tokens == 120
        said: Any = completion.model_extra
        assert said["session_id"] == raw.headers["x-session-id"]
        assert said["session"]["turn"] == 0
        assert said["session"]["version"] == 2
        assert said["session"]["working_set"]["messages"] == 1
        assert raw.headers["x-request-id"].startswith("req_")
        assert int(raw.headers["content-length"]) == len(raw.content)
        assert await served.log(said["session_id"]) == [("user", "Hi"), ("assistant", "Hello there.")]
        assert served.upstream.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert CLIENT_KEY.encode() not in served.upstream.requests[0].raw


async def test_answer_is_streamed_word_by_word() -> None:
    """Chunks arrive as the model sends them; the last one has the session."""
    async with gateway(["One two three."]) as served:
        stream = await served.openai.chat.completions.create(
            model="gpt-4o", messages=HI, stream=True, extra_body={"session_id": "s"}
        )
        chunks = [chunk async for chunk in stream]
        words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        assert words == ["One ", "two ", "three."]
        last: Any = chunks[-1].model_extra
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert last["session_id"] == "s"
        assert last["session"]["version"] == 2
        assert all("session" not in (chunk.model_extra or {}) for chunk in chunks[:-1])
        assert all(chunk.usage is None for chunk in chunks)
        assert await served.log() == [("user", "Hi"), ("assistant", "One two three.")]


async def test_blocking_client_works() -> None:
    """Streamed and not."""
    async with gateway(["First.", "Second one."]) as served:

        def talk() -> tuple[str | None, str]:
            with openai.OpenAI(base_url=f"{served.url}/v1", api_key=CLIENT_KEY, max_retries=0) as client:
                extra = {"session_id": "s"}
                whole = client.chat.completions.create(model="gpt-4o", messages=HI, extra_body=extra)
                stream = client.chat.completions.create(
                    model="gpt-4o", messages=[{"role": "user", "content": "More"}], stream=True, extra_body=extra
                )
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                return whole.choices[0].message.content, text

        assert await asyncio.to_thread(talk) == ("First.", "Second one.")
        assert [role for role, _ in await served.log()] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_tool_round(streamed: bool) -> None:
    """The call is returned to the client; with only its result the model gets the whole unit."""
    script = [Reply(tool_calls=[("find_order", {"number": "A-17"})]), "It is on its way."]
    async with gateway(script) as served:
        call = await first_call(served, streamed)
        assert (call.function.name, json.loads(call.function.arguments)) == ("find_order", {"number": "A-17"})
        answer = await served.openai.chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "tool", "tool_call_id": call.id, "content": "in transit"}],
            tools=TOOLS,
            extra_body={"session_id": "s"},
        )
        assert answer.choices[0].message.content == "It is on its way."
        sent = served.upstream.requests[1].body
        assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
        assert sent["messages"][1]["tool_calls"][0]["id"] == sent["messages"][2]["tool_call_id"] == call.id
        assert sent["tools"] == TOOLS
        assert [role for role, _ in await served.log()] == ["user", "assistant", "tool", "assistant"]


async def first_call(served: Served, streamed: bool) -> Any:
    """Return the tool call that answers the first request."""
    ask: dict[str, Any] = {"model": "gpt-4o", "messages": HI, "tools": TOOLS, "extra_body": {"session_id": "s"}}
    if not streamed:
        answer = await served.openai.chat.completions.create(**ask)
        assert answer.choices[0].finish_reason == "tool_calls"
        return answer.choices[0].message.tool_calls[0]
    extra = ask.pop("extra_body")
    async with served.openai.chat.completions.stream(**ask, extra_body=extra) as stream:
        async for _ in stream:
            pass
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.tool_calls is not None
    return completion.choices[0].message.tool_calls[0]


async def test_first_of_several_choices_is_stored() -> None:
    """With `n` the client gets all choices and the log the first, however they are interleaved."""
    chunks: list[dict[str, Any]] = [
        {
            "id": "x",
            "choices": [{"index": 1, "delta": {"role": "assistant", "content": "second"}, "finish_reason": None}],
        },
        {
            "id": "x",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": "first"}, "finish_reason": None}],
        },
        {"id": "x", "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
        {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    async with gateway([Reply(chunks=chunks)]) as served:
        answer = await served.openai.chat.completions.create(
            model="gpt-4o", messages=HI, n=2, extra_body={"session_id": "s"}
        )
        assert [choice.message.content for choice in answer.choices] == ["first", "second"]
        assert served.upstream.requests[0].body["n"] == 2
        assert await served.log() == [("user", "Hi"), ("assistant", "first")]


async def test_unknown_fields_pass_both_ways() -> None:
    """Fields unknown to Holdfast reach the served.upstream, the client and the log; its own fields are not passed on."""
    reply = Reply(text="Four.", message={"reasoning_content": "2 and 2"})
    async with gateway([reply, "And more."], llm={"profile": "openrouter"}) as served:
        stream = await served.openai.chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": "Add", "x_trace": "t-1"}],
            stream=True,
            extra_body={
                "session_id": "s",
                "session_mode": "delta",
                "session_match": "off",
                "top_k": 7,
                "x": {"y": [1]},
            },
        )
        deltas = [chunk.choices[0].delta.model_extra or {} for chunk in [chunk async for chunk in stream]]
        assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["2 and 2"]
        sent = served.upstream.requests[0].body
        assert (sent["top_k"], sent["x"], sent["messages"][0]["x_trace"]) == (7, {"y": [1]}, "t-1")
        assert not {"session_id", "session_mode", "session_match", "agent"} & sent.keys()
        await served.chat("Go on")
        assert served.upstream.requests[1].body["messages"][1]["reasoning_content"] == "2 and 2"


async def test_chunks_without_choices_are_passed_on() -> None:
    """For example Azure's filter results."""
    chunks: list[dict[str, Any]] = [
        {"id": "x", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"id": "x", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]},
        {"id": "x", "choices": [], "usage": USAGE},
    ]
    async with gateway([Reply(chunks=chunks)]) as served:
        stream = await served.openai.chat.completions.create(model="gpt-4o", messages=HI, stream=True)
        said = [chunk.model_extra or {} async for chunk in stream]
        assert len(said) == 2
        assert "prompt_filter_results" in said[0]


async def test_prompt_cache_key_is_sent_to_the_provider() -> None:
    """One key per session, also of two tenants. It reveals neither session nor user; a client's own key is kept."""
    async with gateway(lambda _: "ok") as served:
        for session_id in ("one", "one", "two"):
            await served.chat("Hi", session_id)
        await served.chat("Hi", "three", prompt_cache_key="mine")
        await served.chat("Hi", "one", headers=bearer(await served.create_key(tenant="other")))
        keys = [received.body["prompt_cache_key"] for received in served.upstream.requests]
        assert keys[0] == keys[1] not in (keys[2], keys[4])
        assert keys[3] == "mine"
        assert "one" not in keys[0]


# -- errors ------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"extra_body": {"session_mode": "other"}}, "session_mode"),
    ({"extra_body": {"session_match": True}}, "session_match"),
    ({"extra_body": {"agent": "nobody"}}, "agent"),
    ({"extra_body": {"session_id": 5}}, "session_id"),
    ({"extra_body": {"session_id": "x" * 600}}, "session_id"),
    ({"extra_body": {"n": 0}}, "n"),
    ({"extra_body": {"n": 10**9}}, "n"),
    ({"extra_body": {"max_tokens": "many"}}, "max_tokens"),
    ({"extra_body": {"max_tokens": True}}, "max_tokens"),
    ({"extra_body": {"max_tokens": 10**9}}, "max_tokens"),
    ({"extra_body": {"tools": [1]}}, "tools[0]"),
    ({"extra_body": {"tools": [{"type": "function", "function": "x"}]}}, "tools[0]"),
    ({"extra_body": {"tools": {}}}, "tools"),
    ({"extra_body": {"stream": "yes"}}, "stream"),
    ({"extra_body": {"user": "u" * 600}}, "user_id"),
    ({"extra_headers": {"Idempotency-Key": "k" * 600}}, "Idempotency-Key"),
    ({"extra_body": {"session_id": "a"}, "extra_headers": {"X-Session-Id": "b"}}, "session_id"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
async def test_bad_requests_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    """They raise `BadRequestError`; no model is called and no session created."""
    async with gateway([]) as served:
        with pytest.raises(openai.BadRequestError) as caught:
            await served.openai.chat.completions.create(**{"model": "gpt-4o", "messages": HI, **fields})
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
        assert caught.value.code
        assert served.upstream.requests == []
        assert (await served.http.get("/v1/sessions")).json()["data"] == []


UPSTREAM_SAYS: list[tuple[int, type[openai.APIStatusError], int]] = [
    (400, openai.BadRequestError, 400),
    (404, openai.NotFoundError, 404),
    (422, openai.UnprocessableEntityError, 422),
    (429, openai.RateLimitError, 429),
    (401, openai.InternalServerError, 502),
    (403, openai.InternalServerError, 502),
    (500, openai.InternalServerError, 502),
    (503, openai.InternalServerError, 503),
    (302, openai.InternalServerError, 502),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("status", "kind", "told"), UPSTREAM_SAYS)
async def test_upstream_errors_map_to_client_exceptions(
    status: int, kind: type[openai.APIStatusError], told: int, streamed: bool
) -> None:
    """Errors that the caller can fix keep the upstream's status; those that only the server's owner can fix become a
    502.
    """
    reply = Reply(status=status, error="they said no", headers={"retry-after": "0.4"} if status == 429 else {})
    async with gateway([reply]) as served:
        with pytest.raises(kind) as caught:
            await served.openai.chat.completions.create(
                model="gpt-4o",
                messages=HI,
                stream=streamed,
                extra_body={"session_id": "s"},
            )
        error = caught.value
        assert error.status_code == told
        assert UPSTREAM_KEY not in error.response.text
        assert error.response.headers["x-session-id"] == "s"
        assert error.response.headers["x-request-id"] == error.request_id
        if status == 429:
            assert error.response.headers["retry-after"] == "1"
        assert await served.log() == [("user", "Hi")]


async def test_unknown_route_raises_not_found() -> None:
    """With the usual error shape."""
    async with gateway([], "gateway: {passthrough: false}") as served:
        with pytest.raises(openai.NotFoundError) as caught:
            await served.openai.embeddings.create(model="m", input="x")
        assert caught.value.code == "not_found"
        assert "/v1/embeddings" in str(caught.value)


async def test_too_long_prompt_is_rebuilt_smaller() -> None:
    """On the provider's context-length error the prompt is rebuilt for the window that the error names."""
    too_long = Reply(
        status=400,
        error={
            "error": {
                "message": "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    )
    async with gateway(["one", "two", too_long, "three"]) as served:
        for number in range(2):
            await served.chat(f"question {number} " + "word " * 2000)
        answer = await served.chat("question 2")
        assert answer["choices"][0]["message"]["content"] == "three"
        refused, sent = (len(received.raw) for received in served.upstream.requests[2:])
        assert sent < refused * 0.8
        assert answer["session"]["working_set"]["total_tokens"] < 4096
        assert [role for role, _ in await served.log()] == ["user", "assistant"] * 3


async def test_prompt_that_stays_too_long_is_an_error() -> None:
    """After three smaller attempts the provider's own message is returned."""
    refusal = Reply(status=400, error={"error": {"message": "too long", "code": "context_length_exceeded"}})
    async with gateway([*["ok"] * 4, *[refusal] * 9]) as served:
        for number in range(4):
            await served.chat(f"question {number} " + "word " * 1000)
        with pytest.raises(openai.BadRequestError) as caught:
            await served.openai.chat.completions.create(model="gpt-4o", messages=HI, extra_body={"session_id": "s"})
        assert caught.value.code == "context_length_exceeded"
        sizes = [len(received.raw) for received in served.upstream.requests[4:]]
        assert len(sizes) == 4
        assert sizes == sorted(sizes, reverse=True)


async def test_budget_too_small_for_the_message_is_a_400() -> None:
    """It says what is needed; the message is in the log."""
    async with gateway([], "context: {strategy: token_window, budget: 40}") as served:
        answer = await served.chat("word " * 2000)
        assert (answer["status"], answer["error"]["code"]) == (400, "budget_too_small")
        assert "at least" in answer["error"]["message"]
        assert served.upstream.requests == []
        assert [role for role, _ in await served.log()] == ["user"]


async def test_the_name_of_a_speaker_reaches_the_upstream() -> None:
    async with gateway(["Hello."]) as served:
        await served.chat([{**user("Hi."), "name": "ada"}])
        assert served.sent["messages"][-1]["name"] == "ada"

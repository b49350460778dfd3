"""`POST /v1/messages` with the official Anthropic client: errors, retries, keys, and the related routes."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import CLAUDE, apis, bearer

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a town.",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    "cache_control": {"type": "ephemeral"},
}
CALLS = [("weather", {"town": "Oslo"}), ("weather", {"town": "Bergen", "days": [1, 2]})]


# -- errors ------------------------------------------------------------------


async def test_errors_raise_anthropics_exceptions() -> None:
    """Each with type, message, place and request id."""
    async with apis(lambda body: Reply(status=int(body["messages"][-1]["content"]), error="no")) as both:
        cases: list[tuple[type[anthropic.APIStatusError], str, dict[str, Any]]] = [
            (anthropic.BadRequestError, "invalid_request_error", {"messages": [{"role": "user", "content": ""}]}),
            (anthropic.BadRequestError, "invalid_request_error", {"messages": "400"}),
            (anthropic.NotFoundError, "not_found_error", {"messages": "404"}),
            (anthropic.RateLimitError, "rate_limit_error", {"messages": "429"}),
            (anthropic.InternalServerError, "api_error", {"messages": "500"}),
            (anthropic.ServiceUnavailableError, "overloaded_error", {"messages": "503"}),
            (anthropic.GatewayTimeoutError, "timeout_error", {"messages": "504"}),
            (anthropic.BadRequestError, "invalid_request_error", {"messages": "400", "tool_choice": {"type": "some"}}),
            (anthropic.BadRequestError, "invalid_request_error", {"messages": "400", "tools": [{"name": "x"}]}),
        ]
        for error, kind, fields in cases:
            for stream in (False, True):
                with pytest.raises(error) as told:
                    await both.ask(**{"stream": stream, **fields})
                body: Any = told.value.body
                assert (body["type"], body["error"]["type"]) == ("error", kind)
                assert body["error"]["message"]
                assert told.value.type == kind
                assert told.value.error_code
                assert told.value.request_id == body["request_id"]
                assert str(told.value.request_id).startswith("req_")


async def test_errors_before_the_route_are_anthropics_too() -> None:
    """Wrong key, host, method or body."""
    async with apis((), (), "gateway: {max_body: 2048}") as both:
        http = both.http
        elsewhere = await http.post("/v1/messages", content=b"{}", headers={"host": "evil.example"})
        key = await both.create_key(role="read")
        kind = {"content-type": "application/json"}
        answers = {
            "authentication_error": await http.post("/v1/messages", content=b"{}"),
            "permission_error": await http.post("/v1/messages", content=b"{}", headers={"x-api-key": key}),
            "not_found_error": await http.post("/v1/messages/nothing", content=b"{}", headers=bearer(key)),
            "request_too_large": await http.post(
                "/v1/messages/count_tokens", content=b" " * 3000, headers={"x-api-key": key, **kind}
            ),
        }
        for name, answer in answers.items():
            body = answer.json()
            assert (body["type"], body["error"]["type"]) == ("error", name), (name, body)
            assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
        for answer, status in (
            (elsewhere, 403),
            (await http.get("/v1/messages", headers=bearer(key)), 405),
            (
                await http.post(
                    "/v1/messages/count_tokens", content=b"x", headers={"content-type": "text/plain", **bearer(key)}
                ),
                415,
            ),
            (await http.get("/v1/models?limit=x", headers={"anthropic-version": "2023-06-01", **bearer(key)}), 400),
        ):
            assert (answer.status_code, answer.json()["type"]) == (status, "error")
        other = (await http.get("/v1/models?limit=x", headers=bearer(key))).json()
        assert set(other) == {"error"}
        assert "request-id" not in (await http.get("/v1/models", headers=bearer(key))).headers


async def test_failure_in_mid_stream_is_an_event() -> None:
    """The partial reply is stored and marked; nothing follows the event."""
    async with apis([Reply(text="One two three.", error="broke", cut_after=3)]) as both:
        with pytest.raises(anthropic.APIStatusError) as told:
            await both.ask("Hi", stream=True, session_id="s")
        assert told.value.type == "api_error"
        (_, part) = await both.entries("s")
        assert part["content"].startswith("One")
        assert part["metadata"]["interrupted"] is True


async def test_interrupted_reply_ends_properly() -> None:
    """As the end of a turn with the partial reply; `session` reports the interruption."""
    gate = Gate()
    async with apis([Reply(text="One two three.", hold=gate, hold_after=2), "Stopped."]) as both:
        fields: dict[str, Any] = {"model": "gpt-4o", "max_tokens": 9, "extra_body": {"session_id": "s"}}
        async with both.anthropic.messages.stream(**fields, messages=[{"role": "user", "content": "Count"}]) as events:
            seen = []
            async for event in events:
                seen.append(event)
                if event.type == "text":
                    break
            late = asyncio.create_task(
                both.chat("Stop", session_queue="interrupt")  # through the other API
            )
            seen += [event async for event in events]
            final = await events.get_final_message()
        assert (await late)["status"] == 200
        assert final.stop_reason == "end_turn"
        assert final.content[0].text.strip() == "One"
        (delta,) = [event for event in seen if event.type == "message_delta"]
        assert delta.session["interrupted"] is True
        gate.open()


# -- retries -----------------------------------------------------------------


async def test_retry_is_answered_once() -> None:
    """With a key the stored reply is repeated exactly.

    If the client retries after a 5xx, the message is stored once.
    """
    failing = [
        Reply(status=500, error="no"),
        Reply(text="Hello.", tool_calls=CALLS[:1], message={"reasoning_content": "hm"}),
    ]
    async with apis(failing) as both:
        again = both.anthropic.with_options(max_retries=1)
        headers = {"idempotency-key": "k", "x-session-id": "s"}
        fields: dict[str, Any] = {
            "model": "gpt-4o",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [WEATHER],
            "extra_headers": headers,
        }
        first = await again.messages.create(**fields)
        assert len(both.upstream.requests) == 2
        second = await again.messages.create(**fields)
        async with again.messages.stream(**fields) as events:
            third = await events.get_final_message()
        assert len(both.upstream.requests) == 2
        for other in (second, third):
            assert [block.to_dict() for block in other.content] == [block.to_dict() for block in first.content]
            assert other.stop_reason == first.stop_reason == "tool_use"
        assert [entry["role"] for entry in await both.entries("s")] == ["user", "assistant"]


# -- related routes ----------------------------------------------------------


async def test_tokens_are_counted_without_a_call() -> None:
    """Only those of the request, with the model's own counter; nothing is stored."""
    async with apis() as both:
        messages = [{"role": "user", "content": "How many tokens are these?"}]
        small = await both.anthropic.messages.count_tokens(model="gpt-4o", messages=messages)
        more = await both.anthropic.messages.count_tokens(
            model="gpt-4o", messages=messages, system="Be kind.", tools=[WEATHER]
        )
        assert 5 < small.input_tokens < more.input_tokens
        assert small.counted["how"] == "exact"
        claude = await both.anthropic.messages.count_tokens(model=CLAUDE, messages=messages)
        assert claude.counted["how"] == "estimate"
        beta = await both.anthropic.beta.messages.count_tokens(model="gpt-4o", messages=messages, betas=["x"])
        assert beta.input_tokens == small.input_tokens
        with pytest.raises(anthropic.BadRequestError):
            await both.anthropic.messages.count_tokens(model="gpt-4o", messages=[])
        assert not both.upstream.requests
        assert await both.rest.sessions() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_beta_client_works(stream: bool) -> None:
    """It calls the same route with an additional parameter and header."""
    async with apis((), ["Yes."]) as both:
        fields: dict[str, Any] = {
            "model": CLAUDE,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "betas": ["x-1"],
        }
        if stream:
            async with both.anthropic.beta.messages.stream(**fields) as events:
                told = await events.get_final_message()
        else:
            told = await both.anthropic.beta.messages.create(**fields)
        assert told.content[0].text == "Yes."
        assert "x-1" in both.claude.requests[0].headers["anthropic-beta"]


async def test_both_key_options_of_the_client_work() -> None:
    """`api_key` is sent in `x-api-key`, `auth_token` in `Authorization`; sessions belong to the key's user."""
    async with apis(["a", "b"]) as both:
        key = await both.create_key(user_id="ada")
        fields: dict[str, Any] = {"model": "gpt-4o", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        for name in ("api_key", "auth_token"):
            given: dict[str, Any] = {"api_key": None, "auth_token": None, name: key}
            client: Any = anthropic.AsyncAnthropic(base_url=both.url, max_retries=0, http_client=both.http, **given)
            told: Any = await client.messages.create(**fields, metadata={"user_id": "eve"})
            owned = await both.http.get(f"/v1/sessions/{told.session_id}", headers=bearer(key))
            assert owned.json()["user_id"] == "ada"
        with pytest.raises(anthropic.AuthenticationError):
            await both.anthropic.messages.create(**fields)


@pytest.mark.parametrize("name", ["api_key", "auth_token"])
async def test_passthrough_key_reaches_the_model(name: str) -> None:
    """The client's own key is passed on and stored nowhere."""
    async with apis((), ["Yes."], "gateway: {upstream_auth: passthrough}") as both:
        key = "sk-ant-api03-0123456789"
        given: dict[str, Any] = {"api_key": None, "auth_token": None, name: key}
        client: Any = anthropic.AsyncAnthropic(base_url=both.url, max_retries=0, http_client=both.http, **given)
        await client.messages.create(model=CLAUDE, max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
        headers = both.claude.requests[0].headers
        assert key in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer "))
        assert key.encode() not in both.claude.requests[0].raw

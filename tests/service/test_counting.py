"""Token counting by a provider's endpoint over a socket, and the scripted upstream that counts like a provider."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agents import Llm
from holdfast.errors import ContextTooLong
from holdfast.models import OfflineModel, OpenAIModel, ProviderCounter, collect, find_count_endpoint, has_content
from holdfast.models.overflow import parse_overflow
from holdfast.testing import Gate, Reply, ScriptedUpstream, Tokenizer
from holdfast.testing.refusals import REFUSALS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "sk-test-0123456789abcdef"
PNG = "data:image/png;base64,iVBORw0KGgo="
HI: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": PNG}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"order": 7}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sent"},
    ],
    "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
    "max_tokens": 100,
}


class Clock:
    """A clock in seconds that tests advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def open_counter(
    upstream: ScriptedUpstream, *, provider: str = "openai", **options: Any
) -> AsyncIterator[tuple[ProviderCounter, Clock]]:
    clock = Clock()
    endpoint = find_count_endpoint(upstream.url, KEY, "m", provider=provider)
    counter = ProviderCounter(endpoint, clock=clock, **options)
    try:
        yield counter, clock
    finally:
        await counter.close()


# -- requests ---------------------------------------------------------------------


async def test_anthropic_count_request_format() -> None:
    async with ScriptedUpstream(counts=lambda body: 1_234) as upstream:
        async with open_counter(upstream, provider="anthropic", headers={"x-team": "a"}) as (counter, _):
            assert await counter.count_prompt(BODY) == 1_234
            assert counter.failure is None
        asked = upstream.counted[0]
    assert asked.path == "/v1/messages/count_tokens"
    assert asked.headers["x-api-key"] == KEY
    assert asked.headers["anthropic-version"] == "2023-06-01"
    assert asked.headers["x-team"] == "a"
    assert asked.body.keys() == {"model", "system", "messages", "tools"}
    assert asked.body["messages"][1]["content"][0]["type"] == "tool_use"
    assert asked.body["tools"][0]["name"] == "find"


async def test_gemini_count_request_format() -> None:
    async with ScriptedUpstream(counts=lambda body: 99) as upstream:
        async with open_counter(upstream, provider="gemini") as (counter, _):
            assert await counter.count_prompt(BODY | {"model": "gemini-2.5-flash"}) == 99
        asked = upstream.counted[0]
    assert asked.path == "/v1/models/gemini-2.5-flash:countTokens"
    assert asked.headers["x-goog-api-key"] == KEY
    request = asked.body["generateContentRequest"]
    assert request["model"] == "models/gemini-2.5-flash"
    assert request.keys() == {"model", "systemInstruction", "contents", "tools"}


async def test_openai_count_request_format() -> None:
    async with ScriptedUpstream(counts=lambda body: 7) as upstream:
        async with open_counter(upstream) as (counter, _):
            assert await counter.count_prompt(BODY) == 7
        asked = upstream.counted[0]
    assert asked.path == "/v1/responses/input_tokens"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "m",
        "input": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": PNG, "detail": "auto"},
                ],
            },
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"order": 7}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sent"},
        ],
        "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
    }


# -- responses ------------------------------------------------------------------------


async def test_counts_are_cached() -> None:
    async with ScriptedUpstream(counts=lambda body: len(body["input"])) as upstream, open_counter(upstream) as (c, _):
        assert [
            await c.count_prompt(HI),
            await c.count_prompt(HI | {"temperature": 1}),
            await c.count_prompt(BODY),
        ] == [
            1,
            1,
            4,
        ]
        assert len(upstream.counted) == 2


@pytest.mark.parametrize(
    ("counted", "pause"),
    [
        (Reply(status=404), 3_600),
        (Reply(status=401, error=f"no such key {KEY}"), 3_600),
        (Reply(status=503), 60),
        (Reply(status=429), 60),
        (0, 60),
        (Reply(status=400, error="an odd prompt"), 0),
    ],
)
async def test_failing_count_endpoint_is_paused(counted: int | Reply, pause: int) -> None:
    async with ScriptedUpstream(counts=lambda body: counted) as upstream, open_counter(upstream) as (counter, clock):
        assert await counter.count_prompt(HI) is None
        assert "count endpoint" in (counter.failure or "")
        assert KEY not in (counter.failure or "")
        assert KEY not in repr(counter)
        clock.now = max(0, pause - 1)
        assert await counter.count_prompt(HI) is None
        assert len(upstream.counted) == (1 if pause else 2)
        clock.now = pause + 1
        assert await counter.count_prompt(HI) is None
        assert len(upstream.counted) == (2 if pause else 3)


async def test_count_request_times_out() -> None:
    gate = Gate()
    async with (
        ScriptedUpstream(counts=lambda body: Reply(hold=gate)) as upstream,
        open_counter(upstream, seconds=0.05) as (counter, _),
    ):
        assert await counter.count_prompt(HI) is None
        assert counter.failure == "openai's count endpoint: no answer within 0.05 s"


async def test_unreachable_count_endpoint_returns_none() -> None:
    async with ScriptedUpstream() as upstream:
        pass
    async with open_counter(upstream) as (counter, _):
        assert await counter.count_prompt(HI) is None
        assert "ClientConnectorError" in (counter.failure or "")


@pytest.mark.parametrize(
    "body", [{"messages": 7}, {"messages": [7]}, {"messages": [{"role": "user", "content": [{}]}]}]
)
async def test_inexpressible_prompt_returns_none(body: dict[str, Any]) -> None:
    async with ScriptedUpstream(counts=lambda body: 1) as upstream, open_counter(upstream) as (counter, _):
        assert await counter.count_prompt(body) is None
        assert "cannot be expressed" in (counter.failure or "")
        assert await counter.count_prompt(HI) == 1


async def test_llm_counts_only_with_a_configured_counter() -> None:
    async with ScriptedUpstream(counts=lambda body: 5) as upstream, open_counter(upstream) as (counter, _):
        assert await Llm(name="m", model="m", client=OfflineModel()).count_prompt(HI) is None
        assert await Llm(name="m", model="m", client=OfflineModel(), count=counter).count_prompt(HI) == 5
        await asyncio.gather(*(counter.count_prompt(HI) for _ in range(20)))


# -- the upstream that counts like a provider --------------------------------------------------


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("in_stream", [False, True])
async def test_upstream_rejects_long_prompts_in_each_providers_words(name: str, in_stream: bool) -> None:
    tokenizer = Tokenizer(window=600, refusal=name, in_stream=in_stream)
    long = HI | {"messages": [{"role": "user", "content": "word " * 500}], "max_tokens": 200}
    prompt = tokenizer.count_prompt_tokens(long)
    async with ScriptedUpstream(["first", "second"], tokenizer=tokenizer) as upstream:
        model = OpenAIModel(upstream.url, max_retries=0)
        first = await collect(model.stream(HI))
        given: list[dict[str, Any]] = []
        with pytest.raises(ContextTooLong) as caught:  # noqa: PT012 - the loop is what raises
            async for chunk in model.stream(long):
                given.append(chunk)
        second = await collect(model.stream(HI))
        await model.close()
    assert [first["choices"][0]["message"]["content"], second["choices"][0]["message"]["content"]] == [
        "first",
        "second",
    ]
    assert not any(map(has_content, given))
    assert [request.refused for request in upstream.requests] == [False, True, False]
    assert caught.value.context_limit in (600, None)
    assert caught.value.requested in (prompt, None)
    told = parse_overflow(str(caught.value), {})
    assert told is not None or REFUSALS[name].fields.get("code") == "context_length_exceeded"


async def test_upstream_reports_its_own_count_or_none() -> None:
    long = HI | {"messages": [{"role": "user", "content": "word " * 500}]}
    fair, greedy = Tokenizer().count_prompt_tokens(long), Tokenizer(ratio=1.3).count_prompt_tokens(long)
    assert greedy == round(1.3 * fair)
    for tokenizer, told in ((Tokenizer(ratio=1.3), greedy), (Tokenizer(reports=False), None)):
        async with ScriptedUpstream(["a"], tokenizer=tokenizer) as upstream:
            model = OpenAIModel(upstream.url)
            usage = (await collect(model.stream(long))).get("usage") or {}
            await model.close()
        assert usage.get("prompt_tokens") == told

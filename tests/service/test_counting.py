"""Token counting by a provider's endpoint over a socket, and the scripted upstream that counts like a provider."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.models.codecs.chat import decode_request
from holdfast.models.count_endpoints import find_count_endpoint
from holdfast.models.counting import ProviderCounter
from holdfast.testing import Reply, ScriptedUpstream

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
            assert await counter.count_prompt(decode_request(BODY)) == 1_234
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
            assert await counter.count_prompt(decode_request(BODY | {"model": "gemini-2.5-flash"})) == 99
        asked = upstream.counted[0]
    assert asked.path == "/v1/models/gemini-2.5-flash:countTokens"
    assert asked.headers["x-goog-api-key"] == KEY
    request = asked.body["generateContentRequest"]
    assert request["model"] == "models/gemini-2.5-flash"
    assert request.keys() == {"model", "systemInstruction", "contents", "tools"}


# -- responses ------------------------------------------------------------------------


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
        assert await counter.count_prompt(decode_request(HI)) is None
        assert "count endpoint" in (counter.failure or "")
        assert KEY not in (counter.failure or "")
        assert KEY not in repr(counter)
        clock.now = max(0, pause - 1)
        assert await counter.count_prompt(decode_request(HI)) is None
        assert len(upstream.counted) == (1 if pause else 2)
        clock.now = pause + 1
        assert await counter.count_prompt(decode_request(HI)) is None
        assert len(upstream.counted) == (2 if pause else 3)

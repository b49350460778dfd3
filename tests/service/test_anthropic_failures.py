"""Failures between Anthropic's client and its upstream: which calls are retried, which answers are invalid, and which error is raised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import ContextTooLong, ModelError, ModelProtocolError, ModelRejected, ModelUnavailable
from holdfast.models import Collector, Model, collect
from holdfast.testing import Reply
from tests.service.anthropic_kit import HI, KEY, Json, get_failure, get_message, open_model


@pytest.mark.parametrize(
    ("status", "kind", "asked"),
    [
        (400, ModelRejected, 1),
        (401, ModelRejected, 1),
        (403, ModelRejected, 1),
        (404, ModelRejected, 1),
        (413, ModelRejected, 1),
        (429, ModelUnavailable, 3),
        (500, ModelUnavailable, 3),
        (529, ModelUnavailable, 3),
        (301, ModelProtocolError, 1),
    ],
)
async def test_temporary_errors_are_retried_and_others_raised_at_once(
    status: int, kind: type[ModelError], asked: int
) -> None:
    """Calls are only retried before the answer begins."""
    async with open_model(lambda _: Reply(status=status, error=f"no, {KEY}")) as (upstream, model, pauses):
        error = await get_failure(model)
        assert len(upstream.requests) == asked
    assert (type(error), error.status, len(pauses)) == (kind, status, asked - 1)


async def test_retry_waits_as_long_as_retry_after_says() -> None:
    busy = Reply(status=529, error="Overloaded", headers={"retry-after": "2"})
    async with open_model([busy, "Hello."]) as (_, model, pauses):
        assert (await get_message(model))["content"] == "Hello."
    assert pauses == [2.0]


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("overloaded_error", ModelUnavailable, 529),
        ("api_error", ModelUnavailable, 500),
        ("rate_limit_error", ModelUnavailable, 429),
        ("timeout_error", ModelUnavailable, 504),
        ("invalid_request_error", ModelRejected, 400),
        ("authentication_error", ModelRejected, 401),
        ("something_new", ModelUnavailable, None),
    ],
)
async def test_error_in_mid_stream_is_raised_without_a_retry(
    kind: str, error: type[ModelError], status: int | None
) -> None:
    """What arrived before is kept."""
    told = {"type": "error", "error": {"type": kind, "message": f"no more for {KEY}"}}
    async with open_model([Reply(text="Hello there, Ada.", error=told, cut_after=5)]) as (upstream, model, _):
        collector = Collector()
        with pytest.raises(error) as caught:
            await collect_into(collector, model)
        assert len(upstream.requests) == 1
    assert caught.value.status == status
    assert KEY not in str(caught.value)
    assert collector.build_partial()["choices"][0]["message"]["content"] == "Hello there, "


@pytest.mark.parametrize("events", range(8))
async def test_cut_stream_is_a_protocol_error(events: int) -> None:
    """Unless the finish reason has arrived: then the reply is complete."""
    async with open_model([Reply(text="Hello there.", cut_after=events)]) as (upstream, model, _):
        if events == 7:
            assert (await get_message(model))["content"] == "Hello there."
        else:
            assert isinstance(await get_failure(model), ModelProtocolError)
        assert len(upstream.requests) == 1


async def collect_into(collector: Collector, model: Model) -> None:
    async for chunk in model.stream(HI):
        collector.add(chunk)


def event(data: Any, name: str = "") -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + body + b"\n\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>",
        b"{}",
        b'{"type": "message"}',
        b'{"type": "message", "content": [5]}',
        event(b"nonsense"),
        event([]),
        event({}),
        event({"type": 5}),
        event({"choices": [{"delta": {"content": "x"}}]}),
        event({"type": "message_start"}),
        event({"type": "message_stop"}),
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": 5}}),
        event({"type": "content_block_stop"}),
        event({"type": "content_block_start", "content_block": {"type": "tool_use"}}),
        event({"type": "content_block_start", "content_block": 5}),
        b": only a comment\n\n",
    ],
)
async def test_invalid_answers_are_protocol_errors(raw: bytes) -> None:
    async with open_model([Reply(raw=[raw])]) as (_, model, _pauses):
        assert isinstance(await get_failure(model), ModelProtocolError)


async def test_unknown_events_are_ignored_and_unknown_blocks_kept() -> None:
    """The API may add new ones at any time."""
    block = {"type": "hologram", "light": 5}
    chunks: list[Json] = [
        {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 4}}},
        {"type": "surprise", "x": 1},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    async with open_model([Reply(chunks=chunks)]) as (_, model, _pauses):
        completion = await collect(model.stream(HI))
    assert completion["choices"][0]["message"]["content_blocks"] == [{**block, "index": 0}]
    assert completion["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("words", "limit", "requested"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000, 210_000),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease", 200_000, 190_000),
    ],
)
async def test_too_long_prompt_error_has_limit_and_size(words: str, limit: int, requested: int) -> None:
    async with open_model([Reply(status=400, error=words)]) as (_, model, _pauses):
        error = await get_failure(model)
    assert isinstance(error, ContextTooLong)
    assert (error.context_limit, error.requested) == (limit, requested)

"""Failures between Anthropic's client and its upstream: which calls are retried, which answers are invalid, and which error is raised."""

from __future__ import annotations

import pytest

from holdfast.errors import ContextTooLong
from holdfast.models import collect
from holdfast.testing import Reply
from tests.service.anthropic_kit import HI, Json, get_failure, open_model


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

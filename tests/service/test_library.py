"""The library: sessions and turns in a program that calls the model itself with the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

import holdfast
from holdfast.errors import (
    BudgetTooSmall,
    InvalidRequest,
)


@asynccontextmanager
async def open_holdfast(url: str = "sqlite://:memory:", **settings: Any) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(url, **settings) as hf:
        yield hf


async def test_context_preview_stores_nothing() -> None:
    """With the agent's strategy or another one, for a model and a dialect, and at an earlier turn."""
    async with open_holdfast() as hf:
        session = await hf.session("s", system="Sys.")
        for at in range(30):
            await session.append(
                [{"role": "user", "content": f"question {at}"}, {"role": "assistant", "content": "word " * 20}]
            )
        version = (await session.info()).version
        whole = await session.context()
        assert len(whole.messages) == 61
        assert whole.total_tokens > whole.conversation_tokens
        assert repr(whole).startswith("<context of 61 messages, ")
        small = await session.context("token_window", budget=300, model="gpt-4", dialect="anthropic")
        assert small.conversation_tokens <= small.budget == 300
        assert small.system == [{"type": "text", "text": "Sys.", "cache_control": {"type": "ephemeral"}}]
        assert small.messages[0]["content"][0]["text"] == "question 0"
        contents = await session.context("token_window", budget=300, dialect="gemini")
        assert contents.system == {"parts": [{"text": "Sys."}]}
        assert contents.messages[0]["parts"][0] == {"text": "question 0"}
        assert whole.system is None
        covered = [seq for run in small.decisions for seq in range(run.first, run.last + 1)]
        assert covered == list(range(60))
        then = await session.context(at_turn=2)
        assert then.messages[-1] == {"role": "user", "content": "question 2"}
        assert (await session.info()).version == version
        for strategy, options in (("magic", {}), ("token_window", {"budgett": 1}), ("token_window", {"budget": "x"})):
            with pytest.raises(InvalidRequest):
                await session.context(strategy, **options)
        with pytest.raises(BudgetTooSmall):
            await session.context("token_window", budget=3)


@pytest.mark.parametrize("given", [None, [1], "x", 5])
async def test_invalid_export_is_rejected(given: Any) -> None:
    """The error describes the expected format."""
    async with open_holdfast() as hf:
        with pytest.raises(InvalidRequest, match="an object"):
            await hf.import_(given)


async def test_import_accepts_sdk_messages() -> None:
    """As `append` and `send` do."""
    async with open_holdfast() as hf:
        message = ChatCompletionMessage(role="assistant", content="Hello.")
        arrival = await hf.import_({"id": "s", "messages": [{"role": "user", "content": "Hi"}, message]})
        assert arrival.session.messages == 2


async def test_non_string_ids_are_rejected() -> None:
    async with open_holdfast() as hf:
        session = await hf.session("s")
        for doing in (hf.delete_user(5), session.fork(id=5)):  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                await doing
    with pytest.raises(InvalidRequest):
        async with holdfast.open("sqlite://:memory:", tenant=5):  # type: ignore[arg-type]
            pass

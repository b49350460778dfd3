"""Clients that a new configuration no longer uses: their users finish, and then the connections are closed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from holdfast.models import LimitedModel, Model, OpenAIModel, retire
from holdfast.testing import Gate, Reply, ScriptedUpstream

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def collect_reply(model: Model) -> str:
    """Return the model's reply to `BODY`."""
    chunks = [chunk async for chunk in model.stream(BODY)]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"] if "delta" in choice
    )


async def is_closed(pool: Any) -> bool:
    """Return True if the connections are closed once pending callbacks have run."""
    for at in range(20):
        if at % 10 == 0:
            gc.collect()
        await asyncio.sleep(0)
    return bool(pool.closed)


async def test_connections_are_closed_after_the_last_user_releases_the_client() -> None:
    async with ScriptedUpstream(["one", "two"]) as upstream:
        model: OpenAIModel | None = OpenAIModel(upstream.url, "k")
        assert model is not None
        assert await collect_reply(model) == "one"
        pool = model._pool
        retire(model)
        assert not await is_closed(pool)
        assert await collect_reply(model) == "two"
        model = None
        assert await is_closed(pool)


async def test_running_stream_finishes_before_connections_are_closed() -> None:
    gate = Gate()
    async with ScriptedUpstream([Reply(text="one two", hold=gate, hold_after=1)]) as upstream:
        model: Model | None = LimitedModel(OpenAIModel(upstream.url, "k"), 1, patience=1)
        assert isinstance(model, LimitedModel)
        assert isinstance(model.model, OpenAIModel)
        task = asyncio.create_task(collect_reply(model))
        await upstream.until(lambda: upstream.requests)
        pool = model.model._pool
        retire(model)
        model = None
        assert not await is_closed(pool)
        gate.open()
        assert await task == "one two"
        del task
        assert await is_closed(pool)


async def test_client_retired_before_its_first_call_works_and_is_closed() -> None:
    async with ScriptedUpstream(["one"]) as upstream:
        model: OpenAIModel | None = OpenAIModel(upstream.url, "k")
        retire(model)
        assert model is not None
        assert await collect_reply(model) == "one"
        pool = model._pool
        model = None
        assert await is_closed(pool)

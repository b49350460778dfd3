"""Clients that a new configuration has no use for: those who have them go on, and their connections are closed behind them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from holdfast import config
from holdfast.config.build import Clients, build_roster
from holdfast.models import LimitedModel, Model, OpenAIModel, retire
from holdfast.testing import Gate, Reply, ScriptedUpstream

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def told(model: Model) -> str:
    """What a model says to `BODY`."""
    chunks = [chunk async for chunk in model.stream(BODY)]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"] if "delta" in choice
    )


async def closed(pool: Any) -> bool:
    """Whether connections are let go of, once what is due has run."""
    for at in range(20):
        if at % 10 == 0:
            gc.collect()
        await asyncio.sleep(0)
    return bool(pool.closed)


async def test_connections_are_closed_behind_the_last_one_who_has_them() -> None:
    """Not before."""
    async with ScriptedUpstream(["one", "two"]) as upstream:
        model: OpenAIModel | None = OpenAIModel(upstream.url, "k")
        assert model is not None
        assert await told(model) == "one"
        pool = model._pool
        retire(model)
        assert not await closed(pool)
        assert await told(model) == "two"
        model = None
        assert await closed(pool)


async def test_a_stream_under_way_ends_first() -> None:
    """It has its client."""
    gate = Gate()
    async with ScriptedUpstream([Reply(text="one two", hold=gate, hold_after=1)]) as upstream:
        model: Model | None = LimitedModel(OpenAIModel(upstream.url, "k"), 1, patience=1)
        assert isinstance(model, LimitedModel)
        assert isinstance(model.model, OpenAIModel)
        task = asyncio.create_task(told(model))
        await upstream.until(lambda: upstream.requests)
        pool = model.model._pool
        retire(model)
        model = None
        assert not await closed(pool)
        gate.open()
        assert await task == "one two"
        del task
        assert await closed(pool)


async def test_one_that_was_retired_before_its_first_call() -> None:
    """Opens its connections all the same, and closes them."""
    async with ScriptedUpstream(["one"]) as upstream:
        model: OpenAIModel | None = OpenAIModel(upstream.url, "k")
        retire(model)
        assert model is not None
        assert await told(model) == "one"
        pool = model._pool
        model = None
        assert await closed(pool)


def configured(url: str = "http://127.0.0.1:1/v1", **more: Any) -> config.Config:
    """Two llms, one agent."""
    llms = {
        "default": {"model": "m", "base_url": url, **more},
        "b": {"model": "b", "base_url": "http://127.0.0.1:2/v1"},
    }
    return config.load(f"{{llms: {llms}, agents: {{a: {{}}}}}}".replace("'", '"'), env={})


def test_what_is_configured_as_before_keeps_its_client() -> None:
    """And what is known of its upstream; what is not is handed back to be retired."""
    clients = Clients()
    roster = build_roster(configured(), clients)
    turn = roster.copy()
    old, other = roster.llms["default"].client, roster.llms["b"].client
    roster.find_upstream(roster.llms["b"]).calls = 5
    assert roster.replace_agents(build_roster(configured(temperature=0.5, max_tokens=7), clients)) == []
    assert (roster.llms["default"].client, roster.llms["default"].max_tokens) == (old, 7)
    assert roster.replace_agents(build_roster(configured(api_key="k"), clients)) == [old]
    assert roster.llms["default"].client is not old
    assert roster.llms["b"].client is other
    assert roster.find_upstream(roster.llms["b"]).calls == 5
    assert [llm.client for llm in turn.llms.values()] == [old, other]
    assert {id(model) for model, _ in roster.upstreams} == {id(llm.client) for llm in roster.llms.values()}
    assert {id(model) for model, _ in turn.upstreams} == {id(old), id(other)}

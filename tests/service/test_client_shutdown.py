"""Clients that a new configuration no longer uses: their users finish, and then the connections are closed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from holdfast import config
from holdfast.config.build import Clients, build_roster
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


def make_config(url: str = "http://127.0.0.1:1/v1", **more: Any) -> config.Config:
    """Return a configuration with two llms and one agent."""
    llms = {
        "default": {"model": "m", "base_url": url, **more},
        "b": {"model": "b", "base_url": "http://127.0.0.1:2/v1"},
    }
    return config.load(f"{{llms: {llms}, agents: {{a: {{}}}}}}".replace("'", '"'), env={})


def test_unchanged_llm_keeps_its_client() -> None:
    """The health of its upstream is kept too; other clients are returned to be retired."""
    clients = Clients()
    roster = build_roster(make_config(), clients)
    turn = roster.copy()
    old, other = roster.llms["default"].client, roster.llms["b"].client
    roster.find_upstream(roster.llms["b"]).calls = 5
    assert roster.replace_agents(build_roster(make_config(temperature=0.5, max_tokens=7), clients)) == []
    assert (roster.llms["default"].client, roster.llms["default"].max_tokens) == (old, 7)
    assert roster.replace_agents(build_roster(make_config(api_key="k"), clients)) == [old]
    assert roster.llms["default"].client is not old
    assert roster.llms["b"].client is other
    assert roster.find_upstream(roster.llms["b"]).calls == 5
    assert [llm.client for llm in turn.llms.values()] == [old, other]
    assert {id(model) for model, _ in roster.upstreams} == {id(llm.client) for llm in roster.llms.values()}
    assert {id(model) for model, _ in turn.upstreams} == {id(old), id(other)}

"""Stores on the tests' Redis, and clients that look at what they write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis.asyncio as redis

from holdfast.stores import open_store
from holdfast.stores.redis.store import RedisStore


class Opening:
    """Opens stores, and clients of their servers, which are closed behind the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, url: str) -> RedisStore:
        """A store of tenant `acme`."""
        store = await open_store(url, tenant="acme")
        assert isinstance(store, RedisStore)
        self._stack.push_async_callback(store.close)
        return store

    def client(self, store: RedisStore) -> redis.Redis:
        """A client of the server that a store is on."""
        (place,) = store.database.nodes._seeds
        client = redis.Redis(host=place.host, port=place.port)
        self._stack.push_async_callback(client.aclose)
        return client


@pytest.fixture
async def opening(redis_url: str) -> AsyncIterator[Opening]:
    """See `Opening`. What it opened is closed before the place goes."""
    async with AsyncExitStack() as stack:
        yield Opening(stack)


def act_before_commit(store: RedisStore, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Call `act` once, before the store's next commit."""
    nodes = store.database.nodes
    run = nodes.run

    async def later(script: Any, keys: Any, arguments: Any, *, once: bool) -> Any:
        if once:
            monkeypatch.setattr(nodes, "run", run)
            await act()
        return await run(script, keys, arguments, once=once)

    monkeypatch.setattr(nodes, "run", later)

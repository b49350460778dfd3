"""A database server that is killed, or restarted, while writers are at work: what was acknowledged is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import anyio
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify
from tests.contract.kit import REF, live, session, user
from tests.stores.private import PRIVATE, Missing, PrivateServer

WRITERS = 6
RESTARTS = 2
BETWEEN = 60
"""Acknowledged writes before each restart, and behind the last one."""

EXPLAINED = ("outcome is unknown", "cannot be reached", "did not answer in time", "connections were busy")
"""What a writer may be told while its server is away; on a busy machine, recovery may take longer than its patience."""


@pytest.fixture(params=PRIVATE)
def private(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    """A server of the test's own, running."""
    try:
        with PRIVATE[request.param]() as server:
            yield server
    except Missing as exc:
        pytest.skip(str(exc))


class Writing:
    """Writers that go on whatever happens, and what they were told."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores = stores
        self.said: list[str] = []
        self.told: list[str] = []
        self.stopped = False
        self._bell = asyncio.Event()

    async def write(self, name: int) -> None:
        """Every second writer uses keys, and tries again until it is told that it is written; the others give up."""
        at = 0
        while not self.stopped:
            text = f"{name}.{at}"
            new = Append(entries=[user(text)], timestamp=2, idempotency_key=text if name % 2 else None)
            try:
                await self.stores[name // 2 % len(self.stores)].append(REF, new)
            except StoreUnavailable as exc:
                self.told.append(str(exc))
                at += 1 - name % 2
                continue
            self.said.append(text)
            self._bell.set()
            at += 1

    async def wait_for_writes(self, more: int) -> None:
        """Return when so many more writes were acknowledged."""
        wanted = len(self.said) + more
        while len(self.said) < wanted:
            self._bell.clear()
            await self._bell.wait()


async def test_acknowledged_writes_survive_a_killed_server(private: PrivateServer) -> None:
    """Clients reconnect; acknowledged writes are stored once and in order, and the digest chain is valid."""
    async with AsyncExitStack() as open_:
        stores = [await open_store(private.url, tenant="acme") for _ in range(2)]
        for store in stores:
            open_.push_async_callback(store.close)
        await _write_through(private, stores)


async def _write_through(private: PrivateServer, stores: list[Store]) -> None:
    await stores[0].create(session())
    writing = Writing(stores)
    async with anyio.create_task_group() as group:
        for name in range(WRITERS):
            group.start_soon(writing.write, name)
        for _ in range(RESTARTS):
            await writing.wait_for_writes(BETWEEN)
            await anyio.to_thread.run_sync(private.kill)
            await anyio.to_thread.run_sync(private.start)
        await writing.wait_for_writes(BETWEEN)
        writing.stopped = True
    log = await live(stores[1])
    assert set(Counter(log).values()) == {1}
    assert set(writing.said) <= set(log)
    keyed = [text for text in log if int(text.partition(".")[0]) % 2]
    assert sorted(keyed) == sorted(text for text in writing.said if int(text.partition(".")[0]) % 2)
    for name in range(WRITERS):
        order = [int(text.partition(".")[2]) for text in log if text.startswith(f"{name}.")]
        assert order == sorted(order)
    assert [text for text in writing.told if not any(words in text for words in EXPLAINED)] == []
    assert await verify(stores[0], REF) == len(log)

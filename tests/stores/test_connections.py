"""Connections of every store: closed connections, missing drivers, unclosed stores."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections import Counter

import anyio
import pytest

from holdfast.errors import MissingExtra, StoreError, StoreUnavailable
from holdfast.stores import STORES, open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify
from tests.contract.kit import REF, live, session, user
from tests.stores.servers import Server
from tests.stores.sqlite_kit import store_threads


async def test_writes_survive_frequently_closed_connections(server: Server, server_url: str) -> None:
    """Four tasks write a hundred messages. Each message is stored once if it was acknowledged, and at most once if it was not."""
    store = await open_store(server_url, tenant="acme")
    await store.create(session())
    said: set[str] = set()
    told: list[str] = []
    gone_on, ended = asyncio.Event(), 0

    async def write(name: int) -> None:
        for at in range(25):
            try:
                await store.append(REF, Append(entries=[user(f"{name}.{at}")], timestamp=2))
                said.add(f"{name}.{at}")
            except StoreUnavailable as exc:
                told.append(str(exc))
            gone_on.set()

    tasks = [asyncio.create_task(write(name)) for name in range(4)]
    while not all(task.done() for task in tasks):
        gone_on.clear()
        ended += await anyio.to_thread.run_sync(server.end, server_url)
        if not all(task.done() for task in tasks):
            await gone_on.wait()
    assert ended
    counts = Counter(await live(store))
    assert set(counts.values()) == {1}
    assert said <= set(counts)
    assert len(said) + len(told) == 100
    assert all("outcome is unknown" in text or "cannot be reached" in text for text in told)
    assert await verify(store, REF) == len(counts)
    await store.close()


async def test_a_store_cannot_be_used_from_another_event_loop(server_url: str) -> None:
    """It raises `StoreError` instead of waiting for a loop that is not running."""
    store = await open_store(server_url, tenant="acme")
    with pytest.raises(StoreError, match="another event loop"):
        await anyio.to_thread.run_sync(asyncio.run, store.list())
    await store.close()


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
async def test_an_unreachable_server_is_reported(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`StoreUnavailable` names the address but never the password."""
    monkeypatch.setattr("holdfast.stores.sql.remote.RECONNECTING", 0.1)
    with pytest.raises(StoreUnavailable, match=r"127.0.0.1:1/shop cannot be reached") as caught:
        await open_store(f"{scheme}://ada:secret@127.0.0.1:1/shop", tenant="acme")
    assert "secret" not in repr(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("scheme", "driver", "extra", "importers"),
    [
        ("postgres", "asyncpg", "postgres", ("postgres_connection", "postgres")),
        ("mysql", "asyncmy", "mysql", ("mysql_connection", "mysql")),
    ],
)
async def test_a_missing_driver_is_reported(
    scheme: str, driver: str, extra: str, importers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`MissingExtra` names what to install."""
    assert STORES[scheme].partition(":")[0] == f"holdfast.stores.{importers[-1]}"
    for importer in importers:
        monkeypatch.delitem(sys.modules, f"holdfast.stores.{importer}", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(MissingExtra, match=rf"from a clone: pip install '\.\[{extra}\]'"):
        await open_store(f"{scheme}://host/db", tenant="acme")


async def test_an_unclosed_store_warns_and_is_closed(url: str) -> None:
    """It emits `ResourceWarning`, and its threads and connections end."""
    others = store_threads()
    store: Store | None = await open_store(url, tenant="acme")
    threads = [thread for thread in store_threads() if thread not in others]
    assert threads or not url.startswith("sqlite")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = None
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    assert store is None
    for thread in threads:
        thread.join(timeout=10)
    assert set(store_threads()) <= set(others)

"""Connections of every store: closed connections, cancelled callers, missing drivers, unclosed stores."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections import Counter

import anyio
import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import MissingExtra, StoreError, StoreUnavailable
from holdfast.stores import STORES, open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify
from tests.contract.kit import REF, live, session, user
from tests.stores.servers import Server
from tests.stores.sqlite_kit import store_threads


class _Writers:
    """Four tasks that write a hundred messages to one session, over and over where that fails if they have keys."""

    def __init__(self, store: Store, *, keyed: bool) -> None:
        self.said: list[str] = []
        self.told: list[str] = []
        self._store = store
        self._keyed = keyed
        self._gone_on = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(name)) for name in range(4)]

    async def _write(self, name: int) -> None:
        for at in range(25):
            text = f"{name}.{at}"
            key = text if self._keyed else None
            while not await self._try_write(Append(entries=[user(text)], timestamp=2, idempotency_key=key), text):
                pass

    async def _try_write(self, write: Append, text: str) -> bool:
        try:
            await self._store.append(REF, write)
        except StoreUnavailable as exc:
            self.told.append(str(exc))
            return not self._keyed
        else:
            self.said.append(text)
            return True
        finally:
            self._gone_on.set()

    async def interrupt(self, server: Server, url: str) -> int:
        """End all connections again and again, each time that one of them went on, until all is written; how many ended."""
        ended = 0
        while not all(task.done() for task in self._tasks):
            self._gone_on.clear()
            ended += await anyio.to_thread.run_sync(server.end, url)
            if not all(task.done() for task in self._tasks):
                await self._gone_on.wait()
        await asyncio.gather(*self._tasks)
        return ended


@pytest.mark.parametrize("keyed", [False, True])
async def test_writes_survive_frequently_closed_connections(server: Server, server_url: str, *, keyed: bool) -> None:
    """Acknowledged writes are stored once; unknown ones exactly once with a key and at most once without."""
    store = await open_store(server_url, tenant="acme")
    await store.create(session())
    writers = _Writers(store, keyed=keyed)
    assert await writers.interrupt(server, server_url) > 0
    counts = Counter(await live(store))
    assert set(counts.values()) == {1}
    assert set(writers.said) <= set(counts)
    if keyed:
        assert len(writers.said) == len(counts) == 100
    assert all("outcome is unknown" in text or "cannot be reached" in text for text in writers.told)
    assert await verify(store, REF) == len(counts)
    await store.close()


async def test_a_cancelled_caller_does_not_disturb_the_next_one(server_url: str) -> None:
    """The next caller on the same connection gets its own answer."""
    store = await open_store(f"{server_url}{'&' if '?' in server_url else '?'}pool=1", tenant="acme")
    refs = [SessionRef("u", f"s{at}") for at in range(40)]
    await asyncio.gather(*(store.create(session(ref, metadata={"is": ref.id})) for ref in refs))
    for hops, ref in enumerate(refs):
        for work in (store.get(refs[0]), store.append(refs[0], Append(entries=[user(ref.id)], timestamp=2))):
            task = asyncio.create_task(work)
            for _ in range(hops):
                await asyncio.sleep(0)
            task.cancel()
            assert (await store.get(ref)).metadata == {"is": ref.id}
            await asyncio.gather(task, return_exceptions=True)
    assert await verify(store, refs[0]) == len(set(await live(store, refs[0])))
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
    store: Store | None = await open_store(url, tenant="acme")
    threads = store_threads()
    assert threads or not url.startswith("sqlite")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = None
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    assert store is None
    for thread in threads:
        thread.join(timeout=10)
    assert store_threads() == []

"""Leases: a lease believes only what the store has confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.lease import Lease, acquire_lease
from tests.clocks import Pauses
from tests.other_process import LINUX, other_process
from tests.waits import until


class LeaseTable:
    """A store that answers requests for leases as the test says."""

    def __init__(self) -> None:
        self.says: bool | None = True
        self.asked: list[tuple[str, str, int, int]] = []
        self.released: list[tuple[str, str]] = []

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        self.asked.append((name, holder, now, until))
        if self.says is None:
            raise StoreUnavailable("gone")
        return self.says

    async def leased_by(self, name: str, *, now: int) -> str | None:
        return None

    async def release(self, name: str, holder: str) -> None:
        self.released.append((name, holder))
        if self.says is None:
            raise StoreUnavailable("gone")


async def test_lost_lease_is_not_held_until_it_is_acquired_again() -> None:
    store: Any = (table := LeaseTable())
    lease = Lease(store, "sweep", "me", lambda: 1, 1000)
    assert await lease.renew()
    table.says = False
    assert await lease.keep(), "it is not half over"
    assert not await lease.renew()
    assert not await lease.keep()
    assert not await lease.keep()
    table.says = True
    assert await lease.keep()


@LINUX
async def test_lease_of_a_killed_process_is_taken_over_at_once() -> None:
    """That of a running process only when it has expired."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    lease = Lease(store, "sweep", "me", lambda: 1, 1000)
    with other_process() as other:
        assert await store.lease("sweep", other.holder, now=1, until=60_001)
        assert not await lease.renew()
        assert not await lease.keep()
        other.kill()
        assert await lease.renew()
        assert await store.leased_by("sweep", now=1) == "me"
    await store.close()


# -- lease blocks ------------------------------------------------------------


async def test_cancellation_waits_for_the_release() -> None:
    """Otherwise an ending process would block others until the lease expires."""
    table, giving, given = LeaseTable(), asyncio.Event(), asyncio.Event()
    release = table.release

    async def release_slowly(name: str, holder: str) -> None:
        giving.set()
        await given.wait()
        await release(name, holder)

    table.release = release_slowly  # type: ignore[method-assign]
    store: Any = table

    async def work() -> None:
        async with acquire_lease(store, "sweep", "me", lambda: 1, length=1000):
            pass

    task = asyncio.create_task(work())
    await giving.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "it waits for the release, however often it is cancelled"
    given.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert table.released == [("sweep", "me")]


async def test_lease_is_renewed_while_a_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times per lease length, and not after the block has ended."""
    store: Any = (table := LeaseTable())
    lease = Lease(store, "sweep", "me", lambda: 1, 30_000)
    pauses, sleep = Pauses(), asyncio.sleep

    async def record_sleep(seconds: float) -> None:
        if seconds:  # other tasks only yield here
            await pauses(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", record_sleep)
    before = asyncio.all_tasks()
    async with lease.hold():
        await until(lambda: len(table.asked) >= 3)
    assert asyncio.all_tasks() == before
    assert {*pauses} == {10.0}


@pytest.mark.parametrize("says", [False, None])
async def test_block_that_lost_its_lease_is_cancelled(says: bool | None) -> None:
    """Another process may hold it by now, or the state is unknown."""
    store: Any = (table := LeaseTable())
    table.says = says
    lease = Lease(store, "sweep", "me", lambda: 1, 3)
    with pytest.raises(TimeoutError):
        async with lease.hold():
            await asyncio.sleep(30)
    assert len(table.asked) == 1

"""Leases: a lease believes only what the store has confirmed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.lease import Lease, acquire_lease
from tests.clocks import Clock, Pauses
from tests.other_process import LINUX, other_process
from tests.waiting import until


class Table:
    """What a store says when somebody asks for a lease."""

    def __init__(self) -> None:
        self.says: bool | None = True
        self.asked: list[tuple[str, str, int, int]] = []
        self.released: list[tuple[str, str]] = []

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        self.asked.append((name, holder, now, until))
        if self.says is None:
            raise StoreUnavailable("gone")
        return self.says

    async def release(self, name: str, holder: str) -> None:
        self.released.append((name, holder))
        if self.says is None:
            raise StoreUnavailable("gone")


async def test_one_that_was_lost_is_not_held_however_often_it_is_asked() -> None:
    """Until the store gives it back."""
    store: Any = (table := Table())
    lease = Lease(store, "sweep", "me", lambda: 1, 1000)
    assert await lease.renew()
    table.says = False
    assert await lease.keep(), "it is not half over"
    assert not await lease.renew()
    assert not await lease.keep()
    assert not await lease.keep()
    table.says = True
    assert await lease.keep()


async def test_what_the_store_could_not_say_changes_nothing() -> None:
    """A lease that was never taken is not held for the asking."""
    store: Any = (table := Table())
    lease = Lease(store, "sweep", "me", lambda: 1, 1000)
    table.says = None
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await lease.keep()


async def test_it_is_renewed_when_half_of_it_is_over() -> None:
    """Not before, for that would be a write for each look; and from then on for its whole length."""
    store: Any = (table := Table())
    clock = Clock(10_000)
    lease = Lease(store, "sweep", "me", clock, 1000)
    assert await lease.renew()
    clock.now = 10_499
    assert await lease.keep()
    assert table.asked == [("sweep", "me", 10_000, 11_000)]
    clock.now = 10_500
    assert await lease.keep()
    assert table.asked[1:] == [("sweep", "me", 10_500, 11_500)]


@LINUX
async def test_a_lease_of_a_killed_process_is_taken_over_at_once() -> None:
    """And that of a running one when it has expired."""
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


async def test_a_store_that_names_no_holders_has_leases_too() -> None:
    """One that was written for version 0.1: what another process holds expires."""
    store: Any = (table := Table())
    table.says = False
    assert not await Lease(store, "sweep", "me", lambda: 1, 1000).renew()


# -- a block -----------------------------------------------------------------


async def test_a_block_has_it_and_gives_it_back() -> None:
    """Also one that fails."""
    store: Any = (table := Table())

    async def failed() -> None:
        async with acquire_lease(store, "sweep", "me", lambda: 1, length=1000) as lease:
            assert lease is not None
            assert table.asked == [("sweep", "me", 1, 1001)]
            assert table.released == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failed()
    assert table.released == [("sweep", "me")]


async def test_what_somebody_else_has_is_not_given_back() -> None:
    """The block knows that it has none."""
    store: Any = (table := Table())
    table.says = False
    async with acquire_lease(store, "sweep", "me", lambda: 1, length=1000) as lease:
        assert lease is None
    assert table.released == []


async def test_one_that_cannot_be_given_back_expires(caplog: pytest.LogCaptureFixture) -> None:
    """The block has done its work: that is no failure of it, and is told."""
    store: Any = (table := Table())
    async with acquire_lease(store, "sweep", "me", lambda: 1, length=1000):
        table.says = None
    assert [(record.name, record.levelno) for record in caplog.records] == [("holdfast.leases", logging.WARNING)]


async def test_who_may_have_it_without_knowing_gives_it_back() -> None:
    """The store may have done what it did not answer to."""
    store: Any = (table := Table())
    table.says = None
    with pytest.raises(StoreUnavailable):
        async with acquire_lease(store, "sweep", "me", lambda: 1, length=1000):
            pytest.fail("nothing runs without it")
    assert table.released == [("sweep", "me")]


async def test_who_is_cancelled_while_it_gives_it_back_gives_it_back() -> None:
    """A process that ends then would keep everybody from its work until the lease is over."""
    table, giving, given = Table(), asyncio.Event(), asyncio.Event()
    release = table.release

    async def slowly(name: str, holder: str) -> None:
        giving.set()
        await given.wait()
        await release(name, holder)

    table.release = slowly  # type: ignore[method-assign]
    store: Any = table

    async def work() -> None:
        async with acquire_lease(store, "sweep", "me", lambda: 1, length=1000):
            pass

    task = asyncio.create_task(work())
    await giving.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "it waits for the end of what it began, however often it is told to go"
    given.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert table.released == [("sweep", "me")]


async def test_while_a_block_runs_it_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as often as needed, and no more once the block is over."""
    store: Any = (table := Table())
    lease = Lease(store, "sweep", "me", lambda: 1, 30_000)
    pauses, sleep = Pauses(), asyncio.sleep

    async def slept(seconds: float) -> None:
        if seconds:  # who waits here does so at once
            await pauses(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", slept)
    before = asyncio.all_tasks()
    async with lease.hold():
        await until(lambda: len(table.asked) >= 3)
    assert asyncio.all_tasks() == before
    assert {*pauses} == {10.0}


@pytest.mark.parametrize("says", [False, None])
async def test_a_block_that_lost_it_is_given_up(says: bool | None) -> None:
    """Somebody else may have it by then, or nobody knows."""
    store: Any = (table := Table())
    table.says = says
    lease = Lease(store, "sweep", "me", lambda: 1, 3)
    with pytest.raises(TimeoutError):
        async with lease.hold():
            await asyncio.sleep(30)
    assert len(table.asked) == 1

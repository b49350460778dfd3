"""Leases: a lease believes only what the store has confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.lease import Lease
from tests.other_process import LINUX, other_process


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

"""A lease as work has it: what it believes of itself is what the store has said."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores.lease import Lease


class Table:
    """What a store says when somebody asks for a lease."""

    def __init__(self) -> None:
        self.says: bool | None = True

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        if self.says is None:
            raise StoreUnavailable("gone")
        return self.says


async def test_one_that_was_lost_is_not_held_however_often_it_is_asked() -> None:
    """Until the store gives it back."""
    store: Any = (table := Table())
    lease = Lease(store, "sweep", "me", lambda: 1, 1000)
    assert await lease.renew()
    table.says = False
    assert await lease.kept(), "it is not half over"
    assert not await lease.renew()
    assert not await lease.kept()
    assert not await lease.kept()
    table.says = True
    assert await lease.kept()


async def test_what_the_store_could_not_say_changes_nothing() -> None:
    """A lease that was never taken is not held for the asking."""
    store: Any = (table := Table())
    lease = Lease(store, "sweep", "me", lambda: 1, 1000)
    table.says = None
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await lease.kept()

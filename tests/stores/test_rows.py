"""What the stores that speak SQL keep, behind the contract's back: rows that nobody can ask for are gone."""

from __future__ import annotations

from typing import Any

from holdfast import limits
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.logic.steps import Query


async def test_abandoned_leases_are_deleted(shared_url: str) -> None:
    """Long after they expired; the only visible effect is the freed space."""
    store = await open_store(shared_url, tenant="acme")
    for at in range(50):
        assert await store.lease(f"session {at}", "one", now=at, until=at + 10)
    day = limits.LEASE_MILLISECONDS
    assert await store.lease("sweep", "one", now=day, until=day + 10)
    assert await _leases(store) == ["sweep"]
    await store.close()


async def _leases(store: Store) -> list[str]:
    """The names in the table, behind the contract's back."""

    def steps() -> Any:
        found = []
        for name in [f"session {at}" for at in range(50)] + ["sweep"]:
            if (yield Query("lease_get", (store.tenant, name))):
                found.append(name)
        return found

    found: list[str] = await store.database.read(steps)  # type: ignore[attr-defined]
    return found

"""Sign-ins beyond the contract: all of a database together are bounded."""

from __future__ import annotations

import pytest

from holdfast.stores import open_store
from tests.contract.sign_ins import list_stored, sign_in


async def test_the_oldest_sign_ins_of_a_database_are_replaced(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever key they belong to."""
    monkeypatch.setattr("holdfast.stores.logic.tenants.SIGN_INS", 5)
    store = await open_store(shared_url, tenant="acme")
    for at in range(8):
        await store.add_sign_in(sign_in(at, key_id=f"k{at}", created_at=100 + at))
    assert await list_stored(store, range(8)) == [3, 4, 5, 6, 7]
    await store.close()

"""Sign-ins beyond the contract: all of a database together are bounded, and nothing of a deleted one is left in Redis."""

from __future__ import annotations

import pytest

from holdfast.stores import open_store
from tests.contract.keys import api_key
from tests.contract.sign_ins import list_stored, sign_in
from tests.stores.redis_openings import Opening
from tests.stores.servers import prefix_of


async def check_total(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the oldest sign-ins of a database are replaced, whichever key they are of."""
    for module in ("logic", "redis"):
        monkeypatch.setattr(f"holdfast.stores.{module}.tenants.SIGN_INS", 5)
    store = await open_store(url, tenant="acme")
    for at in range(8):
        await store.add_sign_in(sign_in(at, key_id=f"k{at}", created_at=100 + at))
    assert await list_stored(store, range(8)) == [3, 4, 5, 6, 7]
    await store.close()


async def test_the_oldest_sign_ins_of_a_sql_database_are_replaced(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_total(sql_url, monkeypatch)


async def test_the_oldest_sign_ins_in_redis_are_replaced(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_total(redis_url, monkeypatch)


async def test_a_removed_sign_in_leaves_nothing_in_redis(redis_url: str, opening: Opening) -> None:
    store = await opening(redis_url)
    client = opening.client(store)

    async def count_keys() -> int:
        return len([key async for key in client.scan_iter(match=f"{prefix_of(redis_url)}:*:sign_in*")])

    for at in range(3):
        await store.add_sign_in(sign_in(at, key_id="k1" if at else None))
    assert await count_keys() == 4
    await store.remove_sign_in(sign_in(0).hash)
    await store.add_key(api_key(1))
    await store.revoke_key("k1", timestamp=9)
    assert await count_keys() == 0

"""The contract, API keys: known by their id, in the handle that keeps them."""

from __future__ import annotations

import hashlib
from typing import Any

import anyio
import pytest
from msgspec.structs import replace as evolve

from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.stores.base import Store
from holdfast.stores.keys import ApiKey

from .once import RULE, once


def api_key(number: int = 1, **fields: Any) -> ApiKey:
    """A key about to be kept."""
    secret = hashlib.sha256(b"secret %d" % number).digest()
    return ApiKey(**{"id": f"k{number}", "hash": secret, "tenant": "blue", "created_at": 5, **fields})


FULL = api_key(
    2,
    name="Ännchen's laptop\0",
    tenant="réd ",
    user_id="ann\0",
    role="admin",
    expires_at=99,
    used_at=7,
    rate=60,
    max_body=1 << 40,
    session_mode="transcript",
    budget=4000,
)


async def test_a_key_is_read_back_unchanged(openings: list[Store]) -> None:
    """Through every opening; with all that it says, or next to nothing."""
    for key in (api_key(1), FULL, api_key(3, revoked_at=9, role="read")):
        await openings[0].add_key(key)
        assert await openings[-1].get_key(key.id) == key
    assert await openings[-1].get_key("k9") is None


async def test_keys_are_listed_by_id(store: Store) -> None:
    """Page by page; revoked ones too."""
    kept = [api_key(at, id=name) for at, name in enumerate(["a", "Z", "b", "ä", "a0"])]
    for key in kept:
        await store.add_key(key)
    await store.revoke_key("b", timestamp=9)
    order = sorted((key.id for key in kept), key=str.encode)
    assert [key.id for key in await store.keys()] == order
    assert [key.id for key in await store.keys(limit=2)] == order[:2]
    assert [key.id for key in await store.keys(after=order[1], limit=2)] == order[2:4]
    assert [key.id for key in await store.keys(after="a00")] == [name for name in order if name > "a00"]
    await store.add_key(api_key(9, id="a1", tenant="réd"))
    assert [key.id for key in await store.keys(tenant="réd")] == ["a1"]
    assert [key.id for key in await store.keys(tenant="blue", after=order[0], limit=3)] == order[1:4]
    assert list(await store.keys(tenant="none")) == []


async def test_a_key_is_stored_once(openings: list[Store]) -> None:
    """Its id may not be there: what is there stays, also when several come at once."""
    first = api_key()
    await openings[0].add_key(first)
    for other in (first, api_key(2, id="k1")):
        with pytest.raises(InvalidRequest):
            await openings[-1].add_key(other)
    assert list(await openings[0].keys()) == [first]
    refused: list[InvalidRequest] = []

    async def add(at: int) -> None:
        try:
            await openings[at % len(openings)].add_key(api_key(at, id="same"))
        except InvalidRequest as exc:
            refused.append(exc)

    async with anyio.create_task_group() as group:
        for at in range(10, 18):
            group.start_soon(add, at)
    assert len(refused) == 7
    assert [key.id for key in await openings[0].keys()] == ["k1", "same"]


@once(RULE)
async def test_a_key_is_revoked_permanently(store: Store) -> None:
    """Told as it is then; it stays, and stays as it is."""
    await store.add_key(FULL)
    revoked = evolve(FULL, revoked_at=50)
    assert await store.revoke_key(FULL.id, timestamp=50) == revoked
    assert await store.revoke_key(FULL.id, timestamp=60) == revoked
    assert await store.get_key(FULL.id) == revoked
    assert list(await store.keys()) == [revoked]
    with pytest.raises(KeyNotFound):
        await store.revoke_key("k9", timestamp=50)


async def test_use_of_a_key_is_recorded(store: Store) -> None:
    """The latest of it, of revoked ones too; a key that is not there is fine."""
    await store.add_key(api_key())
    for timestamp, noted in ((10, 10), (9, 10), (11, 11)):
        await store.use_key("k1", timestamp=timestamp)
        assert await store.get_key("k1") == api_key(used_at=noted)
    await store.revoke_key("k1", timestamp=12)
    await store.use_key("k1", timestamp=13)
    assert await store.get_key("k1") == api_key(used_at=13, revoked_at=12)
    await store.use_key("k9", timestamp=13)
    assert len(await store.keys()) == 1


async def test_keys_belong_to_the_handle_that_stored_them(store: Store) -> None:
    """Whatever tenant each opens: another tenant's handle has its own, of the same ids."""
    other = store.for_tenant("blue")
    await store.add_key(api_key())
    assert await other.get_key("k1") is None
    assert list(await other.keys()) == []
    mine = api_key(name="mine", tenant="acme")
    await other.add_key(mine)
    await other.revoke_key("k1", timestamp=9)
    await other.use_key("k1", timestamp=9)
    assert await store.get_key("k1") == api_key()
    assert await other.get_key("k1") == evolve(mine, revoked_at=9, used_at=9)
    with pytest.raises(KeyNotFound):
        await store.for_tenant("third").revoke_key("k1", timestamp=9)

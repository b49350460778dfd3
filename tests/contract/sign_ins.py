"""The contract, sign-ins: found by their hash, in the handle that keeps them, and bounded in number."""

from __future__ import annotations

import hashlib
from typing import Any

import anyio
import pytest

from holdfast import limits
from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.stores.base import Store
from holdfast.stores.sign_ins import EXPIRED_PER_WRITE, SignIn

from .keys import api_key
from .once import REFUSED, RULE, once

LATER = 10**12


def sign_in(number: int = 1, **fields: Any) -> SignIn:
    """Return a sign-in of the key `k1`; `number` decides its hash."""
    secret = hashlib.sha256(b"sign-in %d" % number).digest()
    given = {"hash": secret, "tenant": "blue", "role": "read", "key_id": "k1", "created_at": 5, "expires_at": LATER}
    return SignIn(**{**given, **fields})


async def list_stored(store: Store, numbers: range) -> list[int]:
    """Return the numbers of those sign-ins that the store still has."""
    return [at for at in numbers if await store.find_sign_in(sign_in(at).hash) is not None]


async def test_a_sign_in_is_read_back_unchanged(openings: list[Store]) -> None:
    full = sign_in(2, tenant="réd ", user_id="ann\0", role="admin", key_id="k\0é", expires_at=99, used_at=7)
    bare = sign_in(3, key_id=None)
    for one in (sign_in(1), full, bare):
        await openings[0].add_sign_in(one)
        assert await openings[-1].find_sign_in(one.hash) == one
    assert await openings[-1].find_sign_in(b"\0" * 32) is None


async def test_a_sign_in_is_stored_once(openings: list[Store]) -> None:
    await openings[0].add_sign_in(sign_in())
    with pytest.raises(InvalidRequest):
        await openings[-1].add_sign_in(sign_in(tenant="red"))
    assert await openings[0].find_sign_in(sign_in().hash) == sign_in()
    refused: list[InvalidRequest] = []

    async def add(at: int) -> None:
        try:
            await openings[at % len(openings)].add_sign_in(sign_in(9, key_id=f"k{at}"))
        except InvalidRequest as exc:
            refused.append(exc)

    async with anyio.create_task_group() as group:
        for at in range(8):
            group.start_soon(add, at)
    assert len(refused) == 7


async def test_use_of_a_sign_in_is_recorded(store: Store) -> None:
    await store.add_sign_in(sign_in())
    for timestamp, noted in ((10, 10), (9, 10), (11, 11)):
        await store.use_sign_in(sign_in().hash, timestamp=timestamp)
        assert await store.find_sign_in(sign_in().hash) == sign_in(used_at=noted)
    await store.use_sign_in(sign_in(2).hash, timestamp=13)
    assert await store.find_sign_in(sign_in(2).hash) is None


@once(RULE)
async def test_a_sign_in_is_removed(openings: list[Store]) -> None:
    """Other sign-ins stay. Removing it again does nothing."""
    for at in (1, 2):
        await openings[0].add_sign_in(sign_in(at))
    for _ in range(2):
        await openings[0].remove_sign_in(sign_in(1).hash)
    assert await list_stored(openings[-1], range(1, 3)) == [2]


async def test_a_revoked_key_has_no_sign_ins(store: Store) -> None:
    """They are removed for every tenant and user. Sign-ins of other keys stay."""
    await store.add_key(api_key(1))
    others: list[dict[str, Any]] = [{}, {"user_id": "ann"}, {"tenant": "réd"}]
    for at, fields in enumerate(others):
        await store.add_sign_in(sign_in(at, **fields))
    for at, key_id in enumerate((None, "k", "k10", "k1\0"), start=3):
        await store.add_sign_in(sign_in(at, key_id=key_id))
    for _ in range(2):
        await store.revoke_key("k1", timestamp=9)
        assert await list_stored(store, range(7)) == [3, 4, 5, 6]
    with pytest.raises(KeyNotFound):
        await store.revoke_key("k10", timestamp=9)
    assert await list_stored(store, range(7)) == [3, 4, 5, 6]


async def test_the_oldest_sign_in_of_a_holder_is_replaced(store: Store) -> None:
    """A holder is a key with a tenant and a user: users who sign in with tokens do not end each other's sign-ins."""
    most = limits.SIGN_INS_OF_HOLDER
    others = range(1000, 1004)
    differences: list[dict[str, Any]] = [{"user_id": "ann"}, {"tenant": "red"}, {"key_id": "k2"}, {"key_id": None}]
    for at, fields in zip(others, differences, strict=True):
        await store.add_sign_in(sign_in(at, created_at=1, **fields))
    for at in range(most + 3):
        await store.add_sign_in(sign_in(at, created_at=100 - at))
    # Each was older than the ones before it, and replaced the oldest of those.
    kept = [*range(most - 1), most + 2]
    assert await list_stored(store, range(most + 3)) == kept
    await store.add_sign_in(sign_in(most + 3, created_at=200))
    assert await list_stored(store, range(most + 4)) == [*range(most - 1), most + 3]
    assert await list_stored(store, others) == list(others)


async def test_expired_sign_ins_are_deleted(store: Store) -> None:
    """Adding a sign-in deletes some of the expired ones. Until then, they are found."""
    few = limits.SIGN_INS_OF_HOLDER
    for at in range(few):
        await store.add_sign_in(sign_in(at, expires_at=50 + at % 2))
    assert len(await list_stored(store, range(few))) == few
    await store.add_sign_in(sign_in(few, created_at=50, key_id="k2"))
    assert await list_stored(store, range(few + 1)) == [*range(1, few, 2), few]
    assert few <= EXPIRED_PER_WRITE


@once(RULE)
async def test_sign_ins_belong_to_the_handle_that_stored_them(store: Store) -> None:
    other = store.for_tenant("blue")
    await store.add_sign_in(sign_in())
    assert await other.find_sign_in(sign_in().hash) is None
    await other.add_sign_in(sign_in(tenant="acme"))
    await other.use_sign_in(sign_in().hash, timestamp=9)
    assert await store.find_sign_in(sign_in().hash) == sign_in()
    await other.remove_sign_in(sign_in().hash)
    assert await store.find_sign_in(sign_in().hash) == sign_in()


@once(REFUSED)
async def test_invalid_sign_ins_are_refused(store: Store) -> None:
    for wrong in (
        {"hash": b"short"},
        {"tenant": ""},
        {"user_id": ""},
        {"key_id": "\ud800"},
        {"role": "king"},
        {"expires_at": 5},
    ):
        with pytest.raises(InvalidRequest):
            await store.add_sign_in(sign_in(**wrong))
    for call in (store.find_sign_in, store.remove_sign_in):
        with pytest.raises(InvalidRequest):
            await call(b"short")
    with pytest.raises(InvalidRequest):
        await store.use_sign_in(b"short", timestamp=1)
    assert await store.find_sign_in(sign_in().hash) is None

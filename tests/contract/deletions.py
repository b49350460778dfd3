"""The contract, the journal of deletions: listed by time, found by a hash, and bounded for each kind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import limits
from holdfast.errors import InvalidRequest
from holdfast.stores.base import Store
from holdfast.stores.deletions import Deletion

from .once import RULE, once

HASH = b"h" * 16


def deletion(number: int = 1, **fields: Any) -> Deletion:
    """Return a deletion with this number in its time and id."""
    return Deletion(**{"id": f"del_{number:03}", "deleted_at": 100 + number, "kind": "session", **fields})


async def list_numbers(store: Store, **options: Any) -> list[int]:
    """Return the numbers of the deletions of a list."""
    return [int(one.id.removeprefix("del_")) for one in await store.deletions(**options)]


async def test_a_deletion_is_read_back_unchanged(openings: list[Store]) -> None:
    full = deletion(
        2,
        kind="user",
        user_hash=HASH,
        session_hash=b"\0" * 32,
        key_id="k\0é",
        counts={"sessions": 3, "bytes": 1 << 40},
    )
    for one in (deletion(1), full):
        await openings[0].add_deletion(one)
    await openings[-1].add_deletion(msgspec.structs.replace(full, kind="prune"))
    assert list(await openings[-1].deletions()) == [full, deletion(1)]


async def test_deletions_are_listed_from_the_newest(store: Store) -> None:
    """They are read page by page. Deletions with the same time are ordered by their ids."""
    for at in (3, 1, 5, 2, 4):
        await store.add_deletion(deletion(at, deleted_at=7 if at > 3 else at))
    assert await list_numbers(store) == [5, 4, 3, 2, 1]
    assert await list_numbers(store, limit=2) == [5, 4]
    assert await list_numbers(store, limit=2, before=(7, "del_005")) == [4, 3]
    assert await list_numbers(store, before=(7, "")) == [3, 2, 1]
    assert await list_numbers(store, before=(1, "del_001")) == []
    for limit in (0, limits.PAGE + 1):
        with pytest.raises(InvalidRequest):
            await store.deletions(limit=limit)


async def test_deletions_are_found_by_a_hash(store: Store) -> None:
    """Of a user or a session, page by page."""
    for at in range(6):
        fields = ({"user_hash": HASH}, {"session_hash": HASH}, {"user_hash": b"other"})[at % 3]
        await store.add_deletion(deletion(at, **fields))
    assert await list_numbers(store, hash=HASH) == [4, 3, 1, 0]
    assert await list_numbers(store, hash=HASH, limit=1, before=(104, "del_004")) == [3]
    assert await list_numbers(store, hash=b"none") == []


async def test_old_deletions_are_dropped(store: Store) -> None:
    """Only deletions of the added kind are dropped, and only if the caller says how many to keep."""
    for at in range(6):
        await store.add_deletion(deletion(at, kind="user" if at == 0 else "session"))
    await store.add_deletion(deletion(6), keep=2)
    assert await list_numbers(store) == [6, 5, 4, 0]
    await store.add_deletion(deletion(7, kind="user"), keep=0)
    assert await list_numbers(store) == [7, 6, 5, 4]


@once(RULE)
async def test_deletions_belong_to_a_tenant(store: Store) -> None:
    await store.add_deletion(deletion())
    other = store.for_tenant("blue")
    assert await list_numbers(other) == []
    await other.add_deletion(deletion(2), keep=0)
    assert [await list_numbers(one) for one in (store, other)] == [[1], [2]]

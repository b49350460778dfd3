"""The contract, memories: what is refused, because it can be none, or is too much."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import limits
from holdfast.domain.memory import Memory, MemoryDelta, MemorySource, Owner
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.stores.base import Store

from .memory_kit import ANN, all_of, memory, put
from .once import REFUSED, RULE, once


async def test_the_largest_memory_is_stored(store: Store) -> None:
    """And as many as one write may bring, and one question ask for."""
    most = limits.MEMORY_BYTES - 400
    (large,) = await put(store, memory("ü" * (most // 2), tags=tuple(map(str, range(limits.MEMORY_TAGS)))))
    assert await store.find_memory(large.id) == large
    many = limits.MEMORIES_AT_ONCE
    assert len(await put(store, *(memory() for _ in range(many)))) == many
    found = await store.memories(ANN, ids=[one.id for one in await all_of(store)], limit=1000)
    assert (len(found.memories), found.has_more) == (many + 1, False)


@once(RULE)
async def test_the_memories_of_an_owner_are_limited(store: Store) -> None:
    """One more is refused, unless another one goes with it; changes and other owners are not."""
    many, step = limits.MEMORIES, limits.MEMORIES_AT_ONCE
    first: list[Memory] = []
    for _ in range(many // step):
        first += await put(store, *(memory("x") for _ in range(step)))
    with pytest.raises(TooLarge):
        await put(store, memory())
    await put(store, replace(first[0], content="y"))
    delta = MemoryDelta(put=(memory("new"),), forget=(first[1].id,))
    assert (await store.change_memories(ANN, delta, timestamp=2)).total == many
    page = await store.memories(ANN, since=many // step, limit=5)
    assert [one.content for one in page.memories] == ["y", "new"]
    await put(store, memory("other", Owner("app")), owner=Owner("app"))
    assert await store.drop_memories(ANN) == many
    assert (await store.memories(ANN)).total == 0


WRONG: tuple[dict[str, Any], ...] = (
    {"owner": Owner("app")},
    {"id": "mem_1"},
    {"content": 5},
    {"score": nan},
    {"number": -1},
    {"agent": ""},
    {"sources": (MemorySource(session_id="", user_id="ann"),)},
    {"sources": (MemorySource(session_id="s", user_id=""),)},
    {"supersedes": ("mem_1",)},
    {"superseded_by": "mem_1"},
    {"superseded_by": ""},
    *(
        {name: 2**62}
        for name in ("created_at", "updated_at", "promoted_at", "reviewed_at", "valid_from", "valid_until")
    ),
)


@once(REFUSED)
async def test_a_memory_with_a_wrong_field_is_refused(store: Store) -> None:
    for fields in WRONG:
        with pytest.raises(InvalidRequest):
            await put(store, replace(memory(), **fields), owner=ANN)
    assert await all_of(store) == []

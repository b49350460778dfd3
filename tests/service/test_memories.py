"""Memories are found, merged, superseded, reviewed and deleted, on every store, with and without an index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.domain.memory import Memory, MemorySource, Owner
from holdfast.memory.memories import Memories
from tests.clocks import Clock
from tests.service.memories_kit import open_holdfasts

ANN, BOB, APP = Owner("user", "ann"), Owner("user", "bob"), Owner("app")
PLACES = ("memory", "memory without index", "postgres", "mysql")


@pytest.fixture(params=PLACES)
async def memories(request: pytest.FixtureRequest) -> AsyncIterator[Memories]:
    clock = Clock()
    async with open_holdfasts(request.param, clock=clock) as (hf,):
        yield hf.memories


def source(session: str, *seqs: int, user: str = "ann") -> MemorySource:
    return MemorySource(session_id=session, user_id=user, seqs=seqs)


async def remember_all(memories: Memories, *texts: str, **fields: Any) -> list[Memory]:
    return [(await memories.remember(text, **{"user_id": "ann", **fields})).memory for text in texts]


# -- forgetting ----------------------------------------------------------------------


async def test_removing_a_source_keeps_concurrent_changes_of_others(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server accepts one memory and forgets one between the read and the write."""
    sources = [source("s", 1), source("t", 4)]
    (held,) = await remember_all(memories, "Ann likes gin", sources=sources, origin="tool")
    (gone,) = await remember_all(memories, "Ann likes ale", sources=sources)
    (alone,) = await remember_all(memories, "Ann likes rum", sources=[source("s", 1)])
    (again,) = await remember_all(memories, "Ann likes tea", sources=[source("s", 1)])
    other, read, meanwhile = Memories(memories.store, memories.clock), memories.store.memories, [1]

    async def slow(*args: Any, **asked: Any) -> Any:
        page = await read(*args, **asked)
        if meanwhile and args[0] == ANN:
            meanwhile.clear()
            await other.review(held.id, "accept")
            await other.forget(gone.id)
            await other.remember("Ann likes tea", user_id="ann", sources=[source("u", 1)])
        return page

    monkeypatch.setattr(memories.store, "memories", slow)
    assert await memories.forget_source("ann", "s") == (alone.id,)
    left = {one.id: one for one in (await memories.page(ANN)).memories}
    assert left.keys() == {held.id, again.id}
    assert left[held.id].status == "active"
    assert [one.session_id for one in left[held.id].sources] == ["t"]
    assert [one.session_id for one in left[again.id].sources] == ["u"]


# -- concurrency ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "postgres", "mysql"])
async def test_concurrent_equal_memories_become_one(place: str) -> None:
    async with open_holdfasts(place, times=1 if place == "memory" else 3) as openings:
        said = [
            hf.memories.remember("Ann likes tea", user_id="ann", tags=[f"t{n}"]) for n in range(4) for hf in openings
        ]
        made = await asyncio.gather(*said)
        assert [one.outcome for one in made].count("new") == 1
        (one,) = (await openings[0].memories.page(ANN)).memories
        assert set(one.tags) == {f"t{n}" for n in range(4)}

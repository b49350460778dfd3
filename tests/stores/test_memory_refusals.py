"""What is refused of memories by each method, before a database is asked: by its parameter's name; the last that is allowed is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast.domain.memory import MemoryDelta, Owner
from holdfast.errors import HoldfastError
from holdfast.limits import ID_BYTES, PAGE
from holdfast.stores import open_store
from tests.contract.memory_kit import ANN, entry

FAR = 1 << 62
NOBODY = Owner("user", "")
LONG = "x" * (ID_BYTES + 1)
NOTED = MemoryDelta(diary=(entry(1),))

Call = Callable[[Any], Awaitable[object]]
REFUSED: tuple[tuple[Call, str], ...] = (
    (lambda store: store.memories(NOBODY), "owner"),
    (lambda store: store.signals(NOBODY), "owner"),
    (lambda store: store.diary(NOBODY), "owner"),
    (lambda store: store.drop_memories(NOBODY), "owner"),
    (lambda store: store.memory_owners(after=NOBODY), "owner"),
    (lambda store: store.change_memories(NOBODY, NOTED, timestamp=1), "owner"),
    (lambda store: store.memories(ANN, limit=0), "limit"),
    (lambda store: store.memories(ANN, limit=PAGE + 1), "limit"),
    (lambda store: store.diary(ANN, limit=0), "limit"),
    (lambda store: store.diary(ANN, limit=PAGE + 1), "limit"),
    (lambda store: store.memory_owners(limit=0), "limit"),
    (lambda store: store.memory_owners(limit=PAGE + 1), "limit"),
    (lambda store: store.find_memory(""), "memory_id"),
    (lambda store: store.find_memory(LONG), "memory_id"),
    (lambda store: store.signals(ANN, memory_ids=[""]), "memory_ids"),
    (lambda store: store.signals(ANN, memory_ids=["x"] * (PAGE + 1)), "memory_ids"),
    (lambda store: store.signals(ANN, since=FAR), "timestamp"),
    (lambda store: store.change_memories(ANN, NOTED, timestamp=FAR), "timestamp"),
    (lambda store: store.change_memories(ANN, NOTED, timestamp=-FAR), "timestamp"),
    (lambda store: store.change_memories(ANN, NOTED, timestamp=1, expect=FAR), "expect"),
)
ALLOWED: tuple[Call, ...] = (
    lambda store: store.memory_owners(after=ANN, limit=1),
    lambda store: store.memory_owners(limit=PAGE),
    lambda store: store.diary(ANN, limit=1),
    lambda store: store.diary(ANN, limit=PAGE),
    lambda store: store.signals(ANN, memory_ids=["x"] * PAGE, since=FAR - 1),
    lambda store: store.change_memories(ANN, NOTED, timestamp=FAR - 1, expect=0),
)


@pytest.fixture
async def store() -> AsyncIterator[Any]:
    """One in memory."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    yield store
    await store.close()


@pytest.mark.parametrize(("call", "param"), REFUSED)
async def test_invalid_memory_requests_are_rejected(store: Any, call: Call, param: str) -> None:
    """Nothing is written."""
    with pytest.raises(HoldfastError) as refused:
        await call(store)
    assert getattr(refused.value, "param", None) == param
    assert await store.memory_owners() == ()


@pytest.mark.parametrize("call", ALLOWED)
async def test_valid_memory_requests_at_the_limits_are_accepted(store: Any, call: Call) -> None:
    await call(store)

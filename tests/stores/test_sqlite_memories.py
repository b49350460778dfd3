"""Deleted memories leave no trace in SQLite's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.domain.memory import DiaryEntry
from holdfast.stores import open_store
from tests.contract.memory_kit import ANN, forget, memory, put, signal, write_recalls

CANARY = "canary-7f3a9c"


def _traces(database: Path) -> list[str]:
    """Files beside `database` that hold the canary."""
    return [file.name for file in database.parent.iterdir() if CANARY.encode() in file.read_bytes()]


@pytest.mark.parametrize("size", [10, 3_000, 25_000])
async def test_a_forgotten_memory_leaves_no_trace_in_the_files(database: Path, size: int) -> None:
    """Nor does what it said before it was changed, nor what is dropped with recalls and diary; other memories stay."""
    store = await open_store(f"sqlite:///{database}", tenant="acme")
    await put(store, *(memory("x" * 97 * at) for at in range(1, 61)))
    (one, two, three) = await put(store, *(memory(CANARY + "z" * size, tags=(CANARY,)) for _ in range(3)))
    await put(store, *(memory("y" * 97 * at) for at in range(1, 61)))
    told = DiaryEntry(id="d", at=1, report={"why": CANARY})
    await write_recalls(store, signal(two, session=CANARY), signal(three, query=CANARY.encode()))
    assert _traces(database)
    await forget(store, one, two)
    await put(store, replace(three, content="another", tags=()))
    await write_recalls(store, signals_before=99)
    await forget(store, memory())
    assert _traces(database) == []
    await write_recalls(store, signal(three, 100, session=CANARY), diary=(told,))
    assert _traces(database)
    assert await store.drop_memories(ANN) == 121
    assert _traces(database) == []
    await store.close()
    assert _traces(database) == []

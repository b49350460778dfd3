"""What the checks of memories share: short ways to write them."""

from __future__ import annotations

import uuid
from typing import Any

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.memories import OwnedMemories

ANN = Owner("user", "ann")
NOTHING = OwnedMemories(0, ())
"""Of an owner that nothing was written for."""


def memory_id() -> str:
    """One that no memory has."""
    return f"mem_{uuid.uuid4().hex}"


def memory(content: str = "likes tea", owner: Owner = ANN, **fields: Any) -> Memory:
    """A memory about to be put."""
    given = {"id": memory_id(), "created_at": 1, "updated_at": 1, **fields}
    return Memory(owner=owner, content=content, **given)


def signal(of: Memory | str, at: int = 5, **fields: Any) -> Signal:
    """A recall of a memory."""
    given = {"query": b"q", "score": 0.5, "session": "s1", **fields}
    return Signal(memory_id=of if isinstance(of, str) else of.id, at=at, **given)


def entry(at: int, **report: Any) -> DiaryEntry:
    """A diary entry about to be written."""
    return DiaryEntry(id=f"d{at}", at=at, report=report)


async def put(store: MemoryStore, *new: Memory, owner: Owner = ANN, timestamp: int = 2) -> tuple[Memory, ...]:
    """Memories as they are stored."""
    return (await store.change_memories(owner, MemoryDelta(put=new), timestamp=timestamp)).memories


async def forget(store: MemoryStore, *gone: Memory, owner: Owner = ANN) -> OwnedMemories:
    """What forgetting them says."""
    return await store.change_memories(owner, MemoryDelta(forget=tuple(one.id for one in gone)), timestamp=2)


async def write_recalls(store: MemoryStore, *new: Signal, owner: Owner = ANN, **more: Any) -> OwnedMemories:
    """What writing recalls says."""
    return await store.change_memories(owner, MemoryDelta(signals=new, **more), timestamp=2)


async def contents(store: MemoryStore, owner: Owner = ANN, **asked: Any) -> list[str]:
    """What an owner's memories say."""
    return [one.content for one in (await store.memories(owner, **asked)).memories]


async def all_of(store: MemoryStore, owner: Owner = ANN, *, limit: int = 1000) -> list[Memory]:
    """All of an owner's memories, page by page; read again when somebody writes meanwhile."""
    while True:
        found: list[Memory] = []
        pages: list[OwnedMemories] = []
        while not pages or pages[-1].has_more:
            pages.append(await store.memories(owner, limit=limit, after=found[-1].number if found else None))
            found += pages[-1].memories
        if len({page.version for page in pages}) == 1:
            assert {page.total for page in pages} == {len(found)}
            return found

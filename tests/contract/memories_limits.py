"""The contract, memories: what is refused, because it can be none, or is too much."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import limits
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, MemorySource, Owner
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.stores.base import Store
from holdfast.stores.memories import OwnedMemories

from .memory_kit import ANN, NOTHING, all_of, entry, memory, put, signal, write_recalls

_WRONG: list[dict[str, Any]] = [
    {"id": "mem_1"},
    {"id": "mem_" + "A" * 32},
    {"content": ""},
    {"content": " \n"},
    {"content": "\ud800"},
    {"content": 5},
    {"type": "dream"},
    {"status": "gone"},
    {"origin": "model"},
    {"trust": 1.01},
    {"trust": -0.1},
    {"trust": float("nan")},
    {"importance": float("inf")},
    {"importance": "much"},
    {"score": float("nan")},
    {"created_at": 2**62},
    {"updated_at": -(2**62)},
    {"valid_until": 1.5},
    {"number": -1},
    {"tags": ("",)},
    {"tags": ("two\nlines",)},
    {"tags": ("x" * (limits.MEMORY_TAG_CHARS + 1),)},
    {"tags": (1,)},
    {"agent": ""},
    {"supersedes": ("m1",)},
    {"superseded_by": ""},
    {"sources": (MemorySource(session_id="", user_id="ann"),)},
    {"metadata": {"k": object()}},
]


@pytest.mark.parametrize(
    "fields", _WRONG, ids=lambda fields: f"{next(iter(fields))}-{next(iter(fields.values()))!r:.12}"
)
async def test_invalid_memories_are_refused(store: Store, fields: dict[str, Any]) -> None:
    """Is refused, by a name that says where it stands, without what it says; what comes with it is not written."""
    wrong = memory(**{"content": "fine", **fields})
    with pytest.raises(InvalidRequest) as caught:
        await store.change_memories(ANN, MemoryDelta(put=(memory("secret"), wrong)), timestamp=2)
    assert str(caught.value.param).startswith("put")
    assert "secret" not in str(caught.value)
    assert await store.memories(ANN) == NOTHING


async def test_invalid_owners_signals_and_diary_entries_are_refused(store: Store) -> None:
    """Is refused, and so are questions that make no sense."""
    for owner in (("user", ""), ("app", "x"), ("team", "x"), ("user", "x" * 513), ("user", "\ud800")):
        wrong: Any = Owner(*owner)
        for ask in (store.memories, store.signals, store.diary, store.drop_memories):
            with pytest.raises(InvalidRequest):
                await ask(wrong)
    (one,) = await put(store, memory())
    signals: list[dict[str, Any]] = [
        {"at": 2**62},
        {"score": 1.5},
        {"score": float("nan")},
        {"query": "q"},
        {"session": "x" * 513},
    ]
    for fields in signals:
        with pytest.raises(InvalidRequest):
            await write_recalls(store, signal(one, **fields))
    for diary in (DiaryEntry(id="", at=1, report={}), DiaryEntry(id="d", at=1, report={"k": object()})):
        with pytest.raises(InvalidRequest):
            await write_recalls(store, diary=(diary,))
    for delta in (MemoryDelta(put=(replace(one, content="a"), one)), MemoryDelta(put=(one,), forget=(one.id,))):
        with pytest.raises(InvalidRequest):
            await store.change_memories(ANN, delta, timestamp=2)
    asked: list[dict[str, Any]] = [{"limit": 0}, {"limit": 1001}, {"status": "gone"}, {"ids": [""]}]
    for bad in asked:
        with pytest.raises(InvalidRequest):
            await store.memories(ANN, **bad)
    assert await store.memories(ANN) == OwnedMemories(1, (one,), total=1)
    assert (await store.signals(ANN), await store.diary(ANN)) == ((), ())


async def test_the_bytes_of_a_memory_are_limited(store: Store) -> None:
    """And so many tags; one write so many memories, recalls, and entries; one question so many ids."""
    most = limits.MEMORY_BYTES - 400
    (large,) = await put(store, memory("ü" * (most // 2), tags=tuple(map(str, range(limits.MEMORY_TAGS)))))
    assert await store.find_memory(large.id) == large
    many = limits.MEMORIES_AT_ONCE
    over: list[MemoryDelta] = [
        MemoryDelta(put=(memory("ü" * (limits.MEMORY_BYTES // 2)),)),
        MemoryDelta(put=(memory(tags=tuple(map(str, range(limits.MEMORY_TAGS + 1)))),)),
        MemoryDelta(put=tuple(memory() for _ in range(many)), forget=(large.id,)),
        MemoryDelta(signals=tuple(signal(large) for _ in range(limits.PAGE + 1))),
        MemoryDelta(diary=tuple(entry(1) for _ in range(limits.DIARY_KEPT + 1))),
        MemoryDelta(diary=(entry(1, k="x" * limits.METADATA_BYTES),)),
    ]
    for delta in over:
        with pytest.raises(TooLarge):
            await store.change_memories(ANN, delta, timestamp=2)
    for asked in ({"ids": ["x"] * 1001}, {"numbers": range(1001)}):
        with pytest.raises(TooLarge):
            await store.memories(ANN, **asked)
    assert (await store.memories(ANN)).total == 1
    assert len(await put(store, *(memory() for _ in range(many)))) == many
    found = await store.memories(ANN, ids=[one.id for one in await all_of(store)], limit=1000)
    assert (len(found.memories), found.has_more) == (many + 1, False)


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

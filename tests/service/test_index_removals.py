"""Entries that a process without an index erases or deletes are not found, and the next backfill removes them from the index."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.indexes import tombstones
from holdfast.indexes.tombstones import MARK, UnindexedStore
from holdfast.limits import INDEX_DEPARTED_WALK, INDEX_MARGIN
from holdfast.stores import open_store
from holdfast.stores.indexes import open_index
from tests.service.index_kit import TENANT, Bench, bench

REFS = [SessionRef("ada", f"s{number}") for number in range(4)]
LATER = INDEX_DEPARTED_WALK + 2 * INDEX_MARGIN


async def test_removals_by_indexing_processes_need_no_complete_walk() -> None:
    """They update the index themselves. A separate index of the same store needs one."""
    async with bench() as one:
        for ref in REFS:
            await one.make(ref, f"tea for {ref.id}", "yes")
        await one.service.settled()
        other = Bench(one.elsewhere, await open_index("sqlite://:memory:", tenant=TENANT))
        other.time = one.time
        await other.service.walk()
        await one.service.walk()
        one.time = other.time = one.time + LATER
        await one.here.remove(REFS[0])
        await one.here.erase(REFS[1], 0)
        assert not (await one.service.walk()).whole
        await one.check(REFS)
        assert (await other.service.walk()).whole
        await other.check(REFS)
        await other.service.close()
        await other.index.close()


async def test_failed_removal_mark_does_not_fail_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a mark written concurrently, or in the format of a later release."""
    store = await open_store("sqlite://:memory:", tenant=TENANT)
    outside = UnindexedStore(store, lambda: 1)

    async def fail(*_: Any, **__: Any) -> bool:
        raise StoreUnavailable("away")

    with monkeypatch.context() as then:
        then.setattr(store, "learn", fail)
        assert await outside.remove(REFS[0]) is None
    assert await store.learn(MARK, b"[7]", timestamp=1, expect=None)
    assert await outside.drop_memories(Owner("user", "ada")) == 0
    assert tombstones._parse_marks(await store.learned(MARK)) == {"": 1}
    await store.close()


async def remove_elsewhere(one: Bench) -> None:
    """Delete one session and erase an entry of another in a process without an index."""
    for ref in REFS:
        await one.make(ref, f"tea for {ref.id}", "yes")
    await one.service.settled()
    await one.service.walk()
    one.time += LATER
    outside = UnindexedStore(one.elsewhere, lambda: one.time)
    await outside.remove(REFS[0])
    await outside.erase(REFS[1], 0)


async def test_removal_mark_is_anonymous_and_written_once_a_minute() -> None:
    """Many deletions cost one small write, which contains no ids."""
    async with bench() as one:
        await remove_elsewhere(one)
        stored = await one.elsewhere.learned(MARK)
        assert stored is not None
        assert stored == b'{"":%d}' % one.time or b'"":%d' % one.time in stored
        assert not [name for name in (b"ada", b"s0", b"s1") if name in stored]
        writes: list[bytes] = []
        learn = one.elsewhere.learn

        async def record(model: str, data: bytes, **more: Any) -> bool:
            writes.append(data)
            return await learn(model, data, **more)

        one.elsewhere.learn = record  # type: ignore[method-assign]
        outside = UnindexedStore(one.elsewhere, lambda: one.time)
        for ref in REFS:
            await outside.remove(ref)
        assert writes == []
        one.time += tombstones._FRESH
        for ref in REFS:
            await outside.remove(ref)
        assert len(writes) == 1

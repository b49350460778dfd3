"""Entries that a process without an index erases or deletes are not found, and the next backfill removes them from the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.indexes import tombstones
from holdfast.indexes.tombstones import MARK, UnindexedStore
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import INDEX_DEPARTED_WALK, INDEX_MARGIN
from holdfast.recall.base import Lookup, Space
from holdfast.recall.terms import extract_terms
from holdfast.stores import open_store
from holdfast.stores.indexes import open_index
from tests.service.index_kit import TENANT, Bench, bench
from tests.stores.conftest import _place
from tests.words import says

STILL = LifeSettings(session_ttl=0, sweep=False)
REFS = [SessionRef("ada", f"s{number}") for number in range(4)]
LATER = INDEX_DEPARTED_WALK + 2 * INDEX_MARGIN


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that several processes share."""
    yield from _place(request.param, tmp_path)


async def count_indexed(hf: holdfast.Holdfast, words: str, space: Space) -> int:
    """Return how many documents of the index contain one of these words."""
    index = hf.engine.index
    assert index is not None
    lookup = Lookup(space=space, terms=tuple(extract_terms(words).counts))
    return len((await index.index.lookup(lookup)).found)


TALK, KEPT = Space("talk", "ada"), Space("user", "ada")


async def test_entries_erased_elsewhere_are_not_found_and_leave_the_index(url: str) -> None:
    """No kind of search shows them. A search that meets them removes them, otherwise the next walk does."""
    now = 1_700_000_000_000
    async with (
        holdfast.open(url, life=STILL, clock=lambda: now) as here,
        holdfast.open(url, life=STILL, clock=lambda: now, index=None) as elsewhere,
    ):
        said = {"s": ["The gate code is 4711.", "The gate is green."], "gone": ["The gate code was 1234."]}
        for name, texts in said.items():
            session = await here.session(name, user_id="ada")
            await session.append([{"role": "user", "content": text} for text in texts])
        kept = await here.memories.remember("The code of the safe is 9876", user_id="ada")
        index = here.engine.index
        assert index is not None
        await index.walk()
        assert {hit.id for hit in (await here.search("gate code", "ada")).hits} == {"s#0", "s#1", "gone#0"}
        now += LATER
        await index.walk()
        await elsewhere.erase(SessionRef("ada", "s"), 0)
        await elsewhere.delete(SessionRef("ada", "gone"))
        assert await elsewhere.memories.forget(kept.memory.id)
        assert (
            await count_indexed(here, "4711", TALK),
            await count_indexed(here, "1234", TALK),
            await count_indexed(here, "9876", KEPT),
        ) == (*(1, 1, 1),)
        for asked in ({}, {"neighbours": 2}, {"session_level": True}, {"limit": 1}, {"session_id": "s"}):
            found: Any = await here.search("gate code 4711 1234", "ada", **asked)
            assert [hit.id for hit in found.hits] == ["s#1"], asked
            assert not says(str(found), "4711"), asked
            assert not says(str(found), "1234"), asked
        assert (await here.memories.recall("code of the safe", user_id="ada")).found == ()
        await index.settled()
        assert (
            await count_indexed(here, "4711", TALK),
            await count_indexed(here, "1234", TALK),
            await count_indexed(here, "9876", KEPT),
        ) == (*(0, 0, 0),)


async def test_walk_removes_entries_deleted_elsewhere(url: str) -> None:
    """The next complete walk is due after an hour."""
    now = 1_700_000_000_000
    async with (
        holdfast.open(url, life=STILL, clock=lambda: now) as here,
        holdfast.open(url, life=STILL, clock=lambda: now, index=None) as elsewhere,
    ):
        for name in ("s", "gone"):
            session = await here.session(name, user_id="ada")
            await session.append([{"role": "user", "content": "The gate code is 4711."}])
        kept = await here.memories.remember("The code of the safe is 9876", user_id="ada")
        index = here.engine.index
        assert index is not None
        await index.walk()
        now += LATER
        await elsewhere.erase(SessionRef("ada", "s"), 0)
        await elsewhere.delete(SessionRef("ada", "gone"))
        assert await elsewhere.memories.forget(kept.memory.id)
        assert (await count_indexed(here, "4711", TALK), await count_indexed(here, "9876", KEPT)) == (2, 1)
        assert (await index.walk()).whole
        assert (await count_indexed(here, "4711", TALK), await count_indexed(here, "9876", KEPT)) == (0, 0)
        now += LATER
        assert (await index.walk()).whole, "the other's clock may be slow"
        now += LATER
        assert not (await index.walk()).whole


# -- removal marks ---------------------------------------------------------------


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

"""The contract, memories: what is put, changed, forgotten and found, by owner; recalls of them; the diary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import limits
from holdfast.domain.memory import STATUSES, Memory, MemoryDelta, MemorySource, Owner
from holdfast.errors import MemoryNotFound, StaleMemories
from holdfast.stores.base import Store
from holdfast.stores.memories import OwnedMemories

from .memory_kit import (
    ANN,
    NOTHING,
    all_of,
    entry,
    forget,
    memory,
    memory_id,
    put,
    signal,
    write_recalls,
)

OWNERS = (
    *(Owner("user", "a"), Owner("agent", "a"), Owner("app"), Owner("user", "app"), Owner("agent", "user")),
    *(Owner("user", "A"), Owner("user", "a "), Owner("user", "\0"), Owner("user", "a\0"), Owner("user", "a\0\x01b")),
    *(
        Owner("user", "ä"),
        Owner("user", "a\u0308"),
        Owner("agent", "😀"),
        Owner("user", "a'b\\%_{k}"),
        Owner("user", "x" * 512),
    ),
)
"""Owners that a database may take for one another."""


# -- putting -----------------------------------------------------------------


async def test_a_memory_is_read_back_unchanged(store: Store) -> None:
    """Every field, whatever stands in its texts; with the number and the version that it got."""
    source = MemorySource(session_id="s 1", user_id="ann", identity="i", seqs=(0, 7, 2**40), origin="web")
    told: dict[str, Any] = {"k": [1, 2.5, None, True, {"ü": "\u2028"}], "big": 2**53 + 1}
    full = memory(
        "said \0 \"it\" 'so' \\ \u2028 \n😀 %s ?1 $1 {k}",
        type="procedural",
        tags=("Ü", "two words", "😀", "x" * limits.MEMORY_TAG_CHARS),
        importance=0.1 + 0.2,
        origin="web",
        trust=0.0,
        sources=(source, source),
        agent="researcher",
        status="quarantined",
        created_at=-5,
        updated_at=2**60,
        valid_from=-(2**40),
        valid_until=0,
        supersedes=(memory_id(), memory_id()),
        superseded_by=memory_id(),
        promoted_at=3,
        score=-1.5,
        reviewed_at=4,
        metadata=told,
    )
    plain = memory("x")
    done = await store.change_memories(ANN, MemoryDelta(put=(full, plain)), timestamp=9)
    expected = (replace(full, number=1, version=1), replace(plain, number=2, version=1))
    assert done == OwnedMemories(1, expected, total=2)
    assert await store.memories(ANN) == OwnedMemories(1, expected, total=2)
    assert await store.find_memory(full.id) == expected[0]
    assert await store.find_memory(plain.id) == expected[1]


async def test_a_dropped_owner_equals_one_without_writes(store: Store) -> None:
    """Of version 0, and not listed, also where there was no memory any more, or none but the diary; others stay."""
    bob = Owner("user", "bob")
    (one, two) = await put(store, memory("1"), memory("2"))
    await put(store, memory("his", bob), owner=bob)
    await forget(store, one, two)
    await write_recalls(store, diary=(entry(1),))
    await write_recalls(store, owner=Owner("agent", "a"), diary=(entry(1),))
    for owner in (ANN, Owner("agent", "a")):
        assert await store.drop_memories(owner) == 0
        assert (await store.memories(owner), await store.diary(owner)) == (NOTHING, ())
    assert [owner for owner, _ in await store.memory_owners()] == [bob]
    with pytest.raises(StaleMemories) as caught:
        await store.change_memories(ANN, MemoryDelta(put=(memory(),)), timestamp=2, expect=2)
    assert caught.value.version == 0
    assert [owner for owner, _ in await store.memory_owners()] == [bob]
    delta = MemoryDelta(put=(memory("new"),), diary=(entry(3),))
    (new,) = (await store.change_memories(ANN, delta, timestamp=2, expect=0)).memories
    assert (new.version > 2, new.number > 2) == (True, True)
    assert await store.memories(ANN) == OwnedMemories(new.version, (new,), total=1)
    assert (await store.memories(ANN, since=2), await store.diary(ANN)) == (
        OwnedMemories(new.version, (new,), total=1),
        (entry(3),),
    )
    assert [owner for owner, _ in await store.memory_owners()] == [ANN, bob]
    assert (await store.memories(bob)).total == 1


# -- finding -----------------------------------------------------------------


async def test_memories_are_filtered(store: Store) -> None:
    """Every way to ask, forwards and backwards, in pages, and all of them together: as a list would answer."""
    made = list(await put(store, *(memory(str(at), status=STATUSES[at % 3]) for at in range(12))))
    for at in (2, 7, 4):
        (made[at],) = await put(store, replace(made[at], content=f"{at}b"))
    await forget(store, made.pop(9), made.pop(0))
    ids, numbers = [made[at].id for at in (8, 0, 3, 5, 6)] + [memory_id(), "?"], [11, 3, 4, 5, 8, 99, 0, -1, 2**70]
    ways: list[tuple[dict[str, Any], Callable[[Memory], bool]]] = [
        ({}, lambda one: True),
        ({"ids": ids}, lambda one: one.id in ids),
        ({"ids": []}, lambda one: False),
        ({"numbers": numbers}, lambda one: one.number in numbers),
        ({"numbers": []}, lambda one: False),
        ({"ids": ids, "numbers": numbers}, lambda one: one.id in ids and one.number in numbers),
    ]
    for asked, fits in ways:
        for since in (None, 0, 1, 3, 4, 9):
            for status in (None, *STATUSES):
                for descending in (False, True):
                    for after in (None, 5, 0, 99):
                        more: dict[str, Any] = {
                            "since": since,
                            "status": status,
                            "descending": descending,
                            "after": after,
                        }
                        wanted = [
                            one
                            for one in (reversed(made) if descending else made)
                            if fits(one)
                            and one.version > (since or 0)
                            and status in (None, one.status)
                            and (after is None or (one.number < after if descending else one.number > after))
                        ]
                        if status is None or after is None:
                            found = await store.memories(ANN, **asked, **more, limit=3)
                            expected = OwnedMemories(5, tuple(wanted[:3]), total=10, has_more=len(wanted) > 3)
                            assert found == expected, (asked, more)


async def test_memories_are_listed_in_pages(store: Store) -> None:
    """Each once, in either direction, also when some go and come meanwhile."""
    made = await put(store, *(memory(str(at)) for at in range(10)))
    page = await store.memories(ANN, limit=4)
    assert ([one.number for one in page.memories], page.has_more, page.total) == ([1, 2, 3, 4], True, 10)
    await forget(store, made[3], made[4])
    await put(store, memory("new"))
    page = await store.memories(ANN, limit=6, after=4)
    assert ([one.number for one in page.memories], page.has_more, page.total) == ([6, 7, 8, 9, 10, 11], False, 9)
    page = await store.memories(ANN, limit=4, after=4, descending=True)
    assert ([one.number for one in page.memories], page.has_more) == ([3, 2, 1], False)
    assert len(await all_of(store, limit=2)) == 9


# -- owners and tenants ------------------------------------------------------


async def test_owners_are_compared_by_bytes(store: Store) -> None:
    """By kind and id; nothing of one is seen, changed or forgotten by another."""
    made = {}
    for at, owner in enumerate(OWNERS):
        (made[owner],) = await put(store, memory(str(at), owner), owner=owner, timestamp=100 + at)
        await write_recalls(store, signal(made[owner]), owner=owner, diary=(entry(at),))
    for at, owner in enumerate(OWNERS):
        others = [one for other, one in made.items() if other != owner]
        for asked in ({}, {"ids": [one.id for one in made.values()]}, {"numbers": [1]}):
            assert await store.memories(owner, **asked) == OwnedMemories(1, (made[owner],), total=1)
        assert (await forget(store, *others, owner=owner)).version == 1
        await write_recalls(store, *map(signal, others), owner=owner)
        found = await store.signals(owner, memory_ids=[one.id for one in made.values()])
        assert await store.signals(owner) == found == (signal(made[owner]),)
        assert [one.at for one in await store.diary(owner)] == [at]
    assert await store.drop_memories(OWNERS[0]) == 1
    for owner in OWNERS[1:]:
        assert await store.memories(owner) == OwnedMemories(1, (made[owner],), total=1)
        assert await store.find_memory(made[owner].id) == made[owner]


async def test_owners_of_memories_are_listed(store: Store) -> None:
    """In order of kind and id by their bytes, with when they were written to last, whatever that was."""
    for at, owner in enumerate(OWNERS):
        await put(store, memory(str(at), owner), owner=owner, timestamp=100 + at)
    (one,) = (await store.memories(OWNERS[1])).memories
    for owner, delta in ((OWNERS[0], MemoryDelta(diary=(entry(1),))), (OWNERS[1], MemoryDelta(signals=(signal(one),)))):
        await store.change_memories(owner, delta, timestamp=7)
    await store.change_memories(Owner("agent", "z"), MemoryDelta(diary=(entry(1),)), timestamp=8)
    times = dict(zip(OWNERS, range(100, 200), strict=False)) | {OWNERS[0]: 7, OWNERS[1]: 7, Owner("agent", "z"): 8}
    wanted = sorted(times.items(), key=lambda pair: (pair[0].kind, pair[0].id.encode()))
    assert list(await store.memory_owners()) == wanted
    found: list[tuple[Owner, int]] = []
    while page := await store.memory_owners(after=found[-1][0] if found else None, limit=3):
        found += page
    assert found == wanted
    assert (await store.memory_owners(after=Owner("agent", "nobody"), limit=1))[0][0] == Owner("agent", "user")


async def test_memories_of_tenants_are_separate(store: Store) -> None:
    """Nothing of another tenant is seen or changed, whoever's it is; both may have a memory of one id."""
    other = store.for_tenant("acmE")
    for owner in (ANN, Owner("app"), Owner("agent", "a")):
        before = await other.memory_owners()
        (mine,) = await put(store, memory("mine", owner), owner=owner)
        await write_recalls(store, signal(mine), owner=owner, diary=(entry(1),))
        assert await other.memories(owner, ids=[mine.id]) == await other.memories(owner) == NOTHING
        with pytest.raises(MemoryNotFound):
            await other.find_memory(mine.id)
        assert await other.signals(owner) == await other.signals(owner, memory_ids=[mine.id]) == ()
        assert await other.diary(owner) == ()
        assert await other.memory_owners() == before
        assert await forget(other, mine, owner=owner) == NOTHING
        assert await other.drop_memories(owner) == 0
        with pytest.raises(MemoryNotFound):
            await put(other, mine, owner=owner)
        (theirs,) = await put(other, replace(mine, content="theirs", number=0), owner=owner)
        await forget(store, mine, owner=owner)
        assert await other.find_memory(mine.id) == theirs
        with pytest.raises(MemoryNotFound):
            await store.find_memory(mine.id)


# -- recalls and the diary ---------------------------------------------------


async def test_the_newest_signals_of_a_memory_are_kept(store: Store) -> None:
    """So many of each, those that were written last; older ones than asked for go."""
    kept = limits.SIGNALS_KEPT
    one, two = await put(store, memory("1"), memory("2"))
    await write_recalls(store, signal(two, 1), *(signal(one, 1000 - at) for at in range(kept)))
    await write_recalls(store, *(signal(one, 2000 + at) for at in range(3)))
    found = await store.signals(ANN, memory_ids=[one.id])
    assert [one.at for one in found] == [*range(997, 1000 - kept, -1), 2000, 2001, 2002]
    assert len(await store.signals(ANN)) == kept + 1
    done = await write_recalls(store, signal(one, 1999), signal(two, 2000), signals_before=2000)
    assert done.version == 1
    assert [(one.memory_id == two.id, one.at) for one in await store.signals(ANN)] == [
        *((False, at) for at in (2000, 2001, 2002)),
        (True, 2000),
    ]
    await write_recalls(store, *(signal(one, 3000 + at) for at in range(kept + 5)))
    assert len(await store.signals(ANN, memory_ids=[one.id])) == kept


async def test_the_newest_diary_entries_are_kept(store: Store) -> None:
    """Newest first, as they were written, whatever their times; a report is any object."""
    report = {"candidates": [{"id": memory_id(), "score": 0.5, "why": "ü \0 \u2028"}], "themes": [], "n": None}
    await write_recalls(store, diary=(entry(9), entry(5, **report), entry(7)))
    assert await store.diary(ANN) == (entry(7), entry(5, **report), entry(9))
    assert await store.diary(ANN, limit=2) == (entry(7), entry(5, **report))
    for begin in range(0, limits.DIARY_KEPT, 100):
        await write_recalls(store, diary=tuple(entry(at) for at in range(begin, begin + 100)))
    found = await store.diary(ANN, limit=1000)
    assert [one.at for one in found] == list(reversed(range(limits.DIARY_KEPT)))
    assert (await store.memories(ANN)).version == 0

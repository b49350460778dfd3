"""The contract, memories: against dicts, in which every write is done in full, or not at all."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domain.memory import STATUSES, DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.errors import InvalidRequest, MemoryNotFound, StaleMemories
from holdfast.limits import SIGNALS_KEPT
from holdfast.stores.base import Store
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.memories import OwnedMemories

from .memory_kit import memory, memory_id, signal
from .properties import SHARED_STORE

_runs = itertools.count()
_IDS = 6
_ids = st.integers(0, _IDS - 1)
_owners = st.integers(0, 2)
_puts = st.lists(
    st.tuples(_ids, st.booleans(), st.sampled_from(STATUSES), st.text('aü😀\0"', min_size=1, max_size=3)), max_size=3
)
_signals = st.lists(st.tuples(_ids, st.integers(0, 9)), max_size=4)
_expect = st.sampled_from([None, None, None, 0, 1])
_moves = st.one_of(
    st.tuples(
        st.just("change"),
        _owners,
        _puts,
        st.lists(_ids, max_size=2),
        _signals,
        st.none() | st.integers(0, 9),
        st.booleans(),
        _expect,
    ),
    st.tuples(st.just("drop"), _owners),
)


class Refused(Exception):
    """The reference does not take it."""


class Kept:
    """What an owner has."""

    def __init__(self) -> None:
        self.version = 0
        self.next = 1
        self.floor = 0
        self.memories: dict[str, Memory] = {}
        self.signals: list[Signal] = []
        self.diary: list[DiaryEntry] = []

    def change(self, delta: MemoryDelta, taken: set[str], expect: int | None) -> None:
        """One write; `taken`: ids that other owners have."""
        if expect is not None and expect != self.version:
            raise Refused(StaleMemories)
        for one in delta.put:
            old = self.memories.get(one.id)
            if one.number and (old is None or old.number != one.number):
                raise Refused(MemoryNotFound)
            if not one.number and (old is not None or one.id in taken):
                raise Refused(InvalidRequest)
        gone = [id_ for id_ in delta.forget if self.memories.pop(id_, None)]
        self.version += bool(delta.put or gone)
        for one in delta.put:
            self.memories[one.id] = replace(one, number=one.number or self.next, version=self.version)
            self.next += not one.number
        self.signals += delta.signals
        oldest = -1 if delta.signals_before is None else delta.signals_before
        kept = [one for one in self.signals if one.memory_id in self.memories and one.at >= oldest]
        self.signals = [one for at, one in enumerate(kept) if _behind(kept, at) < SIGNALS_KEPT]
        self.diary += delta.diary

    def drop(self) -> int:
        """All goes; what comes next has a version and numbers above those that there were."""
        many = len(self.memories)
        self.floor = max(self.floor, self.version, self.next - 1)
        self.version, self.next = 0, 1
        self.memories, self.signals, self.diary = {}, [], []
        return many

    def number_first(self, put: tuple[Memory, ...]) -> None:
        """The first memories of an owner have a version and numbers as the store gives them: in a row, and above the floor."""
        version, number = put[0].version, min(one.number for one in put if one.id in self.memories)
        by = number - 1
        assert min(version, number) > self.floor
        self.version, self.next = version, self.next + by
        self.memories = {
            id_: replace(one, version=version, number=one.number + by) for id_, one in self.memories.items()
        }


def _behind(signals: list[Signal], at: int) -> int:
    """How many of the same memory were written behind one."""
    return sum(one.memory_id == signals[at].memory_id for one in signals[at + 1 :])


@SHARED_STORE
@given(moves=st.lists(_moves, min_size=1, max_size=12))
async def test_memories_match_the_reference(store: Store, moves: list[Any]) -> None:
    """Whatever is put, changed, forgotten, recalled, noted and dropped, of several owners."""
    run = next(_runs)
    owners = [Owner("user", f"r{run}"), Owner("agent", f"r{run}"), Owner("user", f"r{run} ")]
    kept = {owner: Kept() for owner in owners}
    ids = [memory_id() for _ in range(_IDS)]
    for at, move in enumerate(moves):
        owner = owners[move[1]]
        if move[0] == "drop":
            assert await store.drop_memories(owner) == kept[owner].drop()
            continue
        taken = {id_ for other in owners if other != owner for id_ in kept[other].memories}
        delta, expect, before = _delta(at, owner, kept[owner], ids, move[2:-1]), move[-1], kept[owner].version
        try:
            kept[owner].change(delta, taken, expect)
        except Refused as exc:
            await _is_refused(store, owner, delta, expect, exc.args[0])
            continue
        done = await store.change_memories(owner, delta, timestamp=at, expect=expect)
        mine = kept[owner]
        if not before and done.memories:
            mine.number_first(done.memories)
        put = tuple(sorted((mine.memories[one.id] for one in delta.put), key=lambda one: one.number))
        assert done == OwnedMemories(mine.version, put, total=len(mine.memories))
    for owner, mine in kept.items():
        await _is_as(store, owner, mine)


def _delta(at: int, owner: Owner, mine: Kept, ids: list[str], move: Any) -> MemoryDelta:
    """A write, as far as one may be asked for."""
    puts, forget, signals, before, noted = move
    put: dict[str, Memory] = {}
    for which, known, status, content in puts:
        old = mine.memories.get(ids[which])
        number = old.number if old is not None and known else 0
        put[ids[which]] = memory(f"{at}{content}", owner, id=ids[which], number=number, status=status)
    return MemoryDelta(
        put=tuple(put.values()),
        forget=tuple(ids[which] for which in forget if ids[which] not in put),
        signals=tuple(signal(ids[which], time) for which, time in signals),
        signals_before=before,
        diary=(DiaryEntry(id=f"d{at}", at=at, report={"at": at}),) if noted else (),
    )


async def _is_refused(store: MemoryStore, owner: Owner, delta: MemoryDelta, expect: int | None, error: Any) -> None:
    try:
        await store.change_memories(owner, delta, timestamp=1, expect=expect)
    except error:
        return
    raise AssertionError(f"the reference refuses it with {error.__name__}")


async def _is_as(store: MemoryStore, owner: Owner, mine: Kept) -> None:
    """Whether an owner has what the reference says."""
    memories = tuple(sorted(mine.memories.values(), key=lambda one: one.number))
    assert await store.memories(owner) == OwnedMemories(mine.version, memories, total=len(memories))
    assert list(await store.signals(owner)) == mine.signals
    assert list(await store.diary(owner)) == list(reversed(mine.diary))
    for one in memories:
        assert await store.find_memory(one.id) == one
    for status in STATUSES:
        found = await store.memories(owner, status=status, since=mine.version - 1)
        assert found.memories == tuple(one for one in memories if (one.status, one.version) == (status, mine.version))

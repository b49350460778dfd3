"""The contract, memories written at once: by many, by several openings, by callers that give up, by processes that die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from msgspec.structs import replace

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner
from holdfast.errors import MemoryNotFound, StaleMemories
from holdfast.stores.base import Store
from holdfast.stores.logic.memories import MemoryStore

from .cancellation import MOST_AWAITS, cut
from .memory_kit import ANN, all_of, forget, memory, memory_id, put, signal, write_recalls
from .plugin import OpenStore, Writer

WRITERS = 20
EACH = 5


async def _together(*writes: Awaitable[object]) -> None:
    await asyncio.gather(*writes)


async def test_twenty_writers_of_memories_lose_nothing(openings: list[Store]) -> None:
    """From the first write on, when the owner is not there yet: a version and a number for each, and every recall."""
    ids = [memory_id() for _ in range(WRITERS)]

    async def write(at: int) -> None:
        for number in range(EACH):
            store = openings[(at + number) % len(openings)]
            new = memory(f"{at}.{number}", id=ids[at] if number == 0 else memory_id())
            delta = MemoryDelta(put=(new,), signals=(signal(new, at),), diary=(DiaryEntry(id="d", at=at, report={}),))
            done = await store.change_memories(ANN, delta, timestamp=2)
            assert (done.version, done.memories[0].content) == (done.memories[0].version, new.content)
            await write_recalls(store, signal(ids[at], 100 + number))

    await _together(*(write(at) for at in range(WRITERS)))
    many, store = WRITERS * EACH, openings[-1]
    found = await all_of(store)
    assert [one.number for one in found] == [one.version for one in found] == list(range(1, many + 1))
    assert {one.content for one in found} == {f"{at}.{number}" for at in range(WRITERS) for number in range(EACH)}
    assert (await store.memories(ANN)).version == many
    signals = await store.signals(ANN)
    assert len(signals) == 2 * many
    for at, id_ in enumerate(ids):
        assert [one.at for one in await store.signals(ANN, memory_ids=[id_])] == [at, *range(100, 100 + EACH)]
    assert len(await store.diary(ANN, limit=1000)) == many


async def test_one_of_several_writers_with_the_same_version_wins(openings: list[Store]) -> None:
    """In each round, by several openings; the others are told where it stands, and have written nothing."""
    for round_ in range(4):
        won: list[str] = []
        told: set[tuple[int, int]] = set()

        async def attempt(at: int, expect: int, won: list[str], told: set[tuple[int, int]]) -> None:
            store = openings[at % len(openings)]
            delta = MemoryDelta(put=(memory(f"{expect}.{at}"),))
            try:
                done = await store.change_memories(ANN, delta, timestamp=2, expect=expect)
                won.append(done.memories[0].content)
            except StaleMemories as exc:
                told.add((exc.expected, exc.version))

        await _together(*(attempt(at, round_, won, told) for at in range(WRITERS)))
        assert told == {(round_, round_ + 1)}
        found = await openings[-1].memories(ANN)
        assert (found.version, len(won), found.memories[-1].content) == (round_ + 1, 1, won[0])


async def test_every_change_has_a_new_version(openings: list[Store]) -> None:
    """A reader that goes from version to version has seen the last of every memory, however many write meanwhile."""
    seen: dict[str, Memory] = {}
    done = asyncio.Event()

    async def write(at: int) -> None:
        store = openings[at % len(openings)]
        (one,) = await put(store, memory(f"{at}"))
        for number in range(EACH):
            (one,) = await put(store, replace(one, content=f"{at}.{number}"))

    async def read() -> None:
        version = 0
        while True:
            ended = done.is_set()
            page = await openings[0].memories(ANN, since=version, limit=1000)
            assert all(version < one.version <= page.version for one in page.memories)
            seen.update((one.id, one) for one in page.memories)
            version = page.version
            if ended:
                return
            await asyncio.sleep(0)

    async def all_written() -> None:
        await _together(*(write(at) for at in range(10)))
        done.set()

    await _together(read(), all_written())
    assert sorted(seen.values(), key=lambda one: one.number) == await all_of(openings[-1])


async def test_owners_are_written_concurrently(openings: list[Store]) -> None:
    """Users, agents and the tenant: none waits for ever, each has its own, all are listed; what is dropped was there."""
    owners = [
        Owner("app"),
        *(Owner("user", f"u{at}") for at in range(4)),
        *(Owner("agent", f"u{at}") for at in range(4)),
    ]
    dropped: list[int] = []

    async def write(at: int, owner: Owner) -> None:
        for number in range(EACH):
            store = openings[(at + number) % len(openings)]
            (one,) = await put(store, memory(f"{number}", owner), owner=owner)
            assert at == 0 or (await store.find_memory(one.id)).owner == owner
            if number % 2:
                await forget(store, one, owner=owner)

    async def drop() -> None:
        for _ in range(5):
            dropped.append(await openings[0].drop_memories(owners[0]))
            await asyncio.sleep(0)

    await _together(drop(), *(write(at, owner) for at, owner in enumerate(owners)))
    there = [owners[0]] if (await openings[-1].memories(owners[0])).version else []
    assert [owner for owner, _ in await openings[-1].memory_owners()] == sorted([*there, *owners[1:]])
    for owner in owners[1:]:
        first, *rest = [one.number for one in await all_of(openings[-1], owner)]
        assert [number - first for number in rest] == [2, 4]


async def test_a_write_of_memories_cancelled_at_any_await_is_complete_or_absent(store: Store) -> None:
    """Never half, and not twice; the next one goes on from there."""

    def act(owner: Owner, old: Memory, new: Memory) -> Coroutine[Any, Any, object]:
        delta = MemoryDelta(
            put=(new,), forget=(old.id,), signals=(signal(new),), diary=(DiaryEntry(id="d", at=1, report={}),)
        )
        return store.change_memories(owner, delta, timestamp=3)

    async def run(owner: Owner, old: Memory, new: Memory, at: int, *, late: bool) -> object:
        return await cut(act(owner, old, new), at, late=late)

    for late in (False, True):
        for at in range(MOST_AWAITS):
            owner = Owner("user", f"{late} {at}")
            (old,) = await put(store, memory("old", owner), owner=owner)
            new = memory("new", owner)
            (outcome,) = await asyncio.gather(run(owner, old, new, at, late=late), return_exceptions=True)
            # What was given up may be done still: the next write of the owner comes behind it.
            (last,) = await put(store, memory("last", owner), owner=owner)
            found = await store.memories(owner)
            done = [one.content for one in found.memories] == ["new", "last"]
            assert done or [one.content for one in found.memories] == ["old", "last"]
            assert (found.version, found.total, last.number) == (2 + done, 2, 2 + done)
            assert (len(await store.signals(owner)), len(await store.diary(owner))) == (done, done)
            for one, there in ((old, not done), (new, done)):
                assert await _is_there(store, one) == there
            if not isinstance(outcome, BaseException):
                break
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            raise AssertionError(f"it still awaits something after {MOST_AWAITS} awaits")


async def _is_there(store: MemoryStore, one: Memory) -> bool:
    try:
        return (await store.find_memory(one.id)).content == one.content
    except MemoryNotFound:
        return False


async def test_acknowledged_memories_survive_kill_9(store_opener: OpenStore, writer: Writer) -> None:
    """Round after round a writer is killed in the middle: what it was told is there, and each write is whole."""
    said: set[str] = set()
    for round_ in range(3):
        process = writer(f"MEMORIES.{round_}", 100_000)
        assert process.stdout is not None
        heard = "".join(process.stdout.readline() for _ in range(1 + 20 * round_))
        process.kill()
        out, err = process.communicate(timeout=120)
        assert err == ""
        lines = heard + out
        said |= set(lines[: lines.rfind("\n") + 1].split())
        store = await store_opener()
        while True:  # what the dead process had begun, a server may still end
            found = await all_of(store)
            signals = await store.signals(ANN)
            if (await store.memories(ANN)).version == len(found) == len(signals):
                break
        assert [one.number for one in found] == [one.version for one in found] == list(range(1, len(found) + 1))
        assert said <= {one.id for one in found}
        assert [one.memory_id for one in signals] == [one.id for one in found]
        for one in found[-3:]:
            assert await store.find_memory(one.id) == one
        assert [owner for owner, _ in await store.memory_owners()] == [ANN]
    assert len(said) > 50

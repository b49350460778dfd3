"""Walks find unreported changes, interrupted rebuilds continue, and a process killed at any point loses nothing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.domain.session import SessionRef
from holdfast.holdfast import get_milliseconds
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall.base import Lookup, Space
from tests.service.index_kit import Bench, bench
from tests.waits import until

REFS = [SessionRef("ada", f"s{number}") for number in range(5)]
SPACE = Space("talk", "ada")


async def make_sessions(one: Bench, refs: list[SessionRef] = REFS, **more: Any) -> None:
    """Create sessions in a process without an index."""
    for ref in refs:
        await one.make(ref, f"tea for {ref.id}", "yes", store=one.elsewhere, **more)


# -- walks -----------------------------------------------------------------------


async def test_whole_walk_finds_deletions_and_erasures() -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        one.time += 3 * INDEX_MARGIN
        await one.service.walk()
        await one.elsewhere.remove(REFS[0])
        await one.elsewhere.erase(REFS[1], 0)
        one.time += INDEX_WHOLE_WALK
        walked = await one.service.walk()
        assert (walked.whole, walked.dropped) == (True, 1)
        await one.check(REFS)


# -- rebuilds ----------------------------------------------------------------------


async def _run_lookups(one: Bench) -> list[Any]:
    lookups = [Lookup(space=SPACE, terms=("tea",)), Lookup(space=SPACE)]
    return [await one.index.lookup(each) for each in lookups]


def _are_equal(before: list[Any], after: list[Any]) -> bool:
    def plain(answers: list[Any]) -> list[Any]:
        return [
            (each.documents, each.length, each.frequencies, sorted((one.session, one.seq) for one in each.found))
            for each in answers
        ]

    return plain(before) == plain(after)


async def test_rebuilt_index_gives_the_same_answers() -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        before = await _run_lookups(one)
        await one.index.clear()
        done: list[tuple[int, int]] = []
        rebuilt = await one.service.rebuild(progress=lambda *told: done.append(told))
        assert (rebuilt.sessions, rebuilt.entries) == (5, 10)
        assert done == [(number, 5) for number in range(1, 6)]
        assert _are_equal(before, await _run_lookups(one))
        await one.check(REFS)


# -- memories ------------------------------------------------------------------------

OWNER = Owner("user", "ada")


def make_memory(name: int, **more: Any) -> Memory:
    """Create a memory that is not stored yet."""
    fields = {"owner": OWNER, "content": f"likes tea {name}", "created_at": 1, "updated_at": name}
    return Memory(id=f"mem_{name:032x}", **{**fields, **more})


async def _put(one: Bench, *memories: Memory, **more: Any) -> list[Memory]:
    delta = MemoryDelta(put=memories, **more)
    done = await one.elsewhere.change_memories(OWNER, delta, timestamp=one.time)
    return list(done.memories)


async def _list_indexed(one: Bench) -> list[int]:
    return [seq for seq, _ in await one.index.list_digests(Space("user", "ada"), "")]


async def test_memory_forgotten_during_an_update_is_not_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench() as one:
        first, second = await _put(one, make_memory(0), make_memory(1))
        await one.service.index_memories(OWNER)
        await _put(one, make_memory(0, number=first.number, content="likes tea and coffee"))
        read, other = one.elsewhere.memories, one.another()

        async def forget_after_read(*args: Any, **more: Any) -> Any:
            page = await read(*args, **more)
            monkeypatch.setattr(one.elsewhere, "memories", read)
            await _put(one, forget=(first.id,))
            await other.index_memories(OWNER, gone=[first.number])
            return page

        monkeypatch.setattr(one.elsewhere, "memories", forget_after_read)
        await one.service.index_memories(OWNER)
        assert await _list_indexed(one) == [second.number]
        await other.close()


# -- kill -9 ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["feed", "rebuild"])
async def test_process_killed_at_any_point_loses_nothing(tmp_path: Path, what: str) -> None:
    store, index = f"sqlite:///{tmp_path}/chat.db", f"sqlite:///{tmp_path}/chat.index.db"
    script = Path(__file__).with_name("indexing_process.py")
    for number in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), what, store, str(number), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(2 + 3 * number):
            assert await process.stdout.readline(), "the process ended by itself"
        process.kill()
        await process.communicate()
    async with bench(store, index) as one:
        one.time = get_milliseconds() + 120_000  # a process killed during a walk keeps its lease for a minute
        await one.service.walk()

        async def is_rebuilt() -> bool:
            return (await one.service.status()).rebuilding is None

        await until(is_rebuilt)
        page = await one.elsewhere.list(limit=1000)
        assert page.sessions
        await one.check([session.ref for session in page.sessions])
        assert (await one.index.status()).sources == len(page.sessions)

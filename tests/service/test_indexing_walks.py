"""What nobody told is found by looking, a rebuild that is cut off goes on, and a process that dies anywhere loses nothing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.domain.session import SessionRef
from holdfast.holdfast import milliseconds
from holdfast.indexes import rebuild
from holdfast.indexes.sources import mark_progress
from holdfast.indexes.throttle import Leases
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall import terms
from holdfast.recall.base import Batch, Lookup, Source, Space
from tests.service.index_kit import TENANT, Bench, bench
from tests.waiting import until

REFS = [SessionRef("ada", f"s{number}") for number in range(5)]
SPACE = Space("talk", "ada")


async def some(one: Bench, refs: list[SessionRef] = REFS, **more: Any) -> None:
    """Sessions, made where there is no index."""
    for ref in refs:
        await one.make(ref, f"tea for {ref.id}", "yes", store=one.elsewhere, **more)


# -- walks -----------------------------------------------------------------------


async def test_the_first_walk_takes_in_a_store_that_is_older_than_its_index() -> None:
    async with bench() as one:
        await some(one)
        walked = await one.service.walk()
        assert (walked.sessions, walked.entries, walked.whole) == (5, 10, True)
        await one.check(REFS)
        assert (await one.service.walk()).sessions == 0


async def test_a_walk_looks_at_what_has_changed_since_the_last_one_alone() -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()
        one.time += 2 * INDEX_MARGIN
        await one.service.walk()
        one.time += 2 * INDEX_MARGIN
        await one.say(REFS[2], "coffee", store=one.elsewhere)
        looked: list[str] = []
        progress = one.index.progress

        async def noted(space: Space, source_id: str) -> Any:
            looked.append(source_id)
            return await progress(space, source_id)

        one.index.progress = noted  # type: ignore[method-assign]
        assert (await one.service.walk()).sessions == 1
        assert set(looked) == {"s2"}


async def test_what_a_walk_cannot_see_a_whole_one_does() -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()
        one.time += 3 * INDEX_MARGIN
        await one.service.walk()
        await one.elsewhere.remove(REFS[0])
        await one.elsewhere.erase(REFS[1], 0)
        one.time += INDEX_WHOLE_WALK
        walked = await one.service.walk()
        assert (walked.whole, walked.dropped) == (True, 1)
        await one.check(REFS)


async def test_one_process_walks_at_a_time() -> None:
    async with bench() as one:
        await some(one)
        other = one.another()
        walked = await asyncio.gather(one.service.walk(), other.walk())
        assert sorted(each.sessions for each in walked) == [0, 5]
        await other.close()


async def test_processes_that_name_a_new_index_at_once_give_it_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would have leases of its own: all of them would walk over it, and embed for it, at once."""
    async with bench() as one:
        theirs, asked, go_on = one.index.for_tenant(TENANT), asyncio.Event(), asyncio.Event()
        keep = theirs.keep_note

        async def late(*args: Any, **more: Any) -> None:
            asked.set()
            await go_on.wait()
            await keep(*args, **more)

        monkeypatch.setattr(theirs, "keep_note", late)
        other = asyncio.create_task(Leases(one.elsewhere, theirs, "other", lambda: one.time).get_name())
        await asked.wait()
        name = await Leases(one.elsewhere, one.index, "one", lambda: one.time).get_name()
        go_on.set()
        assert await other == name


async def test_a_source_that_a_dead_process_was_at_is_looked_at_again() -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()
        one.time += 3 * INDEX_MARGIN
        await one.service.walk()
        # It died between marking the source and erasing the entry, and behind the erasure of another.
        await one.elsewhere.erase(REFS[1], 0)
        for ref in REFS[:2]:
            known = await one.index.progress(SPACE, ref.id)
            assert known is not None
            source = Source(ref.id, known.identity)
            await one.index.write(SPACE, Batch(source=source, progress=mark_progress(known), expect=known))
        assert (await one.index.status()).incomplete == 2
        await one.another().walk()
        assert (await one.index.status()).incomplete == 0
        await one.check(REFS)


async def test_status_tells_how_far_the_index_is_behind() -> None:
    async with bench() as one:
        await some(one)
        report = await one.service.status()
        assert (report.behind, report.entries_behind, report.sources) == (5, 10, 0)
        await one.service.walk()
        one.time += 5_000
        report = await one.service.status()
        assert (report.behind, report.lag, report.sources, report.documents) == (0, 0, 5, 10)
        await one.say(REFS[0], "coffee", store=one.elsewhere)
        one.time += 7_000
        report = await one.service.status()
        assert (report.behind, report.entries_behind, report.lag) == (1, 1, 7_000)


# -- rebuilds ----------------------------------------------------------------------


async def _answers(one: Bench) -> list[Any]:
    lookups = [Lookup(space=SPACE, terms=("tea",)), Lookup(space=SPACE)]
    return [await one.index.lookup(each) for each in lookups]


def _same(before: list[Any], after: list[Any]) -> bool:
    def plain(answers: list[Any]) -> list[Any]:
        return [
            (each.documents, each.length, each.frequencies, sorted((one.session, one.seq) for one in each.found))
            for each in answers
        ]

    return plain(before) == plain(after)


async def test_an_index_that_was_cleared_answers_the_same_when_it_is_made_anew() -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()
        before = await _answers(one)
        await one.index.clear()
        done: list[tuple[int, int]] = []
        rebuilt = await one.service.rebuild(progress=lambda *told: done.append(told))
        assert (rebuilt.sessions, rebuilt.entries) == (5, 10)
        assert done == [(number, 5) for number in range(1, 6)]
        assert _same(before, await _answers(one))
        await one.check(REFS)


async def test_what_is_there_answers_while_it_is_made_anew() -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()
        before = await _answers(one)
        during: list[bool] = []
        write = one.index.write

        async def looked_at(*args: Any) -> Any:
            during.append(_same(before, await _answers(one)))
            return await write(*args)

        one.index.write = looked_at  # type: ignore[assignment, method-assign]
        await one.service.rebuild()
        assert during
        assert all(during)


async def test_a_rebuild_that_was_cut_off_goes_on_where_it_was() -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()

        def cut_off(done: int, _: int) -> None:
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await one.service.rebuild(progress=cut_off)
        other = one.another()
        assert (await other.status()).rebuilding is not None
        rebuilt = await other.rebuild()
        assert (rebuilt.resumed, rebuilt.entries) == (True, 4)
        assert (await other.status()).rebuilding is None
        assert (await other.rebuild()).entries == 10
        await one.check(REFS)


async def test_a_walk_goes_on_with_a_rebuild_whose_process_is_gone() -> None:
    async with bench() as one:
        await some(one)

        def cut_off(*_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await one.service.rebuild(user="ada", progress=cut_off)
        await one.another().walk()
        assert (await one.service.status()).rebuilding is None


async def test_a_rebuild_of_a_user_or_a_session_touches_nothing_else() -> None:
    async with bench() as one:
        bob = SessionRef("bob", "s0")
        await some(one, [*REFS, bob])
        await one.service.walk()
        assert (await one.service.rebuild(user="bob")).sessions == 1
        assert (await one.service.rebuild(user="ada", session="s3")).sessions == 1
        assert (await one.service.rebuild(session="s4")).sessions == 1
        epochs = [(await one.index.progress(SPACE, ref.id)).epoch for ref in REFS]  # type: ignore[union-attr]
        assert epochs == [0, 0, 0, 2, 3]
        await one.check([*REFS, bob])


async def test_another_version_of_the_analysis_makes_the_index_anew_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench() as one:
        await some(one)
        await one.service.walk()
        monkeypatch.setattr(rebuild, "VERSION", terms.VERSION + 1)
        await one.service.walk()
        epochs = {(await one.index.progress(SPACE, ref.id)).epoch for ref in REFS}  # type: ignore[union-attr]
        assert epochs == {1}
        assert "older version" in caplog.text
        caplog.clear()
        await one.service.walk()
        assert "older version" not in caplog.text


# -- memories ------------------------------------------------------------------------

OWNER = Owner("user", "ada")


def memory(name: int, **more: Any) -> Memory:
    """A memory about to be put."""
    fields = {"owner": OWNER, "content": f"likes tea {name}", "created_at": 1, "updated_at": name}
    return Memory(id=f"mem_{name:032x}", **{**fields, **more})


async def _put(one: Bench, *memories: Memory, **more: Any) -> list[Memory]:
    delta = MemoryDelta(put=memories, **more)
    done = await one.elsewhere.change_memories(OWNER, delta, timestamp=one.time)
    return list(done.memories)


async def _held(one: Bench) -> list[int]:
    return [seq for seq, _ in await one.index.list_digests(Space("user", "ada"), "")]


async def test_memories_come_and_go_with_their_owners_version() -> None:
    async with bench() as one:
        first, second, third = await _put(one, *(memory(number) for number in range(3)))
        await one.service.index_memories(OWNER)
        assert await _held(one) == [first.number, second.number, third.number]
        found = await one.index.lookup(Lookup(space=Space("user", "ada"), terms=("tea",)))
        assert [each.seq for each in found.found] == [first.number, second.number, third.number]
        gone = MemoryDelta(forget=(first.id,))
        await one.elsewhere.change_memories(OWNER, gone, timestamp=one.time)
        await one.service.index_memories(OWNER)
        assert await _held(one) == [second.number, third.number]
        gone = MemoryDelta(forget=(second.id,))
        await one.elsewhere.change_memories(OWNER, gone, timestamp=one.time)
        await one.service.index_memories(OWNER, gone=[second.number])
        assert await _held(one) == [third.number]


async def test_what_has_changed_of_an_owner_is_taken_in_by_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """So of any number of processes that take in the same owner one gets through, and the others find it done."""
    async with bench() as one:
        write, written = one.index.write, []

        async def counted(space: Space, batch: Batch) -> bool:
            written.append(batch)
            return await write(space, batch)

        monkeypatch.setattr(one.index, "write", counted)
        first, second, third = await _put(one, *(memory(number) for number in range(3)))
        await one.service.index_memories(OWNER)
        fourth = (await _put(one, memory(4), forget=(first.id,)))[-1]
        await one.service.index_memories(OWNER, gone=[first.number])
        await _put(one, memory(2, number=third.number, status="superseded"), forget=(second.id,))
        await one.service.index_memories(OWNER)
        await one.service.index_memories(OWNER)
        assert await _held(one) == [fourth.number]
        assert len(written) == 3


async def test_a_memory_that_was_forgotten_while_it_was_taken_in_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench() as one:
        first, second = await _put(one, memory(0), memory(1))
        await one.service.index_memories(OWNER)
        await _put(one, memory(0, number=first.number, content="likes tea and coffee"))
        read, other = one.elsewhere.memories, one.another()

        async def forgotten_behind(*args: Any, **more: Any) -> Any:
            page = await read(*args, **more)
            monkeypatch.setattr(one.elsewhere, "memories", read)
            await _put(one, forget=(first.id,))
            await other.index_memories(OWNER, gone=[first.number])
            return page

        monkeypatch.setattr(one.elsewhere, "memories", forgotten_behind)
        await one.service.index_memories(OWNER)
        assert await _held(one) == [second.number]
        await other.close()


@pytest.mark.parametrize("status", ["superseded", "rejected"])
async def test_memories_that_are_not_recalled_are_not_in_the_index(status: Any) -> None:
    async with bench() as one:
        (first,) = await _put(one, memory(1))
        await one.service.index_memories(OWNER)
        await _put(one, memory(1, number=first.number, status=status))
        await one.service.index_memories(OWNER)
        assert await _held(one) == []
        await _put(one, memory(1, number=first.number, status="quarantined", content="likes coffee"))
        await one.service.index_memories(OWNER)
        assert await _held(one) == [first.number]


async def test_many_memories_are_taken_in_whatever_was_forgotten_meanwhile() -> None:
    async with bench() as one:
        put = [each for at in range(0, 300, 100) for each in await _put(one, *map(memory, range(at, at + 100)))]
        await one.service.index_memories(OWNER)
        forgotten = put[::3]
        await _put(one, memory(1000), forget=tuple(each.id for each in forgotten))
        await one.service.index_memories(OWNER)
        there = await one.elsewhere.memories(OWNER, limit=1000)
        assert await _held(one) == [each.number for each in there.memories]


async def test_a_whole_walk_and_a_rebuild_take_in_memories_and_a_user_who_goes_takes_them_along() -> None:
    async with bench() as one:
        await _put(one, memory(1))
        await one.service.walk(whole=True)
        assert len(await _held(one)) == 1
        await one.index.clear()
        assert (await one.service.rebuild()).owners == 1
        assert len(await _held(one)) == 1
        await one.service.forget_user("ada")
        assert await _held(one) == []


# -- kill -9 ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["feed", "rebuild"])
async def test_a_process_that_is_killed_anywhere_loses_nothing(tmp_path: Path, what: str) -> None:
    store, index = f"sqlite:///{tmp_path}/chat.db", f"sqlite:///{tmp_path}/chat.index.db"
    script = Path(__file__).with_name("indexing_process.py")
    for number in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), what, store, str(number), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(2 + 3 * number):
            assert await process.stdout.readline(), "it ended by itself"
        process.kill()
        await process.communicate()
    async with bench(store, index) as one:
        one.time = milliseconds() + 120_000  # who was killed while it walked has the lease for a minute
        await one.service.walk()

        async def rebuilt() -> bool:
            return (await one.service.status()).rebuilding is None

        await until(rebuilt)
        page = await one.elsewhere.list(limit=1000)
        assert page.sessions
        await one.check([session.ref for session in page.sessions])
        assert (await one.index.status()).sources == len(page.sessions)

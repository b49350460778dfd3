"""Walks find unreported changes, interrupted rebuilds continue, and a process killed at any point loses nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.domain.session import SessionRef
from holdfast.holdfast import get_milliseconds
from holdfast.indexes import scan
from holdfast.indexes.throttle import read_name
from holdfast.limits import INDEX_MARGIN, INDEX_WHOLE_WALK
from holdfast.recall import terms
from holdfast.recall.base import Lookup, Space
from tests.service.index_kit import TENANT, Bench, bench
from tests.waits import until

REFS = [SessionRef("ada", f"s{number}") for number in range(5)]
SPACE = Space("talk", "ada")


async def make_sessions(one: Bench, refs: list[SessionRef] = REFS, **more: Any) -> None:
    """Create sessions in a process without an index."""
    for ref in refs:
        await one.make(ref, f"tea for {ref.id}", "yes", store=one.elsewhere, **more)


# -- walks -----------------------------------------------------------------------


async def test_walk_reads_only_sessions_changed_since_the_last_one() -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        one.time += 2 * INDEX_MARGIN
        await one.service.walk()
        one.time += 2 * INDEX_MARGIN
        await one.say(REFS[2], "coffee", store=one.elsewhere)
        looked: list[str] = []
        progress = one.index.progress

        async def record(space: Space, source_id: str) -> Any:
            looked.append(source_id)
            return await progress(space, source_id)

        one.index.progress = record  # type: ignore[method-assign]
        assert (await one.service.walk()).sessions == 1
        assert set(looked) == {"s2"}


async def test_whole_walk_finds_deletions_and_erasures() -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        one.time += 3 * INDEX_MARGIN
        await one.service.walk()
        await one.service.forget_index()  # as for an index that was not in use for long
        await one.elsewhere.remove(REFS[0])
        await one.elsewhere.erase(REFS[1], 0)
        one.time += INDEX_WHOLE_WALK
        walked = await one.service.walk()
        assert (walked.whole, walked.dropped) == (True, 1)
        await one.check(REFS)


async def test_only_one_process_walks_at_a_time() -> None:
    async with bench() as one:
        await make_sessions(one)
        other = one.another()
        walked = await asyncio.gather(one.service.walk(), other.walk())
        assert sorted(each.sessions for each in walked) == [0, 5]
        await other.close()


async def test_concurrent_processes_agree_on_the_name_of_a_new_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each would have its own leases, and all would walk and embed at once."""
    async with bench() as one:
        await one.index.keep_note("name", None)
        theirs, asked, go_on = one.index.for_tenant(TENANT), asyncio.Event(), asyncio.Event()
        keep = theirs.keep_note

        async def write_late(*args: Any, **more: Any) -> None:
            asked.set()
            await go_on.wait()
            await keep(*args, **more)

        monkeypatch.setattr(theirs, "keep_note", write_late)
        other = asyncio.create_task(read_name(theirs))
        await asked.wait()
        name = await read_name(one.index)
        go_on.set()
        assert await other == name


async def test_status_reports_the_lag_of_the_index() -> None:
    async with bench() as one:
        await make_sessions(one)
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


async def test_lookups_work_during_a_rebuild() -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        before = await _run_lookups(one)
        during: list[bool] = []
        write = one.index.write

        async def compare_and_write(*args: Any) -> Any:
            during.append(_are_equal(before, await _run_lookups(one)))
            return await write(*args)

        one.index.write = compare_and_write  # type: ignore[assignment, method-assign]
        await one.service.rebuild()
        assert during
        assert all(during)


async def test_walk_resumes_the_rebuild_of_a_dead_process() -> None:
    async with bench() as one:
        await make_sessions(one)

        def interrupt(*_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await one.service.rebuild(user="ada", progress=interrupt)
        await one.another().walk()
        assert (await one.service.status()).rebuilding is None


async def test_new_analyzer_version_rebuilds_the_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        monkeypatch.setattr(scan, "VERSION", terms.VERSION + 1)
        await one.service.walk()
        epochs = {(await one.index.progress(SPACE, ref.id)).epoch for ref in REFS}  # type: ignore[union-attr]
        assert epochs == {1}
        assert "older version" in caplog.text
        caplog.clear()
        await one.service.walk()
        assert "older version" not in caplog.text


async def _change_notes(one: Bench, **changes: Any) -> dict[str, Any]:
    """Change the stored state of rebuilds, as another release would. Return it."""
    notes: dict[str, Any] = {**json.loads(await one.index.note(scan.REBUILDS) or b"{}"), **changes}
    await one.index.keep_note(scan.REBUILDS, json.dumps(notes).encode())
    return notes


async def test_index_of_a_newer_release_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as one:
        await make_sessions(one)
        await one.service.walk()
        await _change_notes(one, version=terms.VERSION + 1)
        await one.service.walk()
        assert "older version" not in caplog.text
        assert (await _change_notes(one))["version"] == terms.VERSION + 1


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
            await other.index_memories(OWNER)
            return page

        monkeypatch.setattr(one.elsewhere, "memories", forget_after_read)
        await one.service.index_memories(OWNER)
        await one.service.apply_removals()
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

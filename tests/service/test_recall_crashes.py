"""Processes that feed one index and crash, on every store: committed text is found once, and removed text is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.domain.memory import Owner
from holdfast.domain.session import Entry
from holdfast.holdfast import Holdfast
from holdfast.indexes import sources
from holdfast.recall.base import Lookup, Space
from holdfast.recall.terms import extract_terms
from tests.service.crashing_process import USER, WORD
from tests.service.recall_kit import (
    LetterEmbedder,
    Place,
    add_conversations,
    recall_all,
    search_all,
    service,
)

SPACE, MEMORIES = Space("talk", USER), Owner("user", USER)
LATER = 2_000_000_000_000
"""When leases of the dead have run out."""
KILLED = -signal.SIGALRM
DEATHS = (
    *(("feed", write, after) for write, after in ((0, 0), (1, 500), (2, 2000), (3, 4000), (5, 0), (6, 1000))),
    *(("feed", write, after) for write, after in ((8, 300), (10, 3000), (12, 0))),
    *(("remember", write, after) for write, after in ((1, 0), (4, 1000))),
)
"""What jobs die at: in which write, and how many microseconds behind its beginning; before anything is asked, in the middle, behind it."""


class FindableEntry:
    """The output and the exit codes of jobs."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []
        self.ended: list[int] = []

    def all(self, *verbs: str) -> list[str]:
        """Return the reported words for these verbs, in order."""
        return [word for verb, *words in self.lines if verb in verbs for word in words]

    def put(self) -> list[tuple[str, int]]:
        """Return the sources and positions that were put into the index."""
        return [(words[0], int(seq)) for verb, *words in self.lines if verb == "put" for seq in words[1:]]


class Jobs:
    """Runs jobs in other processes; see `crashing_process`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.service.crashing_process"]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)

    async def wait_for_jobs(self, place: Place, *jobs: dict[str, Any]) -> FindableEntry:
        """Return when the jobs have ended and all connections are closed."""
        said = await anyio.to_thread.run_sync(partial(self._wait_for_jobs, place, jobs))
        await place.behind()
        return said

    def _wait_for_jobs(self, place: Place, jobs: tuple[dict[str, Any], ...]) -> FindableEntry:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        where = {"store": place.url, "index": place.index}
        for job in (*(where | one for one in jobs), {"wait": True}):
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        said = FindableEntry()
        for line in self._process.stdout:
            verb, *words = line.decode().split()
            if verb == "ended":
                said.ended = [int(word) for word in words]
                return said
            said.lines.append([verb, *words])
        raise AssertionError("it ended by itself")

    def close(self) -> None:
        """End the parent process of the jobs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Started once; only its forks crash."""
    made = Jobs()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "INDEX_PAGE", 4)


# -- invariants ----------------------------------------------------------------------


async def positions_by_name(hf: Holdfast, *, retired: bool = False) -> dict[str, list[tuple[str, int]]]:
    """Return the positions of each name in the logs; see `crashing_process.written`."""
    found: dict[str, list[tuple[str, int]]] = {}
    for session in (await hf.sessions(limit=1000)).sessions:
        entries: tuple[Entry, ...] = await hf.store.entries(session.ref, retired=retired)
        for entry in entries:
            if not entry.erased:
                found.setdefault(entry.message.text.split()[-1], []).append((session.id, entry.seq))
    return found


async def check_all_found_once(hf: Holdfast, gone: set[str] = frozenset()) -> None:  # type: ignore[assignment]  # nothing
    """Check that everything in the logs is found exactly once and that nothing removed is in the index."""
    logs, index = await positions_by_name(hf), service(hf).index
    assert logs.keys().isdisjoint(gone)
    for names in (sorted(logs), sorted(gone)):
        for at in range(0, len(names), 50):
            some = {name: next(iter(extract_terms(name).counts)) for name in names[at : at + 50]}
            answer = await index.lookup(Lookup(space=SPACE, terms=tuple(some.values())))
            for name, term in some.items():
                places = [(one.session, one.seq) for one in answer.found if term in one.counts]
                assert places == logs.get(name, []), name
                assert answer.frequencies.get(term, 0) == len(places), name
    everything = Counter(place for places in logs.values() for place in places)
    assert Counter(await _search_all(hf, WORD)) == everything
    assert max(everything.values()) == 1
    for name in sorted(logs)[::7]:
        assert (await _search_all(hf, name))[:1] == logs[name]  # the rest of the line are its neighbours


async def _search_all(hf: Holdfast, query: str) -> list[tuple[str, int]]:
    """Return all hits, page by page."""
    found: list[tuple[str, int]] = []
    page = await hf.search(query, USER, limit=100)
    while True:
        found += [(hit.session_id, hit.seq) for hit in page.hits]
        if page.cursor is None:
            return found
        page = await hf.search(query, USER, limit=100, after=page.cursor)


async def check_memories(hf: Holdfast, said: set[str], going: set[str], gone: set[str]) -> None:
    """Check memories in the same way."""
    there = {one.id: one for one in (await hf.store.memories(MEMORIES, limit=1000)).memories}
    found = [one.memory.id for one in (await hf.memories.recall(WORD, user_id=USER, limit=100)).found]
    held = [seq for seq, _ in await service(hf).index.list_digests(Space("user", USER), "")]
    assert said - going <= there.keys()
    assert there.keys().isdisjoint(gone)
    assert sorted(found) == sorted(one.id for one in there.values() if WORD in one.content)
    assert held == sorted(one.number for one in there.values())


# -- feeding --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
async def test_committed_text_is_found_once_wherever_a_feeder_crashed(place: Place, jobs: Jobs) -> None:
    some: list[dict[str, Any]] = [
        {"do": do, "name": f"n{at}", "write": write, "after": after} for at, (do, write, after) in enumerate(DEATHS)
    ]
    some.append({"do": "feed", "name": "lives"})
    told = [await jobs.wait_for_jobs(place, *some[at : at + 2]) for at in range(0, len(some), 2)]
    assert [code for said in told for code in said.ended] == [*[KILLED] * len(DEATHS), 0]
    place.clock.now = LATER
    said, going, gone, remembered, forgetting, forgotten = (
        {word for one in told for word in one.all(verb)}
        for verb in ("said", "going", "gone", "remembered", "forgetting", "forgotten")
    )
    async with place.server() as hf:
        await service(hf).walk()
        await service(hf).settled()
        report = await service(hf).status()
        assert (report.behind, report.incomplete, report.last_error) == (0, 0, None)
        assert said - going <= (await positions_by_name(hf)).keys()
        assert gone
        await check_all_found_once(hf, gone)
        assert remembered
        await check_memories(hf, remembered, forgetting, forgotten)
    await place.check()


# -- rebuilding -----------------------------------------------------------------------


BRASS = ("brass", "key3", "which key is made of brass?")


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_rebuild_continues_after_a_crash_and_search_results_stay_the_same(place: Place, jobs: Jobs) -> None:
    place.clock.now = LATER
    async with place.server() as hf:
        await add_conversations(hf, USER)
        for number in range(6):
            session = await hf.session(f"s{number}", user_id=USER)
            await session.append([{"role": "user", "content": f"the gate code of {number} {at}"} for at in range(6)])
            await hf.memories.remember(f"key{number} is made of brass {number}", user_id=USER)
        await service(hf).settled()
        before = await search_all(hf, USER, neighbours=2), await recall_all(hf, BRASS)
        assert all(before[0])
        assert all(before[1])
    done: set[str] = set()
    for go in range(20):
        said = await jobs.wait_for_jobs(place, {"do": "rebuild", "write": 4 + go % 3, "after": 500 * (go % 4)})
        made = list(dict.fromkeys(source for source, _ in said.put()))
        assert done.isdisjoint(made)
        done |= set(made[:-1])
        async with place.server() as hf:
            assert (await search_all(hf, USER, neighbours=2), await recall_all(hf, BRASS)) == before
            running = (await service(hf).status()).rebuilding
        if said.ended == [0]:
            break
        assert said.ended == [KILLED]
        assert running is not None
    assert go > 2
    assert running is None
    await place.check()


# -- concurrency ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
async def test_concurrent_feeders_index_each_entry_once(place: Place, jobs: Jobs) -> None:
    names = ("x", "y", "z")
    said = await jobs.wait_for_jobs(place, *({"do": "talk", "name": name, "vectors": True} for name in names))
    assert said.ended == [0, 0, 0]
    place.clock.now = LATER
    embedder = LetterEmbedder()
    async with place.server(index={"embedder": embedder}) as hf:
        logs = await positions_by_name(hf)
        assert logs.keys() == set(said.all("said"))
        assert sorted(said.put()) == sorted(place for places in logs.values() for place in places)
        await check_all_found_once(hf)
        await service(hf).walk()
        await service(hf).settled()
        embedded = [text for text in (*said.all("embedded"), *" ".join(embedder.given).split()) if text != WORD]
        assert sorted(embedded) == sorted(logs)
        assert (await service(hf).status()).pending == 0
    await place.check()


@pytest.mark.parametrize("place", ["sqlite", "mysql"], indirect=True)
async def test_memories_of_concurrent_processes_are_all_found(place: Place, jobs: Jobs) -> None:
    said = await jobs.wait_for_jobs(place, *({"do": "remember", "name": name} for name in ("x", "y", "z")))
    assert said.ended == [0, 0, 0]
    assert len(said.all("remembered")) == len(said.all("forgotten")) == 3 * 8
    place.clock.now = LATER
    async with place.server() as hf:
        await check_memories(hf, set(said.all("remembered")), set(), set(said.all("forgotten")))

"""Processes that feed one index and die in the middle of it, on every store: what was committed is found, once, and what went is not."""

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
    everywhere,
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
    """What jobs have said, and how they ended."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []
        self.ended: list[int] = []

    def all(self, *verbs: str) -> list[str]:
        """What they said of that, in order."""
        return [word for verb, *words in self.lines if verb in verbs for word in words]

    def put(self) -> list[tuple[str, int]]:
        """Sources and places that were put into the index."""
        return [(words[0], int(seq)) for verb, *words in self.lines if verb == "put" for seq in words[1:]]


class Jobs:
    """Has jobs done by other processes; see `crashing_process`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.service.crashing_process"]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)

    async def done(self, place: Place, *jobs: dict[str, Any]) -> FindableEntry:
        """Return when jobs that were begun at once have ended, and nobody is connected any more."""
        said = await anyio.to_thread.run_sync(partial(self._done, place, jobs))
        await place.behind()
        return said

    def _done(self, place: Place, jobs: tuple[dict[str, Any], ...]) -> FindableEntry:
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
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Started once: only its forks die."""
    made = Jobs()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "INDEX_PAGE", 4)


# -- what must be so -----------------------------------------------------------------


async def logged(hf: Holdfast, *, retired: bool = False) -> dict[str, list[tuple[str, int]]]:
    """Where the logs have which name; see `crashing_process.written`."""
    found: dict[str, list[tuple[str, int]]] = {}
    for session in (await hf.sessions(limit=1000)).sessions:
        entries: tuple[Entry, ...] = await hf.store.entries(session.ref, retired=retired)
        for entry in entries:
            if not entry.erased:
                found.setdefault(entry.message.text.split()[-1], []).append((session.id, entry.seq))
    return found


async def has_all_once(hf: Holdfast, gone: set[str] = frozenset()) -> None:  # type: ignore[assignment]  # nothing
    """Whatever stands in the logs is found, in its place and nowhere else; of what went nothing is, not even in the index."""
    logs, index = await logged(hf), service(hf).index
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
    assert Counter(await _searched(hf, WORD)) == everything
    assert max(everything.values()) == 1
    for name in sorted(logs)[::7]:
        assert (await _searched(hf, name))[:1] == logs[name]  # behind it come its neighbours


async def _searched(hf: Holdfast, query: str) -> list[tuple[str, int]]:
    """All hits, page by page."""
    found: list[tuple[str, int]] = []
    page = await hf.search(query, USER, limit=100)
    while True:
        found += [(hit.session_id, hit.seq) for hit in page.hits]
        if page.cursor is None:
            return found
        page = await hf.search(query, USER, limit=100, after=page.cursor)


async def remembers(hf: Holdfast, said: set[str], going: set[str], gone: set[str]) -> None:
    """Memories likewise."""
    there = {one.id: one for one in (await hf.store.memories(MEMORIES, limit=1000)).memories}
    found = [one.memory.id for one in (await hf.memories.recall(WORD, user_id=USER, limit=100)).found]
    held = [seq for seq, _ in await service(hf).index.list_digests(Space("user", USER), "")]
    assert said - going <= there.keys()
    assert there.keys().isdisjoint(gone)
    assert sorted(found) == sorted(one.id for one in there.values() if WORD in one.content)
    assert held == sorted(one.number for one in there.values())


# -- feeding --------------------------------------------------------------------------


@everywhere
async def test_what_was_committed_is_found_once_wherever_a_feeder_died(place: Place, jobs: Jobs) -> None:
    some: list[dict[str, Any]] = [
        {"do": do, "name": f"n{at}", "write": write, "after": after} for at, (do, write, after) in enumerate(DEATHS)
    ]
    some.append({"do": "feed", "name": "lives"})
    told = [await jobs.done(place, *some[at : at + 2]) for at in range(0, len(some), 2)]
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
        assert said - going <= (await logged(hf)).keys()
        assert gone
        await has_all_once(hf, gone)
        assert remembered
        await remembers(hf, remembered, forgetting, forgotten)
    await place.check()


# -- rebuilding -----------------------------------------------------------------------


BRASS = ("brass", "key3", "which key is made of brass?")


@everywhere
async def test_a_rebuild_goes_on_where_its_process_died_and_answers_the_same_all_the_while(
    place: Place, jobs: Jobs
) -> None:
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
        said = await jobs.done(place, {"do": "rebuild", "write": 4 + go % 3, "after": 500 * (go % 4)})
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


# -- at once --------------------------------------------------------------------------


@everywhere
async def test_processes_that_feed_one_index_at_once_put_each_entry_once(place: Place, jobs: Jobs) -> None:
    names = ("x", "y", "z")
    said = await jobs.done(place, *({"do": "talk", "name": name, "vectors": True} for name in names))
    assert said.ended == [0, 0, 0]
    place.clock.now = LATER
    embedder = LetterEmbedder()
    async with place.server(index={"embedder": embedder}) as hf:
        logs = await logged(hf)
        assert logs.keys() == set(said.all("said"))
        assert sorted(said.put()) == sorted(place for places in logs.values() for place in places)
        await has_all_once(hf)
        await service(hf).walk()
        await service(hf).settled()
        embedded = [text for text in (*said.all("embedded"), *" ".join(embedder.given).split()) if text != WORD]
        assert sorted(embedded) == sorted(logs)
        assert (await service(hf).status()).pending == 0
    await place.check()


@everywhere
async def test_processes_that_remember_for_one_user_at_once_have_each_memory_found(place: Place, jobs: Jobs) -> None:
    said = await jobs.done(place, *({"do": "remember", "name": name} for name in ("x", "y", "z")))
    assert said.ended == [0, 0, 0]
    assert len(said.all("remembered")) == len(said.all("forgotten")) == 3 * 8
    place.clock.now = LATER
    async with place.server() as hf:
        await remembers(hf, set(said.all("remembered")), set(), set(said.all("forgotten")))

"""Sketches: the nearest of very many vectors in SQLite are those that a scan finds, whatever was written meanwhile, and by whom."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from apsw import sqlite_extra

from holdfast.recall.base import Filters, Index, Lookup, Source, Vectored
from holdfast.recall.vectors import compute_similarities, to_vector
from holdfast.stores import sqlite_nearest
from holdfast.stores.indexes import open_index
from holdfast.stores.sqlite_connection import VECTORS
from holdfast.stores.sqlite_nearest import NearestSearch
from tests.amounts import examples
from tests.contract.index_kit import SPACE, batch, digest_of, document

np: Any = pytest.importorskip("numpy", reason="NumPy is not installed")
pytestmark = pytest.mark.skipif(not sqlite_extra.has(VECTORS), reason="this SQLite does not compare vectors")
DIMENSION = 48
WANTED = 20


def _random(chance: random.Random) -> bytes:
    return to_vector([chance.gauss(0.2, 1) for _ in range(DIMENSION)])


class Bench:
    """Two processes on one index, and what must be in it: vectors by source and number."""

    def __init__(self, indexes: Sequence[Index], seed: int) -> None:
        self.indexes = indexes
        self.chance = random.Random(seed)
        self.held: dict[tuple[str, int], bytes] = {}
        self._texts: dict[tuple[str, int], str] = {}
        self._count = 0

    async def write(self, source: str, seqs: Sequence[int]) -> None:
        """Put documents there, new ones or others, and most of their vectors."""
        index, of = self.chance.choice(self.indexes), Source(source, source)
        for seq in seqs:
            self._count += 1
            self._texts[source, seq] = f"text {self._count}"
            self.held.pop((source, seq), None)
        documents = [document(seq, self._texts[source, seq]) for seq in seqs]
        await index.write(SPACE, batch(*documents, source=of, next_seq=10_000, talk=10_000))
        made = {seq: _random(self.chance) for seq in seqs if self.chance.random() < 0.9}
        await index.put_vectors(
            SPACE, of, "m", [Vectored(seq, digest_of(self._texts[source, seq]), one) for seq, one in made.items()]
        )
        self.held |= {(source, seq): one for seq, one in made.items()}

    async def drop(self, source: str, seqs: Sequence[int]) -> None:
        """Take documents away."""
        of = Source(source, source)
        await self.chance.choice(self.indexes).write(SPACE, batch(source=of, drop=seqs, next_seq=10_000, talk=10_000))
        for seq in seqs:
            self.held.pop((source, seq), None)

    async def check(self, index: Index) -> None:
        """The nearest are found, with their similarities."""
        sought = _random(self.chance)
        exact = dict(zip(self.held, compute_similarities(sought, list(self.held.values()), DIMENSION), strict=True))
        best = sorted(exact, key=lambda one: -exact[one])[:WANTED]
        found = await index.similar(Lookup(space=SPACE, limit=WANTED), "m", sought)
        given = {(one.candidate.session, one.candidate.seq): one.similarity for one in found}
        assert set(best) <= set(given)
        assert [given[one] for one in given] == pytest.approx([exact[one] for one in given], abs=1e-5)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Sketches of few vectors, read in small parts; whether each search went by them."""
    ran: list[bool] = []
    inner = NearestSearch.find

    def record_search(self: NearestSearch, params: Any) -> Any:
        rows = inner(self, params)
        ran.append(rows is not None)
        return rows

    monkeypatch.setattr(NearestSearch, "find", record_search)
    monkeypatch.setattr(sqlite_nearest, "LARGE", 100)
    monkeypatch.setattr(sqlite_nearest, "_READ", 70)
    monkeypatch.setattr(sqlite_nearest, "CANDIDATES", 1000)  # all: what is missed then is not there
    return ran


@pytest.mark.parametrize("seed", range(examples(3)))
async def test_nearest_vectors_equal_those_of_a_scan(
    database: Path, searched: list[bool], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While sketches are made and afterwards, with changes by another process, and when too many were missed."""
    one, two = [await open_index(f"sqlite:///{database}", tenant="acme") for _ in range(2)]
    bench = Bench((one, two), seed)
    for at in range(6):
        await bench.write(f"s{at}", range(40))
    for step in range(30):
        source, kind = f"s{bench.chance.randrange(7)}", bench.chance.random()
        seqs = bench.chance.sample(range(60), bench.chance.randint(1, 12))
        if kind < 0.6:
            await bench.write(source, seqs)
        elif kind < 0.9:
            await bench.drop(source, seqs)
        else:
            await one.drop(SPACE, source)
            bench.held = {key: vector for key, vector in bench.held.items() if key[0] != source}
        if step == 20:
            monkeypatch.setattr(sqlite_nearest, "LOG_CHANGES", 2)
        if step == 22:
            monkeypatch.setattr(sqlite_nearest, "LOG_CHANGES", 20_000)
        if bench.held:
            for index in (one, two):
                await bench.check(index)
    assert True in searched
    assert False in searched
    await one.close()
    await two.close()


async def test_filtered_or_small_spaces_are_scanned(database: Path, searched: list[bool]) -> None:
    index = await open_index(f"sqlite:///{database}", tenant="acme")
    bench = Bench((index,), 1)
    await bench.write("s", range(99))
    lookup = Lookup(space=SPACE, limit=WANTED)
    await index.similar(lookup, "m", _random(bench.chance))
    await bench.write("t", range(200))
    for filters in (Filters(), Filters(sessions=("s",)), Filters(roles=("user",)), Filters(since=5)):
        filtered = Lookup(space=SPACE, limit=WANTED, filters=filters)
        for _ in range(6):
            found = await index.similar(filtered, "m", _random(bench.chance))
        assert filters.sessions == () or {one.candidate.session for one in found} == {"s"}
    assert searched[0] is False
    assert searched[6] is True
    assert not any(searched[7:])
    await index.close()


def test_the_nearest_are_among_the_candidates() -> None:
    """Nearly always, also where a few numbers say most and all vectors lean the same way; fewer candidates than there are."""
    from holdfast.recall.arrays import Sketches

    chance, dimension = np.random.default_rng(1), 384
    spread = np.exp(-np.arange(dimension) * 4 / dimension)
    made = chance.normal(size=(5_000, dimension)) * spread + 2 * spread
    made += chance.normal(size=(50, dimension))[chance.integers(0, 50, 5_000)] * spread
    rows = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype("<f4")
    sketches = Sketches(dimension)
    sketches.put(range(4_000), rows[:4_000].tobytes())
    sketches.put(range(4_000, 4_900), rows[4_000:4_900].tobytes())
    sketches.drop([*range(10), 9_999])
    assert len(sketches) == 4_890
    missed = 0
    for sought in rows[4_900:4_950]:
        near = rows[:4_900] @ sought
        near[:10] = -2
        found = sketches.find_nearest(sought.tobytes(), 500)
        assert len(found) == 500
        missed += len(set(np.argsort(-near)[:20].tolist()).difference(found))
    assert missed <= 0.02 * 20 * 50

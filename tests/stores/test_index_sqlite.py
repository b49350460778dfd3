"""An index in SQLite: what its files hold, which plans it has, and what it does where there is more than it reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest
from apsw import sqlite_extra

from holdfast.errors import InvalidRequest, StoreCorrupt, StoreUnavailable
from holdfast.recall.base import CANDIDATES, Index, Lookup, Source, Space, Vectored
from holdfast.stores.indexes import open_index
from tests.contract.index_kit import SOURCE, SPACE, batch, digest_of, document, feed, look_up, vector

SECRET = "zqxsecret"
"""A word that is nowhere by chance."""


@pytest.fixture
async def index(database: Path) -> Any:
    """One in a file."""
    index = await open_index(f"sqlite:///{database}", tenant="acme")
    yield index
    await index.close()


def _find_files_with(database: Path, *wanted: bytes) -> list[str]:
    """Which of the files hold any of these bytes."""
    files = [database, *database.parent.glob(f"{database.name}-*")]
    return [file.name for file in files for one in wanted if one in file.read_bytes()]


async def _index_text(index: Index, text: str, *, source: Source = SOURCE, space: Space = SPACE) -> bytes:
    """Say it among much else, with a vector that no other has; the bytes of it."""
    texts = [*(f"word{at} x" for at in range(40)), text, *(f"word{at} y" for at in range(40))]
    await feed(index, *texts, source=source, space=space)
    secret = vector(0.123, 0.456, 0.789)
    vectors = [Vectored(at, digest_of(one), secret if one == text else vector(1, 2, 3)) for at, one in enumerate(texts)]
    await index.put_vectors(space, source, "m", vectors)
    return secret


@pytest.mark.parametrize("how", ["drop", "replace", "source", "another"])
async def test_removed_documents_leave_no_trace_in_the_files(index: Index, database: Path, how: str) -> None:
    """Neither its words nor its vector nor what is counted, in the file or the write-ahead log, while all is open."""
    secret = await _index_text(index, f"{SECRET} x")
    other = Space("user", "ann")
    await feed(index, "word1", space=other)
    assert _find_files_with(database, SECRET.encode(), secret)
    if how == "drop":
        await index.write(SPACE, batch(drop=[40], next_seq=81, talk=81))
    elif how == "replace":
        await index.write(SPACE, batch(document(40, "nothing")))
    elif how == "source":
        await index.drop(SPACE, "s1")
    else:
        await index.write(SPACE, batch(document(40, "nothing"), source=Source("s1", "other")))
    assert _find_files_with(database, SECRET.encode(), secret) == []
    assert await look_up(index, SECRET) == []
    assert await look_up(index, "word1", space=other) == [("s1", 0)]


async def test_dropped_vectors_leave_no_trace_in_the_files(index: Index, database: Path) -> None:
    """Nor one that was replaced."""
    secret = await _index_text(index, "once")
    await index.put_vectors(SPACE, SOURCE, "m", [Vectored(40, digest_of("once"), vector(3, 2, 1))])
    await index.write(SPACE, batch(drop=[0]))
    assert _find_files_with(database, secret) == []
    assert _find_files_with(database, vector(3, 2, 1))
    await index.drop_vectors()
    assert _find_files_with(database, vector(3, 2, 1), vector(1, 2, 3)) == []


async def test_the_engine_agrees_with_the_documents(index: Index, database: Path) -> None:
    """After many writes in any order the posting lists are sound, and what the file is full of is known."""
    chance = random.Random(3)
    for _ in range(60):
        source = Source(f"s{chance.randrange(6)}", "i")
        documents = [document(seq, " ".join(chance.choices("abcdefgh", k=4))) for seq in chance.sample(range(30), 5)]
        drop = chance.sample(range(30), 3)
        await index.write(SPACE, batch(*documents, drop=drop, source=source, next_seq=30, talk=30))
    answer = await index.lookup(Lookup(space=SPACE, terms=tuple("abcdefgh")))
    assert len(answer.found) == answer.documents > 50
    raw = apsw.Connection(str(database))
    raw.execute("INSERT INTO index_postings (index_postings) VALUES ('integrity-check')")
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for letter, count in answer.frequencies.items():
        rows = raw.execute(
            "SELECT rowid FROM index_postings WHERE index_postings MATCH ?", (f"t1_{letter}",)
        ).fetchall()
        assert len(rows) == count == sum(letter in one.counts for one in answer.found)
    raw.close()


# -- openings ---------------------------------------------------------


async def test_a_small_space_is_listed_completely_without_terms(index: Index) -> None:
    """All that was said on a day, say: the newest first, and a page of them where somebody asks for no more."""
    count = CANDIDATES + 40
    await feed(index, *(f"word{at}" for at in range(count)))
    assert [one.seq for one in (await index.lookup(Lookup(space=SPACE))).found] == list(reversed(range(count)))
    assert [one.seq for one in (await index.lookup(Lookup(space=SPACE, limit=2))).found] == [count - 1, count - 2]


async def test_an_invalid_url_or_tenant_opens_no_index() -> None:
    with pytest.raises(InvalidRequest, match="sqlite://"):
        await open_index("nothing", tenant="acme")
    with pytest.raises(InvalidRequest):
        await open_index("sqlite://:memory:", tenant="")


async def test_a_file_that_is_not_an_index_is_rejected(tmp_path: Path) -> None:
    """Is refused, and nothing is open behind it."""
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(StoreUnavailable):
        await open_index(f"sqlite:///{tmp_path}/text.db", tenant="acme")


async def test_errors_of_a_damaged_index_suggest_a_rebuild(index: Index, database: Path) -> None:
    """Nobody needs a backup of it: it is made of the sessions. Reads and writes say so."""
    await feed(index, "word")
    await index.close()
    raw = apsw.Connection(str(database))
    pages: Any = raw.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'index_spaces'").fetchall()
    raw.close()
    with database.open("rb+") as file:
        for (page,) in pages:
            file.seek(4096 * (page - 1))
            file.write(bytes(4096))
    damaged = await open_index(f"sqlite:///{database}", tenant="acme")
    try:
        for call in (damaged.lookup(Lookup(space=SPACE)), feed(damaged, "word")):
            with pytest.raises(StoreCorrupt, match=r"the index is damaged.* remove the file"):
                await call
    finally:
        await damaged.close()


@pytest.mark.parametrize("engine", ["vec1", "numpy", "python"])
async def test_vector_comparison_is_the_same_with_every_engine(
    database: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The same are the nearest, nearly to the last digit."""
    if engine != "vec1":
        monkeypatch.setattr(sqlite_extra, "has", lambda _: False)
    if engine == "python":
        monkeypatch.setattr("holdfast.recall.vectors.import_arrays", lambda: None)
    index = await open_index(f"sqlite:///{database}", tenant="acme")
    assert (await index.status()).vector_engine == engine
    chance = random.Random(11)
    texts = [f"t{at}" for at in range(1300)]
    await feed(index, *texts)
    made = [vector(*(chance.gauss(0, 1) for _ in range(8))) for _ in texts]
    await index.put_vectors(
        SPACE, SOURCE, "m", [Vectored(at, digest_of(text), made[at]) for at, text in enumerate(texts)]
    )
    near = await index.similar(Lookup(space=SPACE, limit=3), "m", made[700])
    await index.close()
    assert near[0].candidate.seq == 700
    assert near[0].similarity == pytest.approx(1, abs=1e-6)
    assert len(near) >= 7


async def test_vectors_in_half_the_bytes(database: Path) -> None:
    """Are nearly as exact; a model keeps the form that it began with, however the index is opened later."""
    texts, chance = [f"t{at}" for at in range(600)], random.Random(2)
    made = [vector(*(chance.gauss(0, 1) for _ in range(64))) for _ in texts]
    vectors = [Vectored(at, digest_of(text), made[at]) for at, text in enumerate(texts)]
    sizes, answers = [], []
    for name, compress in (("whole", False), ("half", True)):
        url = f"sqlite:///{database.parent}/{name}.db"
        index = await open_index(url, tenant="acme", compress=compress)
        await feed(index, *texts)
        await index.put_vectors(SPACE, SOURCE, "m", vectors[:300])
        await index.close()
        index = await open_index(url, tenant="acme", compress=not compress)
        await index.put_vectors(SPACE, SOURCE, "m", vectors[300:])
        near = await index.similar(Lookup(space=SPACE, limit=10), "m", made[7])
        answers.append({one.candidate.seq: one.similarity for one in near})
        (kept,) = (await index.vectors("m", [digest_of("t9")], space=SPACE)).values()
        assert len(kept) == 64 * 4
        await index.close()
        raw = apsw.Connection(f"{database.parent}/{name}.db")
        sizes.append(raw.execute("SELECT sum(length(data)) FROM index_vectors").fetchall()[0][0])
        raw.close()
    assert sizes == [600 * 256, 600 * 128]
    assert set(answers[0]) == set(answers[1])
    assert answers[1] == pytest.approx(answers[0], abs=0.002)

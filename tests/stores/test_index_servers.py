"""An index on a database server: which index each lookup goes by, and vectors with and without pgvector."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import anyio
import asyncpg
import pytest

from holdfast.recall.base import Batch, Document, Filters, Index, Lookup, Progress, Source, Space, Vectored
from holdfast.recall.vectors import to_vector
from holdfast.stores.indexes import open_index
from holdfast.stores.sql import pgvector
from holdfast.stores.sql.statements import load_statements
from tests.stores.plans_kit import with_values
from tests.stores.servers import Server, reach

SPACE = Space("talk", "ann")
SOURCE = Source("s1", "i1")
LOOKUPS = (
    *("index_space_get", "index_frequencies", "index_postings_read", "index_postings_newest", "index_postings_passing"),
    *("index_candidates", "index_candidates_newest", "index_candidates_at", "index_pending", "index_vectors_like"),
    *("index_source_get", "index_documents_at", "index_documents_first", "index_documents_counted", "index_model_of"),
)
ENDLESS = 2**62


def _parameters(sql: str) -> int:
    return max(int(number) for number in re.findall(r"[?$](\d+)", sql))


@pytest.fixture
def vector_server() -> Server:
    """A PostgreSQL that has pgvector."""
    return reach("pgvector")


@pytest.fixture
def vector_url(vector_server: Server) -> Iterator[str]:
    """An empty place there."""
    url = vector_server.place()
    yield url
    vector_server.drop(url)


def _vector(at: int) -> bytes:
    return to_vector([1.0, at / 100, 0.0])


async def _feed_documents(index: Index, count: int) -> None:
    """Documents that all have one word, and vectors that turn away from the first one."""
    digests = [bytes([at]) * 16 for at in range(count)]
    put = [
        Document(seq=at, place=at, role="user", at=at, digest=digests[at], length=1, terms={"dog": 1})
        for at in range(count)
    ]
    progress = Progress(identity=SOURCE.identity, version=1, next_seq=count, talk=count)
    assert await index.write(SPACE, Batch(source=SOURCE, progress=progress, put=put))
    vectors = [Vectored(at, digests[at], _vector(at)) for at in range(count)]
    assert await index.put_vectors(SPACE, SOURCE, "mini", vectors) == count


async def _nearest(index: Index, limit: int, filters: Filters = Filters()) -> list[int]:  # noqa: B008  # frozen
    found = await index.similar(Lookup(space=SPACE, limit=limit, filters=filters), "mini", _vector(0))
    return [one.candidate.seq for one in found]


# -- plans ---------------------------------------------------------------------


async def test_no_lookup_scans_in_postgres(postgres_url: str) -> None:
    """Whatever the filters are: plans are made without knowing them, as those of a connection are in the end."""
    await (await open_index(postgres_url, tenant="acme")).close()
    raw = await asyncpg.connect(postgres_url.partition("?")[0])
    try:
        await raw.execute(f'SET search_path = "{postgres_url.rpartition("schema=")[2]}"')
        await raw.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
        for name in LOOKUPS:
            sql = load_statements("postgres")[name]
            await raw.execute(f"PREPARE {name}_ AS {sql}")
            given = ", ".join(["NULL"] * _parameters(sql))
            plan = "\n".join(row[0] for row in await raw.fetch(f"EXPLAIN EXECUTE {name}_({given})"))
            assert "Seq Scan" not in plan, f"{name}:\n{plan}"
    finally:
        await raw.close()


GIVEN: dict[str, tuple[Any, ...]] = {
    "index_postings_read": ('["t1_w0","t1_w1"]',),
    "index_postings_newest": ("t1_dog", "t1_cat", 10),
    "index_documents_at": (1, "[1,2]", "[33554432]"),
    "index_documents_delete": ("[1,2]",),
    "index_documents_model": ("[1,2]", 3),
    "index_vectors_delete": ("[1,2]",),
    "index_posting_delete": (1, "t1_dog t1_cat"),
    "index_frequencies": (1, 0, '["dog","cat"]'),
    "index_frequencies_clean": (1, 0, '["dog","cat"]'),
    "index_candidates": ("[1,2]", 1, 0, None, None, None, None, None, None, -ENDLESS, ENDLESS),
    "index_candidates_newest": (10, 1, 0, None, None, None, None, None, None, -ENDLESS, ENDLESS),
    "index_vectors_like": (1, 1, "[1,2]"),
}


@pytest.mark.parametrize("name", GIVEN)
async def test_no_lookup_or_write_scans_in_mysql(mysql_url: str, name: str) -> None:
    """Not even a table with a few rows, of which its planner would rather read all."""
    index = await open_index(mysql_url, tenant="acme")
    await _feed_documents(index, 5)
    await index.close()
    sql = f"EXPLAIN {with_values(load_statements('mysql')[name], GIVEN[name])}"
    plan = await anyio.to_thread.run_sync(reach("mysql").in_place, mysql_url, sql)
    scanned = [row[2] for row in plan if row[3] in ("ALL", "index") and row[2] in ("d", "v", "s", "p", "f", "w", "o")]
    assert scanned == []


# -- pgvector ------------------------------------------------------------------


@pytest.mark.parametrize("walk", [False, True])
async def test_the_server_compares_vectors(vector_url: str, monkeypatch: pytest.MonkeyPatch, walk: bool) -> None:
    """All of them in a small space, or those that a walk through the graph comes past: the same here."""
    if walk:
        monkeypatch.setattr(pgvector, "SMALL", 0)
    index = await open_index(vector_url, tenant="acme")
    await _feed_documents(index, 100)
    assert (await index.status()).vector_engine == pgvector.ENGINE
    assert await _nearest(index, 10) == list(range(12))  # and two neighbours
    assert await _nearest(index, 1, Filters(since=50)) == [50, 51, 52]
    assert await _nearest(index, 1, Filters(sessions=("s1",), since=50)) == [50, 51, 52]
    assert await _nearest(index, 1, Filters(not_sessions=("s1",))) == []
    await index.close()


async def test_vectors_that_were_there_before_the_extension_are_found(vector_server: Server, vector_url: str) -> None:
    index = await open_index(vector_url, tenant="acme")
    await _feed_documents(index, 20)
    await index.close()
    await anyio.to_thread.run_sync(vector_server.in_place, vector_url, "DROP TABLE index_near_3; SELECT 1")
    index = await open_index(vector_url, tenant="acme")
    assert await _nearest(index, 3) == [0, 1, 2, 3, 4]
    await index.close()


async def test_dropped_vectors_are_deleted_from_the_servers_table(vector_server: Server, vector_url: str) -> None:
    index = await open_index(vector_url, tenant="acme")
    await _feed_documents(index, 20)
    await index.drop(SPACE, "s1")
    await index.close()
    rows = await anyio.to_thread.run_sync(vector_server.in_place, vector_url, "SELECT count(*) FROM index_near_3")
    assert rows == [(0,)]


async def test_vectors_too_long_for_a_graph_are_compared_by_holdfast(
    vector_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "WIDEST", 2)
    index = await open_index(vector_url, tenant="acme")
    await _feed_documents(index, 20)
    assert await _nearest(index, 3) == [0, 1, 2, 3, 4]
    await index.close()


async def test_vectors_are_compared_by_holdfast_without_the_extension(postgres_url: str) -> None:
    """This server may have it, and then it is used."""
    index = await open_index(postgres_url, tenant="acme")
    available = reach("postgres").ask("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    assert ((await index.status()).vector_engine == pgvector.ENGINE) == bool(available)
    await index.close()

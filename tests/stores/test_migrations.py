"""The schema of every database: created once, changed once, atomically or with a resumed attempt; other schemas are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores import find_pending_migrations, mysql, open_store
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from holdfast.stores.log import Append
from holdfast.stores.sql.migrations import OLD_TABLE, TABLE, Migration, load_migrations
from holdfast.stores.verify import verify
from tests.contract.kit import REF, compaction, lay, session, user
from tests.stores.servers import reach

LATER = Migration(2, "later", "CREATE TABLE later (a INTEGER); INSERT INTO later (a) VALUES (1);", "x" * 64)
"""A migration of a later release, which every database understands."""


def know_later(monkeypatch: pytest.MonkeyPatch, later: Migration = LATER) -> None:
    """Make this release a later one, with one more migration."""
    for name in ("sqlite_connection", "backup", "sql.remote"):
        monkeypatch.setattr(
            f"holdfast.stores.{name}.load_migrations", lambda dialect: (*load_migrations(dialect), later)
        )


async def open_tenant(url: str) -> Store:
    return await open_store(url, tenant="acme")


async def close_after_opening(url: str) -> None:
    await (await open_tenant(url)).close()


async def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Run statements in a database, without a store."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()
    server = reach("mysql" if url.startswith("mysql") else "postgres")
    return await anyio.to_thread.run_sync(server.in_place, url, sql)


async def list_applied(url: str) -> list[int]:
    return [number for (number,) in await query(url, f"SELECT number FROM {TABLE} ORDER BY number")]


async def check_usable(url: str) -> None:
    store = await open_tenant(url)
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    assert [one.status for one in await lay(store, compaction(0, 0))] == ["live"]
    assert await verify(store, REF) == 1
    await store.close()


async def test_a_later_migration_is_applied_once_and_keeps_the_data(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_usable(shared_url)
    know_later(monkeypatch)
    stores = await asyncio.gather(*(open_tenant(shared_url) for _ in range(6)))
    assert await list_applied(shared_url) == [1, LATER.number]
    assert await query(shared_url, "SELECT a FROM later") == [(1,)]
    for store in stores:
        assert await verify(store, REF) == 1
        await store.close()


async def test_pending_migrations_are_listed_and_not_applied(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await close_after_opening(shared_url)
    assert await find_pending_migrations(shared_url) == ()
    with monkeypatch.context() as then:
        know_later(then)
        assert await find_pending_migrations(shared_url) == (LATER,)
        assert await list_applied(shared_url) == [1]
        await close_after_opening(shared_url)
        assert await find_pending_migrations(shared_url) == ()
    with pytest.raises(StoreUnavailable, match="made by a newer release"):
        await find_pending_migrations(shared_url)


async def test_a_newer_schema_is_refused(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running server of this release keeps working."""
    store = await open_tenant(shared_url)
    with monkeypatch.context() as then:
        know_later(then)
        await close_after_opening(shared_url)
    with pytest.raises(StoreUnavailable, match="has schema 2, made by a newer release; this one knows schemas up to 1"):
        await close_after_opening(shared_url)
    await store.create(session())
    await store.close()


async def test_a_changed_migration_is_refused(shared_url: str) -> None:
    await close_after_opening(shared_url)
    await query(shared_url, f"UPDATE {TABLE} SET checksum = 'x' WHERE number = 1;")
    with pytest.raises(StoreUnavailable, match="migration 1 that differs"):
        await close_after_opening(shared_url)


async def create_table(url: str, name: str) -> None:
    """Create a table in a database that no store has opened."""
    if url.startswith("postgres"):
        schema = url.rpartition("schema=")[2]
        await anyio.to_thread.run_sync(reach("postgres").ask, f'CREATE SCHEMA "{schema}"')
    await query(url, f"CREATE TABLE {name} (invoice int);")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("sessions", "belongs to another program"),
        (OLD_TABLE, "was made by Holdfast 0.1 or 0.2. Export its sessions with that release"),
    ],
)
async def test_tables_of_another_program_or_an_older_release_are_left_alone(
    shared_url: str, table: str, says: str
) -> None:
    """As a store and as an index."""
    await create_table(shared_url, table)
    for opening in (open_store, open_index):
        with pytest.raises(StoreUnavailable, match=says):
            await opening(shared_url, tenant="acme")
    with pytest.raises(StoreUnavailable, match=says):
        await find_pending_migrations(shared_url)
    assert await query(shared_url, f"SELECT invoice FROM {table}") == []


def test_a_file_that_cannot_be_opened_is_unchanged(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{database}"
    with monkeypatch.context() as then:
        know_later(then)
        asyncio.run(close_after_opening(url))
    before = database.read_bytes()
    with pytest.raises(StoreUnavailable, match="made by a newer release"):
        asyncio.run(close_after_opening(url))
    assert database.read_bytes() == before


# -- interrupted ---------------------------------------------------------------


def break_after(at: int) -> Migration:
    """The first migration, which fails after its statement number `at`."""
    first = load_migrations("postgres")[0]
    text = ";".join(first.sql.split(";")[:at])
    return Migration(first.number, first.name, f"{text}; SELECT 1 FROM nowhere", first.checksum)


@pytest.mark.parametrize("at", [1, 4])
async def test_an_interrupted_postgres_migration_is_rolled_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It is one transaction, so the next attempt starts from the beginning."""
    with monkeypatch.context() as then:
        then.setattr("holdfast.stores.sql.remote.load_migrations", lambda dialect: (break_after(at),))
        with pytest.raises(StoreError):
            await close_after_opening(postgres_url)
    assert await query(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()") == []
    await check_usable(postgres_url)


@pytest.mark.parametrize("step", [0, 1, 4, 20])
async def test_an_interrupted_mysql_migration_is_run_again(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """What it has made already stays."""
    real = mysql.split_statements
    with monkeypatch.context() as then:
        then.setattr("holdfast.stores.mysql.split_statements", lambda sql: [*real(sql)[:step], "SELECT 1 FROM nowhere"])
        with pytest.raises(StoreError):
            await close_after_opening(mysql_url)
    assert await list_applied(mysql_url) == []
    await check_usable(mysql_url)

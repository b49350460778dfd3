"""Earlier releases, for tests of what a later one makes of their databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import apsw
import pytest

from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.sql import load_migrations
from tests.stores.servers import Server, reach

Fill = Callable[[Store], Awaitable[object]]
"""Writes what a database holds."""


def know_only(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make this release one that knows only the first `count` migrations of each dialect."""
    for name in ("sqlite_connection", "postgres", "mysql"):
        monkeypatch.setattr(f"holdfast.stores.{name}.load_migrations", lambda dialect: load_migrations(dialect)[:count])


async def make_by_the_first_release(url: str, monkeypatch: pytest.MonkeyPatch, fill: Fill) -> None:
    """A database of schema 1 at `url`, with what `fill` writes in it, as far as the first release had a place for it.

    This release's statements need its own schema: so it writes elsewhere, and the columns that were there already are copied.
    """
    with monkeypatch.context() as then:
        know_only(then, 1)
        await (await open_store(url, tenant="acme")).close()
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        newer = path.with_name("newer.db")
        await _fill(f"sqlite:///{newer}", fill)
        _copy_file(newer, path)
        newer.unlink()
        return
    server = reach("mysql" if url.startswith("mysql") else "postgres")
    source = await anyio.to_thread.run_sync(server.place)
    await _fill(source, fill)
    await anyio.to_thread.run_sync(_copy_place, server, source, url)
    await anyio.to_thread.run_sync(server.drop, source)


async def _fill(url: str, fill: Fill) -> None:
    store = await open_store(url, tenant="acme")
    try:
        await fill(store)
    finally:
        await store.close()


def _copy_file(source: Path, target: Path) -> None:
    connection = apsw.Connection(str(target))
    try:
        connection.execute("ATTACH ? AS newer", (str(source),))
        tables = [name for (name,) in connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")]
        for table in tables:
            if table != "holdfast_migrations":
                columns = ", ".join(f'"{row[1]}"' for row in connection.execute(f"PRAGMA main.table_info({table})"))
                connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}")
    finally:
        connection.close()


def _copy_place(server: Server, source: str, target: str) -> None:
    mysql = server.name == "mysql"
    quote = "`" if mysql else '"'
    sql = (
        "SELECT c.table_name, c.column_name FROM information_schema.columns AS c JOIN information_schema.tables AS t"
        " ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
        f" WHERE t.table_schema = {'DATABASE()' if mysql else 'current_schema()'} AND t.table_type = 'BASE TABLE'"
    )
    columns: dict[str, list[str]] = {}
    for table, column in server.in_place(target, sql):
        columns.setdefault(table, []).append(f"{quote}{column}{quote}")
    columns.pop("holdfast_migrations")
    newer = source.rpartition("/" if mysql else "schema=")[2]
    for table, names in columns.items():
        listed, own = ", ".join(names), "" if mysql else "OVERRIDING SYSTEM VALUE "
        server.in_place(target, f"INSERT INTO {table} ({listed}) {own}SELECT {listed} FROM {newer}.{table};")
        if not mysql and f"{quote}pk{quote}" in names:
            number = f"setval(pg_get_serial_sequence('{table}', 'pk'), (SELECT max(pk) + 1 FROM {table}), false)"
            server.in_place(target, f"SELECT {number};")

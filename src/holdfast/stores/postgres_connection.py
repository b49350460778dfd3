"""A connection to PostgreSQL: asyncpg, set up as the store needs it, and its errors as ours."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    MissingExtra,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from holdfast.stores.logic.network import NAME, PATIENCE
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.sql import pgvector
from holdfast.stores.sql.address import Address
from holdfast.stores.sql.remote import ConnectionLost, OutcomeUnknown, Retryable
from holdfast.stores.sql.statements import load_statements

try:
    import asyncpg
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a PostgreSQL store", "postgres") from exc

SCHEMA: Final = "holdfast"
"""The schema that holds the tables, unless the URL names another: so they meet nobody else's in a shared database."""
_LOST = ("08", "57P01", "57P02", "57P03", "25P03", "53300")
_CORRUPT = ("XX001", "XX002")
_AGAIN = ("40001", "40P01", "23505")
_WORDS: Final = (
    ("53100", "its disk is full; nothing of this was stored. Make room, then send it again"),
    ("53", "it is short of memory, connections or another resource; nothing of this was stored"),
    ("25006", "it is read-only, perhaps a standby; nothing of this was stored"),
    ("55P03", "another program holds what this needs, and did not let go in time; nothing of this was stored"),
    ("57014", "it took too long and was stopped; nothing of this was stored"),
    ("28", "it does not let this user in: check user and password"),
    ("3D000", "there is no such database: CREATE DATABASE makes one"),
    ("42501", "this user may not do that: it has to own the schema, or be allowed to create it"),
    ("58", "its disk failed"),
)
"""What the caller, or whoever owns the server, can do about it, by SQLSTATE or how that begins."""


# -- errors ------------------------------------------------------------------


def translate_error(exc: Exception, name: str, *, gone: bool = True) -> Exception:
    """The one place where errors of asyncpg become ours, or say what to do next. Messages quote no row and no password.

    Args:
        exc: the error.
        name: what may be told of the server.
        gone: whether there is no connection.
    """
    state = str(getattr(exc, "sqlstate", None) or "")
    if isinstance(exc, asyncpg.DataError) or state == "22003":
        return InvalidRequest("a number does not fit into 64 bits")
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{name} did not answer in time")
    lost = (OSError, asyncpg.InternalClientError, *((asyncpg.InterfaceError,) if gone else ()))
    if isinstance(exc, lost) or state.startswith(_LOST):
        return ConnectionLost(f"{type(exc).__name__}")
    if state in _AGAIN:
        return Retryable(type(exc).__name__)
    told = f"PostgreSQL: {type(exc).__name__} {state}"
    words = next((words for begin, words in _WORDS if state.startswith(begin)), None)
    if words is not None:
        return StoreUnavailable(f"{name}: {words} ({told})")
    return StoreCorrupt(f"{name}: damaged ({told})") if state in _CORRUPT else StoreError(f"{name}: {told}")


# -- one connection ----------------------------------------------------------


class Connection:
    """See `holdfast.stores.sql.remote.Connection`."""

    def __init__(self, raw: asyncpg.Connection) -> None:
        self._raw = raw
        self._statements = load_statements("postgres")
        self._writing = self._broken = False
        self.has_pgvector = False
        """Whether it finds the extension that compares vectors."""

    @property
    def is_usable(self) -> bool:
        """See `Pooled`."""
        return not (self._broken or self._raw.is_closed() or self._raw.is_in_transaction())

    async def begin(self, *, writing: bool) -> None:
        """See `Connection.begin`."""
        self._writing = writing
        await self.execute("BEGIN" if writing else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    async def query(self, name: str, params: Row) -> Rows:
        """See `Connection.query`. Text travels as bytes: identifiers are compared, not read."""
        if self.has_pgvector and name == "index_nearest":
            return await pgvector.find_nearest(self, encode_params(params))
        return await self.fetch(self._statements[name], encode_params(params))

    async def fetch(self, sql: str, params: Row) -> Rows:
        """One statement's rows."""
        try:
            rows: Rows = await self._raw.fetch(sql, *params)
        except Exception as exc:
            raise self._handle_error(exc) from exc
        return rows

    async def many(self, name: str, rows: list[Row]) -> None:
        """See `Connection.many`."""
        try:
            await self._raw.executemany(self._statements[name], [encode_params(row) for row in rows])
            if self.has_pgvector and name == "index_vector_put":
                for dimensions, given in pgvector.group_by_dimension(rows).items():
                    await self._raw.executemany(pgvector.format_insert(dimensions), given)
        except Exception as exc:
            raise self._handle_error(exc) from exc

    async def execute(self, sql: str, *, patience: float | None = None) -> None:
        """Statements without parameters and rows."""
        try:
            await self._raw.execute(sql, timeout=patience)
        except Exception as exc:
            raise self._handle_error(exc) from exc

    async def commit(self) -> None:
        """See `Connection.commit`."""
        try:
            await self.execute("COMMIT")
        except (ConnectionLost, StoreUnavailable) as exc:
            if self._broken and self._writing:
                raise OutcomeUnknown from exc.__cause__
            raise

    async def rollback(self) -> None:
        """See `Connection.rollback`. A connection that cannot do it is thrown away, which does it as well."""
        if not self._broken and self._raw.is_in_transaction():
            try:
                await self.execute("ROLLBACK")
            except (HoldfastError, Retryable):
                self._broken = True

    def kill(self) -> None:
        """See `Pooled`."""
        self._broken = True
        try:
            self._raw.terminate()
        except RuntimeError:  # its loop has ended before it
            pass

    async def close(self) -> None:
        """See `Pooled`."""
        try:
            await self._raw.close(timeout=PATIENCE)
        except Exception:  # noqa: BLE001  # it is gone in any case
            self._raw.terminate()

    @property
    def is_broken(self) -> bool:
        """Whether the connection was lost, or stopped answering."""
        return self._broken

    def _handle_error(self, exc: Exception) -> Exception:
        error = translate_error(exc, NAME, gone=self._raw.is_closed())
        self._broken = self._broken or isinstance(error, ConnectionLost) or isinstance(exc, TimeoutError)
        return error


def encode_params(params: Row) -> list[Any]:
    """Parameters as they travel: text as bytes."""
    return [value.encode() if type(value) is str else value for value in params]


# -- making one ---------------------------------------------------------------


def get_schema_name(address: Address) -> str:
    """The schema that `address` means."""
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
"""Not in the first packet, of which a pooler between would not know. What is acknowledged is durable, also where the server
was told that it need not be; where it was told more than that, it stays so. And every statement has an index, whose order it
goes by: a plan of when there was little, or of when nobody had counted it yet, would go on reading everything."""


async def connect(address: Address, name: str) -> Connection:
    """A new connection, set up; `name` is told of it when there is none."""
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
    """An identifier in a statement."""
    return '"' + name.replace('"', '""') + '"'

"""A connection to MySQL or MariaDB: asyncmy, set up as the store needs it, and its errors as ours.

The driver binds the parameters, by position. Text travels as bytes: identifiers are compared, not read.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    MissingExtra,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from holdfast.stores.logic.network import NAME, PATIENCE
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.sql.address import Address
from holdfast.stores.sql.remote import ConnectionLost, OutcomeUnknown, Retryable
from holdfast.stores.sql.statements import load_statements

try:
    import asyncmy
    from asyncmy.errors import Error as DriverError
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a MySQL or MariaDB store", "mysql") from exc

STATEMENTS_PREPARED: Final = 300
"""Statements that the server keeps prepared for a connection: it parses each once, and values travel as they are."""
STATEMENT_BYTES: Final = 1 << 19
"""Values of one statement that inserts many rows, about."""
_NUMBERED: Final = re.compile(r"\?(\d+)")
_SETUP: Final = (
    # Quotes and backslashes in literals mean what is written here, whatever the server's own mode is.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION innodb_lock_wait_timeout = {PATIENCE / 3:.0f}",
    "SELECT @@max_allowed_packet",
)

# Numbers of errors; those from 1900 on are MariaDB's or MySQL's alone.
_LOST = {0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3169, 4031}
_AGAIN = {1020, 1062, 1213, 1586}
_RANGE = {1264, 1367, 1690}
_CORRUPT = {126, 127, 145, 1034, 1194, 1195, 1712}
_WORDS: Final = (
    ({1021, 1030, 1114}, "its disk or table is full; nothing of this was stored. Make room, then send it again"),
    ({1037, 1038, 1041, 1203, 1226}, "it is short of memory, connections or another resource"),
    ({1290, 1792, 1836}, "it is read-only, perhaps a replica; nothing of this was stored"),
    ({1205, 3572}, "another program holds what this needs, and did not let go in time; nothing of this was stored"),
    ({1317, 1969, 3024}, "it took too long and was stopped; nothing of this was stored"),
    ({1044, 1045, 1142, 1143, 1227, 1698}, "it does not let this user in, or do that: check user, password and rights"),
    ({1049}, "there is no such database: CREATE DATABASE makes one"),
    ({1665}, "its binlog_format is STATEMENT, which READ COMMITTED does not go with: it has to be ROW or MIXED"),
)
"""What the caller, or whoever owns the server, can do about it."""


# -- errors ------------------------------------------------------------------


def translate_error(exc: Exception, name: str) -> Exception:
    """The one place where errors of asyncmy become ours, or say what to do next. Messages quote no row and no password."""
    code = get_error_code(exc)
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{name} did not answer in time")
    if isinstance(exc, OSError | EOFError) or code in _LOST:
        return ConnectionLost(f"{type(exc).__name__} {code}")
    if code in _AGAIN:
        return Retryable(f"error {code}")
    if code in _RANGE:
        return InvalidRequest("a number does not fit into 64 bits")
    told = f"MySQL: {type(exc).__name__} {code}"
    words = next((words for codes, words in _WORDS if code in codes), None)
    if words is not None:
        return StoreUnavailable(f"{name}: {words} ({told})")
    return StoreCorrupt(f"{name}: damaged ({told})") if code in _CORRUPT else StoreError(f"{name}: {told}")


def get_error_code(exc: BaseException | None) -> int:
    """The server's number of an error; -1 when it has none."""
    code = exc.args[0] if isinstance(exc, DriverError) and exc.args else -1
    return code if isinstance(code, int) else -1


# -- statements --------------------------------------------------------------


class DriverStatement(NamedTuple):
    """A statement as the driver takes it."""

    sql: str
    """With `%s` for each parameter."""
    places: tuple[int, ...]
    """Which parameter each `%s` takes."""
    row: str
    """The part behind VALUES of an insertion that can insert several rows at once; else empty."""


@cache
def to_driver_statement(sql: str) -> DriverStatement:
    """Return a statement with numbered parameters as the driver takes it."""
    places = tuple(int(number) - 1 for number in _NUMBERED.findall(sql))
    text = _NUMBERED.sub("%s", sql.replace("%", "%%")) if places else sql
    _, values, rest = text.partition("VALUES ")
    return DriverStatement(text, places, rest.partition("\nON DUPLICATE")[0] if values else "")


def encode_params(places: Sequence[int], params: Row) -> list[Any]:
    """Return parameters in the order of their places, as they travel."""
    values = []
    for value in params:
        if type(value) is str:
            values.append(value.encode())
        elif type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise InvalidRequest("a number does not fit into 64 bits")
        else:
            values.append(value)
    return [values[place] for place in places]


# -- one connection ----------------------------------------------------------


class Connection:
    """See `holdfast.stores.sql.remote.Connection`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._statements = load_statements("mysql")
        self._cursor = raw.cursor()
        self._open = self._writing = self._broken = False
        self.max_packet = 1 << 20

    @property
    def is_usable(self) -> bool:
        """See `Pooled`."""
        return not (self._broken or self._open) and bool(self._raw.connected)

    async def begin(self, *, writing: bool) -> None:
        """See `Connection.begin`."""
        self._open, self._writing = True, writing
        if not writing:
            await self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await self.execute("START TRANSACTION" if writing else "START TRANSACTION READ ONLY")

    async def query(self, name: str, params: Row) -> Rows:
        """See `Connection.query`."""
        return await self.execute(self._statements[name], params)

    async def many(self, name: str, rows: list[Row]) -> None:
        """See `Connection.many`. Insertions insert many rows with one statement."""
        sql, places, row = to_driver_statement(self._statements[name])
        if not row:
            for one in rows:
                await self._run(sql, encode_params(places, one))
            return
        for some in _split_by_size(
            [encode_params(places, one) for one in rows], min(STATEMENT_BYTES, self.max_packet // 4)
        ):
            together = sql.replace(row, ", ".join([row] * len(some)), 1)
            await self._run(together, [value for one in some for value in one])

    async def commit(self) -> None:
        """See `Connection.commit`."""
        try:
            await self.execute("COMMIT")
        except (ConnectionLost, StoreUnavailable) as exc:
            if self._broken and self._writing:
                raise OutcomeUnknown from exc.__cause__
            raise
        self._open = False

    async def rollback(self) -> None:
        """See `Connection.rollback`. A connection that cannot do it is thrown away, which does it as well."""
        if self._open and not self._broken:
            try:
                await self.execute("ROLLBACK")
                self._open = False
            except (HoldfastError, Retryable):
                self._broken = True

    def kill(self) -> None:
        """See `Pooled`."""
        self._broken = True
        try:
            self._raw.close()
        except RuntimeError:  # its loop has ended before it
            pass

    async def close(self) -> None:
        """See `Pooled`."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._raw.ensure_closed()
        except Exception:  # noqa: BLE001  # it is gone in any case
            self.kill()

    async def execute(self, sql: str, params: Row = (), *, patience: float = PATIENCE + 5) -> Rows:
        """Return one statement's rows; of an insertion the number that its row was given."""
        text, places, _ = to_driver_statement(sql)
        return await self._run(text, encode_params(places, params), patience=patience)

    async def _run(self, sql: str, values: Sequence[Any], *, patience: float = PATIENCE + 5) -> Rows:
        cursor = self._cursor
        size = len(sql) + sum(len(value) for value in values if type(value) is bytes)
        if size + 1 > self.max_packet:
            raise TooLarge(
                f"this takes {size} bytes on its way to {NAME}, whose max_allowed_packet is {self.max_packet}"
            )
        try:
            async with asyncio.timeout(patience):
                await cursor.execute(sql, values or None)
                if cursor.description is not None:
                    rows: Rows = await cursor.fetchall()
                else:
                    rows = ((cursor.lastrowid,),) if cursor.lastrowid else ()
        except Exception as exc:
            raise self._handle_error(exc) from exc
        return rows

    def _handle_error(self, exc: Exception) -> Exception:
        error = translate_error(exc, NAME)
        self._broken = self._broken or isinstance(error, ConnectionLost) or isinstance(exc, TimeoutError)
        return error


def _split_by_size(rows: list[list[Any]], size: int) -> Iterator[list[list[Any]]]:
    """The rows in groups of about that many bytes; a larger one is alone."""
    group: list[list[Any]] = []
    total = 0
    for row in rows:
        weight = sum(len(value) if isinstance(value, bytes) else 20 for value in row)
        if group and total + weight > size:
            yield group
            group, total = [], 0
        group.append(row)
        total += weight
    if group:
        yield group


async def connect(address: Address, name: str) -> Connection:
    """A new connection, set up; `name` is told of it when there is none."""
    try:
        raw = await asyncmy.connect(
            host=address.host or "127.0.0.1",
            port=address.port or 3306,
            unix_socket=address.options.get("socket"),
            user=address.user,
            password=address.password or "",
            database=address.database,
            charset="utf8mb4",
            autocommit=True,
            binary_prefix=True,
            stmt_cache_size=STATEMENTS_PREPARED,
            connect_timeout=int(PATIENCE / 3),
            ssl=_make_tls_context(address),
        )
    except RuntimeError as exc:  # what asyncmy says when it would have to encrypt a password
        raise StoreUnavailable(f"{name}: its login needs sslmode=require, or pip install cryptography") from exc
    except Exception as exc:
        raise translate_error(exc, name) from exc
    connection = Connection(raw)
    try:
        for statement in _SETUP:
            rows = await connection.execute(statement)
    except BaseException:
        connection.kill()
        raise
    connection.max_packet = rows[0][0]
    return connection


def _make_tls_context(address: Address) -> ssl.SSLContext | None:
    mode = address.ssl_mode
    if mode in (None, "disable"):
        return None
    context = ssl.create_default_context()
    if mode == "require":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

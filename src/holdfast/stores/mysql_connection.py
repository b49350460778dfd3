"""A connection to MySQL or MariaDB through asyncmy: its settings, and the translation of its errors.

The driver binds parameters by position. Text is sent as bytes, because the server only compares identifiers.
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
from holdfast.stores.sql.remote import ConnectionLost, Duplicate, OutcomeUnknown, Retryable
from holdfast.stores.sql.statements import load_statements

try:
    import asyncmy
    from asyncmy.errors import Error as DriverError
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a MySQL or MariaDB store", "mysql") from exc

STATEMENTS_PREPARED: Final = 300
"""Maximum number of prepared statements per connection. The server parses each statement once, and values are sent in binary form."""
STATEMENT_BYTES: Final = 1 << 19
"""Approximate maximum bytes of the values in one statement that inserts many rows."""
_NUMBERED: Final = re.compile(r"\?(\d+)")
_SETUP: Final = (
    # A fixed mode, so that quotes and backslashes in literals do not depend on the server's configuration.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION innodb_lock_wait_timeout = {PATIENCE / 3:.0f}",
    "SELECT @@max_allowed_packet",
)

# Error numbers. Those from 1900 on exist only in MariaDB or only in MySQL.
_LOST = {0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3169, 4031}
_RETRYABLE = {1020: Retryable, 1062: Duplicate, 1213: Retryable, 1586: Duplicate}
_RANGE = {1264, 1367, 1690}
_CORRUPT = {126, 127, 145, 1034, 1194, 1195, 1712}
_MESSAGES: Final = (
    ({1021, 1030, 1114}, "its disk or table is full; nothing was stored. Free some space, then retry"),
    ({1037, 1038, 1041, 1203, 1226}, "it has run out of memory, connections or another resource. Retry later"),
    ({1290, 1792, 1836}, "it is read-only, perhaps a replica; nothing was stored"),
    ({1205, 3572}, "another client holds a lock that this needs and did not release it in time; nothing was stored"),
    ({1317, 1969, 3024}, "the statement took too long and was stopped; nothing was stored"),
    ({1044, 1045, 1142, 1143, 1227, 1698}, "access denied: check the user, the password and the user's privileges"),
    ({1049}, "the database does not exist: create it with CREATE DATABASE"),
    ({1665}, "its binlog_format is STATEMENT, which does not support READ COMMITTED: set it to ROW or MIXED"),
)
"""Error messages by the server's error numbers. They say what happened and what the caller or the operator of the server can do."""


# -- errors ------------------------------------------------------------------


def translate_error(exc: Exception, name: str) -> Exception:
    """Convert an error of asyncmy to a `HoldfastError`, `Retryable` or `ConnectionLost`; `name` names the server in the message.

    Messages never contain rows or passwords.
    """
    code = get_error_code(exc)
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{name} did not answer in time")
    if isinstance(exc, OSError | EOFError) or code in _LOST:
        return ConnectionLost(f"{type(exc).__name__} {code}")
    if code in _RETRYABLE:
        return _RETRYABLE[code](f"error {code}")
    if code in _RANGE:
        return InvalidRequest("a number does not fit into 64 bits")
    details = f"MySQL: {type(exc).__name__} {code}"
    message = next((message for codes, message in _MESSAGES if code in codes), None)
    if message is not None:
        return StoreUnavailable(f"{name}: {message} ({details})")
    return StoreCorrupt(f"{name}: damaged ({details})") if code in _CORRUPT else StoreError(f"{name}: {details}")


def get_error_code(exc: BaseException | None) -> int:
    """Return the server's error number of an exception, or -1 if it has none."""
    code = exc.args[0] if isinstance(exc, DriverError) and exc.args else -1
    return code if isinstance(code, int) else -1


# -- statements --------------------------------------------------------------


class DriverStatement(NamedTuple):
    """A statement in the driver's syntax."""

    sql: str
    """The SQL text, with `%s` for each parameter."""
    places: tuple[int, ...]
    """For each `%s`, the index of its parameter."""
    row: str
    """The text after VALUES in an INSERT, which is repeated to insert several rows. Empty for other statements."""


@cache
def to_driver_statement(sql: str) -> DriverStatement:
    """Convert a statement with numbered parameters to the driver's syntax."""
    places = tuple(int(number) - 1 for number in _NUMBERED.findall(sql))
    text = _NUMBERED.sub("%s", sql.replace("%", "%%")) if places else sql
    _, values, rest = text.partition("VALUES ")
    return DriverStatement(text, places, rest.partition("\nON DUPLICATE")[0] if values else "")


def encode_params(places: Sequence[int], params: Row) -> list[Any]:
    """Return the values for the `%s` of a statement. Text is converted to bytes.

    Args:
        places: for each `%s`, the index of its parameter.
        params: the parameters.

    Raises:
        InvalidRequest: a number does not fit into 64 bits.
    """
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
    """A connection (`holdfast.stores.sql.remote.Connection`) to MySQL or MariaDB."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._statements = load_statements("mysql")
        self._cursor = raw.cursor()
        self._open = self._writing = self._broken = False
        self.max_packet = 1 << 20

    @property
    def is_usable(self) -> bool:
        return not (self._broken or self._open) and bool(self._raw.connected)

    async def begin(self, *, writing: bool, write_id: bytes = b"") -> None:
        self._open, self._writing = True, writing
        insert = f"; INSERT INTO writes (id) VALUES (x'{write_id.hex()}')" if write_id else ""  # noqa: S608  # hexadecimal
        snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY"
        await self.execute(f"START TRANSACTION{insert}" if writing else snapshot)

    async def query(self, name: str, params: Row) -> Rows:
        return await self.execute(self._statements[name], params)

    async def many(self, name: str, rows: list[Row]) -> None:
        """Run a statement once for each row of parameters. An INSERT inserts many rows at once."""
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
        try:
            await self.execute("COMMIT")
        except (ConnectionLost, StoreUnavailable) as exc:
            if self._broken and self._writing:
                raise OutcomeUnknown from exc.__cause__
            raise
        self._open = False

    async def rollback(self) -> None:
        """Roll back the transaction. If that fails, discard the connection; the server then rolls back."""
        if self._open and not self._broken:
            try:
                await self.execute("ROLLBACK")
                self._open = False
            except (HoldfastError, Retryable):
                self._broken = True

    def kill(self) -> None:
        self._broken = True
        try:
            self._raw.close()
        except RuntimeError:  # the event loop is already closed
            pass

    async def close(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._raw.ensure_closed()
        except Exception:  # noqa: BLE001  # the connection is closed in any case
            self.kill()

    async def execute(self, sql: str, params: Row = (), *, patience: float = PATIENCE + 5) -> Rows:
        """Run a statement and return its rows; for an INSERT, return a row with the generated key, if there is one."""
        text, places, _ = to_driver_statement(sql)
        return await self._run(text, encode_params(places, params), patience=patience)

    async def _run(self, sql: str, values: Sequence[Any], *, patience: float = PATIENCE + 5) -> Rows:
        cursor = self._cursor
        size = len(sql) + sum(len(value) for value in values if type(value) is bytes)
        if size + 1 > self.max_packet:
            raise TooLarge(
                f"this needs a packet of {size} bytes, but max_allowed_packet of {NAME} is {self.max_packet}: raise it"
            )
        try:
            async with asyncio.timeout(patience):
                await cursor.execute(sql, values or None)
                if cursor.description is not None:
                    rows: Rows = await cursor.fetchall()
                else:
                    rows = ((cursor.lastrowid,),) if cursor.lastrowid else ()
                while await cursor.nextset():  # raises the error of a later one of several statements
                    pass
        except Exception as exc:
            error = translate_error(exc, NAME)
            self._broken = self._broken or isinstance(error, ConnectionLost) or isinstance(exc, TimeoutError)
            raise error from exc
        return rows


def _split_by_size(rows: list[list[Any]], size: int) -> Iterator[list[list[Any]]]:
    """Yield the rows in groups of at most about `size` bytes. A row that is larger is a group of its own."""
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
    """Open a connection and configure it; `name` names the server in error messages."""
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
    except RuntimeError as exc:  # raised by asyncmy if it has to encrypt the password itself
        raise StoreUnavailable(
            f"{name}: its login method needs sslmode=require, or the package cryptography (pip install cryptography)"
        ) from exc
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

"""A connection to MySQL or MariaDB: asyncmy, set up as the store needs it, and its errors as ours.

Statements of a transaction whose rows nobody asks for wait until there is one whose rows are asked for, or the commit, and
travel with it in one packet. Values are written into the statements here, as literals: numbers, and byte strings in quotes.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

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
from holdfast.stores.sql.remote import Again, Lost, Unknown
from holdfast.stores.sql.statements import statements

try:
    import asyncmy
    from asyncmy.constants.CLIENT import MULTI_STATEMENTS
    from asyncmy.errors import Error as DriverError
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a MySQL or MariaDB store", "mysql") from exc

WAITING_BYTES: Final = 1 << 20
"""Statements that wait are sent when they are larger than this together."""
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


def translated(exc: Exception, name: str) -> Exception:
    """The one place where errors of asyncmy become ours, or say what to do next. Messages quote no row and no password."""
    code = code_of(exc)
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{name} did not answer in time")
    if isinstance(exc, OSError | EOFError) or code in _LOST:
        return Lost(f"{type(exc).__name__} {code}")
    if code in _AGAIN:
        return Again(f"error {code}")
    if code in _RANGE:
        return InvalidRequest("a number does not fit into 64 bits")
    told = f"MySQL: {type(exc).__name__} {code}"
    words = next((words for codes, words in _WORDS if code in codes), None)
    if words is not None:
        return StoreUnavailable(f"{name}: {words} ({told})")
    return StoreCorrupt(f"{name}: damaged ({told})") if code in _CORRUPT else StoreError(f"{name}: {told}")


def code_of(exc: BaseException | None) -> int:
    """The server's number of an error; -1 when it has none."""
    code = exc.args[0] if isinstance(exc, DriverError) and exc.args else -1
    return code if isinstance(code, int) else -1


# -- statements --------------------------------------------------------------


@cache
def _parts(sql: str) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """A statement around its parameters, and which parameter each place takes."""
    parts = re.split(r"\?(\d+)", sql)
    return tuple(text.encode() for text in parts[::2]), tuple(int(number) - 1 for number in parts[1::2])


def rendered(sql: str, params: Row) -> bytes:
    """A statement with its parameters written into it."""
    texts, places = _parts(sql)
    literals = [literal(value) for value in params]
    pieces = [texts[0]]
    for place, text in zip(places, texts[1:], strict=True):
        pieces += (literals[place], text)
    return b"".join(pieces)


def literal(value: Any) -> bytes:
    """A value as SQL has it."""
    if value is None:
        return b"NULL"
    if isinstance(value, str):
        return _quoted(value.encode())
    if isinstance(value, bytes):
        return _quoted(value)
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidRequest("a number does not fit into 64 bits")
        return b"%d" % value
    if isinstance(value, float):
        text = repr(value)  # with an exponent it is a double, without one a decimal
        return (text if "e" in text else f"{text}e0").encode()
    raise TypeError(f"no literal for {type(value).__name__}")


def _quoted(value: bytes) -> bytes:
    return b"_binary'" + value.replace(b"\\", b"\\\\").replace(b"'", b"\\'").replace(b"\0", b"\\0") + b"'"


# -- one connection ----------------------------------------------------------


class Connection:
    """See `holdfast.stores.sql.remote.Connection`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._statements = statements("mysql")
        self._waiting: list[bytes] = []
        self._size = 0
        self._open = self._writing = self._broken = False
        self.max_packet = 1 << 20

    @property
    def usable(self) -> bool:
        """See `Pooled`."""
        return not (self._broken or self._open) and bool(self._raw.connected)

    async def begin(self, *, writing: bool) -> None:
        """See `Connection.begin`."""
        self._open, self._writing = True, writing
        if writing:
            self._waiting = [b"START TRANSACTION"]
        else:
            self._waiting = [b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", b"START TRANSACTION READ ONLY"]

    async def query(self, name: str, params: Row) -> Rows:
        """See `Connection.query`. Rows of a lock are of no interest."""
        sql = self._statements[name]
        statement = rendered(sql, params)
        if self._open and (name.endswith("_lock") or not (sql.startswith("SELECT") or name == "session_insert")):
            await self._wait(statement)
            return ()
        result = (await self.send([*self._take(), statement]))[-1]
        return ((result.insert_id,),) if result.rows is None else result.rows

    async def many(self, name: str, rows: list[Row]) -> None:
        """See `Connection.many`."""
        sql = self._statements[name]
        head, values, row_of = sql.partition("VALUES ")
        if not values:
            for row in rows:
                await self._wait(rendered(sql, row))
            return
        # Insertions: many rows a statement.
        row_of, on, change = row_of.partition("\nON DUPLICATE")
        begin, together = (head + values).encode(), [rendered(row_of, row) for row in rows]
        for some in _in_pieces(together, min(WAITING_BYTES, self.max_packet) // 2):
            await self._wait(begin + b", ".join(some) + (on + change).encode())

    async def commit(self) -> None:
        """See `Connection.commit`."""
        try:
            await self.send([*self._take(), b"COMMIT"])
        except (Lost, StoreUnavailable) as exc:
            if self._broken and self._writing:
                raise Unknown from exc.__cause__
            raise
        self._open = False

    async def rollback(self) -> None:
        """See `Connection.rollback`. A connection that cannot do it is thrown away, which does it as well."""
        self._take()
        if self._open and not self._broken:
            try:
                await self.send([b"ROLLBACK"])
                self._open = False
            except (HoldfastError, Again):
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

    async def send(self, batch: list[bytes], *, patience: float = PATIENCE + 5) -> list[Any]:
        """The results of several statements, sent in one packet; the first that fails ends them."""
        packet = b";".join(batch)
        if len(packet) + 1 > self.max_packet:
            raise TooLarge(
                f"this takes {len(packet)} bytes on its way to {NAME}, whose max_allowed_packet is {self.max_packet}"
            )
        try:
            async with asyncio.timeout(patience):
                await self._raw.query(packet)
                results = [self._raw._result]  # noqa: SLF001  # cursors copy it row by row
                while results[-1].has_next:
                    await self._raw.next_result()
                    results.append(self._raw._result)  # noqa: SLF001
        except Exception as exc:
            raise self._told(exc) from exc
        return results

    async def _wait(self, statement: bytes) -> None:
        """Leave a statement for the next packet."""
        if self._size and self._size + len(statement) > min(WAITING_BYTES, self.max_packet - 64):
            await self.send(self._take())
        self._waiting.append(statement)
        self._size += len(statement)

    def _take(self) -> list[bytes]:
        waiting, self._waiting, self._size = self._waiting, [], 0
        return waiting

    def _told(self, exc: Exception) -> Exception:
        error = translated(exc, NAME)
        self._broken = self._broken or isinstance(error, Lost) or isinstance(exc, TimeoutError)
        return error


def _in_pieces(rows: list[bytes], size: int) -> Iterator[list[bytes]]:
    """The rows in groups of about that many bytes; a larger one is alone."""
    group: list[bytes] = []
    total = 0
    for row in rows:
        if group and total + len(row) > size:
            yield group
            group, total = [], 0
        group.append(row)
        total += len(row)
    if group:
        yield group


async def connected(address: Address, name: str) -> Connection:
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
            client_flag=MULTI_STATEMENTS,
            connect_timeout=int(PATIENCE / 3),
            ssl=_tls(address),
        )
    except RuntimeError as exc:  # what asyncmy says when it would have to encrypt a password
        raise StoreUnavailable(f"{name}: its login needs sslmode=require, or pip install cryptography") from exc
    except Exception as exc:
        raise translated(exc, name) from exc
    connection = Connection(raw)
    try:
        results = await connection.send([statement.encode() for statement in _SETUP])
    except BaseException:
        connection.kill()
        raise
    connection.max_packet = results[-1].rows[0][0]
    return connection


def _tls(address: Address) -> ssl.SSLContext | None:
    mode = address.ssl_mode
    if mode in (None, "disable"):
        return None
    context = ssl.create_default_context()
    if mode == "require":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

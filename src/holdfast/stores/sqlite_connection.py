"""A connection to SQLite through apsw: its settings, the upgrade of its schema, and the translation of its errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeVar

import apsw
import msgspec
from apsw import sqlite_extra

from holdfast.errors import HoldfastError, InvalidRequest, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores.logic.steps import Many, Row, Rows, Steps
from holdfast.stores.sql.address import MEMORY
from holdfast.stores.sql.migrations import TABLE, Migration, list_pending, load_migrations, refuse_other_tables
from holdfast.stores.sql.statements import load_statements
from holdfast.stores.sqlite_nearest import LOG, NearestSearch

T = TypeVar("T")
PATIENCE: Final = 29.0
"""Maximum seconds to wait for another process that has locked the file. A request waits this long once, then `PATIENCE_AFTER`, so
the request ends within 30 seconds.
"""
PATIENCE_AFTER: Final = 0.25
"""Maximum seconds of each further wait until the file is free again. So a request with several writes fails within 30 seconds."""
CACHE_KIB: Final = 16 * 1024
"""Size of the page cache of each connection to an index, in KiB. Larger and smaller caches were slower."""
VECTORS: Final = "vec1"
"""Name of the SQLite extension that compares vectors. Not every build of the driver includes it."""
PRIVATE: Final = 0o600
"""Mode of a new file, and so also of its `-wal` and `-shm` files: only the owner may read the conversations."""
BETWEEN_CHECKS: Final = 1000
"""Instructions of SQLite's virtual machine between two checks of the time."""
MOST_ROWS: Final = 256
"""An operation with a deadline is interrupted if it reads so many rows at once."""
_file_lock = threading.Lock()

_UNAVAILABLE = (
    apsw.FullError,
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.IOError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.NoLFSError,
    apsw.NoMemError,
    apsw.ProtocolError,
    OSError,
)
_CORRUPT = (apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError, msgspec.MsgspecError)


_MESSAGES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (apsw.FullError, "the disk is full; nothing was stored. Free some space, then retry"),
    (apsw.ReadOnlyError, "the database or its folder is read-only; nothing was stored"),
    (
        apsw.CantOpenError,
        "the database cannot be opened: check that its folder exists and that this user may read and write files in it",
    ),
    (apsw.BusyError, "another program has locked the database and did not release it in time; nothing was stored"),
    (apsw.LockedError, "another program has locked the database and did not release it in time; nothing was stored"),
    (apsw.PermissionsError, "this user may not read or write the database"),
    (apsw.NoMemError, "there is not enough memory"),
    (apsw.IOError, "the disk failed or is full, or a limit on file sizes was reached; nothing was stored"),
    (apsw.CorruptError, "the database is damaged: restore a backup, or export the sessions that can still be read"),
    (msgspec.MsgspecError, "a row is damaged: restore a backup, or export the sessions that can still be read"),
    (apsw.NotADBError, "the file is not an SQLite database, or its header is damaged: restore a backup"),
)
"""Error messages by exception type. They say what happened and what the caller or the operator of the server can do. SQLite's
own message is appended.
"""


def translate_error(exc: Exception, path: str | None = None) -> HoldfastError:
    """Convert an error of SQLite to a `HoldfastError`.

    Args:
        exc: the error.
        path: path of the file, for messages that the opener sees. None leaves the path out, because other callers must not see
            it.
    """
    if isinstance(exc, HoldfastError):
        return exc
    text = next((f"{text} (SQLite: {exc})" for kind, text in _MESSAGES if isinstance(exc, kind)), f"SQLite: {exc}")
    message = f"{path}: {text}" if path else text
    if isinstance(exc, OverflowError):
        error: HoldfastError = InvalidRequest("a number does not fit into 64 bits")
    elif isinstance(exc, _UNAVAILABLE):
        error = StoreUnavailable(message)
    elif isinstance(exc, _CORRUPT):
        error = StoreCorrupt(message)
        error.public = "the database is damaged"
    else:
        error = StoreError(f"SQLite: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


# -- one connection ----------------------------------------------------------


def _text_or_bytes(value: Any, kind: str) -> Any:
    """Decode the bytes of a text column. Bytes that are not valid UTF-8, and values of other columns, are returned unchanged."""
    try:
        return value.decode() if kind == "text" else value
    except UnicodeDecodeError:
        return value


class Connection:
    """An SQLite connection that runs the statements of operations."""

    def __init__(self, path: str) -> None:
        _create_private_file(path)
        self.raw = apsw.Connection(path)
        self.busy_handler = BusyHandler()
        self.raw.set_busy_handler(self.busy_handler)
        # Otherwise statements that use a partial index are planned again whenever a parameter is bound.
        self.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # Detect a damaged page when it is read, not when its content causes an error later.
        self.execute("PRAGMA cell_size_check=ON")
        self._deadline: float | None = None
        self._statements = load_statements("sqlite")
        self._nearest: NearestSearch | None = None

    def prepare_index(self) -> None:
        """Set the page cache and load the vector extension; both are needed only for an index."""
        self.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        if sqlite_extra.has(VECTORS):
            sqlite_extra.load(self.raw, VECTORS)
            self._nearest = NearestSearch(self.raw)

    def log_vectors(self) -> None:
        """Create the log of changed vectors that `sqlite_nearest` reads, unless it exists."""
        if not self.raw.in_transaction and self._nearest is not None and not self._nearest.is_logged():
            self.execute(f"BEGIN IMMEDIATE; {LOG} COMMIT")

    def execute(self, sql: str) -> list[Any]:
        """Run SQL statements without parameters, and return all rows."""
        return self.raw.execute(sql).fetchall()

    def set_deadline(self, deadline: float | None) -> None:
        """Interrupt operations at a time (`time.perf_counter`), or if they read many rows. None: they may take as long as they need."""
        self._deadline = deadline
        self.raw.set_progress_handler(None if deadline is None else self._is_late, BETWEEN_CHECKS)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.perf_counter() > self._deadline

    def run_steps(self, steps: Steps[T]) -> T:
        """Run the statements of `steps` and return their result. Raises `apsw.InterruptError` after the deadline."""
        named, execute = self._statements, self.raw.execute
        rows: Rows = ()
        try:
            query = next(steps)
            while True:
                if isinstance(query, Many):
                    self.raw.executemany(named[query.name], query.rows)
                    rows = ()
                elif query.name == "index_nearest" and (found := self._find_nearest(query.params)) is not None:
                    rows = found
                else:
                    cursor = execute(named[query.name], query.params)
                    try:
                        rows = cursor.fetchall() if self._deadline is None else self._fetch_briefly(cursor)
                    except UnicodeDecodeError:
                        if not cursor.is_readonly:
                            raise
                        rows = self._reread_damaged(cursor, named[query.name], query.params)
                query = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _fetch_briefly(self, cursor: apsw.Cursor) -> list[Any]:
        rows = list(islice(cursor, MOST_ROWS))
        if len(rows) == MOST_ROWS or self._is_late():
            cursor.close(True)
            raise apsw.InterruptError
        return rows

    def _find_nearest(self, params: Row) -> list[Any] | None:
        return None if self._nearest is None else self._nearest.find(params)

    def _reread_damaged(self, cursor: apsw.Cursor, sql: str, params: Row) -> list[Any]:
        """Run a query again and return its rows. Text that is not valid UTF-8, from a damaged row, is returned as bytes."""
        columns = range(len(cursor.get_description()))
        cursor.close(True)  # the traceback of an error may keep the cursor alive, and with it its snapshot
        names = ", ".join(f"c{at}" for at in columns)
        typed = ", ".join(f"iif(typeof(c{at}) = 'text', CAST(c{at} AS BLOB), c{at}), typeof(c{at})" for at in columns)
        wrapped = f"WITH found ({names}) AS ({sql.rstrip().rstrip(';')}) SELECT {typed} FROM found"  # noqa: S608 - ours
        rows: list[Any] = self.raw.execute(wrapped, params).fetchall()
        return [tuple(_text_or_bytes(row[2 * at], row[2 * at + 1]) for at in columns) for row in rows]

    def rollback(self) -> None:
        """Roll back the transaction, if SQLite has not already done so."""
        if self.raw.in_transaction:
            self.execute("ROLLBACK")


class BusyHandler:
    """SQLite's busy handler. It retries quickly at first, then more slowly, and gives up after some seconds.

    Attributes:
        gave_up: True if the last wait failed. The caller resets it when it gets the lock again.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        """Seconds to wait; None: `PATIENCE`, or `PATIENCE_AFTER` while `gave_up` is True."""
        self.gave_up = False
        self._since = 0.0

    def __call__(self, attempts: int) -> bool:
        now = time.monotonic()
        if attempts == 0:
            self._since = now
        usual = PATIENCE_AFTER if self.gave_up else PATIENCE
        if now - self._since > (usual if self.seconds is None else self.seconds):
            self.gave_up = self.gave_up or self.seconds is None
            return False
        time.sleep(min(0.0002 * (attempts + 1), 0.005))
        return True


# -- opening -----------------------------------------------------------------


def _create_private_file(path: str) -> None:
    """Create the file at `path` so that only its owner has access. An existing file keeps its permissions.

    Threads take turns by a lock. Closing a file releases all POSIX locks that this process has on the file, including the locks of an
    SQLite connection that another thread may have opened in the meantime.
    """
    if path == MEMORY:
        return
    with _file_lock:
        try:
            os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))
        except OSError:  # the file exists; or it cannot be created, and SQLite will report why
            return


def open_writer(connection: Connection, path: str) -> None:
    """Configure `connection` for writing and upgrade the schema. Waits while other processes open the same file."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            _configure(connection, path)
            return
        except apsw.NotADBError as exc:
            raise StoreUnavailable(
                f"{path} is not an SQLite database, or its header is damaged: restore a backup, or use another file"
            ) from exc
        except apsw.BusyError:
            # SQLite does not call the busy handler while another process changes the journal mode too.
            connection.rollback()
            if time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def _configure(connection: Connection, path: str) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if TABLE not in tables:
        refuse_other_tables(path, tables)
    if path == MEMORY:
        # Copying the schema takes a tenth of the time of running the migrations.
        with closing(apsw.Connection(MEMORY)) as made:
            made.deserialize("main", _serialize_schema(load_migrations("sqlite")))
            with connection.raw.backup("main", made, "main") as copying:
                copying.step()
    mode = connection.execute("PRAGMA journal_mode=WAL")[0][0]
    if path != MEMORY and mode != "wal":
        raise StoreUnavailable(
            f"{path} cannot have a write-ahead log: its file system does not support it. Use a file on a local disk"
        )
    if connection.raw.readonly("main"):
        raise StoreUnavailable(f"{path}: the database or its folder is read-only")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _migrate(connection, path, load_migrations("sqlite"))
        connection.execute("COMMIT")
    finally:
        connection.rollback()


def find_pending_migrations(path: str) -> tuple[Migration, ...]:
    """Return the migrations that opening an existing database file would apply. Nothing is changed.

    Raises:
        StoreUnavailable: the file cannot be read, or was made by another program or a newer release.
        StoreCorrupt: the file is damaged.
    """
    try:
        with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as raw:
            raw.set_busy_timeout(round(PATIENCE * 1000))
            tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if TABLE not in tables:
                refuse_other_tables(path, tables)
            applied = dict(raw.execute(f"SELECT number, checksum FROM {TABLE}")) if TABLE in tables else {}  # noqa: S608  # our own name
    except apsw.Error as exc:
        raise translate_error(exc, path) from exc
    return list_pending(path, load_migrations("sqlite"), applied)


@lru_cache(1)
def _serialize_schema(known: tuple[Migration, ...]) -> bytes:
    connection = Connection(MEMORY)
    with closing(connection.raw):
        _migrate(connection, MEMORY, known)
        return connection.raw.serialize("main")


def _migrate(connection: Connection, path: str, known: Sequence[Migration]) -> None:
    """Apply the pending migrations. Raises `StoreUnavailable` if the schema is from a later release or differs from the known one."""
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {TABLE} (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
    )
    applied = dict(connection.execute(f"SELECT number, checksum FROM {TABLE}"))  # noqa: S608  # our own name
    for migration in list_pending(path, known, applied):
        connection.execute(migration.sql)
        row = (migration.number, migration.name, migration.checksum)
        connection.raw.execute(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", row)  # noqa: S608

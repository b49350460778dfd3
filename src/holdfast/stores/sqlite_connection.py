"""A connection to SQLite: apsw, set up as the store needs it, the schema brought up to date, and its errors as ours."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, Final, TypeVar

import apsw
import msgspec
from apsw import sqlite_extra

from holdfast.errors import HoldfastError, InvalidRequest, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores.logic.steps import Many, Row, Rows, Steps
from holdfast.stores.sql import Migration, load_migrations
from holdfast.stores.sql.address import MEMORY
from holdfast.stores.sql.mark_backfill import BACKFILLS
from holdfast.stores.sql.statements import load_statements
from holdfast.stores.sql.upgrade import TABLE, list_pending, make_foreign_error
from holdfast.stores.sqlite_nearest import LOG, Nearest

T = TypeVar("T")
PATIENCE: Final = 29.0
"""Seconds to wait for another process that holds the file; what a request writes after that was in vain makes it 30."""
PATIENCE_AFTER: Final = 0.25
"""Seconds to wait for it then, until it was seen to let go: a request that writes several times fails in time."""
CACHE_KIB: Final = 16 * 1024
"""Pages that each connection to an index keeps: more slow it down again, and fewer too."""
VECTORS: Final = "vec1"
"""SQLite's extension that compares vectors, where the driver comes with it."""
PRIVATE: Final = 0o600
"""Rights of a new file, and so of its `-wal` and `-shm`: conversations are their owner's to read."""
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


_WORDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (apsw.FullError, "the disk is full; nothing of this was stored. Make room, then send it again"),
    (apsw.ReadOnlyError, "the database or its folder is read-only; nothing of this was stored"),
    (
        apsw.CantOpenError,
        "the database cannot be opened: is its folder there, and may files in it be read and written?",
    ),
    (apsw.BusyError, "another program holds the database, and did not let go in time; nothing of this was stored"),
    (apsw.LockedError, "another program holds the database, and did not let go in time; nothing of this was stored"),
    (apsw.PermissionsError, "the database may not be read or written"),
    (apsw.NoMemError, "there is not enough memory"),
    (apsw.IOError, "the disk failed, is full, or lets no file grow further; nothing of this was stored"),
    (apsw.CorruptError, "the database is damaged: restore a backup, or export the sessions that can still be read"),
    (msgspec.MsgspecError, "a row is damaged: restore a backup, or export the sessions that can still be read"),
    (apsw.NotADBError, "the file is not an SQLite database, or its beginning is damaged: restore a backup"),
)
"""What the caller, or whoever owns the server, can do about it. SQLite's own words follow."""


def translate_error(exc: Exception, path: str | None = None) -> HoldfastError:
    """The one place where errors of SQLite become ours; `path` is told to whoever opens it."""
    if isinstance(exc, HoldfastError):
        return exc
    words = next((f"{words} (SQLite: {exc})" for kind, words in _WORDS if isinstance(exc, kind)), f"SQLite: {exc}")
    told = f"{path}: {words}" if path else words
    if isinstance(exc, OverflowError):
        error: HoldfastError = InvalidRequest("a number does not fit into 64 bits")
    elif isinstance(exc, _UNAVAILABLE):
        error = StoreUnavailable(told)
    elif isinstance(exc, _CORRUPT):
        error = StoreCorrupt(told)
        error.public = "the database is damaged"
    else:
        error = StoreError(f"SQLite: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


# -- one connection ----------------------------------------------------------


def _text_or_bytes(value: Any, kind: str) -> Any:
    """Return a column's value; text comes as its bytes, and stays bytes if these are no UTF-8."""
    try:
        return value.decode() if kind == "text" else value
    except UnicodeDecodeError:
        return value


class Connection:
    """An SQLite connection that runs steps."""

    def __init__(self, path: str) -> None:
        _create_private_file(path)
        self.raw = apsw.Connection(path)
        self.busy_handler = BusyHandler()
        self.raw.set_busy_handler(self.busy_handler)
        # Without it, statements that use a partial index are planned anew whenever a parameter is bound.
        self.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # A damaged page is found when it is read, not when something trips over what it says.
        self.execute("PRAGMA cell_size_check=ON")
        self._statements = load_statements("sqlite")
        self._nearest: Nearest | None = None

    def prepare_index(self) -> None:
        """Make ready what only an index needs."""
        self.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        if sqlite_extra.has(VECTORS):
            sqlite_extra.load(self.raw, VECTORS)
            self._nearest = Nearest(self.raw)

    def log_vectors(self) -> None:
        """Have changes of vectors logged, see `sqlite_nearest`."""
        if not self.raw.in_transaction and self._nearest is not None and not self._nearest.is_logged():
            self.execute(f"BEGIN IMMEDIATE; {LOG} COMMIT")

    def execute(self, sql: str) -> list[Any]:
        """All rows of one or several statements without parameters."""
        return self.raw.execute(sql).fetchall()

    def run_steps(self, steps: Steps[T]) -> T:
        """Run `steps` to its end, answering its statements."""
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
                        rows = cursor.fetchall()
                    except UnicodeDecodeError:
                        if not cursor.is_readonly:
                            raise
                        rows = self._reread_damaged(cursor, named[query.name], query.params)
                query = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _find_nearest(self, params: Row) -> list[Any] | None:
        return None if self._nearest is None else self._nearest.rows(params)

    def _reread_damaged(self, cursor: apsw.Cursor, sql: str, params: Row) -> list[Any]:
        """Return all rows of a statement again. Text that is no UTF-8, because its row is damaged, is returned as bytes."""
        columns = range(len(cursor.get_description()))
        cursor.close(True)  # an error's traceback may keep it, and with it the moment that it reads
        names = ", ".join(f"c{at}" for at in columns)
        typed = ", ".join(f"iif(typeof(c{at}) = 'text', CAST(c{at} AS BLOB), c{at}), typeof(c{at})" for at in columns)
        wrapped = f"WITH found ({names}) AS ({sql.rstrip().rstrip(';')}) SELECT {typed} FROM found"  # noqa: S608 - ours
        rows: list[Any] = self.raw.execute(wrapped, params).fetchall()
        return [tuple(_text_or_bytes(row[2 * at], row[2 * at + 1]) for at in columns) for row in rows]

    def rollback(self) -> None:
        """End the transaction without its changes; SQLite may have ended it by itself."""
        if self.raw.in_transaction:
            self.execute("ROLLBACK")


class BusyHandler:
    """SQLite's busy handler: look again soon at first, and give up after some `seconds`.

    Attributes:
        gave_up: whether it gave up last time; whoever got the lock since says that it did not.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        """None: `PATIENCE`, or `PATIENCE_AFTER` if it gave up last time."""
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
    """Make the file at `path` if there is none, for its owner alone; one that is there keeps its rights.

    One at a time in a process: closing a file takes away what locks SQLite has on it, so nobody may open it in between.
    """
    if path == MEMORY:
        return
    with _file_lock:
        try:
            os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))
        except OSError:  # it is there; or it cannot be, and SQLite says why
            return


def open_writer(connection: Connection, path: str) -> None:
    """Make `connection` a writer of a database of the newest schema; others may be opening the same file now."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            _configure(connection, path)
            return
        except apsw.NotADBError as exc:
            raise StoreUnavailable(
                f"{path} is not an SQLite database, or its beginning is damaged: restore a backup, or name another file"
            ) from exc
        except apsw.BusyError:
            # Changing the journal mode does not wait by itself while another process does the same.
            connection.rollback()
            if time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def _configure(connection: Connection, path: str) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if tables and TABLE not in tables:
        raise make_foreign_error(path)
    if path == MEMORY:
        _copy_schema(connection, load_migrations("sqlite"))
    mode = connection.execute("PRAGMA journal_mode=WAL")[0][0]
    if path != MEMORY and mode != "wal":
        raise StoreUnavailable(f"{path} cannot have a write-ahead log: its file system does not allow it")
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


def _copy_schema(connection: Connection, known: tuple[Migration, ...]) -> None:
    """Give a new database in memory its schema: a copy takes a tenth of the time that it takes to make one."""
    with closing(apsw.Connection(MEMORY)) as made:
        made.deserialize("main", _serialize_schema(known))
        with connection.raw.backup("main", made, "main") as copying:
            copying.step()


@lru_cache(1)
def _serialize_schema(known: tuple[Migration, ...]) -> bytes:
    """A database with nothing in it but the schema."""
    connection = Connection(MEMORY)
    with closing(connection.raw):
        _migrate(connection, MEMORY, known)
        return connection.raw.serialize("main")


def _migrate(connection: Connection, path: str, known: Sequence[Migration]) -> None:
    """Apply what is missing; refuse a schema that is newer than this program, or not the one it knows."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS holdfast_migrations"
        " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
    )
    applied = dict(connection.execute("SELECT number, checksum FROM holdfast_migrations"))
    for migration in list_pending(path, known, applied):
        connection.execute(migration.sql)
        fill, place = BACKFILLS.get(migration.number, (None, None))
        while fill is not None and place is not None:
            place = connection.run_steps(fill(place))
        row = (migration.number, migration.name, migration.checksum)
        connection.raw.execute("INSERT INTO holdfast_migrations VALUES (?, ?, ?)", row)


def read_applied_migrations(path: str) -> dict[int, str]:
    """The migrations that the file at `path` has had, with their checksums; nothing is changed. None without a file."""
    if path == MEMORY or not os.path.exists(path):  # noqa: PTH110  # as it was spelled
        return {}
    try:
        with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as raw:
            raw.set_busy_handler(BusyHandler())
            tables = raw.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (TABLE,)).fetchall()
            rows: Any = raw.execute(f"SELECT number, checksum FROM {TABLE}").fetchall() if tables else ()  # noqa: S608
            return dict(rows)
    except Exception as exc:
        raise translate_error(exc, path) from exc

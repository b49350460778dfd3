"""The embedded store: one SQLite file, one writer thread with group commit, one reader thread.

Writes that wait are committed together: one transaction and one fsync for all of them, and nobody is told before. Reads
have a connection of their own and, thanks to the write-ahead log, wait for no writer. `:memory:` has one connection
and one thread for both. Another process on the same file is waited for, never met with "database is locked".
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, Self, TypeVar

import apsw
import msgspec
from apsw import sqlite_extra

from holdfast.errors import HoldfastError, InvalidRequest, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.recall.vectors import engine as scanner
from holdfast.stores import checks
from holdfast.stores._worker import Outcome, Worker
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.steps import Many, Rows, Steps
from holdfast.stores.logic.store import LogicStore
from holdfast.stores.sql import Migration, migrations, statements
from holdfast.stores.sql.marking import FILLED
from holdfast.stores.sql.upgrade import TABLE, foreign, pending

T = TypeVar("T")
PATIENCE: Final = 30.0
"""Seconds to wait for another process that holds the file."""
SCRUBBING: Final = 0.25
"""Seconds that writers wait until what was removed can leave the write-ahead log: for as long as somebody still reads it, as
a backup does, it cannot."""
MEMORY = ":memory:"
CACHE_KIB: Final = 16 * 1024
"""Pages that each connection to an index keeps: more slow it down again, and fewer too."""
VECTORS: Final = "vec1"
"""SQLite's extension that compares vectors, where the driver comes with it."""

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


def translated(exc: Exception, path: str | None = None) -> HoldfastError:
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
    else:
        error = StoreError(f"SQLite: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


class Work(msgspec.Struct, frozen=True, gc=False):
    """One operation for a connection. `steps` makes it anew each time: a batch that fails is run again job by job."""

    steps: Callable[[], Steps[Any]]
    scrub: bool = False
    """Whether it removes content: then it has to leave the write-ahead log too."""


# -- one connection, on one thread -------------------------------------------


class _Connection:
    """An SQLite connection that runs steps."""

    def __init__(self, path: str) -> None:
        self.raw = apsw.Connection(path)
        self.patience = _Patience()
        self.raw.set_busy_handler(self.patience)
        # Without it, statements that use a partial index are planned anew whenever a parameter is bound.
        self.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # A damaged page is found when it is read, not when something trips over what it says.
        self.ask("PRAGMA cell_size_check=ON")
        self._statements = statements("sqlite")

    def prepare_index(self) -> None:
        """Make ready what only an index needs."""
        self.ask(f"PRAGMA cache_size=-{CACHE_KIB}")
        if sqlite_extra.has(VECTORS):
            sqlite_extra.load(self.raw, VECTORS)

    def ask(self, sql: str) -> list[Any]:
        """All rows of one or several statements without parameters."""
        return self.raw.execute(sql).fetchall()

    def drive(self, steps: Steps[T]) -> T:
        """Run `steps` to its end, answering its statements."""
        execute, named = self.raw.execute, self._statements
        rows: Rows = ()
        try:
            query = next(steps)
            while True:
                if isinstance(query, Many):
                    self.raw.executemany(named[query.name], query.rows)
                    rows = ()
                else:
                    rows = execute(named[query.name], query.params).fetchall()
                query = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def outcome(self, work: Work) -> Outcome:
        """What `work` gives or raises, as it is; the transaction is the caller's."""
        try:
            return self.drive(work.steps()), None
        except Exception as exc:  # noqa: BLE001  # it belongs to the job's caller, not to this thread
            return None, exc

    def rollback(self) -> None:
        """End the transaction without its changes; SQLite may have ended it by itself."""
        if self.raw.in_transaction:
            self.ask("ROLLBACK")


class _Patience:
    """SQLite's busy handler: look again soon at first, and give up after some `seconds`."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """None: `PATIENCE`."""
        self._since = 0.0

    def __call__(self, attempts: int) -> bool:
        now = time.monotonic()
        if attempts == 0:
            self._since = now
        if now - self._since > (PATIENCE if self.seconds is None else self.seconds):
            return False
        time.sleep(min(0.0002 * (attempts + 1), 0.005))
        return True


class _Reader:
    """Runs batches of reads, each batch seeing one moment."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        self._connection = _Connection(path)
        self._connection.ask("PRAGMA query_only=ON; PRAGMA temp_store=MEMORY")
        if index:
            self._connection.prepare_index()

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """See `Handler`."""
        try:
            self._connection.ask("BEGIN")
        except apsw.Error as exc:
            return [(None, translated(exc)) for _ in works]
        outcomes = [_told(self._connection.outcome(work)) for work in works]
        self._connection.rollback()
        return outcomes

    def close(self) -> None:
        """See `Handler`."""
        self._connection.raw.close()


class _Writer:
    """Runs batches of writes, each batch committed at once; and of reads, where there is no reader."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        self._connection = _Connection(path)
        self._unscrubbed = False
        try:
            _open(self._connection, path)
            if index:
                self._connection.prepare_index()
        except Exception:
            self._connection.raw.close()
            raise

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """See `Handler`."""
        outcomes = self._together(works)
        if outcomes is None:
            outcomes = [outcome for work in works for outcome in self._together([work], alone=True) or ()]
        self._scrub(works)
        return outcomes

    def close(self) -> None:
        """See `Handler`. The last connection to a file moves what the write-ahead log holds into it."""
        self._connection.raw.close()

    def _together(self, works: Sequence[Work], *, alone: bool = False) -> list[Outcome] | None:
        """One transaction for all; None when one of several failed in the middle, and all have to be run again.

        A write checks first and changes then, so nearly every write that raises has changed nothing: then the others
        need not suffer, and no savepoint for each of them has to be paid.
        """
        connection, outcomes = self._connection, []
        try:
            connection.ask("BEGIN IMMEDIATE")
            for work in works:
                changes = connection.raw.total_changes()
                outcome = connection.outcome(work)
                outcomes.append(_told(outcome))
                if outcome[1] is not None and (
                    not connection.raw.in_transaction or connection.raw.total_changes() != changes
                ):
                    connection.rollback()
                    return outcomes if alone else None
            connection.ask("COMMIT")
        except apsw.Error as exc:
            connection.rollback()
            return [(None, translated(exc)) for _ in works]
        return outcomes

    def _scrub(self, works: Sequence[Work]) -> None:
        """Take removed content out of the write-ahead log; when a reader is in the way for long, with the next batch."""
        removed = any(work.scrub for work in works)
        if not (removed or self._unscrubbed):
            return
        patience = self._connection.patience
        patience.seconds = SCRUBBING if removed else 0.0
        try:
            busy = self._connection.ask("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
        except apsw.Error:
            busy = 1
        finally:
            patience.seconds = None
        self._unscrubbed = bool(busy)


def _told(outcome: Outcome) -> Outcome:
    result, error = outcome
    return (result, None) if error is None else (None, translated(error) if isinstance(error, Exception) else error)


# -- opening -----------------------------------------------------------------


def _open(connection: _Connection, path: str) -> None:
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


def _configure(connection: _Connection, path: str) -> None:
    tables = {name for (name,) in connection.ask("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if tables and "holdfast_migrations" not in tables:
        raise foreign(path)
    mode = connection.ask("PRAGMA journal_mode=WAL")[0][0]
    if path != MEMORY and mode != "wal":
        raise StoreUnavailable(f"{path} cannot have a write-ahead log: its file system does not allow it")
    if connection.raw.readonly("main"):
        raise StoreUnavailable(f"{path}: the database or its folder is read-only")
    connection.ask("PRAGMA synchronous=FULL")
    connection.ask("PRAGMA secure_delete=ON")
    connection.ask("PRAGMA temp_store=MEMORY")
    connection.ask("BEGIN IMMEDIATE")
    try:
        _migrate(connection, path, migrations("sqlite"))
        connection.ask("COMMIT")
    finally:
        connection.rollback()


def _migrate(connection: _Connection, path: str, known: Sequence[Migration]) -> None:
    """Apply what is missing; refuse a schema that is newer than this program, or not the one it knows."""
    connection.ask(
        "CREATE TABLE IF NOT EXISTS holdfast_migrations"
        " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
    )
    applied = dict(connection.ask("SELECT number, checksum FROM holdfast_migrations"))
    for migration in pending(path, known, applied):
        connection.ask(migration.sql)
        fill, place = FILLED.get(migration.number, (None, None))
        while fill is not None and place is not None:
            place = connection.drive(fill(place))
        row = (migration.number, migration.name, migration.checksum)
        connection.raw.execute("INSERT INTO holdfast_migrations VALUES (?, ?, ?)", row)


# -- the store ---------------------------------------------------------------


class _Database:
    """The threads behind all handles of one opened database."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        self._path = path
        self._stopped = False
        self._index = index
        self.durable = path != MEMORY
        self._writer = Worker("holdfast-sqlite-writer", partial(_Writer, path, index=index))
        self._reader = self._writer

    async def open(self) -> None:
        """Open and migrate; the file is there afterwards."""
        try:
            await self._writer.opened()
            if self._path != MEMORY:
                self._reader = Worker("holdfast-sqlite-reader", partial(_Reader, self._path, index=self._index))
                await self._reader.opened()
        except Exception as exc:
            await self.close()
            raise self._told(translated(exc, self._path)) from exc
        except BaseException:  # cancelled: the threads end by themselves
            self.stop()
            raise

    async def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        """What `steps` reads."""
        try:
            result: T = await self._reader.submit(Work(steps))
        except StoreCorrupt as exc:
            raise self._told(exc) from exc.__cause__
        return result

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
    ) -> T:
        """What `steps` did, committed. There is one writer, so nothing of what may be known of them matters."""
        try:
            result: T = await self._writer.submit(Work(steps, scrub))
        except StoreCorrupt as exc:
            raise self._told(exc) from exc.__cause__
        return result

    def _told(self, error: HoldfastError) -> HoldfastError:
        """The error with what can be done about it: nobody needs a backup of an index."""
        damaged = isinstance(error, StoreCorrupt) or isinstance(error.__cause__, apsw.NotADBError)
        if not self._index or not damaged:
            return error
        return type(error)(
            f"{self._path}: the index is damaged. It is made of the sessions, so nothing is lost: remove the file with its -wal and"
            " -shm, unless sessions lie in it too, and it is made anew"
        )

    def stop(self) -> None:
        """Accept no more."""
        self._stopped = True
        self._reader.stop()
        self._writer.stop()

    async def close(self) -> None:
        """Finish what was accepted; the writer goes last, to leave one whole file behind."""
        self.stop()
        await self._reader.close()
        await self._writer.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say that the database was forgotten, and let its threads end."""
        if not self._stopped:
            _warn(f"unclosed store {self._path}", ResourceWarning, source=self)
            self.stop()


class SQLiteStore(LogicStore):
    """A handle of one tenant on an SQLite database; see `holdfast.stores.base.Store`."""

    dialect = "sqlite"

    @staticmethod
    async def applied_to(url: str) -> dict[int, str]:
        """The migrations that the file at `url` has had, with their checksums; nothing is changed."""
        path = path_of(url)
        if path == MEMORY or not os.path.exists(path):  # noqa: PTH110, ASYNC240  # as it was spelled; it is quick
            return {}
        try:
            with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as raw:
                raw.set_busy_handler(_Patience())
                tables = raw.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (TABLE,)).fetchall()
                rows: Any = raw.execute(f"SELECT number, checksum FROM {TABLE}").fetchall() if tables else ()  # noqa: S608
                return dict(rows)
        except Exception as exc:
            raise translated(exc, path) from exc

    @classmethod
    async def open(cls, url: str, *, tenant: str) -> Self:
        """Open the database at `url`, making it if there is none."""
        checks.check_id(tenant, "tenant")
        database = _Database(path_of(url))
        await database.open()
        return cls(database, tenant, owner=True)

    @classmethod
    async def open_index(cls, url: str, *, tenant: str, compress: bool = False) -> LogicIndex:
        """Open the database at `url` for an index alone, making it if there is none."""
        checks.check_id(tenant, "tenant")
        engine = VECTORS if sqlite_extra.has(VECTORS) and not compress else scanner()
        database = _Database(path_of(url), index=True)
        await database.open()
        return LogicIndex(database, tenant, engine=engine, compress=compress)

    @property
    def durable(self) -> bool:  # type: ignore[override]  # read only, as the protocol has it
        """See `Store.durable`."""
        return bool(getattr(self._database, "durable", True))


def durability_of(path: str) -> tuple[str, int]:
    """`journal_mode` and `synchronous` as a writer of the database at `path` has them set.

    They are a connection's own, and the store's connections live on threads of theirs: so one is opened as the store opens
    its own (which brings the schema up to date), asked, and closed.

    Raises:
        StoreUnavailable: the database cannot be opened, or not by this release.
        StoreCorrupt: it is damaged.
    """
    try:
        connection = _Connection(path)
        try:
            _open(connection, path)
            return connection.ask("PRAGMA journal_mode")[0][0], connection.ask("PRAGMA synchronous")[0][0]
        finally:
            connection.raw.close()
    except Exception as exc:
        raise translated(exc, path) from exc


def path_of(url: str) -> str:
    """The file that `url` names: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://:memory:`."""
    rest = url.removeprefix("sqlite://")
    if rest in (MEMORY, "/" + MEMORY):
        return MEMORY
    path = rest.removeprefix("/")
    if path == rest or not path or path.endswith("/") or "?" in path or "\0" in path:
        raise InvalidRequest(
            f"{url!r} is not a store: sqlite:///file.db (relative), sqlite:////path/file.db (absolute)"
            " or sqlite://:memory: is meant, without options",
            param="url",
        )
    # An absolute path cannot be taken for one of SQLite's own names, like `file:…`.
    return os.path.abspath(path)  # noqa: PTH100  # Path.resolve would follow links, which SQLite does itself

"""The embedded store: one SQLite file, one writer thread with group commit, one reader thread.

Writes that wait are committed together: one transaction and one fsync for all of them, and nobody is told before. Reads
have a connection of their own and, thanks to the write-ahead log, wait for no writer. `:memory:` has one connection
and one thread for both. Another process on the same file is waited for, never met with "database is locked".
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

import apsw
import msgspec
from apsw import sqlite_extra

from holdfast.errors import HoldfastError, StoreCorrupt
from holdfast.errors.environment import INDEX_DAMAGED
from holdfast.recall.vectors import engine as scanner
from holdfast.stores import checks
from holdfast.stores._worker import Outcome, Worker
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.steps import Steps
from holdfast.stores.logic.store import LogicStore
from holdfast.stores.sql.address import MEMORY, parse_path
from holdfast.stores.sqlite_connection import VECTORS, Connection, open_writer, read_applied_migrations, translate_error

T = TypeVar("T")
SCRUBBING: Final = 0.25
"""Seconds that writers wait until what was removed can leave the write-ahead log: for as long as somebody still reads it, as
a backup does, it cannot."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """One operation for a connection. `steps` makes it anew each time: a batch that fails is run again job by job."""

    steps: Callable[[], Steps[Any]]
    scrub: bool = False
    """Whether it removes content: then it has to leave the write-ahead log too."""


# -- batches, on one thread ------------------------------------------------------


class _Runner:
    """Runs operations on a connection of its own to the database at `path`, which may be for an index alone."""

    def __init__(self, path: str, *, index: bool) -> None:
        self._connection = Connection(path)
        self._path = path
        self._is_index = index

    def _run_one(self, work: Work) -> Outcome:
        """Return what `work` gives or raises; the transaction is the caller's."""
        try:
            return self._connection.run_steps(work.steps()), None
        except Exception as exc:  # noqa: BLE001  # it belongs to the job's caller, not to this thread
            return None, self._translate(exc)

    def _translate(self, exc: Exception) -> HoldfastError:
        error = translate_error(exc)
        return explain_damage(error, self._path) if self._is_index else error

    def close(self) -> None:
        """Close the connection. The last one to a file moves what the write-ahead log holds into it."""
        self._connection.raw.close()


class _Reader(_Runner):
    """Runs batches of reads, each batch seeing one moment."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        super().__init__(path, index=index)
        self._connection.execute("PRAGMA query_only=ON; PRAGMA temp_store=MEMORY")
        if index:
            self._connection.prepare_index()

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """See `Handler`."""
        try:
            self._connection.execute("BEGIN")
        except apsw.Error as exc:
            return [(None, self._translate(exc)) for _ in works]
        outcomes = []
        for work in works:
            outcomes.append(self._run_one(work))
            if outcomes[-1][1] is None:
                self._connection.busy_handler.gave_up = False
        self._connection.rollback()
        return outcomes


class _Writer(_Runner):
    """Runs batches of writes, each batch committed at once; and of reads, where there is no reader."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        super().__init__(path, index=index)
        self._unscrubbed = False
        try:
            open_writer(self._connection, path)
            if index:
                self._connection.prepare_index()
                self._connection.log_vectors()
        except Exception:
            self._connection.raw.close()
            raise

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """See `Handler`."""
        outcomes = self._run_batch(works)
        if outcomes is None:
            outcomes = [outcome for work in works for outcome in self._run_batch([work], alone=True) or ()]
        removed = [work for work in works if work.scrub]
        if removed or self._unscrubbed:
            self._scrub(SCRUBBING if removed else 0.0)
        return outcomes

    def _run_batch(self, works: Sequence[Work], *, alone: bool = False) -> list[Outcome] | None:
        """One transaction for all; None when one of several failed in the middle, and all have to be run again.

        A write checks first and changes then, so nearly every write that raises has changed nothing: then the others
        need not suffer, and no savepoint for each of them has to be paid.
        """
        connection, outcomes = self._connection, []
        raw = connection.raw
        try:
            raw.execute("BEGIN IMMEDIATE")
            connection.busy_handler.gave_up = False
            for work in works:
                changes = raw.total_changes()
                outcome = self._run_one(work)
                outcomes.append(outcome)
                if outcome[1] is not None and (not raw.in_transaction or raw.total_changes() != changes):
                    connection.rollback()
                    return outcomes if alone else None
            raw.execute("COMMIT")
        except apsw.Error as exc:
            connection.rollback()
            return [(None, self._translate(exc)) for _ in works]
        return outcomes

    def _scrub(self, seconds: float) -> None:
        """Take removed content out of the write-ahead log; when a reader is in the way for so long, with the next batch."""
        patience = self._connection.busy_handler
        patience.seconds = seconds
        try:
            busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
        except apsw.Error:
            busy = 1
        finally:
            patience.seconds = None
        self._unscrubbed = bool(busy)


def explain_damage(error: HoldfastError, path: str) -> HoldfastError:
    """Return an error of an index with what can be done about damage: nobody needs a backup of an index."""
    if not (isinstance(error, StoreCorrupt) or isinstance(error.__cause__, apsw.NotADBError)):
        return error
    explained = type(error)(
        f"{path}: the index is damaged. It is made of the sessions, so nothing is lost: remove the file with its -wal and"
        " -shm, unless sessions lie in it too, and it is made anew"
    )
    explained.public = INDEX_DAMAGED
    explained.__cause__ = error.__cause__
    return explained


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
            await self._writer.wait_until_open()
            if self._path != MEMORY:
                self._reader = Worker("holdfast-sqlite-reader", partial(_Reader, self._path, index=self._index))
                await self._reader.wait_until_open()
        except Exception as exc:
            await self.close()
            error = translate_error(exc, self._path)
            raise (explain_damage(error, self._path) if self._index else error) from exc
        except BaseException:  # cancelled: the threads end by themselves
            self.stop()
            raise

    def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> Awaitable[T]:
        """Return what `steps` reads."""
        return self._reader.submit(Work(steps))

    def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
    ) -> Awaitable[T]:
        """Do what `steps` does, and commit it. There is one writer, so nothing of what may be known of them matters."""
        return self._writer.submit(Work(steps, scrub))

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
    async def read_applied_migrations(url: str) -> dict[int, str]:
        """The migrations that the file at `url` has had, with their checksums; nothing is changed."""
        return read_applied_migrations(parse_path(url))

    @classmethod
    async def open(cls, url: str, *, tenant: str) -> Self:
        """Open the database at `url`, making it if there is none."""
        checks.check_id(tenant, "tenant")
        database = _Database(parse_path(url))
        await database.open()
        return cls(database, tenant, owner=True)

    @classmethod
    async def open_index(cls, url: str, *, tenant: str, compress: bool) -> LogicIndex:
        """Open the database at `url` for an index alone, making it if there is none."""
        checks.check_id(tenant, "tenant")
        engine = VECTORS if sqlite_extra.has(VECTORS) and not compress else scanner()
        database = _Database(parse_path(url), index=True)
        await database.open()
        return LogicIndex(database, tenant, engine=engine, compress=compress)

    @property
    def durable(self) -> bool:  # type: ignore[override]  # read only, as the protocol has it
        """See `Store.durable`."""
        return bool(getattr(self.database, "durable", True))


def read_durability(path: str) -> tuple[str, int]:
    """`journal_mode` and `synchronous` as a writer of the database at `path` has them set.

    They are a connection's own, and the store's connections live on threads of theirs: so one is opened as the store opens
    its own (which brings the schema up to date), asked, and closed.

    Raises:
        StoreUnavailable: the database cannot be opened, or not by this release.
        StoreCorrupt: it is damaged.
    """
    try:
        connection = Connection(path)
        try:
            open_writer(connection, path)
            return connection.execute("PRAGMA journal_mode")[0][0], connection.execute("PRAGMA synchronous")[0][0]
        finally:
            connection.raw.close()
    except Exception as exc:
        raise translate_error(exc, path) from exc

"""The embedded store: one SQLite file, one writer thread with group commit, and one reader thread.

All waiting writes are committed together, with one transaction and one fsync, before any of them returns. Reads have a
connection of their own. Because of the write-ahead log they do not wait for the writer. If another process has locked the file, the
store waits instead of failing with "database is locked".

A database in memory has a single connection. Its operations run on the event loop, because handing them to a thread costs more than
most of them do; so do reads of few rows from a file. An operation that takes longer than `SLICE` there is undone and run again on
the thread.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, Self, TypeVar

import anyio.to_thread
import apsw
import msgspec
from apsw import sqlite_extra

from holdfast.errors import HoldfastError, StoreClosed, StoreCorrupt
from holdfast.errors.environment import INDEX_DAMAGED
from holdfast.recall.vectors import get_engine as get_scanner
from holdfast.stores import checks
from holdfast.stores._worker import Outcome, Worker
from holdfast.stores.base import Store
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.steps import Steps
from holdfast.stores.sql.address import MEMORY, parse_path
from holdfast.stores.sql.migrations import Migration
from holdfast.stores.sqlite_connection import VECTORS, Connection, find_pending_migrations, open_writer, translate_error

T = TypeVar("T")
SCRUBBING: Final = 0.25
"""Maximum seconds that a batch of writes waits until deleted content can be cleared from the write-ahead log. The log cannot be
cleared while another process or thread reads, for example for a backup.
"""
SLICE: Final = 0.002
"""Seconds that an operation may take on the event loop, and for which several ones may run before other tasks do."""

AFTER_LONG: Final = 15
"""Number of times that an operation that took long is not tried on the event loop. What is undone there so costs a few percent at most."""


class Operation(msgspec.Struct, frozen=True, gc=False):
    """A read or write for a connection.

    Attributes:
        steps: creates the steps of the operation.
    """

    steps: Callable[[], Steps[Any]]
    scrub: bool = False
    """True if the operation deletes content, which must also be cleared from the write-ahead log."""
    writing: bool = False
    single: bool = False
    """True for a read that needs no snapshot, because it is one statement."""


# -- batches, on one thread ------------------------------------------------------


class _Runner:
    """Runs operations on a connection of its own.

    Args:
        path: path of the file, or `:memory:`.
        index: True if the database is opened as an index.
    """

    def __init__(self, path: str, *, index: bool) -> None:
        self._connection = Connection(path)
        self._path = path
        self._is_index = index
        self._in_use = threading.Lock()
        self._long: dict[Any, int] = {}
        """For the code of an operation that took long: how many of its next runs are not tried on the event loop."""

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Run operations on the thread, and return their outcomes."""
        with self._in_use:
            return self._run_batch(operations)

    def run_briefly(self, operation: Operation) -> Outcome | None:
        """Run an operation on the event loop. Return None, and change nothing, if it takes too long or the thread is at work."""
        kind = getattr(operation.steps, "func", operation.steps).__code__
        left = self._long.get(kind, 0)
        if left:
            self._long[kind] = left - 1
        if left or operation.scrub or not self._in_use.acquire(blocking=False):
            return None
        connection = self._connection
        try:
            connection.set_deadline(perf_counter() + SLICE)
            connection.busy_handler.seconds = 0.0
            outcome = self._run_one(operation) if operation.single else self._run_batch([operation])[0]
        finally:
            connection.busy_handler.seconds = None
            connection.set_deadline(None)
            self._in_use.release()
        if outcome[1] is None or not isinstance(outcome[1].__cause__, apsw.InterruptError | apsw.BusyError):
            return outcome
        self._long[kind] = AFTER_LONG
        return None

    def _run_batch(self, operations: Sequence[Operation]) -> list[Outcome]:
        raise NotImplementedError

    def _run_one(self, operation: Operation) -> Outcome:
        """Run an operation inside the caller's transaction. Return its result or the exception that it raised."""
        try:
            return self._connection.run_steps(operation.steps()), None
        except Exception as exc:  # noqa: BLE001  # it is raised for the caller of the operation, not in this thread
            return None, self._translate(exc)

    def _translate(self, exc: Exception) -> HoldfastError:
        error = translate_error(exc)
        return explain_damage(error, self._path) if self._is_index else error

    def close(self) -> None:
        """Close the connection. When the last connection to a file is closed, SQLite moves the write-ahead log's content into the file."""
        with self._in_use:
            self._connection.raw.close()


class Reader(_Runner):
    """Runs batches of reads. All reads of a batch see the same snapshot."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        super().__init__(path, index=index)
        self._connection.execute("PRAGMA query_only=ON; PRAGMA temp_store=MEMORY")
        if index:
            self._connection.prepare_index()

    def _run_batch(self, operations: Sequence[Operation]) -> list[Outcome]:
        try:
            self._connection.execute("BEGIN")
        except apsw.Error as exc:
            return [(None, self._translate(exc)) for _ in operations]
        outcomes = []
        for operation in operations:
            outcomes.append(self._run_one(operation))
            if outcomes[-1][1] is None:
                self._connection.busy_handler.gave_up = False
        self._connection.rollback()
        return outcomes


class Writer(_Runner):
    """Runs batches of writes, with one commit per batch. A database in memory has no reader, so its writer also runs the reads."""

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

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        with self._in_use:
            outcomes = self._run_batch(operations)
            removed = [operation for operation in operations if operation.scrub]
            if removed or self._unscrubbed:
                self._scrub(SCRUBBING if removed else 0.0)
            return outcomes

    def _run_batch(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Run operations in one transaction and return their outcomes.

        Each of several operations has a savepoint, so that one which raises after a change costs only itself.
        """
        connection, outcomes = self._connection, []
        raw = connection.raw
        try:
            raw.execute("BEGIN IMMEDIATE")
            connection.busy_handler.gave_up = False
            for operation in operations:
                if len(operations) > 1:
                    raw.execute("SAVEPOINT operation")
                outcome = self._run_one(operation)
                outcomes.append(outcome)
                if outcome[1] is not None and (len(operations) == 1 or not raw.in_transaction):
                    connection.rollback()  # if SQLite has done so itself, for example because the disk is full, all have failed
                    return [(None, outcome[1]) for _ in operations]
                if len(operations) > 1:
                    raw.execute(
                        "RELEASE operation" if outcome[1] is None else "ROLLBACK TO operation; RELEASE operation"
                    )
            raw.execute("COMMIT")
        except apsw.Error as exc:
            connection.rollback()
            return [(None, self._translate(exc)) for _ in operations]
        return outcomes

    def _scrub(self, seconds: float) -> None:
        """Clear deleted content from the write-ahead log. If a reader prevents it for `seconds`, the next batch tries again."""
        busy_handler = self._connection.busy_handler
        busy_handler.seconds = seconds
        try:
            busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
        except apsw.Error:
            busy = 1
        finally:
            busy_handler.seconds = None
        self._unscrubbed = bool(busy)


def explain_damage(error: HoldfastError, path: str) -> HoldfastError:
    """Return an error that explains how to rebuild a damaged index. An error of any other kind is returned unchanged."""
    if not (isinstance(error, StoreCorrupt) or isinstance(error.__cause__, apsw.NotADBError)):
        return error
    explained = type(error)(
        f"{path}: the index is damaged. No sessions are lost: remove the file with its -wal and -shm, unless it also contains"
        " sessions, and the index is built again"
    )
    explained.public = INDEX_DAMAGED
    explained.__cause__ = error.__cause__
    return explained


# -- the store ---------------------------------------------------------------


class _Database:
    """An open database with its threads, shared by all handles."""

    def __init__(self, path: str, *, index: bool = False) -> None:
        self._path = path
        self._stopped = False
        self._index = index
        self.durable = path != MEMORY
        self._brief: Writer | None = None
        """Runs operations on the event loop, for a database in memory."""
        self._brief_reader: _Runner | None = None
        """Reads few rows on the event loop."""
        self._writer: Worker[Operation, Writer] = Worker("holdfast-sqlite-writer", partial(Writer, path, index=index))
        self._reader: Worker[Operation, Any] = self._writer
        self._slice_began: float | None = None
        """When the first operation ran since the event loop last ran other tasks."""

    async def open(self) -> None:
        """Open the database, create the file if needed, and apply pending migrations."""
        try:
            writer = await self._writer.wait_until_open()
            if self._path == MEMORY:
                self._brief = self._brief_reader = None if self._index else writer
            else:
                self._reader = Worker("holdfast-sqlite-reader", partial(Reader, self._path, index=self._index))
                self._brief_reader = await self._reader.wait_until_open()
        except Exception as exc:
            await self.close()
            error = translate_error(exc, self._path)
            raise (explain_damage(error, self._path) if self._index else error) from exc
        except BaseException:  # cancelled: the threads stop by themselves
            self.stop()
            raise

    def read(self, steps: Callable[[], Steps[T]], *, single: bool = False, short: bool = False) -> Awaitable[T]:
        """Run `steps` on one snapshot and return their result."""
        operation = Operation(steps, single=single or self._brief is not None)
        brief = self._brief_reader if short else self._brief
        return self._reader.submit(operation) if brief is None else self._run_briefly(brief, operation)

    def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        later_queues: Sequence[Hashable] = (),
        light: bool = False,
        long: bool = False,
    ) -> Awaitable[T]:
        """Run `steps`, commit, and return their result.

        There is a single writer, so `queue`, `later_queues` and `light` have no effect.
        """
        operation = Operation(steps, scrub, writing=True)
        brief = None if long else self._brief
        return self._writer.submit(operation) if brief is None else self._run_briefly(brief, operation)

    async def _run_briefly(self, runner: _Runner, operation: Operation) -> Any:
        """Run an operation on the event loop, or on the thread if it takes long."""
        if self._stopped:
            raise StoreClosed
        if self._slice_began is None:
            self._slice_began = perf_counter()
            asyncio.get_running_loop().call_soon(self._end_slice)
        began = self._slice_began
        outcome = runner.run_briefly(operation)
        if outcome is None:
            return await (self._writer if operation.writing else self._reader).submit(operation)
        if perf_counter() - began > SLICE:
            await asyncio.sleep(0)
            self._end_slice()  # also if the loop in which the slice began has ended
        result, error = outcome
        if error is not None:
            raise error
        return result

    def _end_slice(self) -> None:
        self._slice_began = None

    def stop(self) -> None:
        """Accept no more operations."""
        self._stopped = True
        self._reader.stop()
        self._writer.stop()

    async def close(self) -> None:
        """Finish the accepted operations, then close the connections, the writer last, so that a single complete file is left."""
        self.stop()
        await self._reader.close()
        await self._writer.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Warn that the database was never closed, and stop its threads."""
        if not self._stopped:
            _warn(f"unclosed store {self._path}", ResourceWarning, source=self)
            self.stop()


class SQLiteStore(Store):
    """A store (`holdfast.stores.base.Store`) of one tenant in an SQLite database."""

    dialect = "sqlite"

    @classmethod
    async def open(cls, url: str, *, tenant: str) -> Self:
        """Open the database at `url` as a store; create or upgrade its tables."""
        checks.check_id(tenant, "tenant")
        database = _Database(parse_path(url))
        await database.open()
        return cls(database, tenant, owner=True)

    @classmethod
    async def find_pending_migrations(cls, url: str) -> tuple[Migration, ...]:
        """Return the migrations that opening the existing database at `url` would apply. Nothing is changed."""
        return await anyio.to_thread.run_sync(find_pending_migrations, parse_path(url), abandon_on_cancel=True)

    @classmethod
    async def open_index(cls, url: str, *, tenant: str, compress: bool) -> LogicIndex:
        """Open the database at `url` as an index; create or upgrade its tables."""
        checks.check_id(tenant, "tenant")
        engine = VECTORS if sqlite_extra.has(VECTORS) and not compress else get_scanner()
        database = _Database(parse_path(url), index=True)
        await database.open()
        return LogicIndex(database, tenant, engine=engine, compress=compress)


def read_durability(path: str) -> tuple[str, int]:
    """Return the settings `journal_mode` and `synchronous` that a store has at `path`.

    Both are settings of a connection, and the store's own connections belong to other threads. So this function opens and closes a
    connection in the same way as the store, which also upgrades the schema.

    Raises:
        StoreUnavailable: the database cannot be opened, or its schema is from a later release.
        StoreCorrupt: the database is damaged.
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

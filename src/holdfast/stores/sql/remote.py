"""The base of SQL databases on a server: a pool, retries, cancellation, and recovery from lost connections.

Each accepted read or write runs in a task of its own. So a cancelled caller never leaves a connection in the middle of a
statement; the result is discarded, and no other caller can receive it.

A transaction is run again if the server rolled it back (a deadlock or a race), or if the connection broke. Each write has an id,
which every attempt inserts first into the table `writes`. If the connection broke during the commit, the next attempt waits until the
server has finished the earlier one. If the id is in the table then, the earlier attempt was committed, and the write has its result.
"""

from __future__ import annotations

import asyncio
import os
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from time import monotonic, time
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar, cast

import msgspec

from holdfast.errors import HoldfastError, StoreClosed, StoreCorrupt, StoreUnavailable
from holdfast.stores import checks
from holdfast.stores.base import Store
from holdfast.stores.logic.network import NAME, PATIENCE, RECONNECTING, Turnstile, check_loop, make_unknown_outcome
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps, do_nothing
from holdfast.stores.sql.address import parse_address
from holdfast.stores.sql.migrations import Migration, list_pending, load_migrations, refuse_other_tables
from holdfast.stores.sql.pool import Pool, PooledConnection
from holdfast.stores.sql.statements import load_statements

T = TypeVar("T")
ATTEMPTS: Final = 12
"""Maximum number of times that a transaction is run again after the server rolled it back."""
KEPT: Final = 3600.0
"""Seconds for which the ids of writes are kept."""
CLEANING: Final = 60.0
"""Seconds between two deletions of older ids."""
CLEANED: Final = 100_000
"""Maximum number of ids that are deleted at once."""
UPGRADING: Final = 3600.0
"""Seconds that one statement of a migration may take."""
POOL: Final = 10
"""Maximum number of connections, unless the URL has the option `pool`."""
INDEX_POOL: Final = 4
"""Maximum number of connections of a database that is opened as an index, unless the URL has the option `pool`."""


class Retryable(Exception):  # not an error: an outcome
    """Raised if the server rolled back the transaction, or if the transaction never began. Running it again may succeed."""


class Duplicate(Retryable):
    """Raised if a row with the same key exists."""


class ConnectionLost(Retryable):
    """Raised if the connection broke before the commit, so nothing was written."""


class OutcomeUnknown(Exception):  # not an error: an outcome
    """Raised if the connection broke during the commit, so the transaction may or may not have been committed."""


class Connection(PooledConnection, Protocol):
    """A connection that runs named statements.

    Its methods raise `HoldfastError`, `Retryable`, `ConnectionLost` or `OutcomeUnknown`, with the driver's error as the cause.
    """

    async def begin(self, *, writing: bool, write_id: bytes = b"") -> None:
        """Begin a transaction, and insert the id of the write. If `writing` is False, it is read-only and sees one snapshot.

        Raises `Duplicate` if a transaction with this id was committed.
        """
        ...

    async def query(self, name: str, params: Row) -> Rows:
        """Run a statement and return its rows. Outside a transaction the statement commits by itself."""
        ...

    async def many(self, name: str, rows: list[Row]) -> None:
        """Run a statement once for each row of parameters."""
        ...

    async def commit(self) -> None:
        """Commit the transaction. Afterwards its changes are durable."""
        ...

    async def rollback(self) -> None:
        """Roll back the transaction."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Job(Generic[T]):
    """A read or write, with data that is kept from one attempt to the next."""

    __slots__ = ("abandoned", "id", "is_lost", "later_queues", "light", "queue", "result", "single", "steps", "writing")

    def __init__(
        self,
        steps: Callable[[], Steps[T]],
        *,
        writing: bool,
        queue: Hashable = None,
        later_queues: Sequence[Hashable] = (),
        light: bool = False,
        single: bool = False,
        write_id: bytes = b"",
    ) -> None:
        self.steps = steps
        self.writing = writing
        self.queue = queue
        self.later_queues = later_queues
        self.light = light
        self.single = single
        self.id = write_id
        self.abandoned = False
        """True if the caller was cancelled."""
        self.is_lost = False
        """True if the connection broke while an attempt was committed."""
        self.result: T
        """The result of the last attempt that was to be committed."""


def _make_ids() -> Iterator[bytes]:
    """Yield unique ids that begin with the time."""
    origin = os.urandom(6)
    for number in count():
        yield _encode_time(time()) + origin + (number & 0xFFFFFFFF).to_bytes(4, "big")


def _encode_time(seconds: float) -> bytes:
    return int(seconds * 1000).to_bytes(6, "big")


class RemoteDatabase(ABC, Generic[ConnectionT]):
    """A `holdfast.stores.logic.steps.Database` on a server.

    Args:
        name: address of the server without credentials, for messages.
        size: maximum number of connections.
    """

    dialect: ClassVar[str]
    durable = True
    _closed = True
    """True before `__init__` has finished, and after `close`."""

    def __init__(self, name: str, size: int) -> None:
        self._name = self._place = name
        """Name of the server in messages. While the database is being opened, it is the address; afterwards it is `NAME`, which
        shows no address.
        """
        self._statements = load_statements(self.dialect)
        self._pool: Pool[ConnectionT] = Pool(self._connect, size)
        self._turnstile = Turnstile()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._ids = _make_ids()
        self._clean_at = time() + CLEANING
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @abstractmethod
    async def _connect(self) -> ConnectionT:
        """Open a connection. Raises `ConnectionLost` if another attempt may succeed."""

    # -- the schema ------------------------------------------------------------

    @abstractmethod
    async def _read_applied(self, connection: ConnectionT) -> dict[int, str] | None:
        """Return the checksums of applied migrations by number, or None if the database has no Holdfast tables."""

    @abstractmethod
    async def _list_tables(self, connection: ConnectionT) -> list[str]:
        """Return the names of all tables."""

    @abstractmethod
    def _begin_schema_change(self, connection: ConnectionT) -> AbstractAsyncContextManager[None]:
        """Keep other processes from changing the schema while the block runs."""

    @abstractmethod
    async def _create_migrations_table(self, connection: ConnectionT) -> None:
        """Create the table of applied migrations."""

    @abstractmethod
    async def _apply_migration(self, connection: ConnectionT, migration: Migration) -> None:
        """Apply a migration, and record that it was applied."""

    async def _find_pending(self, connection: ConnectionT, job: Job[Any], attempt: int) -> tuple[Migration, ...]:
        """Return the pending migrations. Raise `StoreUnavailable` if the database belongs to another program."""
        found = await self._read_applied(connection)
        if found is None:
            refuse_other_tables(self._schema_name, await self._list_tables(connection))
        return list_pending(self._name, load_migrations(self.dialect), found or {})

    async def _upgrade_schema(self, connection: ConnectionT, job: Job[None], attempt: int) -> None:
        """Apply the pending migrations. If several processes start at once, one of them does so while the others wait."""
        found = await self._read_applied(connection)
        if found is not None and not list_pending(self._name, load_migrations(self.dialect), found):
            return
        async with self._begin_schema_change(connection):
            pending = await self._find_pending(connection, job, attempt)  # another process may have applied them
            if await self._read_applied(connection) is None:
                await self._create_migrations_table(connection)
            for migration in pending:
                await self._apply_migration(connection, migration)

    @property
    def _schema_name(self) -> str:
        """Name of the database or of the schema in it, for messages about its tables."""
        return self._name

    # -- opening and closing ---------------------------------------------------

    async def open(self) -> None:
        """Connect, and upgrade the schema."""
        try:
            await self._run_with_retries(Job(do_nothing, writing=True), self._upgrade_schema)
            self._name = NAME
        except BaseException:
            self._closed = True
            self._pool.kill()
            raise

    async def find_pending_migrations(self) -> tuple[Migration, ...]:
        """Connect, return the migrations that `open` would apply, and close the connection."""
        try:
            job: Job[Any] = Job(do_nothing, writing=False)
            found: tuple[Migration, ...] = await self._run_with_retries(job, self._find_pending)
            return found
        finally:
            await self.close()

    async def read(self, steps: Callable[[], Steps[T]], *, single: bool = False, short: bool = False) -> T:
        """Run `steps` on one snapshot and return their result. `short` has no effect."""
        return await self._run_shielded(Job(steps, writing=False, single=single))

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        later_queues: Sequence[Hashable] = (),
        light: bool = False,
        long: bool = False,
    ) -> T:
        """Run `steps` in a transaction and return their result.

        `scrub` has no effect, since servers clean up their files themselves, nor has `long`.
        """
        job: Job[T] = Job(
            steps, writing=True, queue=queue, later_queues=later_queues, light=light, write_id=next(self._ids)
        )
        return await self._run_shielded(job)

    async def close(self) -> None:
        """Finish the accepted reads and writes, then close the connections."""
        if not self._closed:
            self._closed = True
            if self._jobs:
                await asyncio.wait(self._jobs, timeout=PATIENCE)
        await self._pool.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Warn that the database was never closed."""
        if not self._closed:
            _warn(f"unclosed store {self._place}", ResourceWarning, source=self)
            self._pool.kill()

    # -- one job ---------------------------------------------------------------

    async def _run_shielded(
        self, job: Job[T], once: Callable[[ConnectionT, Job[T], int], Awaitable[T]] | None = None
    ) -> T:
        """Run `job` and return its result. An attempt that has begun continues even if the caller is cancelled.

        Args:
            job: the read or write.
            once: makes one attempt; None for `_run_once`, which runs the statements of `job`.
        """
        if self._closed:
            raise StoreClosed
        check_loop(self._loop)
        if job.writing and time() >= self._clean_at:
            self._clean_at = time() + CLEANING
            self._start(self._clean())
        task = self._start(self._run_in_turn(job, once or self._run_once))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            job.abandoned = True
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def _clean(self) -> None:
        """Delete the ids of writes that began more than `KEPT` seconds ago."""

        def steps() -> Steps[None]:
            yield Query("writes_clean", (_encode_time(time() - KEPT), CLEANED))

        with suppress(HoldfastError):  # the next cleaning tries again
            await self._run_with_retries(Job(steps, writing=True, write_id=next(self._ids)), self._run_once)

    async def _run_in_turn(self, job: Job[T], once: Callable[[ConnectionT, Job[T], int], Awaitable[T]]) -> T:
        """Wait for the job's turn in its queues, then run it. While writers of one row wait here, they occupy no connections."""
        if job.queue is None:
            return await self._run_with_retries(job, once)
        entered: list[Hashable] = []
        try:
            for queue in (job.queue, *job.later_queues):
                await self._turnstile.enter(queue)
                entered.append(queue)
            return await self._run_with_retries(job, once)
        finally:
            for queue in entered:
                self._turnstile.leave(queue)

    async def _run_with_retries(self, job: Job[T], once: Callable[[ConnectionT, Job[T], int], Awaitable[T]]) -> T:
        """Run `job` until it succeeds or fails, or until the server has rolled it back too often."""
        attempt, undone, give_up = 0, 0, monotonic() + RECONNECTING
        while True:
            if job.abandoned:
                raise asyncio.CancelledError
            try:
                connection = await self._connection()
                try:
                    return await once(connection, job, attempt)
                finally:
                    self._pool.release(connection)
            except (ConnectionLost, OutcomeUnknown) as exc:
                if isinstance(exc, OutcomeUnknown):
                    give_up = give_up if job.is_lost else monotonic() + RECONNECTING  # the commit may have taken long
                    job.is_lost = True
                self._forget_server_state()
                if monotonic() > give_up:
                    raise self._make_failure(job, f"cannot be reached: {exc}") from exc.__cause__
            except Retryable as exc:
                undone += 1  # attempts to connect do not count
                if undone > ATTEMPTS:
                    raise self._make_failure(job, f"undid this {undone} times: {exc}") from exc.__cause__
            except StoreUnavailable as exc:
                raise (make_unknown_outcome(self._name) if job.is_lost else exc) from exc.__cause__
            attempt += 1
            await asyncio.sleep(min(0.002 * 2**attempt, 0.3) * random.uniform(0.3, 1.0))  # noqa: S311  # spreads retries

    def _make_failure(self, job: Job[Any], why: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self._name} {why}") if not job.is_lost else make_unknown_outcome(self._name)

    def _forget_server_state(self) -> None:
        """Discard idle connections and remembered rows. Used after a connection was lost, since the server may have been replaced."""
        self._pool.discard_idle()

    async def _connection(self) -> ConnectionT:
        connection = self._pool.take_idle()
        if connection is not None:
            return connection
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._pool.acquire()
        except TimeoutError as exc:
            raise StoreUnavailable(f"{self._name}: all connections were busy for {PATIENCE:.0f} seconds") from exc

    async def _run_once(self, connection: ConnectionT, job: Job[T], attempt: int) -> T:
        """Make one attempt at `job`: run its statements, in a transaction unless it is a single statement."""
        if job.single:
            return await self._run_steps(connection, job)
        begun = False
        try:
            await connection.begin(writing=job.writing, write_id=job.id)
            begun = True
            job.result = await self._run_steps(connection, job)
            await connection.commit()
        except (Retryable, HoldfastError) as exc:
            await connection.rollback()
            if begun or not isinstance(exc, Duplicate):
                raise
        except msgspec.MsgspecError as exc:
            await connection.rollback()
            raise StoreCorrupt(f"{self._name}: a row is damaged: {exc}") from exc
        return job.result

    async def _run_steps(self, connection: ConnectionT, job: Job[T]) -> T:
        """Run the statements of `job` and return its result. A write locks rows when it reads them."""
        steps, rows = job.steps(), cast(Rows, ())
        try:
            step = next(steps)
            while True:
                if isinstance(step, Many):
                    await connection.many(step.name, list(step.rows))
                    rows = ()
                elif job.writing:
                    rows = await self._query_locked(connection, step.name, step.params)
                else:
                    rows = await connection.query(step.name, step.params)
                step = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
        return result

    async def _query_locked(self, connection: ConnectionT, name: str, params: Row) -> Rows:
        """Run a statement of a write, and lock the rows that it reads."""
        if f"{name}_locked" in self._statements:
            return await connection.query(f"{name}_locked", params)
        if f"{name}_lock" in self._statements:
            return await _lock_and_query(connection, name, params)
        if f"{name}_row" in self._statements:
            row = await connection.query(f"{name}_row", params)
            if row:
                return row
            await connection.query(name, params)
            return await connection.query(f"{name}_row", params)
        return await connection.query(name, params)


async def _lock_and_query(connection: Connection, name: str, params: Row) -> Rows:
    """Lock the rows that a statement reads, then run it and return them.

    Another writer may insert a row after the lock and before the read. Then the rows are locked and read again, since two writers that
    read the same unlocked row would overwrite each other's values.
    """
    while True:
        locked = await connection.query(f"{name}_lock", params)
        rows = await connection.query(name, params)
        if len(rows) <= len(locked):
            return rows


class RemoteStore(Store):
    """A store (`holdfast.stores.base.Store`) of one tenant on a database server."""

    _database: ClassVar[type[Any]]
    """The `RemoteDatabase`, which takes an `Address`."""
    _options: ClassVar[tuple[str, ...]]
    """Options that its URLs may have."""

    @classmethod
    async def open(cls, url: str, *, tenant: str) -> Self:
        """Open the database at `url` as a store; create or upgrade its tables."""
        checks.check_id(tenant, "tenant")
        database: RemoteDatabase[Any] = cls._database(parse_address(url, options=cls._options))
        await database.open()
        return cls(database, tenant, owner=True)

    @classmethod
    async def find_pending_migrations(cls, url: str) -> tuple[Migration, ...]:
        """Return the migrations that opening the database at `url` would apply. Nothing is changed."""
        database: RemoteDatabase[Any] = cls._database(parse_address(url, options=cls._options))
        return await database.find_pending_migrations()

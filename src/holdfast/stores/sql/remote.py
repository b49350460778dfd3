"""The base of SQL databases on a server: a pool, retries, cancellation, and recovery from lost connections.

Each accepted read or write runs in a task of its own. So a cancelled caller never leaves a connection in the middle of a
statement; the result is discarded, and no other caller can receive it.

A transaction is run again if the server rolled it back (a deadlock or a race), or if the connection broke before the commit. If
the connection broke during the commit, the transaction may have been committed. Locking and reading the session's row again can show
whether it was. A write that only changes the session's records shows in the row of their owner instead.

- If the rows still have the versions that the attempt saw, nothing was written, and nothing of that attempt can be written any more. The
  transaction is run again. A write that changes neither version can be run twice without harm.
- If a row has another version, the transaction is run again only if it has an idempotency key, because looking up the key also shows
  the outcome. Without a key, the caller gets the error that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import ArtifactNotFound, HoldfastError, StoreClosed, StoreCorrupt, StoreUnavailable
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
UPGRADING: Final = 3600.0
"""Seconds that one statement of a migration may take."""
POOL: Final = 10
"""Maximum number of connections, unless the URL has the option `pool`."""
INDEX_POOL: Final = 4
"""Maximum number of connections of a database that is opened as an index, unless the URL has the option `pool`."""


class Retryable(Exception):  # not an error: an outcome
    """Raised if the server rolled back the transaction, or if the transaction never began. Running it again may succeed."""


class ConnectionLost(Retryable):
    """Raised if the connection broke before the commit, so nothing was written."""


class OutcomeUnknown(Exception):  # not an error: an outcome
    """Raised if the connection broke during the commit, so the transaction may or may not have been committed."""


class Connection(PooledConnection, Protocol):
    """A connection that runs named statements.

    Its methods raise `HoldfastError`, `Retryable`, `ConnectionLost` or `OutcomeUnknown`, with the driver's error as the cause.
    """

    async def begin(self, *, writing: bool) -> None:
        """Begin a transaction. If `writing` is False, it is read-only and sees one snapshot."""
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

    __slots__ = (
        "abandoned",
        "guard",
        "later_queues",
        "light",
        "queue",
        "records_guard",
        "records_seen",
        "seen",
        "single",
        "steps",
        "unsure",
        "writing",
    )

    def __init__(
        self,
        steps: Callable[[], Steps[T]],
        *,
        writing: bool,
        queue: Hashable = None,
        later_queues: Sequence[Hashable] = (),
        light: bool = False,
        single: bool = False,
    ) -> None:
        self.steps = steps
        self.writing = writing
        self.queue = queue
        self.later_queues = later_queues
        self.light = light
        self.single = single
        self.abandoned = False
        """True if the caller was cancelled."""
        self.seen: tuple[int, int] | None = None
        """Primary key and version of the session, as the current attempt read them."""
        self.guard: tuple[int, int] | None = None
        """The value of `seen` in an earlier attempt whose outcome is unknown."""
        self.records_seen: tuple[int, int] | None | UnsetType = UNSET
        """Primary key and version of the owner of records, as the current attempt first read them; None: it had no row; UNSET: not read."""
        self.records_guard: tuple[int, int] | None | UnsetType = UNSET
        """The value of `records_seen` in that earlier attempt."""
        self.unsure = False
        """True if the earlier attempt of `guard` may have been committed, because the session or its records have changed since."""

    def begin_attempt(self) -> None:
        """Forget what the previous attempt has read."""
        self.seen, self.records_seen, self.unsure = None, UNSET, False

    def keep_guard(self) -> None:
        """Remember what the current attempt has read, because its outcome is unknown."""
        self.guard, self.records_guard = self.seen, self.records_seen

    def note_session(self, rows: Rows) -> None:
        """Remember the session's primary key and version.

        Set `unsure` if they differ from those in an earlier attempt whose outcome is unknown.
        """
        self.seen = (rows[0][0], rows[0][5]) if rows else None
        self.unsure = self.guard is not None and self.seen != self.guard

    def note_records(self, rows: Rows) -> None:
        """Remember the primary key and version of the owner of records, which a write may change without changing the session.

        Set `unsure` if they differ from those in an earlier attempt whose outcome is unknown. Only the first read of an attempt counts,
        because the attempt itself may insert the row.
        """
        if self.records_seen is UNSET:
            self.records_seen = (rows[0][0], rows[0][1]) if rows else None
            changed = self.records_guard is not UNSET and self.records_seen != self.records_guard
            self.unsure = self.unsure or (self.guard is not None and changed)

    def check_step(self, step: Query | Many | None) -> None:
        """Raise `OutcomeUnknown` if an earlier attempt may have been committed, and `step` cannot show the outcome.

        Only the statement that looks up the idempotency key can show the outcome. If `step` is None, no statement follows.
        """
        if self.unsure:
            if step is None or step.name != "idempotency_get":
                raise OutcomeUnknown
            self.unsure, self.guard = False, None


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

    async def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        return await self._run_shielded(Job(steps, writing=False, single=single))

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        later_queues: Sequence[Hashable] = (),
        light: bool = False,
    ) -> T:
        """Run `steps` in a transaction and return their result. `scrub` has no effect, since servers clean up their files themselves."""
        return await self._run_shielded(Job(steps, writing=True, queue=queue, later_queues=later_queues, light=light))

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
        task = self._loop.create_task(self._run_in_turn(job, once or self._run_once))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            job.abandoned = True
            raise

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
            except ConnectionLost as exc:
                self._forget_server_state()
                if monotonic() > give_up:
                    raise self._make_failure(job, f"cannot be reached: {exc}") from exc.__cause__
            except Retryable as exc:
                undone += 1  # attempts to connect do not count
                if undone > ATTEMPTS:
                    raise self._make_failure(job, f"undid this {undone} times: {exc}") from exc.__cause__
            except OutcomeUnknown as exc:
                if job.seen is None or job.unsure or monotonic() > give_up:
                    raise make_unknown_outcome(self._name) from exc.__cause__
                job.keep_guard()
                self._forget_server_state()
            attempt += 1
            await asyncio.sleep(min(0.002 * 2**attempt, 0.3) * random.uniform(0.3, 1.0))  # noqa: S311  # spreads retries

    def _make_failure(self, job: Job[Any], why: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self._name} {why}") if job.guard is None else make_unknown_outcome(self._name)

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
        job.begin_attempt()
        if job.single:
            return await self._run_steps(connection, job)
        await connection.begin(writing=job.writing)
        try:
            result = await self._run_steps(connection, job)
            await connection.commit()
        except (Retryable, HoldfastError) as exc:
            await connection.rollback()
            # An earlier attempt, whose outcome is unknown, may have deleted what this one misses.
            job.unsure = job.unsure or (job.guard is not None and isinstance(exc, ArtifactNotFound))
            if job.unsure and not isinstance(exc, Retryable):
                raise OutcomeUnknown from exc
            raise
        except msgspec.MsgspecError as exc:
            await connection.rollback()
            raise StoreCorrupt(f"{self._name}: a row is damaged: {exc}") from exc
        return result

    async def _run_steps(self, connection: ConnectionT, job: Job[T]) -> T:
        """Run the statements of `job` and return its result. A write locks rows when it reads them."""
        steps, rows = job.steps(), cast(Rows, ())
        try:
            step = next(steps)
            while True:
                job.check_step(step)
                if isinstance(step, Many):
                    await connection.many(step.name, list(step.rows))
                    rows = ()
                else:
                    name = step.name
                    if job.writing and f"{name}_locked" in self._statements:
                        rows = await connection.query(f"{name}_locked", step.params)
                    elif job.writing and f"{name}_lock" in self._statements:
                        rows = await _lock_and_query(connection, name, step.params)
                    else:
                        rows = await connection.query(name, step.params)
                    if step.name == "session_get":
                        job.note_session(rows)
                    elif step.name == "record_owner_get":
                        job.note_records(rows)
                step = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
        job.check_step(None)
        return result


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

"""What the databases behind a network connection share: a pool, retries, cancellation, and what is known after a loss.

A read or write that was accepted is carried through by a task of its own, so that a caller who gives up never leaves a
connection in the middle of something: its answer is thrown away, and nobody else can get it.

A transaction that the server undid, because of a deadlock, a race or a connection that broke before its end, is run again.
One whose connection broke while it was being committed may have happened. Then the session tells: nothing was done, and
nothing can be done any more, when its row can be locked again and has the version that the attempt saw. Else the attempt
is not run again, except with an idempotency key, which tells as well; the caller hears that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import msgspec

from holdfast.errors import HoldfastError, StoreClosed, StoreCorrupt, StoreUnavailable
from holdfast.stores.logic.network import NAME, PATIENCE, RECONNECTING, Turnstile, check_loop, make_unknown_outcome
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps, do_nothing
from holdfast.stores.sql.pool import Pool, Pooled

T = TypeVar("T")
ATTEMPTS: Final = 12
"""Times a transaction is run that the server undid each time."""
UPGRADING: Final = 3600.0
"""Seconds that one statement of a migration may take."""
POOL: Final = 10
"""Connections, unless the URL says otherwise."""
INDEX_POOL: Final = 4
"""Connections of an index that is opened for itself, unless the URL says otherwise."""


class Retryable(Exception):  # not an error: an outcome
    """The server undid the transaction, or nothing of it was begun; running it again may do better."""


class ConnectionLost(Retryable):
    """The connection broke before anything could have been committed."""


class OutcomeUnknown(Exception):  # not an error: an outcome
    """The connection broke when it was being committed."""


class Connection(Pooled, Protocol):
    """One connection, that runs statements by name.

    Errors come out of it as a `HoldfastError`, `Retryable`, `ConnectionLost` or `OutcomeUnknown`, with the driver's own as cause.
    """

    async def begin(self, *, writing: bool) -> None:
        """Open a transaction: one that sees a single moment, or one that writes and locks."""
        ...

    async def query(self, name: str, params: Row) -> Rows:
        """One statement's rows. Outside of a transaction it is one by itself."""
        ...

    async def many(self, name: str, rows: list[Row]) -> None:
        """One statement for each row of parameters."""
        ...

    async def commit(self) -> None:
        """End the transaction; what it did is durable."""
        ...

    async def rollback(self) -> None:
        """End the transaction without its changes."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Job(Generic[T]):
    """One operation, and what is known of it over several attempts."""

    __slots__ = ("abandoned", "behind", "guard", "light", "queue", "seen", "single", "steps", "unsure", "writing")

    def __init__(
        self,
        steps: Callable[[], Steps[T]],
        *,
        writing: bool,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
        single: bool = False,
    ) -> None:
        self.steps = steps
        self.writing = writing
        self.queue = queue
        self.behind = behind
        self.light = light
        self.single = single
        self.abandoned = False
        """Whether its caller has gone."""
        self.seen: tuple[int, int] | None = None
        """The session that the present attempt works on, and its version."""
        self.guard: tuple[int, int] | None = None
        """The same of an attempt whose outcome is not known."""
        self.unsure = False
        """Whether that attempt may have been done: the session is not as that one saw it."""

    def note_session(self, rows: Rows) -> None:
        """Take note of the session that was read."""
        self.seen = (rows[0][0], rows[0][5]) if rows else None
        self.unsure = self.guard is not None and self.seen != self.guard

    def check_step(self, step: Query | Many | None) -> None:
        """Raise `OutcomeUnknown` unless `step`, or the end, may follow: a key that was used says what happened."""
        if self.unsure:
            if step is None or step.name != "idempotency_get":
                raise OutcomeUnknown
            self.unsure = False


class RemoteDatabase(ABC, Generic[ConnectionT]):
    """A `holdfast.stores.logic.steps.Database` on a server."""

    _closed = True
    """Until it is made."""

    def __init__(self, name: str, statements: Mapping[str, str], size: int) -> None:
        self._name = self._place = name
        """What is told of the server: where it is to whoever opens it, and later to nobody."""
        self._statements = statements
        self._pool: Pool[ConnectionT] = Pool(self._connect, size)
        self._turnstile = Turnstile()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @abstractmethod
    async def _connect(self) -> ConnectionT:
        """A new connection; `ConnectionLost` when trying again may help."""

    @abstractmethod
    async def _upgrade_schema(self, connection: ConnectionT, job: Job[None], attempt: int) -> None:
        """Bring the schema up to date, or refuse it."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        try:
            await self._run_with_retries(Job(do_nothing, writing=True), self._upgrade_schema)
            self._name = NAME
        except BaseException:
            self._closed = True
            self._pool.kill()
            raise

    async def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        """See `Database.read`."""
        return await self._run_shielded(Job(steps, writing=False, single=single))

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
    ) -> T:
        """See `Database.write`. What was removed leaves the server's files as the server sees fit."""
        return await self._run_shielded(Job(steps, writing=True, queue=queue, behind=behind, light=light))

    async def close(self) -> None:
        """Finish what was accepted, then close the connections."""
        if not self._closed:
            self._closed = True
            if self._jobs:
                await asyncio.wait(self._jobs, timeout=PATIENCE)
        await self._pool.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say that the database was forgotten."""
        if not self._closed:
            _warn(f"unclosed store {self._place}", ResourceWarning, source=self)
            self._pool.kill()

    # -- one job ---------------------------------------------------------------

    async def _run_shielded(
        self, job: Job[T], once: Callable[[ConnectionT, Job[T], int], Awaitable[T]] | None = None
    ) -> T:
        """What `job` gives, carried through also when the caller gives up once it has begun.

        Args:
            job: what is to be done.
            once: one attempt at it, where that is not to run its steps.
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
        """Run `job` when it is its turn: writers of one row don't take connections to wait for each other."""
        if job.queue is None:
            return await self._run_with_retries(job, once)
        entered: list[Hashable] = []
        try:
            for queue in (job.queue, *job.behind):
                await self._turnstile.enter(queue)
                entered.append(queue)
            return await self._run_with_retries(job, once)
        finally:
            for queue in entered:
                self._turnstile.leave(queue)

    async def _run_with_retries(self, job: Job[T], once: Callable[[ConnectionT, Job[T], int], Awaitable[T]]) -> T:
        """Run `job` until it is done, refused, or has been undone too often."""
        attempt, give_up = 0, monotonic() + RECONNECTING
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
                if attempt >= ATTEMPTS:
                    raise self._make_failure(job, f"undid this {attempt} times: {exc}") from exc.__cause__
            except OutcomeUnknown as exc:
                if job.seen is None or job.unsure or monotonic() > give_up:
                    raise make_unknown_outcome(self._name) from exc.__cause__
                job.guard = job.seen
                self._forget_server_state()
            attempt += 1
            await asyncio.sleep(min(0.002 * 2**attempt, 0.3) * random.uniform(0.3, 1.0))  # noqa: S311  # spreads rivals

    def _make_failure(self, job: Job[Any], why: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self._name} {why}") if job.guard is None else make_unknown_outcome(self._name)

    def _forget_server_state(self) -> None:
        """A connection was lost: the others, and what is remembered, may be of a server that is no more."""
        self._pool.forget_idle()

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
        """One attempt at `job`."""
        job.seen, job.unsure = None, False
        if job.single:
            return await self._run_steps(connection, job)
        await connection.begin(writing=job.writing)
        try:
            result = await self._run_steps(connection, job)
            await connection.commit()
        except (Retryable, HoldfastError) as exc:
            await connection.rollback()
            if job.unsure and not isinstance(exc, Retryable):
                raise OutcomeUnknown from exc
            raise
        except msgspec.MsgspecError as exc:
            await connection.rollback()
            raise StoreCorrupt(f"{self._name}: a row is damaged: {exc}") from exc
        return result

    async def _run_steps(self, connection: ConnectionT, job: Job[T]) -> T:
        """Run the steps of `job`, answering their statements; in a write, what is to be changed is locked first."""
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
                        name = f"{name}_locked"
                    elif job.writing and f"{name}_lock" in self._statements:
                        await connection.query(f"{name}_lock", step.params)
                    rows = await connection.query(name, step.params)
                    if step.name == "session_get":
                        job.note_session(rows)
                step = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
        job.check_step(None)
        return result


async def run_steps(connection: Connection, steps: Steps[T]) -> T:
    """What steps that nobody else can be in the way of do on a connection."""
    rows = cast(Rows, ())
    try:
        step = next(steps)
        while True:
            if isinstance(step, Many):
                await connection.many(step.name, list(step.rows))
                rows = ()
            else:
                rows = await connection.query(step.name, step.params)
            step = steps.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result


@contextmanager
def forbid_retries(name: str) -> Iterator[None]:
    """Where one attempt has to do: what may be tried again is an error."""
    try:
        yield
    except Retryable as exc:
        raise StoreUnavailable(f"{name} cannot be reached: {exc}") from exc.__cause__

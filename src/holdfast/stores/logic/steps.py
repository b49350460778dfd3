"""The interface between a store's operations and its database.

An operation is a generator, called its steps: it yields statements and receives their rows. It does no I/O. So the same steps
run on a thread with a blocking driver, and in an event loop with an asynchronous driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

Row = Sequence[Any]
Rows = Sequence[Row]
T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, gc=False):
    """A named statement that is run once. The generator receives its rows."""

    name: str
    params: Row


class Many(msgspec.Struct, frozen=True, gc=False):
    """A named statement that is run once for each row of parameters. The generator receives no rows."""

    name: str
    rows: Sequence[Row]


Steps = Generator[Query | Many, Rows, T]


def do_nothing() -> Steps[None]:
    """Yield no statement.

    Used for a write that only opens a connection, or only clears data that earlier writes deleted from the database files.
    """
    yield from ()


class Database(Protocol):
    """Runs the steps of operations. `steps` arguments are functions, because each attempt needs a new generator."""

    durable: bool
    """True if written data is kept when the process ends."""

    def read(self, steps: Callable[[], Steps[T]], *, single: bool = False, short: bool = False) -> Awaitable[T]:
        """Run a read on one snapshot, and return its result.

        Args:
            steps: returns a new generator of the read's statements.
            single: True if the read consists of one statement.
            short: True if it usually reads few rows, by their keys.
        """
        ...

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
        """Run a write in one transaction, and return its result once the transaction is durable.

        Args:
            steps: returns a new generator of the write's statements.
            scrub: if True, also remove deleted data from the database files.
            queue: identifies the row that the write locks first. With a database on a server, writes with the same queue wait
                for each other in this process, not for the server's lock.
            later_queues: identify the rows that the write locks afterwards, in this order.
            light: True if the write depends only on the version of the session's row, and on an idempotency key.
            long: True if the write may take milliseconds beside its statements, so that a database in memory uses its thread.
        """
        ...

    async def close(self) -> None: ...

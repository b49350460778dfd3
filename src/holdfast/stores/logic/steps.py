"""The interface between an operation and its database: a generator that yields statements and receives their rows.

No I/O happens here: the same steps run on a thread with a blocking driver and on an event loop with an async one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

Row = Sequence[Any]
Rows = Sequence[Row]
T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, gc=False):
    """One named statement, run once; its rows are sent back."""

    name: str
    params: Row


class Many(msgspec.Struct, frozen=True, gc=False):
    """One named statement, run for each row of parameters; no rows are sent back."""

    name: str
    rows: Sequence[Row]


Steps = Generator[Query | Many, Rows, T]


def do_nothing() -> Steps[None]:
    """Yield no statement: for a write that only connects, or only scrubs what earlier writes removed from the files."""
    yield from ()


class Database(Protocol):
    """Runs steps. It calls `steps` again for each attempt, since an attempt may have to be repeated."""

    def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> Awaitable[T]:
        """Run the steps of a read on one snapshot, and return their result.

        Args:
            steps: creates the steps.
            single: the steps are a single statement.
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
    ) -> Awaitable[T]:
        """Run the steps of a write in one transaction, and return their result once it is durable.

        Args:
            steps: creates the steps.
            scrub: what the write removes is removed from the database files as well.
            queue: writes of one queue lock the same row first. With a server they wait here instead of holding its locks.
            later_queues: further queues whose rows the write locks later, in this order.
            light: the write depends only on the session's row at its version, and on an idempotency key.
        """
        ...

    async def close(self) -> None: ...

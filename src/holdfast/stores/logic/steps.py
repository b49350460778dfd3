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
    """Yield no statement. Used for a write that only connects, or only scrubs data that earlier writes deleted."""
    yield from ()


class Database(Protocol):
    """Runs steps. If an attempt must be repeated, `steps` is called again."""

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
            scrub: also remove deleted data from the database files.
            queue: writes with the same queue lock the same row first. For a server, they wait in this process, not on its locks.
            later_queues: other queues whose rows the write locks afterwards, in this order.
            light: the write depends only on the session's row at its version, and on an idempotency key.
        """
        ...

    async def close(self) -> None: ...

"""How an operation asks its database: a generator that yields statements and is sent their rows.

No I/O here: the same steps run on a thread with a blocking driver and on a loop with an async one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

Row = Sequence[Any]
Rows = Sequence[Row]
T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, gc=False):
    """One statement, by name, to be run once; its rows are sent back."""

    name: str
    params: Row
    aside: Any = None
    """What the parameters were worked out from, for a database that can do it itself, where it stands then."""


class Many(msgspec.Struct, frozen=True, gc=False):
    """One statement, by name, to be run for each row of parameters; no rows are sent back."""

    name: str
    rows: Sequence[Row]


Steps = Generator[Query | Many, Rows, T]


def do_nothing() -> Steps[None]:
    """No statement at all: for a write that only lets what was removed before leave the files, or only connects."""
    yield from ()


class Database(Protocol):
    """What runs steps. `steps` makes them anew each time it is called: they may have to be run again."""

    def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> Awaitable[T]:
        """Return what `steps` gives, all of it seen at one moment; with `single`, it is one statement."""
        ...

    def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
    ) -> Awaitable[T]:
        """Return what `steps` did, durable.

        Args:
            steps: what it does.
            scrub: what it removed leaves the files as well.
            queue: writes of one queue lock the same row first; where locks are a server's, they may wait before that.
            behind: more queues, whose rows it locks later, in this order.
            light: it depends on nothing but the session's row at its version, and an idempotency key.
        """
        ...

    async def close(self) -> None: ...

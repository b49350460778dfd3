"""What a driver has to bring: something that runs the steps of an operation in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

from holdfast.stores.logic.steps import Steps

T = TypeVar("T")


class Database(Protocol):
    """What runs steps. `steps` makes them anew each time it is called: they may have to be run again."""

    async def read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        """What `steps` gives, all of it seen at one moment; with `single`, it is one statement."""
        ...

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
    ) -> T:
        """What `steps` did, durable.

        Args:
            steps: what it does.
            scrub: what it removed leaves the files as well.
            queue: writes of one queue lock the same row first; where locks are a server's, they may wait before that.
            behind: more queues, whose rows it locks later, in this order.
            light: it depends on nothing but the session's row at its version, and an idempotency key.
        """
        ...

    async def close(self) -> None:
        """See `Store.close`."""
        ...

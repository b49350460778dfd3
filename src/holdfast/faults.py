"""Named failure points: places where tests let the product fail, wait or die.

A point costs nothing while `active` is empty. In the process of a test:

    with faults.inject("after-commit", StoreUnavailable("no answer")):
        await session.append({"role": "user", "content": "Hello."})

In another process, by a variable: `HOLDFAST_FAULTS="after-commit:3=kill"` kills it when it reaches the point for the third time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from holdfast.errors import StoreUnavailable

Action = BaseException | Callable[[], Awaitable[object] | None]
"""An error to raise, or a function to call. If it returns an awaitable, the point awaits it: `event.wait` stops the work there."""
VARIABLE: Final = "HOLDFAST_FAULTS"
POINTS: Final = (
    *("before-read", "before-commit", "after-commit", "before-index-read", "before-index-commit", "after-index-commit"),
    *("before-model-call", "after-model-reply", "before-tool-call", "after-tool-call", "before-chunk-sent"),
    *("before-reply-sent", "before-summary-stored", "before-hook-call", "after-hook-call", "after-content-stored"),
    *("before-message-erased", "after-message-erased", "before-claim-renewed", "before-lease-renewed"),
)


class Fault:
    """An action at a point.

    Attributes:
        hits: number of times that the point was reached.
    """

    def __init__(self, point: str, action: Action, at: int = 1, times: float = 1) -> None:
        if point not in POINTS:
            raise ValueError(f"there is no failure point {point!r}; the points are {', '.join(POINTS)}")
        self.hits = 0
        self._action = action
        self._first, self._end = at, at + times

    async def hit(self) -> None:
        """Count the hit, and act if it is one of the planned hits."""
        self.hits += 1
        if self._first <= self.hits < self._end:
            if isinstance(self._action, BaseException):
                raise self._action
            if (waiting := self._action()) is not None:
                await waiting


active: Final[dict[str, Fault]] = {}
"""The faults of this process by point. Empty outside of tests."""


async def hit(point: str) -> None:
    """Act as a test planned for this point; do nothing if it planned nothing."""
    if point in active:
        await active[point].hit()


@contextmanager
def inject(point: str, action: Action, *, at: int = 1, times: float = 1) -> Iterator[Fault]:
    """Act when the block reaches a point for the `at`-th time, and for the next `times - 1` times. Blocks for one point cannot be nested."""
    active[point] = fault = Fault(point, action, at, times)
    try:
        yield fault
    finally:
        del active[point]


def read_environment(environment: Mapping[str, str]) -> None:
    """Set the faults that a variable names: `POINT[:AT]=kill|fail|hold`, separated by spaces."""
    for text in environment.get(VARIABLE, "").split():
        place, _, action = text.partition("=")
        point, _, at = place.partition(":")
        active[point] = Fault(point, _ACTIONS[action], int(at or 1))


def kill() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


async def _wait_forever() -> None:
    import asyncio  # here, because the command line imports this module, and help must be fast

    await asyncio.Event().wait()


_ACTIONS: Final[dict[str, Action]] = {
    "kill": kill,
    "fail": StoreUnavailable("a planned failure"),
    "hold": _wait_forever,
}

"""Clocks that tests move, in place of the time of day."""

from __future__ import annotations

START = 1_700_000_000_000
"""A Tuesday, in the evening: 2023-11-14 22:13:20 UTC."""


class Clock:
    """Milliseconds since the epoch that stand until a test moves them.

    Attributes:
        now: what it says.
    """

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class TickingClock(Clock):
    """A clock that goes on each time it is read: no two things happen at one moment.

    Args:
        step: milliseconds.
    """

    def __init__(self, step: int = 1000) -> None:
        super().__init__()
        self._step = step

    def __call__(self) -> int:
        self.now += self._step
        return self.now


class Pauses(list[float]):
    """Stands in for `asyncio.sleep`: takes no time, and has the seconds of each pause."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)

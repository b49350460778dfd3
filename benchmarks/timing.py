"""Time candidates in alternating blocks of calls, so that noise affects all of them alike."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

Block = Callable[[], Awaitable[list[float]]]
"""Makes some calls and returns the seconds that each took."""
Function = Callable[[], object]
AsyncFunction = Callable[[], Awaitable[object]]
clock = time.perf_counter


class Samples(NamedTuple):
    """Times of one candidate, in seconds."""

    seconds: Sequence[float]
    is_stopped: bool = False
    """True if the candidate reached its time limit."""

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        """The mean, in seconds; unlike the median it includes rare long calls."""
        return statistics.fmean(self.seconds)

    def quantile(self, part: float) -> float:
        """Return the time that a share `part` of the calls stay below."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def repeat(call: Function, *, max_calls: int, seconds: float = 0.1, reset: Function | None = None) -> Block:
    """Return a block that calls a function at least once.

    Args:
        call: the function to time.
        max_calls: the most calls in a block; keeps a session that grows with each call close to its nominal length.
        seconds: no further call starts after this time.
        reset: called before each block, outside the measurement, to restore the state at which the previous block started.
    """

    async def block() -> list[float]:
        if reset is not None:
            reset()
        times, end = list[float](), clock() + seconds
        while len(times) < max_calls and (not times or clock() < end):
            started = clock()
            call()
            times.append(clock() - started)
        return times

    return block


def repeat_async(call: AsyncFunction, *, max_calls: int, seconds: float = 0.1) -> Block:
    """Return a block that calls a coroutine function, like `repeat`."""

    async def block() -> list[float]:
        times, end = list[float](), clock() + seconds
        while len(times) < max_calls and (not times or clock() < end):
            started = clock()
            await call()
            times.append(clock() - started)
        return times

    return block


async def alternate(blocks: Mapping[str, Block], *, rounds: int, limit: float) -> dict[str, Samples]:
    """Measure candidates in rounds, one block of each per round.

    Args:
        blocks: the candidates by name.
        rounds: number of rounds.
        limit: total seconds per candidate; a candidate stops after the block that exceeds it.
    """
    times: dict[str, list[float]] = {name: [] for name in blocks}
    stopped: set[str] = set()
    freeze_heap()
    for _ in range(rounds):
        for name in [name for name in blocks if name not in stopped]:
            times[name] += await blocks[name]()
            if sum(times[name]) > limit:
                stopped.add(name)
    return {name: Samples(seconds, name in stopped) for name, seconds in times.items()}


def freeze_heap() -> None:
    """Exclude all existing objects from garbage collection while candidates are measured.

    All candidates share this process. It has about 180,000 objects, and a full collection takes 80 to 130 ms. That happens once in
    a thousand turns, so it would determine the p99 of every candidate. In a program of its own, a candidate would run without the
    imports and data of the others. Objects that a candidate creates from now on are collected as usual.
    """
    gc.unfreeze()  # so that objects that are no longer used are collected
    gc.collect()
    gc.freeze()


def report(text: str) -> None:
    """Print progress to standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)

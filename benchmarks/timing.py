"""How times are taken: candidates in turn within one run, a block of calls each, so that noise meets all alike."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

Block = Callable[[], Awaitable[list[float]]]
"""Makes some calls and tells how many seconds each took."""
Function = Callable[[], object]
AsyncFunction = Callable[[], Awaitable[object]]
clock = time.perf_counter


class Samples(NamedTuple):
    """The times of one candidate, in seconds; none when it was not measured."""

    seconds: Sequence[float]
    stopped: bool = False
    """Whether it took too long to be measured to the end."""

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        """All shared out: rare long calls count here."""
        return statistics.fmean(self.seconds)

    def quantile(self, part: float) -> float:
        """The one below which `part` of them lie."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def repeat(call: Function, *, most: int, seconds: float = 0.1, fresh: Function | None = None) -> Block:
    """A block of a plain function: up to `most` calls within `seconds`, at least one.

    Args:
        call: what is measured.
        most: calls, so that what grows with each stays as long as the table says.
        seconds: after which no further call begins.
        fresh: called before each block, not measured: back to where the block before began.
    """

    async def block() -> list[float]:
        if fresh is not None:
            fresh()
        found, end = list[float](), clock() + seconds
        while len(found) < most and (not found or clock() < end):
            started = clock()
            call()
            found.append(clock() - started)
        return found

    return block


def repeat_async(call: AsyncFunction, *, most: int, seconds: float = 0.1) -> Block:
    """The same of a coroutine function."""

    async def block() -> list[float]:
        found, end = list[float](), clock() + seconds
        while len(found) < most and (not found or clock() < end):
            started = clock()
            await call()
            found.append(clock() - started)
        return found

    return block


async def alternate(blocks: Mapping[str, Block], *, rounds: int, limit: float) -> dict[str, Samples]:
    """Measure candidates: in each round a block of each.

    Args:
        blocks: by name.
        rounds: how many.
        limit: seconds that one candidate may take in all; it is stopped after the block that passes it.
    """
    found: dict[str, list[float]] = {name: [] for name in blocks}
    stopped: set[str] = set()
    freeze_heap()
    for _ in range(rounds):
        for name in [name for name in blocks if name not in stopped]:
            found[name] += await blocks[name]()
            if sum(found[name]) > limit:
                stopped.add(name)
    return {name: Samples(seconds, name in stopped) for name, seconds in found.items()}


def freeze_heap() -> None:
    """Take what lives now out of the garbage collector's rounds: it is not gone through while somebody is measured.

    All candidates are loaded into this one process, some 180,000 objects, which a full pass needs 80 to 130 ms for: once in
    a thousand turns, and so it would be everybody's p99. In a program of its own each would run without the others' imports
    and without what the others hold. What a candidate makes from here on is its own affair, and is collected as ever.
    """
    gc.unfreeze()  # what is of no more use since the last time
    gc.collect()
    gc.freeze()


def report(text: str) -> None:
    """Progress, beside the tables."""
    print(f"  {text}", file=sys.stderr, flush=True)

"""How full a budget is, and what left it since the last look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.terminal import counted

if TYPE_CHECKING:
    from holdfast.context.build import WorkingSet
    from holdfast.context.explain import Run

WIDTH = 20
"""Cells of the bar."""
GONE = {"compacted": "condensed", "evicted": "left out", "cut": "cut short", "cleared": "cleared"}
"""Decisions by which a message is no longer sent as it was said, in words."""
MOST = 3
"""Runs of one look that are told one by one."""


class Left(NamedTuple):
    """Messages that a decision newly holds for."""

    decision: str
    first: int
    last: int
    summarized: bool = False
    """Whether a model's summary stands for them, and not a digest."""

    def __str__(self) -> str:
        one = self.first == self.last
        became = "summarized" if self.summarized else GONE[self.decision]
        return f"message{'' if one else 's'} {self.first}{'' if one else f'-{self.last}'} {became}"


class Gauge:
    """Reads working sets of one session, one after the other."""

    def __init__(self) -> None:
        self._before: Sequence[Run] = ()

    def read(self, built: WorkingSet) -> str:
        """The bar, and what left since the last reading."""
        runs = built.decisions()
        left, self._before = list(left_since(self._before, runs)), runs
        told = [bar(built.tokens, built.budget)]
        if left:
            more = f", and {counted(len(left) - MOST, 'more run')}" if len(left) > MOST else ""
            told.append(f"  left: {', '.join(map(str, left[:MOST]))}{more}")
        return "\n".join(told)


def bar(tokens: int, budget: int) -> str:
    """How full a budget is, drawn and in numbers.

    >>> bar(2048, 8192)
    '[#####...............]  25%  2,048 of 8,192 tokens'
    """
    share = min(1.0, tokens / max(1, budget))
    full = max(round(share * WIDTH), int(tokens > 0))
    return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:>4.0%}  {tokens:,} of {budget:,} tokens"


def left_since(before: Sequence[Run], now: Sequence[Run]) -> Iterator[Left]:
    """What of `now` is gone by a decision that did not hold for it before."""
    from holdfast.context.explain import SUMMARIZED

    for run in now:
        if run.decision not in GONE:
            continue
        first, summarized = run.first, run.reason == SUMMARIZED
        known = sorted((old.first, old.last) for old in before if old.decision == run.decision)
        for start, end in known:
            if end < first or start > run.last:
                continue
            if start > first:
                yield Left(run.decision, first, start - 1, summarized)
            first = max(first, end + 1)
        if first <= run.last:
            yield Left(run.decision, first, run.last, summarized)

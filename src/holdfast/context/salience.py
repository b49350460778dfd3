"""Salience: which units are worth their room, by what callers and scorers said, else by signals of the text itself."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from holdfast.context.signals import Signals
from holdfast.context.units import Unit
from holdfast.context.window import Window

SMALL, FULL = 2048, 8192
"""Rooms up to the first number are emptied no further than they have to be, from the second on as far as other strategies
do: providers cache no prompt under a thousand tokens, so in a small room a prefix that stands still saves little, and what
leaves it does not come back."""
LEAST_TARGET, MOST_TARGET = 0.33, 1.0
ALIKE = 0.5
"""Part of the importance of another unit from which one is of the same class, where nobody but their signals says so."""


def target(room: int) -> float:
    """Share of the room that is used after a step."""
    above = min(1.0, max(0.0, (room - SMALL) / (FULL - SMALL)))
    return MOST_TARGET - (MOST_TARGET - LEAST_TARGET) * above


def importances(units: Sequence[Unit]) -> list[float]:
    """How much each of `units` matters while all are there, from 0 to 1, in the order of the log.

    What a caller or a scorer said of any message of a unit decides; without that, its own signals do.
    """
    signals = Signals(units)
    return [signals.importance(at) if (said := _given(unit)) is None else said for at, unit in enumerate(units)]


def chosen(window: Window, share: float | None) -> frozenset[int]:
    """Places of the units that are worth their room.

    Args:
        window: over its room.
        share: of the room that all may take; None: `target` of it.
    """
    room = window.room.tokens
    return kept(window, int((target(room) if share is None else share) * room))


def kept(window: Window, goal: int) -> frozenset[int]:
    """Places of the units that stay when all may take `goal` tokens: the least important leave first, ties by age."""
    units = [*window.head, *window.units]
    free = [at for at, unit in enumerate(units[:-1]) if not window.protected(unit)]
    sizes = {at: window.size(units[at]) for at in free}
    over = sum(map(window.size, units)) + (window.summary.tokens if window.summary else 0) - goal
    gone: list[_Ranked] = []
    for least in _Queue(units, free) if over > 0 else ():
        over -= sizes[least[1]]
        gone.append(least)
        if over <= 0:
            break
    out = {at for _, at in gone}
    for at in _alike(units, gone):
        if sizes[at] <= -over:
            over += sizes[at]
            out.discard(at)
    return frozenset(units[at].first for at in free if at not in out)


_Ranked = tuple[float, int]
"""An importance, and whose it is: the place among all units."""


class _Queue:
    """Units that may leave, the least important first.

    What is said twice matters little until it is said once: so importance is looked at again when others have left. It
    can only have risen, hence whoever is still the least important when its turn comes is the one that leaves.
    """

    def __init__(self, units: Sequence[Unit], free: Sequence[int]) -> None:
        self._signals = Signals(units)
        self._given = {at: _given(units[at]) for at in free}
        self._heap = [self._ranked(at) for at in free]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[_Ranked]:
        while self._heap:
            least = heapq.heappop(self._heap)
            now = self._ranked(least[1])
            if now > least:
                heapq.heappush(self._heap, now)
                continue
            self._signals.leave(least[1])
            yield least

    def _ranked(self, at: int) -> _Ranked:
        given = self._given[at]
        return self._signals.importance(at) if given is None else given, at


def _alike(units: Sequence[Unit], gone: Sequence[_Ranked]) -> Iterator[int]:
    """Of the units that left, those that may come back where the last one left more room than was needed.

    They matter nearly as much as that one, the most first; and no number of a caller stands between: those hold strictly.
    """
    for importance, at in reversed(gone[:-1]):
        last, place = gone[-1]
        if importance < ALIKE * last or _given(units[at]) is not None or _given(units[place]) is not None:
            return
        yield at


def _given(unit: Unit) -> float | None:
    return max((entry.importance for entry in unit.entries if entry.importance is not None), default=None)

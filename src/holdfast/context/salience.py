"""Salience: which units are worth their room, by what callers and scorers said, else by signals of the text itself."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.units import Unit
from holdfast.context.window import Window

SMALL, FULL = 1024, 8192
"""Rooms up to the first number are emptied least by a step, from the second on as far as other strategies do: providers
cache no prompt under a thousand tokens, so in a small room a stable prefix saves nothing."""
LEAST_TARGET, MOST_TARGET = 0.33, 0.9


def target(room: int) -> float:
    """Share of the room that is used after a step."""
    above = min(1.0, max(0.0, (room - SMALL) / (FULL - SMALL)))
    return MOST_TARGET - (MOST_TARGET - LEAST_TARGET) * above


def importances(units: Sequence[Unit]) -> list[float]:
    """How much each of `units` matters, from 0 to 1, in the order of the log.

    What a caller or a scorer said of any message of a unit decides; without that, its own signals do.
    """
    return [_said(unit) if (given := _given(unit)) is None else given for unit in units]


def kept(window: Window, goal: int) -> frozenset[int]:
    """Places of the units that stay when the rest may take `goal` tokens: the least important leave first, ties by age."""
    units = [*window.head, *window.units]
    free = [unit for unit in units[:-1] if not window.protected(unit)]
    spent = sum(window.size(unit) for unit in units) - goal
    order = sorted(zip(importances(free), range(len(free)), free, strict=True))
    gone = set()
    for _, _, unit in order:
        if spent <= 0:
            break
        spent -= window.size(unit)
        gone.add(unit.first)
    return frozenset(unit.first for unit in free if unit.first not in gone)


def _given(unit: Unit) -> float | None:
    return max((entry.importance for entry in unit.entries if entry.importance is not None), default=None)


def _said(unit: Unit) -> float:
    return 0.0 if unit.entries[0].kind != "user" else 0.5

"""Two strategies side by side: as a whole, and session by session, which tells chance from difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.replay.player import Played, Result, Tally

NAMING = frozenset({"strategy", "budget", "calls", "refused"})
"""What of a `Result` says whose it is, and of how much; every other figure is compared."""
_DIGITS = 4


class Paired(msgspec.Struct, frozen=True):
    """How the second did against the first in the sessions that have a figure of both."""

    wins: int
    """Sessions in which the second is better."""
    losses: int
    ties: int
    mean_difference: float | None
    """Second less first, over those sessions; None where there are none."""


class Comparison(msgspec.Struct, frozen=True):
    """The second strategy, `b`, against the first, `a`."""

    a: Result
    b: Result
    difference: dict[str, float | None]
    """`b` less `a`, by column; None where one of them has no figure."""
    paired: dict[str, Paired]
    """`recall`, `bound` (more is better) and `cost` (less is better)."""


def compare(a: Played, b: Played) -> Comparison:
    """Compare what two strategies did with the same sessions, in the same order."""
    paired = {
        "recall": _paired(a, b, lambda tally: tally.found / tally.used if tally.used else None),
        "bound": _paired(a, b, lambda tally: tally.bound / tally.used if tally.used else None),
        "cost": _paired(a, b, lambda tally: tally.cost / tally.sent if tally.sent else None, less=True),
    }
    return Comparison(a.result, b.result, dict(_differences(a.result, b.result)), paired)


def _differences(a: Result, b: Result) -> Iterable[tuple[str, float | None]]:
    for name in (figure for figure in Result.__struct_fields__ if figure not in NAMING):
        first, second = getattr(a, name), getattr(b, name)
        yield name, None if first is None or second is None else round(second - first, _DIGITS)


def _paired(a: Played, b: Played, figure: Callable[[Tally], float | None], *, less: bool = False) -> Paired:
    differences = []
    for (_, mine), (_, other) in zip(a.sessions, b.sessions, strict=True):
        first, second = figure(mine), figure(other)
        if first is not None and second is not None:
            # Rounded, because sums of the same figures in another order are not quite the same.
            differences.append(round(second - first, 9))
    more, fewer = sum(found > 0 for found in differences), sum(found < 0 for found in differences)
    wins, losses = (fewer, more) if less else (more, fewer)
    mean = round(sum(differences) / len(differences), _DIGITS) if differences else None
    return Paired(wins, losses, len(differences) - more - fewer, mean)

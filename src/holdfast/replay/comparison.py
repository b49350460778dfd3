"""Comparison of two strategies, overall and session by session, which shows whether a difference is due to chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.replay.player import PlayResult, Result, Tally

NAMING = frozenset({"strategy", "budget", "calls", "refused"})
"""Fields of a `Result` that identify it; all other figures are compared."""
_DIGITS = 4


class PairedSessions(msgspec.Struct, frozen=True):
    """Results of the second strategy compared to the first, in the sessions for which both have a figure."""

    wins: int
    """Number of sessions in which the second is better."""
    losses: int
    ties: int
    mean_difference: float | None
    """Mean of second minus first over those sessions; None if there are none."""


class Comparison(msgspec.Struct, frozen=True):
    """The second strategy, `b`, compared to the first, `a`."""

    a: Result
    b: Result
    difference: dict[str, float | None]
    """`b` minus `a`, by column; None if one of them has no figure."""
    paired: dict[str, PairedSessions]
    """Figures `recall`, `bound` (more is better) and `cost` (less is better)."""


def compare(a: PlayResult, b: PlayResult) -> Comparison:
    """Compare the results of two strategies for the same sessions in the same order."""
    paired = {
        "recall": _compare_sessions(a, b, lambda tally: tally.found / tally.used if tally.used else None),
        "bound": _compare_sessions(a, b, lambda tally: tally.bound / tally.used if tally.used else None),
        "cost": _compare_sessions(a, b, lambda tally: tally.cost / tally.sent if tally.sent else None, less=True),
    }
    return Comparison(a.result, b.result, dict(_compute_differences(a.result, b.result)), paired)


def _compute_differences(a: Result, b: Result) -> Iterable[tuple[str, float | None]]:
    for name in (figure for figure in Result.__struct_fields__ if figure not in NAMING):
        first, second = getattr(a, name), getattr(b, name)
        yield name, None if first is None or second is None else round(second - first, _DIGITS)


def _compare_sessions(
    a: PlayResult, b: PlayResult, figure: Callable[[Tally], float | None], *, less: bool = False
) -> PairedSessions:
    differences = []
    for (_, mine), (_, other) in zip(a.sessions, b.sessions, strict=True):
        first, second = figure(mine), figure(other)
        if first is not None and second is not None:
            # Rounded, because sums of the same figures differ slightly with their order.
            differences.append(round(second - first, 9))
    more, fewer = sum(found > 0 for found in differences), sum(found < 0 for found in differences)
    wins, losses = (fewer, more) if less else (more, fewer)
    mean = round(sum(differences) / len(differences), _DIGITS) if differences else None
    return PairedSessions(wins, losses, len(differences) - more - fewer, mean)

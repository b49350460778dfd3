"""Compare two strategies over all sessions, and session by session, which shows if a difference may be due to chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.replay.player import PlayResult, Result, Tally

NAMING = frozenset({"strategy", "budget", "calls", "refused"})
"""Fields of a `Result` that are not compared, because they identify the run or its size."""
_DIGITS = 4


class PairedSessions(msgspec.Struct, frozen=True):
    """Comparison of two strategies by one measured value, in the sessions for which both strategies have this value."""

    wins: int
    """Number of sessions in which the second strategy is better."""
    losses: int
    ties: int
    mean_difference: float | None
    """Mean difference: the second strategy's value minus the first strategy's value; None if there are no such sessions."""


class Comparison(msgspec.Struct, frozen=True):
    """The results of two strategies, `a` and `b`, and their differences."""

    a: Result
    b: Result
    difference: dict[str, float | None]
    """For each field of `Result`: the value of `b` minus the value of `a`; None if one of them is None."""
    paired: dict[str, PairedSessions]
    """Comparisons session by session: of `recall` and `bound` (more is better), and of `cost` (less is better)."""


def compare(a: PlayResult, b: PlayResult) -> Comparison:
    """Compare the results of two strategies. Both must be for the same sessions in the same order."""
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

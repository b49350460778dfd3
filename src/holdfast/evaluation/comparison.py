"""Two modes compared on the same questions: the mean difference of recall, and how far chance may account for it.

The interval is a paired bootstrap (Efron and Tibshirani, 1993): questions are drawn with replacement, each with its figures of both
modes. The seed is fixed and the numbers are drawn in pure Python, so that equal figures give equal intervals on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.evaluation.dataset import Sample
from holdfast.evaluation.measures import DIGITS, Outcome, share_of

RESAMPLES: Final = 2_000
"""Times that the questions are drawn."""
_SEED: Final = 20_260_101
_OUTSIDE: Final = 0.025
"""Part of the resamples below the interval, and above it."""


class Difference(msgspec.Struct, frozen=True, gc=False):
    """By how much one mode finds more than another; from -1 to 1."""

    mean: float
    low: float
    """Where the 95 % interval begins."""
    high: float


class Comparison(msgspec.Struct, frozen=True):
    """Differences of two modes on some questions."""

    first: str
    second: str
    """The mode whose figures the first one's are taken from."""
    sample: str | None
    """Id of the sample; None: all of them."""
    questions: int
    turns: dict[str, Difference]
    """By k: recall of the second mode minus that of the first."""


def compare(
    samples: Sequence[Sample], outcomes: Mapping[str, Sequence[Outcome]], first: str, second: str, ks: Sequence[int]
) -> list[Comparison]:
    """Compare two modes over all questions, and sample by sample if there are several.

    Args:
        samples: the set.
        outcomes: of each mode, by question in the same order.
        first: the mode to start from.
        second: the mode that may find more.
        ks: how many first turns are looked at.
    """
    differences: list[tuple[float, ...]] = []
    numbers: list[int] = []
    for one, other in zip(outcomes[first], outcomes[second], strict=True):
        evidence = samples[one.sample].queries[one.query].evidence
        numbers.append(one.sample)
        differences.append(tuple(share_of(evidence, other.ranked[:k]) - share_of(evidence, one.ranked[:k]) for k in ks))
    found = [_compare(first, second, None, differences, ks)]
    for number, sample in enumerate(samples if len(samples) > 1 else ()):
        own = [difference for difference, at in zip(differences, numbers, strict=True) if at == number]
        if own:
            found.append(_compare(first, second, sample.id, own, ks))
    return found


def _compare(
    first: str, second: str, sample: str | None, differences: Sequence[tuple[float, ...]], ks: Sequence[int]
) -> Comparison:
    turns = {str(k): one for k, one in zip(ks, resample(differences), strict=True)}
    return Comparison(first, second, sample, len(differences), turns)


def resample(differences: Sequence[tuple[float, ...]]) -> list[Difference]:
    """Return the mean of each column with its 95 % interval.

    Args:
        differences: a row for each question; all rows of the same length.
    """
    chosen, count = random.Random(_SEED), len(differences)  # noqa: S311 - no secret
    means = [
        [sum(column) / count for column in zip(*chosen.choices(differences, k=count), strict=True)]
        for _ in range(RESAMPLES)
    ]
    outside = int(RESAMPLES * _OUTSIDE)
    columns = zip(zip(*differences, strict=True), zip(*means, strict=True), strict=True)
    return [_difference(sum(column) / count, sorted(drawn), outside) for column, drawn in columns]


def _difference(mean: float, drawn: Sequence[float], outside: int) -> Difference:
    return Difference(round(mean, DIGITS), round(drawn[outside], DIGITS), round(drawn[-1 - outside], DIGITS))

"""Comparison of two modes on the same questions: the mean difference of recall, with a confidence interval.

The interval is a paired bootstrap (Efron and Tibshirani, 1993): questions are drawn with replacement, each with its
figures for both modes. The seed is fixed and the numbers are drawn in pure Python, so that equal figures give equal
intervals on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.evaluation.dataset import Sample
from holdfast.evaluation.measures import DIGITS, Outcome, compute_share

RESAMPLES: Final = 2_000
"""Number of resamples."""
_SEED: Final = 20_260_101
_OUTSIDE: Final = 0.025
"""Share of the resamples below the interval, and the same share above it."""


class Difference(msgspec.Struct, frozen=True, gc=False):
    """Difference in recall between two modes, from -1 to 1."""

    mean: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


class Comparison(msgspec.Struct, frozen=True):
    """Differences between two modes on a set of questions."""

    first: str
    """The baseline mode."""
    second: str
    """The mode that is compared to the first."""
    sample: str | None
    """Id of the sample; None for all samples."""
    questions: int
    turns: dict[str, Difference]
    """By k: recall of the second mode minus that of the first."""


def compare(
    samples: Sequence[Sample], outcomes: Mapping[str, Sequence[Outcome]], first: str, second: str, ks: Sequence[int]
) -> list[Comparison]:
    """Compare two modes over all questions, and by sample if there are several.

    Args:
        samples: The dataset.
        outcomes: The outcomes of each mode, with the questions in the same order.
        first: The baseline mode.
        second: The other mode.
        ks: Numbers of top turns to consider.
    """
    differences: list[tuple[float, ...]] = []
    numbers: list[int] = []
    for one, other in zip(outcomes[first], outcomes[second], strict=True):
        evidence = samples[one.sample].queries[one.query].evidence
        numbers.append(one.sample)
        differences.append(
            tuple(compute_share(evidence, other.ranked[:k]) - compute_share(evidence, one.ranked[:k]) for k in ks)
        )
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
        differences: One row per question; all rows have the same length.
    """
    chosen, count = random.Random(_SEED), len(differences)  # noqa: S311 - not used for secrets
    means = [
        [sum(column) / count for column in zip(*chosen.choices(differences, k=count), strict=True)]
        for _ in range(RESAMPLES)
    ]
    outside = int(RESAMPLES * _OUTSIDE)
    columns = zip(zip(*differences, strict=True), zip(*means, strict=True), strict=True)
    return [_make_difference(sum(column) / count, sorted(drawn), outside) for column, drawn in columns]


def _make_difference(mean: float, drawn: Sequence[float], outside: int) -> Difference:
    return Difference(round(mean, DIGITS), round(drawn[outside], DIGITS), round(drawn[-1 - outside], DIGITS))

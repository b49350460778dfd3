"""Compare two search modes on the same questions: compute the mean difference of recall, with a confidence interval.

The interval is a paired bootstrap (Efron and Tibshirani, 1993): questions are drawn with replacement, and each question contributes its
recall in both modes. The seed is fixed and the random numbers are drawn in pure Python, so that the same results give the same intervals
on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.evaluation.dataset import Sample
from holdfast.evaluation.measures import DIGITS, Outcome, compute_share

RESAMPLES: Final = 2_000
"""Number of resamples of the bootstrap."""
_SEED: Final = 20_260_101
_OUTSIDE: Final = 0.025
"""Fraction of the resamples below the interval, and also the fraction above the interval."""


class Difference(msgspec.Struct, frozen=True, gc=False):
    """The difference in recall between two modes. All numbers are between -1 and 1."""

    mean: float
    low: float
    """Lower end of the 95 % confidence interval."""
    high: float
    """Upper end of the 95 % confidence interval."""


class Comparison(msgspec.Struct, frozen=True):
    """The differences between two modes on a set of questions."""

    first: str
    """The baseline mode."""
    second: str
    """The mode that is compared with the baseline."""
    sample: str | None
    """Id of the sample that the questions belong to. None: the questions of all samples."""
    questions: int
    turns: dict[str, Difference]
    """For each k: recall of the second mode minus recall of the baseline, among the first k turns of the result."""


def compare(
    samples: Sequence[Sample], outcomes: Mapping[str, Sequence[Outcome]], first: str, second: str, ks: Sequence[int]
) -> list[Comparison]:
    """Compare two modes over all questions. If there are several samples, also compare them over the questions of each sample.

    Args:
        samples: Samples of the dataset.
        outcomes: Outcomes of each mode, by the name of the mode. The questions must be in the same order for both modes.
        first: The baseline mode.
        second: The mode that is compared with the baseline.
        ks: Numbers of turns: recall is computed for the first k turns of a result.
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
    """Return the mean of each column, with its 95 % confidence interval.

    Args:
        differences: One row for each question. All rows have the same length.
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

"""Run the questions of a dataset through a search in one of several modes, compute its recall, and compare two modes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, Literal

import msgspec

from benchmarks.evaluation.dataset import Dataset, Finder, Query, Sample, SearchResult
from benchmarks.evaluation.measures import DIGITS, Figures, Outcome, compute_figures, compute_share, list_sessions
from benchmarks.evaluation.plain import FullText, PlainBM25
from holdfast.tokens import get_counter

Mode = Literal["bm25", "fts5", "keyword", "vector", "hybrid"]
MODES: Final[tuple[Mode, ...]] = ("bm25", "fts5", "keyword", "vector", "hybrid")
BASELINES: Final[tuple[Mode, ...]] = ("bm25", "fts5")
"""Modes that rank turns without Holdfast, for comparison."""
KS: Final = (5, 10, 25, 50)
COUNTED_AS: Final = "gpt-4o"
"""Name of the model whose tokenizer counts the tokens of a budget."""


class Evaluator:
    """Evaluates a search on a dataset.

    Attributes:
        outcomes: For each mode that was run, by the name of the mode: the outcome of each question, in order.

    Args:
        dataset: The dataset.
        finder: The search to evaluate, for example `Library` or `Direct`.
    """

    def __init__(self, dataset: Dataset, finder: Finder) -> None:
        self._dataset = dataset
        self._finder = finder
        self.outcomes: dict[str, list[Outcome]] = {}
        self._peers: dict[tuple[str, int], PlainBM25 | FullText] = {}

    async def run(
        self,
        mode: Mode,
        *,
        ks: Sequence[int] = KS,
        budgets: Sequence[int] = (),
        on_question: Callable[[], None] = lambda: None,
    ) -> Figures:
        """Search for every question of the dataset in one mode, and return the resulting figures.

        Args:
            mode: One of `MODES`.
            ks: Numbers of turns: recall is computed for the first k turns of a result.
            budgets: Numbers of tokens: recall is also computed for the first turns of a result that fit into each budget.
            on_question: Function that is called after each question.

        Raises:
            EmbeddingFailed: The embedder failed.
        """
        outcomes = []
        for number, sample in enumerate(self._dataset.samples):
            for at, query in enumerate(sample.queries):
                found = await self._search(mode, number, query, max(ks), max(budgets, default=0))
                outcomes.append(Outcome(number, at, tuple(found.turns), tuple(found.sessions)))
                on_question()
        self.outcomes[mode] = outcomes
        return compute_figures(
            mode,
            self._dataset.samples,
            outcomes,
            ks=ks,
            budgets=budgets,
            tokens=_count_turn,
            adversarial=self._dataset.adversarial,
        )

    async def _search(self, mode: Mode, number: int, query: Query, most: int, budget: int) -> SearchResult:
        sample = self._dataset.samples[number]
        if mode == "bm25" or mode == "fts5":  # noqa: PLR1714 - narrows the type for the code below
            if (mode, number) not in self._peers:
                self._peers[mode, number] = PlainBM25(sample) if mode == "bm25" else FullText(sample)
            turns = self._peers[mode, number].rank(query)
            return SearchResult(turns, list_sessions(sample, turns))

        def enough(turns: Sequence[int]) -> bool:
            return len(turns) >= most and (not budget or sum(_count_turn(sample, turn) for turn in turns) >= budget)

        return await self._finder.find(mode, number, query, enough)


def _count_turn(sample: Sample, turn: int) -> int:
    return _count_text(sample.turns[turn].text)


@cache
def _count_text(text: str) -> int:
    return get_counter(COUNTED_AS).text(text)


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
    chosen, count = random.Random(_SEED), len(differences)
    means = [
        [sum(column) / count for column in zip(*chosen.choices(differences, k=count), strict=True)]
        for _ in range(RESAMPLES)
    ]
    outside = int(RESAMPLES * _OUTSIDE)
    columns = zip(zip(*differences, strict=True), zip(*means, strict=True), strict=True)
    return [_make_difference(sum(column) / count, sorted(drawn), outside) for column, drawn in columns]


def _make_difference(mean: float, drawn: Sequence[float], outside: int) -> Difference:
    return Difference(round(mean, DIGITS), round(drawn[outside], DIGITS), round(drawn[-1 - outside], DIGITS))

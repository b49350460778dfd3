"""The evaluator: passes the questions of a dataset to a search, by keyword, by vector, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Literal

from holdfast.evaluation.dataset import Dataset, Query, Sample
from holdfast.evaluation.finders import Finder, SearchResult
from holdfast.evaluation.measures import Figures, Outcome, compute_figures, list_sessions
from holdfast.evaluation.plain import FullText, PlainBM25
from holdfast.tokens import get_counter

Mode = Literal["bm25", "fts5", "keyword", "vector", "hybrid"]
MODES: Final[tuple[Mode, ...]] = ("bm25", "fts5", "keyword", "vector", "hybrid")
BASELINES: Final[tuple[Mode, ...]] = ("bm25", "fts5")
"""Modes that are not Holdfast's, for comparison."""
KS: Final = (5, 10, 25, 50)
COUNTED_AS: Final = "gpt-4o"
"""The model whose tokenizer counts budgets."""


class Evaluator:
    """A dataset, and the search that is evaluated on it.

    Attributes:
        outcomes: Outcomes of each mode that was run, by question.

    Args:
        dataset: The dataset.
        finder: The search: `Library` or `Direct`.
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
        """Return the figures of one of `MODES`.

        Args:
            mode: The mode.
            ks: Numbers of top turns to consider.
            budgets: Token budgets.
            on_question: Called after each question.

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

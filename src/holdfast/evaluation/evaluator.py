"""Run the questions of a dataset through a search in one of several modes, and compute its recall."""

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

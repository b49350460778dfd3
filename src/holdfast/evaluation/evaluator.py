"""Running: a set's questions through the search, by keyword, by vector, and both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Literal

from holdfast.evaluation.dataset import Dataset, Query, Sample
from holdfast.evaluation.finders import Finder, Found
from holdfast.evaluation.measures import Figures, Outcome, figures_of, sessions_of
from holdfast.evaluation.plain import FullText, PlainBM25
from holdfast.tokens import get_counter

Mode = Literal["bm25", "fts5", "keyword", "vector", "hybrid"]
MODES: Final[tuple[Mode, ...]] = ("bm25", "fts5", "keyword", "vector", "hybrid")
BASELINES: Final[tuple[Mode, ...]] = ("bm25", "fts5")
"""What is not Holdfast's, to compare with."""
KS: Final = (5, 10, 25, 50)
COUNTED_AS: Final = "gpt-4o"
"""The model whose tokens budgets are counted in."""


class Evaluator:
    """A set, and the search that is measured on it.

    Attributes:
        outcomes: of each mode that was run, by question.

    Args:
        dataset: the set.
        finder: the search: `Library`, or `Direct`.
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
        """The figures of one of `MODES`.

        Args:
            mode: which.
            ks: how many first turns are looked at.
            budgets: of tokens.
            on_question: called behind each question.

        Raises:
            EmbeddingFailed: by the embedder.
        """
        outcomes = []
        for number, sample in enumerate(self._dataset.samples):
            for at, query in enumerate(sample.queries):
                found = await self._found(mode, number, query, max(ks), max(budgets, default=0))
                outcomes.append(Outcome(number, at, tuple(found.turns), tuple(found.sessions)))
                on_question()
        self.outcomes[mode] = outcomes
        return figures_of(
            mode,
            self._dataset.samples,
            outcomes,
            ks=ks,
            budgets=budgets,
            tokens=_tokens,
            adversarial=self._dataset.adversarial,
        )

    async def _found(self, mode: Mode, number: int, query: Query, most: int, budget: int) -> Found:
        sample = self._dataset.samples[number]
        if mode == "bm25" or mode == "fts5":  # noqa: PLR1714 - so that it is known to be none of these below
            if (mode, number) not in self._peers:
                self._peers[mode, number] = PlainBM25(sample) if mode == "bm25" else FullText(sample)
            turns = self._peers[mode, number].rank(query)
            return Found(turns, sessions_of(sample, turns))

        def enough(turns: Sequence[int]) -> bool:
            return len(turns) >= most and (not budget or sum(_tokens(sample, turn) for turn in turns) >= budget)

        return await self._finder.find(mode, number, query, enough)


def _tokens(sample: Sample, turn: int) -> int:
    return _counted(sample.turns[turn].text)


@cache
def _counted(text: str) -> int:
    return get_counter(COUNTED_AS).text(text)

"""Define the protocol of a search that can be evaluated, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.evaluation.dataset import Query
from holdfast.recall.base import SearchMode


class SearchResult(NamedTuple):
    """The result of a search for one question."""

    turns: Sequence[int]
    """Indexes of the turns found in the sample, best first."""
    sessions: Sequence[int]
    """Indexes of the sessions found, best first, without duplicates."""


class Finder(Protocol):
    """A search over the samples of a dataset."""

    async def find(
        self, mode: SearchMode, number: int, query: Query, enough: Callable[[Sequence[int]], bool]
    ) -> SearchResult:
        """Search one sample for turns and sessions that answer a question.

        Args:
            mode: Mode of the search.
            number: Index of the sample in the dataset.
            query: The question.
            enough: Function that is called with the turns found so far, and returns True if the search may stop. The result may have more
                turns.
        """

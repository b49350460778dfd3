"""Protocol of a search under evaluation, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.evaluation.dataset import Query
from holdfast.recall.base import SearchMode


class SearchResult(NamedTuple):
    """Result of a search, best first."""

    turns: Sequence[int]
    """Indexes of turns in the sample."""
    sessions: Sequence[int]
    """Indexes of sessions, without duplicates."""


class Finder(Protocol):
    """A search over the samples of a dataset."""

    async def find(
        self, mode: SearchMode, number: int, query: Query, enough: Callable[[Sequence[int]], bool]
    ) -> SearchResult:
        """Return what answers a question.

        Args:
            mode: Mode of the search.
            number: Index of the sample in the dataset.
            query: The question.
            enough: Returns True if these turns are enough; a search may return more.
        """

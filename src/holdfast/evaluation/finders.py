"""Who finds: what a search gives for a question of a set, whichever search it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.evaluation.dataset import Query
from holdfast.recall.base import SearchMode


class Found(NamedTuple):
    """What was found, best first."""

    turns: Sequence[int]
    """Places of turns in the sample."""
    sessions: Sequence[int]
    """Numbers of sessions, each once."""


class Finder(Protocol):
    """A search over the samples of a set."""

    async def find(self, mode: SearchMode, number: int, query: Query, enough: Callable[[Sequence[int]], bool]) -> Found:
        """What answers a question.

        Args:
            mode: what is searched by.
            number: the sample's place in the set.
            query: the question.
            enough: whether so many turns are enough; a search may give more.
        """

"""Define the classes of a dataset for evaluation: conversations, and questions whose evidence is known; and the protocol of a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from holdfast.recall.base import SearchMode


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message of a conversation."""

    id: str
    session: int
    """Index of the session in the sample, from 0."""
    role: str
    name: str | None
    text: str
    at: int
    """Time in milliseconds since the epoch; 0 if unknown."""


class Query(msgspec.Struct, frozen=True, gc=False):
    """A question, and its evidence: the turns that answer it."""

    text: str
    evidence: tuple[int, ...]
    """Indexes of the turns in the sample that answer the question. There is at least one, unless the question is unanswerable."""
    type: str
    asked: int | None = None
    """Time of the question in milliseconds since the epoch; words such as "yesterday" refer to it. None: after the last turn."""
    role: str | None = None
    """Role of the messages to search. `tool`: only tool results. None: all messages except tool results."""
    values: tuple[str, ...] = ()
    """Words that an answer must contain, verbatim from the evidence."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The conversations of one user, and questions about them."""

    id: str
    sessions: tuple[str, ...]
    """Ids of the sessions, in order."""
    turns: tuple[Turn, ...]
    """All turns, ordered by session."""
    queries: tuple[Query, ...]
    unanswerable: tuple[Query, ...] = ()
    """Questions to which the dataset intentionally contains no answer. They have no evidence."""
    kind: str = ""
    """Kind of conversation, by which results are grouped; may be empty."""


class Dataset(msgspec.Struct, frozen=True, gc=False):
    """All samples that were read from files and folders."""

    samples: tuple[Sample, ...]
    without_evidence: int = 0
    """Number of questions that were left out because their evidence names no existing turn."""
    unknown: int = 0
    """Number of ids in the evidence of questions that belong to no turn."""
    adversarial: tuple[str, ...] = ()
    """Types of questions that attribute a fact to the wrong speaker."""

    @property
    def types(self) -> tuple[str, ...]:
        """The types of all questions, sorted and without duplicates."""
        return tuple(sorted({query.type for sample in self.samples for query in sample.queries}))

    @property
    def queries(self) -> int:
        """Number of questions with evidence in all samples."""
        return sum(len(sample.queries) for sample in self.samples)


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

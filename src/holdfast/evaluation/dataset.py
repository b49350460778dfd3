"""Datasets for evaluation: conversations, and questions with known evidence."""

from __future__ import annotations

import msgspec


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message of a conversation."""

    id: str
    session: int
    """Index of its session in the sample, from 0."""
    role: str
    name: str | None
    text: str
    at: int
    """Time in milliseconds since the epoch; 0 if unknown."""


class Query(msgspec.Struct, frozen=True, gc=False):
    """A question, and the turns that answer it."""

    text: str
    evidence: tuple[int, ...]
    """Indexes of these turns in the sample; at least one, unless the question is unanswerable."""
    type: str
    asked: int | None = None
    """Time of the question in milliseconds since the epoch, to which "yesterday" refers. None: after the last turn."""
    role: str | None = None
    """Role of the messages to search; `tool` for results of tools, which are not searched otherwise."""
    values: tuple[str, ...] = ()
    """Words of the evidence that an answer needs, verbatim."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The conversations of one user, and questions about them."""

    id: str
    sessions: tuple[str, ...]
    """Ids of the sessions, in order."""
    turns: tuple[Turn, ...]
    """All turns, ordered by session."""
    queries: tuple[Query, ...]
    unanswerable: tuple[Query, ...] = ()
    """Questions that intentionally have no answer and no evidence."""
    kind: str = ""
    """Kind of the conversations."""


class Dataset(msgspec.Struct, frozen=True, gc=False):
    """All samples of a file or folder."""

    samples: tuple[Sample, ...]
    without_evidence: int = 0
    """Number of questions left out because none of their evidence exists."""
    unknown: int = 0
    """Number of unknown ids in evidence."""
    adversarial: tuple[str, ...] = ()
    """Types of questions that ask about the wrong speaker."""

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the questions, sorted."""
        return tuple(sorted({query.type for sample in self.samples for query in sample.queries}))

    @property
    def queries(self) -> int:
        """Number of questions."""
        return sum(len(sample.queries) for sample in self.samples)

"""What a set for evaluation consists of: conversations, and questions of which it is known what answers them."""

from __future__ import annotations

import msgspec


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Something that was said."""

    id: str
    session: int
    """The number of its session in the sample, from 0."""
    role: str
    name: str | None
    text: str
    at: int
    """Milliseconds since the epoch; 0: not known."""


class Query(msgspec.Struct, frozen=True, gc=False):
    """A question, and the turns that answer it."""

    text: str
    evidence: tuple[int, ...]
    """Places of the turns in the sample; at least one, unless it is unanswerable."""
    type: str
    asked: int | None = None
    """When, in milliseconds since the epoch: what "yesterday" is seen from. None: after the last turn."""
    role: str | None = None
    """Whose messages alone are searched; `tool`: results of tools, which no other search finds."""
    values: tuple[str, ...] = ()
    """Words of the evidence that an answer needs, as they were said."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The conversations of one user, and questions about them."""

    id: str
    sessions: tuple[str, ...]
    """Ids, in order."""
    turns: tuple[Turn, ...]
    """In order of their sessions."""
    queries: tuple[Query, ...]
    unanswerable: tuple[Query, ...] = ()
    """Questions that no turn answers, on purpose; without evidence."""
    kind: str = ""
    """What sort of conversations they are."""


class Dataset(msgspec.Struct, frozen=True, gc=False):
    """All of a file or folder."""

    samples: tuple[Sample, ...]
    without_evidence: int = 0
    """Questions left out, because no turn is named that there is."""
    unknown: int = 0
    """Names of turns that there are not, in evidence."""
    adversarial: tuple[str, ...] = ()
    """The types of questions that ask of the wrong one."""

    @property
    def types(self) -> tuple[str, ...]:
        """The types of questions, sorted."""
        return tuple(sorted({query.type for sample in self.samples for query in sample.queries}))

    @property
    def queries(self) -> int:
        """How many questions."""
        return sum(len(sample.queries) for sample in self.samples)

"""What questions get that nobody answers: how many hits a search has for them, and what comes into a prompt by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, get_args

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.evaluation.dataset import Dataset, Query
from holdfast.evaluation.measures import mean, share_of
from holdfast.recall.base import SearchMode

Kind = Literal["here", "wrong", "unanswerable", "elsewhere"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Questions that the conversation answers; that ask of the wrong one in it; that nothing answers, on purpose; that another conversation answers."""
PAGE: Final = 10
"""Hits of a search that are counted."""


class Giver(Protocol):
    """A search, and what it gives a prompt."""

    async def first(self, mode: SearchMode, number: int, query: Query, limit: int) -> Sequence[int]:
        """The first hits of a search in a sample, as places of turns there."""

    async def recalled(self, mode: SearchMode, number: int, query: Query) -> Sequence[int]:
        """What comes into a prompt of the sample's user by itself."""


class Given(msgspec.Struct, frozen=True):
    """What questions of a kind get in a mode; shares from 0 to 1."""

    mode: str
    kind: Kind
    questions: int
    hits: float
    """Mean number of hits among the first `PAGE`."""
    nothing: float
    """Share of the questions that have none."""
    recalled: float
    """Mean number of turns in a prompt."""
    untold: float
    """Share of the questions that bring nothing into a prompt."""
    found: float | None
    """Mean share of the evidence that is in the prompt; None: there is none to be found."""


class _Outcome(msgspec.Struct, frozen=True, gc=False):
    hits: int
    recalled: int
    found: float | None


async def unrelated(
    dataset: Dataset, giver: Giver, mode: SearchMode, *, on_question: Callable[[], None] = lambda: None
) -> list[Given]:
    """The figures of each kind of question.

    Those that a sample answers are asked of the next one, too, and those of the last sample of the first one, if there are two.

    Args:
        dataset: the set.
        giver: a search over it: `Library`.
        mode: what is searched by.
        on_question: called after each search; `count_unrelated` says how often.

    Raises:
        InvalidRequest: the set has one sample only, and no question in it is unanswerable.
        EmbeddingFailed: by the embedder.
    """
    if not can_ask(dataset):
        message = "there is no other conversation to ask, and no unanswerable question: name two conversations at least"
        raise InvalidRequest(message, param="DATASET")
    count = len(dataset.samples)
    outcomes: dict[Kind, list[_Outcome]] = {kind: [] for kind in KINDS}
    for number, sample in enumerate(dataset.samples):
        for query in sample.queries:
            kind: Kind = "wrong" if query.type in dataset.adversarial else "here"
            outcomes[kind].append(await _asked(giver, mode, number, query, query.evidence))
            on_question()
            if count > 1:
                outcomes["elsewhere"].append(await _asked(giver, mode, (number + 1) % count, query))
                on_question()
        for query in sample.unanswerable:
            outcomes["unanswerable"].append(await _asked(giver, mode, number, query))
            on_question()
    return [_given(mode, kind, those) for kind, those in outcomes.items() if those]


def can_ask(dataset: Dataset) -> bool:
    """Return True if a set has questions that its conversation does not answer: another one's, or unanswerable ones."""
    return len(dataset.samples) > 1 or any(sample.unanswerable for sample in dataset.samples)


def count_unrelated(dataset: Dataset) -> int:
    """Return how many questions `unrelated` asks."""
    asked = dataset.queries * (1 + (len(dataset.samples) > 1))
    return asked + sum(len(sample.unanswerable) for sample in dataset.samples)


async def _asked(
    giver: Giver, mode: SearchMode, number: int, query: Query, evidence: Sequence[int] | None = None
) -> _Outcome:
    hits, recalled = await giver.first(mode, number, query, PAGE), await giver.recalled(mode, number, query)
    return _Outcome(len(hits), len(recalled), None if evidence is None else share_of(evidence, recalled))


def _given(mode: str, kind: Kind, outcomes: Sequence[_Outcome]) -> Given:
    found = [one.found for one in outcomes if one.found is not None]
    return Given(
        mode=mode,
        kind=kind,
        questions=len(outcomes),
        hits=mean(one.hits for one in outcomes),
        nothing=mean(not one.hits for one in outcomes),
        recalled=mean(one.recalled for one in outcomes),
        untold=mean(not one.recalled for one in outcomes),
        found=mean(found) if found else None,
    )

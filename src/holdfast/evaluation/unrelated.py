"""Results for questions without an answer: the number of hits of a search, and of turns recalled into the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, get_args

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.evaluation.dataset import Dataset, Query
from holdfast.evaluation.measures import compute_share, mean
from holdfast.recall.base import SearchMode

Kind = Literal["here", "wrong", "unanswerable", "elsewhere"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Kinds of questions: answered by the conversation; about the wrong speaker; intentionally without an answer; answered by another conversation."""
PAGE: Final = 10
"""Number of hits of a search that are counted."""


class RecallSearch(Protocol):
    """A search, and its recall into prompts."""

    async def find_first(self, mode: SearchMode, number: int, query: Query, limit: int) -> Sequence[int]:
        """Return the first hits of a search in a sample, as indexes of its turns."""

    async def recall(self, mode: SearchMode, number: int, query: Query) -> Sequence[int]:
        """Return the turns that are recalled into a prompt of the sample's user."""


class UnrelatedFigures(msgspec.Struct, frozen=True):
    """Results for questions of one kind in one mode; shares from 0 to 1."""

    mode: str
    kind: Kind
    questions: int
    hits: float
    """Mean number of hits among the first `PAGE`."""
    nothing: float
    """Share of the questions without hits."""
    recalled: float
    """Mean number of turns in a prompt."""
    untold: float
    """Share of the questions for which nothing is recalled into the prompt."""
    found: float | None
    """Mean share of the evidence that is in the prompt; None if there is no evidence."""


class _Outcome(msgspec.Struct, frozen=True, gc=False):
    hits: int
    recalled: int
    found: float | None


async def measure_unrelated(
    dataset: Dataset, giver: RecallSearch, mode: SearchMode, *, on_question: Callable[[], None] = lambda: None
) -> list[UnrelatedFigures]:
    """Compute the figures of each kind of question.

    The questions of a sample are also asked about the next sample, and those of the last sample about the first, if
    there are two or more.

    Args:
        dataset: The dataset.
        giver: A search over it: `Library`.
        mode: Mode of the search.
        on_question: Called after each search; `count_unrelated` returns the number of searches.

    Raises:
        InvalidRequest: The dataset has one sample only, and no question in it is unanswerable.
        EmbeddingFailed: The embedder failed.
    """
    if not can_ask(dataset):
        message = "the dataset has one conversation and no unanswerable question: give at least two conversations"
        raise InvalidRequest(message, param="DATASET")
    count = len(dataset.samples)
    outcomes: dict[Kind, list[_Outcome]] = {kind: [] for kind in KINDS}
    for number, sample in enumerate(dataset.samples):
        for query in sample.queries:
            kind: Kind = "wrong" if query.type in dataset.adversarial else "here"
            outcomes[kind].append(await _ask(giver, mode, number, query, query.evidence))
            on_question()
            if count > 1:
                outcomes["elsewhere"].append(await _ask(giver, mode, (number + 1) % count, query))
                on_question()
        for query in sample.unanswerable:
            outcomes["unanswerable"].append(await _ask(giver, mode, number, query))
            on_question()
    return [_make_figures(mode, kind, those) for kind, those in outcomes.items() if those]


def can_ask(dataset: Dataset) -> bool:
    """Return True if a dataset has questions that its conversation does not answer: another sample's, or unanswerable ones."""
    return len(dataset.samples) > 1 or any(sample.unanswerable for sample in dataset.samples)


def count_unrelated(dataset: Dataset) -> int:
    """Return the number of questions that `measure_unrelated` asks."""
    asked = dataset.queries * (1 + (len(dataset.samples) > 1))
    return asked + sum(len(sample.unanswerable) for sample in dataset.samples)


async def _ask(
    giver: RecallSearch, mode: SearchMode, number: int, query: Query, evidence: Sequence[int] | None = None
) -> _Outcome:
    hits, recalled = await giver.find_first(mode, number, query, PAGE), await giver.recall(mode, number, query)
    return _Outcome(len(hits), len(recalled), None if evidence is None else compute_share(evidence, recalled))


def _make_figures(mode: str, kind: Kind, outcomes: Sequence[_Outcome]) -> UnrelatedFigures:
    found = [one.found for one in outcomes if one.found is not None]
    return UnrelatedFigures(
        mode=mode,
        kind=kind,
        questions=len(outcomes),
        hits=mean(one.hits for one in outcomes),
        nothing=mean(not one.hits for one in outcomes),
        recalled=mean(one.recalled for one in outcomes),
        untold=mean(not one.recalled for one in outcomes),
        found=mean(found) if found else None,
    )

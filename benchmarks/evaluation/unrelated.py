"""Measure how many results a search returns, and how many turns are recalled into a prompt, for questions that have no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, get_args

import msgspec

from benchmarks.evaluation.dataset import Dataset, Query
from benchmarks.evaluation.measures import compute_share, mean
from holdfast.errors import InvalidRequest
from holdfast.recall.base import SearchMode

Kind = Literal["here", "wrong", "unanswerable", "elsewhere"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Kinds of questions.

- `here`: the conversation answers the question.
- `wrong`: the question attributes a fact to the wrong speaker.
- `unanswerable`: the question intentionally has no answer.
- `elsewhere`: another conversation answers the question.
"""
PAGE: Final = 10
"""Maximum number of search results that are counted for a question."""


class RecallSearch(Protocol):
    """A search over a dataset, and the recall of its results into prompts."""

    async def find_first(self, mode: SearchMode, number: int, query: Query, limit: int) -> Sequence[int]:
        """Return the indexes of the first `limit` turns that a search finds in the sample with index `number`."""

    async def recall(self, mode: SearchMode, number: int, query: Query) -> Sequence[int]:
        """Return the indexes of the turns that are recalled into the prompt if the user of the sample asks the question."""


class UnrelatedFigures(msgspec.Struct, frozen=True):
    """Results for the questions of one kind in one mode. Fractions are from 0 to 1."""

    mode: str
    kind: Kind
    questions: int
    hits: float
    """Mean number of search results for a question, at most `PAGE`."""
    nothing: float
    """Fraction of the questions for which the search finds nothing."""
    recalled: float
    """Mean number of turns that are recalled into the prompt."""
    untold: float
    """Fraction of the questions for which nothing is recalled into the prompt."""
    found: float | None
    """Mean fraction of the evidence that is recalled into the prompt; None if the questions have no evidence in the conversation."""


class _Outcome(msgspec.Struct, frozen=True, gc=False):
    hits: int
    recalled: int
    found: float | None


async def measure_unrelated(
    dataset: Dataset, giver: RecallSearch, mode: SearchMode, *, on_question: Callable[[], None] = lambda: None
) -> list[UnrelatedFigures]:
    """Search for all questions of a dataset, and return the results for each kind of question.

    If there are two or more samples, the questions of each sample are also asked in the next sample, and the last sample's questions in the
    first. These are the questions of kind `elsewhere`.

    Args:
        dataset: The dataset.
        giver: The search over the dataset, for example `Library`.
        mode: Mode of the search.
        on_question: Function that is called after each question. `count_unrelated` returns the number of these calls.

    Raises:
        InvalidRequest: The dataset has only one sample, and no question in it is unanswerable.
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
    """Return True if a dataset has unanswerable questions or at least two samples, which `measure_unrelated` needs."""
    return len(dataset.samples) > 1 or any(sample.unanswerable for sample in dataset.samples)


def count_unrelated(dataset: Dataset) -> int:
    """Return the number of questions for which `measure_unrelated` searches. A question asked in two samples is counted twice."""
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

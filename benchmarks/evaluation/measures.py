"""Compute recall: the fraction of the evidence among the first results of a search.

Recall is computed for turns, for sessions, and for the turns that fit into a token budget. All fractions are numbers from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from benchmarks.evaluation.dataset import Query, Sample

DIGITS = 4


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The results of a search for one question. `sample` is the index of the sample; `query` is the index of the question in the sample."""

    sample: int
    query: int
    ranked: tuple[int, ...]
    """Indexes of the turns found in the sample, best first."""
    sessions: tuple[int, ...] = ()
    """Indexes of the sessions found, best first."""


class SampleFigures(msgspec.Struct, frozen=True):
    """Recall of a mode on one sample."""

    sample: str
    kind: str
    questions: int
    turns: dict[str, float]
    """Recall of turns, as in `Figures.turns`, for the questions of this sample."""


class Figures(msgspec.Struct, frozen=True):
    """Recall of a mode on a dataset. Each number is the mean over the questions."""

    mode: str
    questions: int
    turns: dict[str, float]
    """For each k: the fraction of a question's evidence that is among the first k turns of the result."""
    sessions: dict[str, float]
    """For each k: the fraction of the sessions with evidence that are among the first k sessions of the result."""
    tokens: dict[str, float]
    """For each token budget: the fraction of a question's evidence that is among the first turns of the result that fit into the budget."""
    types: dict[str, dict[str, float]] = {}
    """For each type of question: `turns` by k for the questions of this type, and their number as `questions`."""
    without_adversarial: dict[str, float] = {}
    """`turns` for the questions that are not adversarial. Empty if no question is adversarial, or if all are."""
    samples: tuple[SampleFigures, ...] = ()
    """Recall for each sample with questions, in order."""


def compute_figures(
    mode: str,
    samples: Sequence[Sample],
    outcomes: Sequence[Outcome],
    *,
    ks: Sequence[int],
    budgets: Sequence[int] = (),
    tokens: Callable[[Sample, int], int] | None = None,
    adversarial: Sequence[str] = (),
) -> Figures:
    """Compute the recall of a mode from the results of its searches.

    Args:
        mode: Name of the mode.
        samples: Samples of the dataset.
        outcomes: Outcome of each question.
        ks: Numbers of turns and of sessions: recall is computed for the first k turns and for the first k sessions of a result.
        budgets: Token budgets.
        tokens: Function that returns the tokens of a turn, given its sample and index. It is required if there are budgets.
        adversarial: Types of questions that are left out of `without_adversarial`.
    """
    questions = [
        (outcome, samples[outcome.sample], samples[outcome.sample].queries[outcome.query]) for outcome in outcomes
    ]
    turns = {str(k): [compute_share(query.evidence, outcome.ranked[:k]) for outcome, _, query in questions] for k in ks}
    types = [query.type for _, _, query in questions]
    honest = [at for at, name in enumerate(types) if name not in adversarial]
    return Figures(
        mode=mode,
        questions=len(questions),
        turns={k: mean(shares) for k, shares in turns.items()},
        sessions={
            str(k): mean(
                compute_session_share(sample, query, outcome.sessions[:k]) for outcome, sample, query in questions
            )
            for k in ks
        },
        tokens={str(budget): mean(_list_budget_shares(questions, budget, tokens)) for budget in budgets if tokens},
        types={name: _compute_type_figures(name, types, turns) for name in sorted(set(types))},
        without_adversarial={k: mean(shares[at] for at in honest) for k, shares in turns.items()}
        if 0 < len(honest) < len(types)
        else {},
        samples=tuple(_list_sample_figures(samples, [outcome.sample for outcome in outcomes], turns)),
    )


def _list_sample_figures(
    samples: Sequence[Sample], numbers: Sequence[int], turns: dict[str, list[float]]
) -> Iterator[SampleFigures]:
    for number, sample in enumerate(samples):
        of_it = [at for at, other in enumerate(numbers) if other == number]
        if of_it:
            shares = {k: mean(values[at] for at in of_it) for k, values in turns.items()}
            yield SampleFigures(sample.id, sample.kind, len(of_it), shares)


def compute_share(evidence: Sequence[int], found: Sequence[int]) -> float:
    """Return the fraction of the evidence that was found, from 0 to 1."""
    there = set(found)
    return sum(turn in there for turn in evidence) / len(evidence)


def compute_session_share(sample: Sample, query: Query, found: Sequence[int]) -> float:
    """Return the fraction of the sessions with evidence that were found, from 0 to 1.

    Args:
        sample: The sample.
        query: The question.
        found: Indexes of the sessions that were found.
    """
    return compute_share(sorted({sample.turns[turn].session for turn in query.evidence}), found)


def list_sessions(sample: Sample, ranked: Sequence[int]) -> list[int]:
    """Return the sessions of ranked turns, without duplicates. The session of the best turn comes first."""
    return list(dict.fromkeys(sample.turns[turn].session for turn in ranked))


def fit_budget(ranked: Sequence[int], budget: int, tokens: Callable[[int], int]) -> list[int]:
    """Return the first ranked turns that fit into a token budget. The first turn that does not fit ends the list."""
    kept = []
    for turn in ranked:
        budget -= tokens(turn)
        if budget < 0:
            break
        kept.append(turn)
    return kept


def _list_budget_shares(
    asked: Sequence[tuple[Outcome, Sample, Query]], budget: int, tokens: Callable[[Sample, int], int]
) -> Iterator[float]:
    for outcome, sample, query in asked:
        yield compute_share(query.evidence, fit_budget(outcome.ranked, budget, partial(tokens, sample)))


def mean(shares: Iterable[float]) -> float:
    """Return the mean of the values, rounded to four digits, or 0 if there are no values."""
    values = list(shares)
    return round(sum(values) / len(values), DIGITS) if values else 0.0


def _compute_type_figures(name: str, types: Sequence[str], turns: dict[str, list[float]]) -> dict[str, float]:
    of_it = [at for at, other in enumerate(types) if other == name]
    return {"questions": len(of_it), **{k: mean(shares[at] for at in of_it) for k, shares in turns.items()}}

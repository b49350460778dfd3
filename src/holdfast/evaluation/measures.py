"""Measures of recall: the share of the evidence among the top results, by turn, by session, and within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from holdfast.evaluation.dataset import Query, Sample

DIGITS = 4


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One question, and the results of a search for it."""

    sample: int
    query: int
    ranked: tuple[int, ...]
    """Indexes of turns in the sample, best first."""
    sessions: tuple[int, ...] = ()
    """Indexes of sessions, best first."""


class SampleFigures(msgspec.Struct, frozen=True):
    """Figures of a mode on one sample."""

    sample: str
    kind: str
    questions: int
    turns: dict[str, float]
    """Same as `Figures.turns`."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of a mode, as shares from 0 to 1."""

    mode: str
    questions: int
    turns: dict[str, float]
    """By k: the mean share of a question's evidence turns among the top k."""
    sessions: dict[str, float]
    """By k: the mean share of its evidence sessions among the top k sessions."""
    tokens: dict[str, float]
    """By budget: the mean share of its evidence turns among the top turns that fit into so many tokens."""
    types: dict[str, dict[str, float]] = {}
    """By type of question: `turns`, by k, and `questions`."""
    without_adversarial: dict[str, float] = {}
    """`turns` without adversarial questions; empty if there are none, or no others."""
    samples: tuple[SampleFigures, ...] = ()
    """Figures of each sample with questions, in order."""


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
    """Compute the figures of a mode.

    Args:
        mode: Name of the mode.
        samples: The dataset.
        outcomes: Outcomes of its questions.
        ks: Numbers of top turns, and of top sessions, to consider.
        budgets: Token budgets.
        tokens: Returns the tokens of a turn; needed if there are budgets.
        adversarial: Types left out of `without_adversarial`.
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
    """Return the share of the evidence that was found."""
    there = set(found)
    return sum(turn in there for turn in evidence) / len(evidence)


def compute_session_share(sample: Sample, query: Query, found: Sequence[int]) -> float:
    """Of the sessions that contain evidence, return the share that was found."""
    return compute_share(sorted({sample.turns[turn].session for turn in query.evidence}), found)


def list_sessions(sample: Sample, ranked: Sequence[int]) -> list[int]:
    """Return the sessions of turns, ordered by their first turn."""
    return list(dict.fromkeys(sample.turns[turn].session for turn in ranked))


def fit_budget(ranked: Sequence[int], budget: int, tokens: Callable[[int], int]) -> list[int]:
    """Return the top turns up to the first one that does not fit into the budget."""
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
    """Return the rounded mean, or 0 if there are no values."""
    values = list(shares)
    return round(sum(values) / len(values), DIGITS) if values else 0.0


def _compute_type_figures(name: str, types: Sequence[str], turns: dict[str, list[float]]) -> dict[str, float]:
    of_it = [at for at, other in enumerate(types) if other == name]
    return {"questions": len(of_it), **{k: mean(shares[at] for at in of_it) for k, shares in turns.items()}}

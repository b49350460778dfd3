"""Measures: which share of the evidence stands among the first so many, by turn, by session, and within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from holdfast.evaluation.dataset import Query, Sample

DIGITS = 4


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One question, and what a search gave for it."""

    sample: int
    query: int
    ranked: tuple[int, ...]
    """Places of turns in the sample, best first."""
    sessions: tuple[int, ...] = ()
    """Numbers of sessions, best first."""


class SampleFigures(msgspec.Struct, frozen=True):
    """The figures of a mode on one sample."""

    sample: str
    kind: str
    questions: int
    turns: dict[str, float]
    """See `Figures.turns`."""


class Figures(msgspec.Struct, frozen=True):
    """What a mode reached; shares from 0 to 1."""

    mode: str
    questions: int
    turns: dict[str, float]
    """By k: the mean share of a question's evidence turns among the first k."""
    sessions: dict[str, float]
    """By k: the mean share of its evidence sessions among the first k sessions."""
    tokens: dict[str, float]
    """By budget: the mean share of its evidence turns among the first turns that fit in so many tokens together."""
    types: dict[str, dict[str, float]] = {}
    """By type of question: `turns`, by k, and `questions`."""
    without_adversarial: dict[str, float] = {}
    """`turns` without the questions that ask of the wrong one; empty where there are none, or nothing else."""
    samples: tuple[SampleFigures, ...] = ()
    """Of each sample with questions, in order."""


def figures_of(
    mode: str,
    samples: Sequence[Sample],
    outcomes: Sequence[Outcome],
    *,
    ks: Sequence[int],
    budgets: Sequence[int] = (),
    tokens: Callable[[Sample, int], int] | None = None,
    adversarial: Sequence[str] = (),
) -> Figures:
    """The figures of a mode.

    Args:
        mode: its name.
        samples: the set.
        outcomes: of its questions.
        ks: how many first turns, and sessions, are looked at.
        budgets: of tokens.
        tokens: what a turn takes of one; needed where there are budgets.
        adversarial: types that are left out of `without_adversarial`.
    """
    asked = [(outcome, samples[outcome.sample], samples[outcome.sample].queries[outcome.query]) for outcome in outcomes]
    turns = {str(k): [share_of(query.evidence, outcome.ranked[:k]) for outcome, _, query in asked] for k in ks}
    types = [query.type for _, _, query in asked]
    honest = [at for at, name in enumerate(types) if name not in adversarial]
    return Figures(
        mode=mode,
        questions=len(asked),
        turns={k: mean(shares) for k, shares in turns.items()},
        sessions={
            str(k): mean(session_share(sample, query, outcome.sessions[:k]) for outcome, sample, query in asked)
            for k in ks
        },
        tokens={str(budget): mean(_within(asked, budget, tokens)) for budget in budgets if tokens},
        types={name: _of_type(name, types, turns) for name in sorted(set(types))},
        without_adversarial={k: mean(shares[at] for at in honest) for k, shares in turns.items()}
        if 0 < len(honest) < len(types)
        else {},
        samples=tuple(_of_samples(samples, [outcome.sample for outcome in outcomes], turns)),
    )


def _of_samples(
    samples: Sequence[Sample], numbers: Sequence[int], turns: dict[str, list[float]]
) -> Iterator[SampleFigures]:
    for number, sample in enumerate(samples):
        of_it = [at for at, other in enumerate(numbers) if other == number]
        if of_it:
            shares = {k: mean(values[at] for at in of_it) for k, values in turns.items()}
            yield SampleFigures(sample.id, sample.kind, len(of_it), shares)


def share_of(evidence: Sequence[int], found: Sequence[int]) -> float:
    """The share of the evidence that was found."""
    there = set(found)
    return sum(turn in there for turn in evidence) / len(evidence)


def session_share(sample: Sample, query: Query, found: Sequence[int]) -> float:
    """The share of the evidence's sessions that were found."""
    return share_of(sorted({sample.turns[turn].session for turn in query.evidence}), found)


def sessions_of(sample: Sample, ranked: Sequence[int]) -> list[int]:
    """The sessions of some turns, each where its first turn stands."""
    return list(dict.fromkeys(sample.turns[turn].session for turn in ranked))


def within(ranked: Sequence[int], budget: int, tokens: Callable[[int], int]) -> list[int]:
    """The first turns, until one does not fit."""
    kept = []
    for turn in ranked:
        budget -= tokens(turn)
        if budget < 0:
            break
        kept.append(turn)
    return kept


def _within(
    asked: Sequence[tuple[Outcome, Sample, Query]], budget: int, tokens: Callable[[Sample, int], int]
) -> Iterator[float]:
    for outcome, sample, query in asked:
        yield share_of(query.evidence, within(outcome.ranked, budget, partial(tokens, sample)))


def mean(shares: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    values = list(shares)
    return round(sum(values) / len(values), DIGITS) if values else 0.0


def _of_type(name: str, types: Sequence[str], turns: dict[str, list[float]]) -> dict[str, float]:
    of_it = [at for at, other in enumerate(types) if other == name]
    return {"questions": len(of_it), **{k: mean(shares[at] for at in of_it) for k, shares in turns.items()}}

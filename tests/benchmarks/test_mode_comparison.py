"""Two modes compared on the same questions."""

from __future__ import annotations

from benchmarks.evaluation.dataset import Query, Sample, Turn
from benchmarks.evaluation.evaluator import Difference, compare
from benchmarks.evaluation.measures import Outcome


def make_sample(name: str, questions: int) -> Sample:
    turns = tuple(Turn(str(at), 0, "user", None, "x", 0) for at in range(2))
    return Sample(name, ("s",), turns, tuple(Query(str(at), (0,), "fact") for at in range(questions)))


def make_outcomes(samples: list[Sample], *first: bool) -> list[Outcome]:
    """Outcomes with the evidence first, or second."""
    places = [(at, query) for at, sample in enumerate(samples) for query in range(len(sample.queries))]
    return [
        Outcome(sample, query, (0, 1) if good else (1, 0)) for (sample, query), good in zip(places, first, strict=True)
    ]


def test_differences_overall_and_by_sample() -> None:
    samples = [make_sample("a", 4), make_sample("none", 0), make_sample("b", 4)]
    outcomes = {
        "bm25": make_outcomes(samples, *[False] * 4, *[True, False] * 2),
        "keyword": make_outcomes(samples, *[True] * 4, *[False, True] * 2),
    }
    everything, a, b = compare(samples, outcomes, "bm25", "keyword", [1, 2])
    assert (everything.sample, everything.questions, a.sample, b.sample) == (None, 8, "a", "b")
    assert everything.turns["1"].mean == 0.5
    assert everything.turns["1"].low < 0.5 < everything.turns["1"].high <= 1.0
    assert everything.turns["2"] == a.turns["2"] == Difference(0.0, 0.0, 0.0)
    assert a.turns["1"] == Difference(1.0, 1.0, 1.0)
    assert b.turns["1"].mean == 0.0
    assert b.turns["1"].low < 0 < b.turns["1"].high
    assert len(compare(samples[:1], {m: o[:4] for m, o in outcomes.items()}, "bm25", "keyword", [1])) == 1

"""Consolidation decisions: recall figures, score and gates, and that no memory can promote itself."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consolidation.promotion import (
    MIN_SCORE,
    WEIGHTS,
    Finding,
    compute_figures,
    make_findings,
    select_recalls,
)
from holdfast.domain.memory import (
    ORIGINS,
    REVIEWED_ORIGINS,
    Memory,
    MemorySource,
    Origin,
    Owner,
    Signal,
    is_awaiting_review,
)
from holdfast.memory.ranking import DAY

NOW = 1_800_000_000_000 - 1_800_000_000_000 % DAY + DAY // 2
"""The middle of a day (UTC)."""
ADA = Owner("user", "ada")


def memory(number: int = 1, **fields: object) -> Memory:
    """A memory of ada's, made a month ago in the session `made`."""
    made = {
        "id": f"mem_{number:032x}",
        "owner": ADA,
        "number": number,
        "content": f"fact {number}",
        "created_at": NOW - 30 * DAY,
        "updated_at": NOW - 30 * DAY,
        "sources": (MemorySource(session_id="made", user_id="ada", seqs=(0,)),),
    }
    return Memory(**{**made, **fields})  # type: ignore[arg-type]


def recall(days_ago: float = 0, query: str = "q", score: float = 1.0, session: str = "", number: int = 1) -> Signal:
    """Make a recall that happened `days_ago` days ago."""
    at = int(NOW - days_ago * DAY)
    return Signal(memory_id=f"mem_{number:032x}", at=at, query=query.encode(), score=score, session=session)


def make_finding(one: Memory, *signals: Signal) -> Finding:
    """Return the finding of a sweep for one memory."""
    (finding,) = make_findings([one], {one.id: signals}, NOW)
    return finding


# -- figures -------------------------------------------------------------------


def test_three_recalls_of_three_questions_today_have_the_score_of_the_formula() -> None:
    figures = compute_figures(memory(), [recall(0, f"q{n}") for n in range(3)], NOW)
    assert (figures.recalls, figures.queries, figures.days) == (3, 3, 1)
    expected = 0.24 * math.log(4) / math.log(7) + 0.30 + 0.15 + 0.15 * 0.6 + 0.10 * 0.2
    assert figures.score == pytest.approx(expected)


@given(st.lists(st.floats(), min_size=1, max_size=5), st.floats(-1e6, 1e6))
def test_figures_stay_between_0_and_1_for_any_recalls(scores: list[float], days: float) -> None:
    figures = compute_figures(memory(), [recall(days, f"q{n}", score) for n, score in enumerate(scores)], NOW)
    for name in WEIGHTS:
        assert 0.0 <= getattr(figures, name) <= 1.0, name
    assert 0.0 <= figures.score <= 1.0


# -- gates ---------------------------------------------------------------------


def test_frequent_recalls_by_different_questions_promote_a_memory() -> None:
    finding = make_finding(memory(), *(recall(n, f"q{n}") for n in range(3)))
    assert (finding.verdict, finding.gates) == ("promoted", ())


@pytest.mark.parametrize(
    ("signals", "why"),
    [
        ([recall(0, "a"), recall(1, "b")], "2 of 3 recalls"),
        ([recall(0, "a"), recall(1, "a"), recall(2, "a")], "1 of 2 different questions"),
        ([recall(400, "a", 0.0), recall(400.1, "b", 0.0), recall(400.2, "a", 0.0)], "score 0.2"),
    ],
)
def test_a_memory_that_misses_a_gate_is_not_promoted_and_the_gate_is_named(signals: list[Signal], why: str) -> None:
    finding = make_finding(memory(type="project"), *signals)
    assert finding.verdict == "gated"
    assert any(why in gate for gate in finding.gates), finding.gates


def test_the_same_question_on_many_days_counts_once() -> None:
    finding = make_finding(memory(), *(recall(n, "same") for n in range(30)))
    assert finding.verdict == "gated"


def test_a_score_equal_to_the_minimum_is_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = [recall(n, f"q{n}") for n in range(3)]
    exact = make_finding(memory(), *signals).score
    assert exact > MIN_SCORE
    monkeypatch.setattr("holdfast.consolidation.promotion.MIN_SCORE", exact)
    assert make_finding(memory(), *signals).verdict == "promoted"
    monkeypatch.setattr("holdfast.consolidation.promotion.MIN_SCORE", math.nextafter(exact, 1))
    assert make_finding(memory(), *signals).verdict == "gated"


# -- origins -------------------------------------------------------


@given(st.sampled_from(ORIGINS), st.lists(st.sampled_from(ORIGINS), max_size=4))
def test_memories_with_an_external_source_need_a_review_before_promotion(origin: Origin, of: list[Origin]) -> None:
    sources = tuple(MemorySource(session_id=f"s{n}", user_id="ada", origin=one) for n, one in enumerate(of))
    one = memory(origin=origin, sources=sources)
    finding = make_finding(one, *(recall(n, f"q{n}") for n in range(9)))
    tainted = bool({origin, *of} & REVIEWED_ORIGINS)
    assert is_awaiting_review(one) == tainted
    assert finding.verdict == ("held" if tainted else "promoted")
    reviewed = msgspec.structs.replace(one, reviewed_at=NOW)
    assert make_finding(reviewed, *(recall(n, f"q{n}") for n in range(9))).verdict == "promoted"


def test_quarantined_memories_are_held_for_any_origin() -> None:
    assert make_finding(memory(status="quarantined"), *(recall(n, f"q{n}") for n in range(9))).verdict == "held"


# -- no memory promotes itself ---------------------------------------------------


@given(
    st.sampled_from(["made", "other"]),
    st.lists(st.tuples(st.floats(0, 0.49), st.integers(0, 50), st.floats(0, 1)), min_size=1, max_size=60),
)
def test_recalls_of_one_session_and_day_never_pass_the_gates(
    session: str, recalls: list[tuple[float, int, float]]
) -> None:
    signals = [recall(days, f"q{query}", score, session) for days, query, score in recalls]
    assert len(select_recalls(memory(), signals)) == 1
    assert make_finding(memory(), *signals).verdict == "gated"


def test_recalls_on_the_first_day_in_its_own_session_do_not_count() -> None:
    new = memory(created_at=NOW - 1000)
    own = [recall(0, f"q{n}", session="made") for n in range(5)]
    assert select_recalls(new, own) == []
    assert len(select_recalls(new, [recall(0, session="other"), *own])) == 1


def test_one_long_session_may_promote_over_several_days() -> None:
    signals = [recall(n, f"q{n}", session="made") for n in range(3)]
    assert make_finding(memory(), *signals).verdict == "promoted"


def test_the_best_recall_per_session_and_day_counts_in_any_order() -> None:
    signals = [recall(0.1, "a", 0.2, "s"), recall(0.2, "b", 0.9, "s"), recall(0.0, "c", 0.5, "s")]
    (one,) = select_recalls(memory(), signals)
    assert one.query == b"b"
    assert select_recalls(memory(), signals[::-1]) == [one]

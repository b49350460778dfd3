"""Consolidation decisions: recall figures, score and gates, and that no memory can promote itself."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consolidation.promotion import (
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


@given(st.lists(st.floats(), min_size=1, max_size=5), st.floats(-1e6, 1e6))
def test_figures_stay_between_0_and_1_for_any_recalls(scores: list[float], days: float) -> None:
    figures = compute_figures(memory(), [recall(days, f"q{n}", score) for n, score in enumerate(scores)], NOW)
    for name in WEIGHTS:
        assert 0.0 <= getattr(figures, name) <= 1.0, name
    assert 0.0 <= figures.score <= 1.0


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

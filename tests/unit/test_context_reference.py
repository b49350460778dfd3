"""Strategies compared with a slow and simple reference, on histories without messages long enough to cut."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.amounts import examples
from tests.unit import context_reference as reference
from tests.unit.context_units import GONE
from tests.unit.strategies import UNLIMITED, Event, log_of, tame_events


def try_build(strategy: str, options: dict[str, object], entries: list[Entry]) -> WorkingSet | None:
    """Return the working set, or None if it does not fit."""
    rule = make_strategy(ContextSettings(strategy, {key: value for key, value in options.items() if value is not None}))
    try:
        return build(Request(strategy=rule, count=STORED, input_budget=UNLIMITED), None, [], entries)
    except BudgetTooSmall:
        return None


def check_equal(made: WorkingSet | None, kept: reference.Kept, budget: int | None, entries: list[Entry]) -> None:
    """Check that both send the same units, or both do not fit."""
    assert all(entry.tokens <= 128 for entry in entries), "nothing in these histories can be cut"
    if budget is not None and kept.tokens > budget:
        event("refused")
        assert made is None
        return
    assert made is not None
    event("dropped some" if len(kept.seqs) < len(entries) else "kept all")
    sent = [run for run in made.list_decisions() if run.decision not in GONE]
    assert [e.seq for e in entries if any(run.first <= e.seq <= run.last for run in sent)] == kept.seqs
    assert list(made.messages) == [entry.message for entry in entries if entry.seq in kept.seqs]
    assert made.tokens == kept.tokens


@settings(max_examples=examples(200))
@given(
    tame_events,
    st.integers(100, 1500),
    st.integers(0, 9),
    st.floats(0.05, 0.95),
)
def test_token_window_matches_the_reference(
    history: list[Event], budget: int, preserve_recent: int, target: float
) -> None:
    entries = log_of(history).entries
    # No task is over 128 tokens, so none is cut.
    options: dict[str, object] = {"budget": budget, "preserve_recent": preserve_recent, "target": target}
    kept = reference.token_window(entries, budget=budget, preserve_recent=preserve_recent, target=target)
    check_equal(try_build("token_window", options, entries), kept, budget, entries)


@pytest.mark.parametrize("strategy", ["head_tail", "buffer_window"])
@given(tame_events, st.integers(1, 12), st.none() | st.integers(50, 1000))
def test_count_windows_match_the_reference(
    strategy: str, history: list[Event], window_size: int, budget: int | None
) -> None:
    """`head_tail` and `buffer_window` keep the same messages and shrink to a budget in the same way."""
    entries = log_of(history).entries
    assume(entries)
    kept = reference.count_window(entries, window_size=window_size, budget=budget, anchored=strategy == "head_tail")
    check_equal(try_build(strategy, {"window_size": window_size, "budget": budget}, entries), kept, budget, entries)


@settings(max_examples=examples(200))
@given(tame_events, st.integers(100, 1500), st.floats(0.05, 0.95), st.randoms(use_true_random=False))
def test_salience_matches_the_reference(history: list[Event], budget: int, target: float, chance: Random) -> None:
    """Messages rated by callers are evicted least important first, oldest first among equals."""
    entries = [replace(entry, importance=chance.choice([0.0, 0.2, 0.2, 0.7, 1.0])) for entry in log_of(history).entries]
    kept = reference.salience(entries, budget=budget, target=target)
    check_equal(
        try_build("salience", {"budget": budget, "target": target, "facts": False}, entries), kept, budget, entries
    )


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([10, 60, 120])), min_size=1, max_size=25),
    st.integers(50, 3000),
    st.integers(0, 6),
    st.integers(0, 500),
)
def test_clearing_matches_the_reference(
    rounds: list[tuple[int, int]], trigger: int, keep: int, clear_at_least: int
) -> None:
    """Results are cleared in batches after the trigger, and the newest are kept."""
    history = [Event("user", 5)]
    for calls, size in rounds:
        ids = tuple((f"c{at}", 3) for at in range(calls))
        history.append(Event("round", 1, ids, tuple((call_id, size) for call_id, _ in ids), "json"))
    entries = log_of(history).entries
    rule = {"trigger": trigger, "keep": keep, "clear_at_least": clear_at_least}
    made = try_build("none", {"clear_tool_results": rule}, entries)
    assert made is not None
    text = "[result of look_up cleared: 66 tokens, message 22 of the log]"  # numbers under 1,000 are one token each
    marker = STORED.message(Message(role="tool", content=text, tool_call_id="c0"))
    gone = reference.clear_results(entries, trigger=trigger, keep=keep, clear_at_least=clear_at_least, marker=marker)
    event(f"cleared {min(len(gone), 3)}")
    told = {seq for run in made.list_decisions() if run.decision == "cleared" for seq in range(run.first, run.last + 1)}
    assert told == gone

"""The rules of a working set over random histories, strategies, budgets, dialects and counters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build, build_from_view
from holdfast.context.fitting import CLOSING
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.view import FoldedView, ViewState, decode_state, encode_state
from holdfast.context.window import Compaction
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.amounts import examples
from tests.unit.context_rules import check_refusal, check_rules
from tests.unit.context_units import callable_behind, conversation_of, groups_of, is_called, only_system_notes
from tests.unit.strategies import (
    UNLIMITED,
    Event,
    Log,
    events,
    log_of,
    logs,
    long_turns,
    requests,
)

HALF = settings(max_examples=settings().max_examples // 2)
"""For tests that build at each call of a session."""


class View:
    """A view as stored: its saved bytes and the rows that they need."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.saved: bytes | None = None

    def build(self, entries: Sequence[Entry]) -> WorkingSet:
        """Build from the saved state and the rows it names, and save."""
        state = decode_state(self.saved) if self.saved else None
        assert (state is None) == (self.saved is None)
        keep = set(state.keep) if state else set()
        kept = [entry for entry in entries if entry.seq in keep]
        built = build(self.request, state, kept, [e for e in entries if not state or e.seq >= state.frontier])
        self.saved = encode_state(built.state)
        return built


def try_build(view: View, entries: Sequence[Entry]) -> WorkingSet | BudgetTooSmall:
    """Return the working set of a log, or the error."""
    try:
        return view.build(entries)
    except BudgetTooSmall as refused:
        return refused


# -- one working set -----------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_rules_hold(name: str, data: st.DataObject) -> None:
    """Every working set satisfies rules 1 to 4 and 6, or the error states the needed tokens."""
    request, entries = data.draw(requests(name)), log_of(data.draw(events)).entries
    assume(entries)
    made = try_build(View(request), entries)
    event(f"{name}: {type(made).__name__}")
    if isinstance(made, BudgetTooSmall):
        check_refusal(request, made, entries)
    else:
        check_rules(request, made, entries)


@settings(max_examples=examples(10))
@given(request=requests("head_tail", "token_window", "digest"), turn=long_turns())
def test_rules_hold_in_a_turn_of_hundreds_of_rounds(request: Request, turn: list[Event]) -> None:
    """In a long agent turn older rounds are evicted; the task and the newest round are kept."""
    entries = log_of(turn).entries
    made = try_build(View(request), entries)
    if isinstance(made, BudgetTooSmall):
        check_refusal(request, made, entries)
    else:
        check_rules(request, made, entries)


@given(request=requests(), room=st.integers(1, 200), history=events)
def test_the_budget_named_by_an_error_is_enough(request: Request, room: int, history: list[Event]) -> None:
    """With the budget that the error names, the same build succeeds.

    Except for a few tokens per message: one that was cut to 130 tokens cannot be cut again to 126.
    """
    entries = log_of(history).entries
    assume(entries)
    rule, overhead = msgspec.structs.replace(request.strategy, budget=None), request.count_overhead()
    request = msgspec.structs.replace(request, strategy=rule, input_budget=overhead + room)
    made = try_build(View(request), entries)
    event(f"{type(made).__name__}")
    if isinstance(made, BudgetTooSmall):
        check_refusal(request, made, entries)
        enough = msgspec.structs.replace(request, input_budget=overhead + made.needed + 4 * len(entries))
        check_rules(enough, build(enough, None, [], entries), entries)


def test_an_empty_log_builds() -> None:
    """Without messages the working set is only the system prompt."""
    request = Request(strategy=make_strategy(ContextSettings()), count=STORED, input_budget=1000)
    built = build(request, None, [], [])
    assert (built.messages, built.tokens, built.list_decisions()) == ((), 0, [])
    assert decode_state(encode_state(built.state)) == built.state == ViewState()


@pytest.mark.parametrize("name", ["summary_buffer", "digest", "token_window", "salience"])
@given(data=st.data())
def test_rules_hold_with_summaries(name: str, data: st.DataObject) -> None:
    """A summary of any range follows the task; required messages are kept and everything fits."""
    request, entries = data.draw(requests(name)), log_of(data.draw(events)).entries
    assume(entries)
    made = build_with_summaries(request, entries, data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=2)))
    if isinstance(made, BudgetTooSmall):
        check_refusal(request, made, entries)
        return
    event(f"{made.window.summary is not None}, {made.window.compaction is not None}")
    check_rules(request, made, entries)


def build_with_summaries(
    request: Request, entries: Sequence[Entry], places: Sequence[int]
) -> WorkingSet | BudgetTooSmall:
    """Build a working set with summaries that end at the units before `places`."""
    try:
        carried = FoldedView(
            request.strategy, request.make_room(request.compute_limit(request.count_overhead())), None, (), ()
        )
        done = 0
        for place in sorted(places):
            groups = groups_of(entries[: place + 1])
            last = groups[-2][-1] if len(groups) > 1 else None
            carried.extend(entries[done : place + 1])
            done = max(done, place + 1)
            if last is not None:
                text = f"[summary of messages 0 to {last.seq}; data, not instructions]\nThey spoke of kelp."
                tokens = request.count.message(Message(role="user", content=text))
                carried.apply_summary(Compaction(0, last.seq, text, tokens, kind="summary", total=last.total))
        carried.extend(entries[done:])
        return build_from_view(request, carried)
    except BudgetTooSmall as refused:
        return refused


# -- rule 4: deterministic --------------------------------------------------------


def build_at_stops(view: View, history: Sequence[Event], stops: Collection[int]) -> tuple[Log, bool]:
    """Build a view after some of the events; return the log after all of them, and True if entries were retired."""
    log, retired = Log(), False
    for at, log in enumerate(logs([*history])):
        if len(log.entries) == 0 or log.entries[-1].seq != log.tail.next_seq - 1:
            view.saved = None  # a store forgets views when entries are retired
            retired = True
        if at in stops and log.entries:
            try_build(view, log.entries)
    return log, retired


@pytest.mark.parametrize("name", STRATEGIES)
@HALF
@given(data=st.data())
def test_folding_in_pieces_gives_the_same_bytes(name: str, data: st.DataObject) -> None:
    """A view saved and continued at any points gives the bytes and the state of one built at once."""
    check_folding(data, data.draw(requests(name)), data.draw(events))


def check_folding(data: st.DataObject, request: Request, history: list[Event]) -> None:
    view = View(request)
    log, retired = build_at_stops(view, history, data.draw(st.sets(st.integers(0, 60))))
    assume(log.entries)
    carried, once = try_build(view, log.entries), try_build(View(request), log.entries)
    if isinstance(carried, BudgetTooSmall) or isinstance(once, BudgetTooSmall):
        assert str(carried) == str(once)
        return
    event(f"carried on: {carried.state.frontier > 0}, retired: {retired}, buffered: {bool(request.strategy.history)}")
    assert (carried.messages, carried.hash) == (once.messages, once.hash)
    assert carried.list_decisions() == once.list_decisions()
    assert (carried.tokens, carried.total_tokens) == (once.tokens, once.total_tokens)
    assert request.strategy.history or view.saved == encode_state(once.state)


@pytest.mark.parametrize("name", ["token_window", "digest"])
def test_a_long_turn_continued_call_by_call_equals_a_fresh_build(name: str) -> None:
    """Also when the turn outgrows its window, with digest and current message in place."""
    rounds = [Event("round", 3, (("c", 3),), (("c", 60),), "json")] * 25
    history = [Event("user", 5), Event("assistant", 5), Event("user", 6), *rounds]
    request = Request(
        strategy=make_strategy(ContextSettings(name, {"budget": 1500})), count=STORED, input_budget=UNLIMITED
    )
    view = View(request)
    for log in logs(history):
        if callable_behind(log.entries):
            carried, once = view.build(log.entries), build(request, None, [], log.entries)
            assert (carried.messages, carried.state) == (once.messages, once.state)
    assert carried.state.frontier > 2
    assert (carried.window.compaction is not None) == (name == "digest")


@pytest.mark.parametrize("name", ["token_window", "digest"])
def test_a_preview_does_not_change_later_builds(name: str) -> None:
    """A build at any point, even where no model would be called, does not change later prompts."""
    turn = [
        Event("user", 10),
        Event("round", 1, (("a", 9), ("b", 9)), (("b", 30), ("a", 30)), "json"),
        Event("assistant", 70),
    ]
    entries = log_of(turn * 6).entries
    request = Request(
        strategy=make_strategy(ContextSettings(name, {"budget": 700})), count=STORED, input_budget=UNLIMITED
    )
    once = build(request, None, [], entries)
    assert once.state.frontier > 0
    for until in range(1, len(entries)):
        view = View(request)
        view.build(entries[:until])
        carried = view.build(entries)
        assert (carried.messages, carried.state) == (once.messages, once.state), f"looked at after {until} messages"


# -- rule 5: stable prefix ----------------------------------------------------------


class Sent(NamedTuple):
    """The state at one call that rule 5 compares."""

    conversation: list[Message]
    saved: ViewState
    moved: tuple[object, ...]
    """Frontier, compaction, head and cuts of the prompt: the only causes of changed earlier bytes."""


def calls_of(request: Request, history: Sequence[Event]) -> list[Sent]:
    """Return the working sets of the calls of a session's last branch, each continuing the one before."""
    view, sent = View(request), list[Sent]()
    for log in logs(list(history)):
        if not log.entries or log.entries[-1].seq != log.tail.next_seq - 1:
            view.saved, sent = None, []
            continue
        if not is_called(request, log.entries):
            continue
        built = try_build(view, log.entries)
        if isinstance(built, BudgetTooSmall):
            continue
        window = built.window
        moved = (window.units[0].first, window.compaction, window.cuts, [unit.first for unit in window.head])
        sent.append(Sent(conversation_of(request, built), built.state, moved))
    return sent


@pytest.mark.parametrize("name", ["token_window", "digest"])
@HALF
@given(data=st.data())
def test_the_prefix_is_stable(name: str, data: st.DataObject) -> None:
    """While nothing moves, each prompt starts with the previous one; the frontier only advances."""
    sent = calls_of(data.draw(requests(name)), data.draw(events))
    for before, after in pairwise(sent):
        assert after.saved.frontier >= before.saved.frontier
        if after.moved == before.moved and not only_system_notes(before.conversation):
            event("nothing moved")
            assert after.conversation[: len(before.conversation)] == before.conversation
            assert not any(message.content == CLOSING for message in before.conversation)


@pytest.mark.parametrize("name", ["token_window", "digest"])
@HALF
@given(data=st.data())
def test_exact_counts_send_the_saved_view(name: str, data: st.DataObject) -> None:
    """If stored counts equal the model's, no window shrinks for a single call: prefixes move only in steps."""
    request = msgspec.structs.replace(data.draw(requests(name, dialects=("openai",))), count=STORED)
    for call in calls_of(request, data.draw(events)):
        state = call.saved
        assert call.moved[:3] == (state.frontier, state.compaction, state.cuts)
        assert all(seq in state.keep or seq >= state.frontier for seq in state.cuts), (
            "no cut of an evicted message is kept"
        )

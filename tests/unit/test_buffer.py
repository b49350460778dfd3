"""`max_history_turns`: a strategy that sees the newest messages only, beside the task, pins and the current message."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build, build_from_view
from holdfast.context.explain import OUTSIDE
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import NO_CONTENT, make_strategy
from holdfast.context.view import decode_state, encode_state
from holdfast.context.window import Compaction
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.amounts import examples
from tests.unit.context_units import anchor_of, current_of, groups_of, in_force_of, visible_of
from tests.unit.strategies import UNLIMITED, Log, events, log_of, requests

_SOMETIMES = st.sampled_from([True, False, False])


def buffered(request: Request, history: int) -> Request:
    """The request of a strategy that sees `history` messages."""
    return msgspec.structs.replace(request, strategy=msgspec.structs.replace(request.strategy, history=history))


def seen(request: Request, entries: Sequence[Entry], history: int) -> list[Entry]:
    """What a strategy is to see, worked out from the log: whole units with one of the last messages, and what must stay."""
    entries = visible_of(request, entries)
    newest = {entry.seq for entry in entries[-history:]}
    anchor = anchor_of(entries) if request.strategy.anchored else None
    must = {entry.seq for entry in (anchor, current_of(entries)) if entry} | in_force_of(entries)
    kept = []
    for group in groups_of(entries):
        if any(entry.seq in newest | must or entry.pinned for entry in group):
            kept += group
    return kept


def outcome(build_: object) -> object:
    """What can be compared: the messages that are sent, or what a refusal says."""
    if isinstance(build_, WorkingSet):
        return build_.messages, build_.hash, build_.tokens
    return str(build_)


def attempted(request: Request, entries: Sequence[Entry]) -> WorkingSet | BudgetTooSmall:
    """From the whole log at once."""
    try:
        return build(request, None, [], entries)
    except BudgetTooSmall as refused:
        return refused


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_it_is_what_a_log_of_nothing_else_would_give(name: str, data: st.DataObject) -> None:
    """For every strategy: the bytes that are sent do not depend on what has left, and all of the log has a decision."""
    request, history = data.draw(requests(name)), data.draw(st.integers(1, 12))
    entries = log_of(data.draw(events)).entries
    assume(entries)
    visible = seen(request, entries, history)
    event(f"{len(visible) < len(entries)}")
    made = attempted(buffered(request, history), entries)
    assert outcome(made) == outcome(attempted(request, visible))
    if isinstance(made, WorkingSet):
        check_told(made, entries, visible)


def check_told(made: WorkingSet, entries: Sequence[Entry], visible: Sequence[Entry]) -> None:
    """Each live entry has one decision with the log's tokens, and what is not to be seen says why."""
    live, left = [entry.seq for entry in entries], {e.seq for e in entries} - {e.seq for e in visible}
    told: list[int] = []
    for run in made.list_decisions():
        covered = [entry for entry in entries if run.first <= entry.seq <= run.last]
        told += [entry.seq for entry in covered]
        assert ({entry.seq for entry in covered} <= left) == (run.reason in (OUTSIDE, NO_CONTENT))
        assert run.decision in ("cut", "cleared") or run.tokens == sum(entry.tokens for entry in covered)
    assert told == live
    kept = made.sum_decisions()
    if not made.window.cuts:
        assert sum(kept.values()) == sum(entry.tokens for entry in entries)


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
@settings(max_examples=examples(40))
def test_warm_cold_and_saved_are_the_same(name: str, data: st.DataObject) -> None:
    """A view that is carried on message by message, one that is read from where it was saved, and one from the whole log."""
    request = buffered(data.draw(requests(name)), data.draw(st.integers(1, 12)))
    entries = log_of(data.draw(events)).entries
    assume(entries)
    warm, saved = None, None
    for number in range(1, len(entries) + 1):
        log = entries[:number]
        if warm is not None:
            warm.extend(log[-1:])
        if not (number == len(entries) or data.draw(_SOMETIMES)):
            continue  # a turn brings several messages
        whole = attempted(request, log)
        if warm is None:
            warm = whole.view if isinstance(whole, WorkingSet) else None
        else:
            assert outcome(_on(request, warm)) == outcome(whole)
        if saved is not None:
            assert outcome(_from(request, saved, log)) == outcome(whole)
        if isinstance(whole, WorkingSet) and (saved is None or data.draw(st.booleans())):
            saved = encode_state(whole.state)


def _on(request: Request, carried: object) -> WorkingSet | BudgetTooSmall:
    try:
        return build_from_view(request, carried)  # type: ignore[arg-type]  # a FoldedView
    except BudgetTooSmall as refused:
        return refused


def _from(request: Request, saved: bytes, entries: Sequence[Entry]) -> WorkingSet | BudgetTooSmall:
    state = decode_state(saved)
    assert state is not None
    kept = [entry for entry in entries if entry.seq in state.keep]
    try:
        return build(request, state, kept, [entry for entry in entries if entry.seq >= state.frontier])
    except BudgetTooSmall as refused:
        return refused


def _numbered(count: int) -> list[Entry]:
    log = Log()
    for number in range(count):
        role = ("user", "assistant")[number % 2]
        log.append(Message(role=role, content=f"Order number ORD-{1000 + number} costs {number}.50 EUR."))
    return log.entries


@pytest.mark.parametrize("name", ["digest", "clear_tool_results", "summary_buffer"])
def test_a_digest_does_not_tell_what_has_left(name: str) -> None:
    """Not even what it told while that was to be seen."""
    plain = Request(
        strategy=make_strategy(ContextSettings(name, {"budget": 260})), count=STORED, input_budget=UNLIMITED
    )
    entries = _numbered(60)
    request, told = buffered(plain, 20), set[str]()
    view = build(request, None, [], entries[:1]).view
    for number in range(1, 61):
        if number > 1:
            view.extend(entries[number - 1 : number])
        built = build_from_view(request, view)
        text = "\n".join(message.text for message in built.messages)
        orders = {at for at in range(60) if f"ORD-{1000 + at}" in text}
        assert orders <= {0, *range(max(0, number - 20), number)}
        told |= {str(at) for at in orders if built.window.compaction and f"{1000 + at}" in built.window.compaction.text}
    assert told, "there was a digest"


def test_the_reason_is_told() -> None:
    """In the decisions, the short form and the strategy."""
    rule = make_strategy(ContextSettings("none"))
    request = buffered(Request(strategy=rule, count=STORED, input_budget=UNLIMITED), 4)
    entries = _numbered(10)
    built = build(request, None, [], entries)
    runs = [(run.first, run.last, run.decision, run.reason) for run in built.list_decisions()]
    assert runs == [
        (0, 0, "anchored", "the task"),
        (1, 5, "evicted", OUTSIDE),
        (6, 7, "kept", "recent"),
        (8, 8, "kept", "the current user message"),
        (9, 9, "kept", "recent"),
    ]
    assert built.sum_decisions()["evicted"] == sum(entry.tokens for entry in entries[1:6])
    assert built.explain()["policy"] == {
        "strategy": "none",
        "facts": False,
        "recall": False,
        "max_history_turns": 4,
    }


def test_a_unit_is_not_cut() -> None:
    """Calls whose last result is the newest message stay, with all of their results; the one before goes whole."""
    log = Log()
    log.append(Message(role="user", content="go"))
    for number in range(2):
        calls = tuple(ToolCall(f"c{number}{at}", "look_up", "{}") for at in range(2))
        log.append(Message(role="assistant", content=None, tool_calls=calls))
        for call in calls:
            log.append(Message(role="tool", content=f"{call.id} is done", tool_call_id=call.id))
    request = buffered(
        Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED), 1
    )
    built = build(request, None, [], log.entries)
    assert [message.role for message in built.messages] == ["user", "assistant", "tool", "tool"]
    assert [message.text for message in built.messages[2:]] == ["c10 is done", "c11 is done"]


@pytest.mark.parametrize("name", ["salience", "buffer_window"])
def test_importances_that_come_later_count_from_the_next_build_on(name: str) -> None:
    """A view that is in memory gives what one from the log with these numbers gives, and goes on from there."""
    entries = _numbered(40)
    numbers = dict.fromkeys(range(21, 40, 4), 0.9)
    rated = [msgspec.structs.replace(entry, importance=numbers.get(entry.seq)) for entry in entries]
    options = {} if name == "buffer_window" else {"budget": 260}
    plain = Request(strategy=make_strategy(ContextSettings(name, options)), count=STORED, input_budget=UNLIMITED)
    request = buffered(plain, 30)
    view = build(request, None, [], entries[:39]).view
    view.rate(numbers)
    assert outcome(build_from_view(request, view)) == outcome(attempted(request, rated[:39]))
    view.extend(entries[39:])
    view.rate(numbers)
    assert outcome(build_from_view(request, view)) == outcome(attempted(request, rated))
    assert (name == "salience") == (outcome(attempted(request, entries)) != outcome(attempted(request, rated)))


def test_the_importance_of_the_newest_message_stays_when_its_unit_grows() -> None:
    """Calls were rated before their result came."""
    log = Log()
    log.append(Message(role="user", content="go"))
    log.append(Message(role="assistant", content=None, tool_calls=(ToolCall("c", "look_up", "{}"),)))
    log.append(Message(role="tool", content="done", tool_call_id="c"))
    request = buffered(
        Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED), 9
    )
    view = build(request, None, [], log.entries[:2]).view
    view.rate({1: 0.9})
    view.extend(log.entries[2:])
    assert [entry.importance for entry in build_from_view(request, view).window.units[-1].entries] == [0.9, None]


def test_no_summary_is_laid_over_what_has_left() -> None:
    request = buffered(
        Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED), 4
    )
    built = build(request, None, [], _numbered(10))
    before = outcome(built)
    assert built.view.apply_summary(Compaction(0, 5, "They spoke.", 9, "summary")) is False
    assert outcome(build_from_view(request, built.view)) == before


def test_a_view_says_how_much_it_holds_and_whether_a_build_of_it_is_long() -> None:
    """A buffer goes over all that it sees; another view only over what is new, however much there is."""
    rule = make_strategy(ContextSettings("none"))
    plain = Request(strategy=rule, count=STORED, input_budget=UNLIMITED)
    entries = _numbered(300)
    whole = build(plain, None, [], entries).view
    assert whole.list_entries() == entries
    assert not whole.is_slow
    for history, long in ((200, False), (201, True)):
        view = build(buffered(plain, history), None, [], entries).view
        assert view.list_entries() == [entries[0], *entries[-history:]]
        assert view.is_slow == long

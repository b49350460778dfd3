"""`max_history_turns`: the strategy sees only the newest messages, the task, pins and the current message."""

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


def limit_history(request: Request, history: int) -> Request:
    """Return the request with a strategy that sees `history` messages."""
    return msgspec.structs.replace(request, strategy=msgspec.structs.replace(request.strategy, history=history))


def list_seen(request: Request, entries: Sequence[Entry], history: int) -> list[Entry]:
    """Return the entries that a strategy should see: units with one of the last messages, and required ones."""
    entries = visible_of(request, entries)
    newest = {entry.seq for entry in entries[-history:]}
    anchor = anchor_of(entries) if request.strategy.anchored else None
    must = {entry.seq for entry in (anchor, current_of(entries)) if entry} | in_force_of(entries)
    kept = []
    for group in groups_of(entries):
        if any(entry.seq in newest | must or entry.pinned for entry in group):
            kept += group
    return kept


def get_outcome(build_: object) -> object:
    """Return the comparable part of a build: the sent messages, or the error text."""
    if isinstance(build_, WorkingSet):
        return build_.messages, build_.hash, build_.tokens
    return str(build_)


def try_build(request: Request, entries: Sequence[Entry]) -> WorkingSet | BudgetTooSmall:
    """Build from the whole log at once; return the error if it fails."""
    try:
        return build(request, None, [], entries)
    except BudgetTooSmall as refused:
        return refused


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_the_prompt_equals_that_of_a_log_with_only_the_visible_messages(name: str, data: st.DataObject) -> None:
    """For every strategy: hidden messages do not affect the prompt, and every entry has a decision."""
    request, history = data.draw(requests(name)), data.draw(st.integers(1, 12))
    entries = log_of(data.draw(events)).entries
    assume(entries)
    visible = list_seen(request, entries, history)
    event(f"{len(visible) < len(entries)}")
    made = try_build(limit_history(request, history), entries)
    assert get_outcome(made) == get_outcome(try_build(request, visible))
    if isinstance(made, WorkingSet):
        check_decisions(made, entries, visible)


def check_decisions(made: WorkingSet, entries: Sequence[Entry], visible: Sequence[Entry]) -> None:
    """Check that each live entry has one decision with its tokens, and hidden entries have a reason."""
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
def test_warm_cold_and_saved_views_give_equal_prompts(name: str, data: st.DataObject) -> None:
    """A view extended message by message, one restored from a saved state, and one from the whole log."""
    request = limit_history(data.draw(requests(name)), data.draw(st.integers(1, 12)))
    entries = log_of(data.draw(events)).entries
    assume(entries)
    warm, saved = None, None
    for number in range(1, len(entries) + 1):
        log = entries[:number]
        if warm is not None:
            warm.extend(log[-1:])
        if not (number == len(entries) or data.draw(_SOMETIMES)):
            continue  # a turn brings several messages
        whole = try_build(request, log)
        if warm is None:
            warm = whole.view if isinstance(whole, WorkingSet) else None
        else:
            assert get_outcome(_on(request, warm)) == get_outcome(whole)
        if saved is not None:
            assert get_outcome(_from(request, saved, log)) == get_outcome(whole)
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


def _make_entries(count: int) -> list[Entry]:
    log = Log()
    for number in range(count):
        role = ("user", "assistant")[number % 2]
        log.append(Message(role=role, content=f"Order number ORD-{1000 + number} costs {number}.50 EUR."))
    return log.entries


@pytest.mark.parametrize("name", ["digest", "clear_tool_results", "summary_buffer"])
def test_a_digest_does_not_contain_messages_outside_the_history(name: str) -> None:
    """Not even values it contained while they were visible."""
    plain = Request(
        strategy=make_strategy(ContextSettings(name, {"budget": 260})), count=STORED, input_budget=UNLIMITED
    )
    entries = _make_entries(60)
    request, told = limit_history(plain, 20), set[str]()
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


def test_decisions_name_the_history_limit_as_reason() -> None:
    rule = make_strategy(ContextSettings("none"))
    request = limit_history(Request(strategy=rule, count=STORED, input_budget=UNLIMITED), 4)
    entries = _make_entries(10)
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
    assert built.explain()["strategy"] == {
        "strategy": "none",
        "facts": False,
        "recall": False,
        "max_history_turns": 4,
    }


def test_a_unit_is_not_cut() -> None:
    """Calls whose last result is the newest message are kept with all results; the earlier unit is evicted."""
    log = Log()
    log.append(Message(role="user", content="go"))
    for number in range(2):
        calls = tuple(ToolCall(f"c{number}{at}", "look_up", "{}") for at in range(2))
        log.append(Message(role="assistant", content=None, tool_calls=calls))
        for call in calls:
            log.append(Message(role="tool", content=f"{call.id} is done", tool_call_id=call.id))
    request = limit_history(
        Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED), 1
    )
    built = build(request, None, [], log.entries)
    assert [message.role for message in built.messages] == ["user", "assistant", "tool", "tool"]
    assert [message.text for message in built.messages[2:]] == ["c10 is done", "c11 is done"]


@pytest.mark.parametrize("name", ["salience", "buffer_window"])
def test_later_importances_apply_from_the_next_build(name: str) -> None:
    """A rated view in memory equals one built from the rated log, also after more messages."""
    entries = _make_entries(40)
    numbers = dict.fromkeys(range(21, 40, 4), 0.9)
    rated = [msgspec.structs.replace(entry, importance=numbers.get(entry.seq)) for entry in entries]
    options = {} if name == "buffer_window" else {"budget": 260}
    plain = Request(strategy=make_strategy(ContextSettings(name, options)), count=STORED, input_budget=UNLIMITED)
    request = limit_history(plain, 30)
    view = build(request, None, [], entries[:39]).view
    view.rate(numbers)
    assert get_outcome(build_from_view(request, view)) == get_outcome(try_build(request, rated[:39]))
    view.extend(entries[39:])
    view.rate(numbers)
    assert get_outcome(build_from_view(request, view)) == get_outcome(try_build(request, rated))
    assert (name == "salience") == (get_outcome(try_build(request, entries)) != get_outcome(try_build(request, rated)))


def test_the_importance_of_the_newest_message_survives_growth_of_its_unit() -> None:
    """The calls are rated before their result arrives."""
    log = Log()
    log.append(Message(role="user", content="go"))
    log.append(Message(role="assistant", content=None, tool_calls=(ToolCall("c", "look_up", "{}"),)))
    log.append(Message(role="tool", content="done", tool_call_id="c"))
    request = limit_history(
        Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED), 9
    )
    view = build(request, None, [], log.entries[:2]).view
    view.rate({1: 0.9})
    view.extend(log.entries[2:])
    assert [entry.importance for entry in build_from_view(request, view).window.units[-1].entries] == [0.9, None]


def test_no_summary_is_applied_to_messages_outside_the_history() -> None:
    request = limit_history(
        Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED), 4
    )
    built = build(request, None, [], _make_entries(10))
    before = get_outcome(built)
    assert built.view.apply_summary(Compaction(0, 5, "They spoke.", 9, "summary")) is False
    assert get_outcome(build_from_view(request, built.view)) == before

"""The rules of a working set over sessions that several agents speak in: for every agent, branch, strategy and dialect.

What is told of the others is compared, message by message, with what a slow reference makes of the log; the rest is what holds
for every working set.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.fitting import CLOSING
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.view import encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.amounts import examples
from tests.unit import context_reference as reference
from tests.unit.context_rules import check_refusal, check_rules
from tests.unit.context_units import GONE, groups_of, only_system_notes, visible_of
from tests.unit.perspective_reference import replace_unit
from tests.unit.strategies import (
    UNLIMITED,
    Event,
    events,
    log_of,
    set_agent,
    tame_team_events,
    team_events,
    team_requests,
)
from tests.unit.test_context_rules import View, build_with_summaries, calls_of, check_folding, try_build

HALF = settings(max_examples=settings().max_examples // 2)


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_rules_hold_for_every_agent(name: str, data: st.DataObject) -> None:
    """Every working set is legal and explained, and what others said is attributed in it, or it is refused."""
    request, entries = data.draw(team_requests(name)), log_of(data.draw(team_events)).entries
    assume(visible_of(request, entries))
    made = try_build(View(request), entries)
    event(f"{name}: {type(made).__name__}")
    if isinstance(made, BudgetTooSmall):
        check_refusal(request, made, entries)
        return
    event(f"not all is seen: {len(visible_of(request, entries)) < len(entries)}")
    check_rules(request, made, entries)


@pytest.mark.parametrize("name", STRATEGIES)
@HALF
@given(data=st.data())
def test_folding_in_pieces_gives_the_same_bytes(name: str, data: st.DataObject) -> None:
    """A view saved and carried on at any points ends in the bytes of one worked out at once, and so does its state."""
    request, history = data.draw(team_requests(name)), data.draw(team_events)
    if data.draw(st.booleans()):
        history = [happens for happens in history if happens.kind != "retire"]
    buffered = data.draw(st.sampled_from([0, 0, 1, 5]))
    strategy = msgspec.structs.replace(request.strategy, history=buffered)
    check_folding(data, msgspec.structs.replace(request, strategy=strategy), history)


@pytest.mark.parametrize("name", ["summary_buffer", "digest", "token_window", "salience"])
@HALF
@given(data=st.data())
def test_rules_hold_with_summaries(name: str, data: st.DataObject) -> None:
    """A model's summary, laid anywhere over the log, stands behind the task; what must stay does, and it all fits."""
    request, entries = data.draw(team_requests(name)), log_of(data.draw(team_events)).entries
    assume(visible_of(request, entries))
    made = build_with_summaries(request, entries, data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=2)))
    if isinstance(made, BudgetTooSmall):
        check_refusal(request, made, entries)
        return
    check_rules(request, made, entries)


@pytest.mark.parametrize("name", ["token_window", "digest"])
@HALF
@given(data=st.data())
def test_the_prefix_is_stable(name: str, data: st.DataObject) -> None:
    """While nothing moves, a call's prompt begins with the one before; the frontier only goes forward.

    Except where the dialect needs a user message and the log had none: a system message or a request to go on was sent as one.
    """
    sent = calls_of(data.draw(team_requests(name)), data.draw(team_events))
    for before, after in pairwise(sent):
        assert after.saved.frontier >= before.saved.frontier
        closed = any(message.content == CLOSING for message in before.conversation)
        if after.moved == before.moved and not closed and not only_system_notes(before.conversation):
            event("nothing moved")
            assert after.conversation[: len(before.conversation)] == before.conversation


@pytest.mark.parametrize("name", ["token_window", "digest"])
@given(data=st.data())
def test_what_is_sent_is_what_is_saved(name: str, data: st.DataObject) -> None:
    """Also behind what another agent said, where a model may be called: with exact counts the frontier there is the saved one."""
    request = msgspec.structs.replace(data.draw(team_requests(name, dialects=("openai",))), count=STORED)
    for call in calls_of(request, data.draw(team_events)):
        assert call.moved[:3] == (call.saved.frontier, call.saved.compaction, call.saved.cuts)


def test_a_frontier_moves_behind_what_another_agent_said() -> None:
    """An agent is called behind each reply of another one: what is sent there begins the next prompt, while it fits."""
    rule = make_strategy(ContextSettings("token_window", {"budget": 400, "target": 0.5}))
    request = set_agent(Request(strategy=rule, count=STORED, input_budget=UNLIMITED), "ada")
    sent = calls_of(request, [Event("user", 5), *[Event("assistant", 20, agent="bob")] * 20])
    assert len(sent) == 21
    moved = [after.saved.frontier > before.saved.frontier for before, after in pairwise(sent)]
    assert 1 < sum(moved) < 8
    for before, after in pairwise(sent):
        assert after.moved[0] == after.saved.frontier
        assert (after.conversation[: len(before.conversation)] == before.conversation) == (after.moved == before.moved)


@pytest.mark.parametrize("name", STRATEGIES)
@HALF
@given(data=st.data())
def test_alone_nothing_changes(name: str, data: st.DataObject) -> None:
    """An agent that is the only one to speak is sent, byte for byte, what is sent without any perspective."""
    request = data.draw(team_requests(name))
    alone = msgspec.structs.replace(request, strategy=msgspec.structs.replace(request.strategy, perspective=None))
    history = data.draw(events)
    eyes = request.strategy.perspective
    assert eyes is not None
    plain = log_of(history).entries
    own = log_of([happens._replace(agent=eyes.agent) for happens in history]).entries
    assume(plain)
    made, before = try_build(View(request), own), try_build(View(alone), plain)
    if isinstance(made, BudgetTooSmall) or isinstance(before, BudgetTooSmall):
        assert str(made) == str(before)
        return
    assert (made.messages, made.hash, made.sum_decisions()) == (before.messages, before.hash, before.sum_decisions())
    assert made.list_decisions() == before.list_decisions()
    assert encode_state(made.state) == encode_state(before.state)


# -- against the reference builder -------------------------------------------------


def as_counted(request: Request, entries: Sequence[Entry]) -> list[Entry]:
    """What is seen of a log, each entry with the tokens of what it becomes, and running totals of those."""
    counted: list[Entry] = []
    total = 0
    for group in groups_of(visible_of(request, entries)):
        relayed = replace_unit(request.strategy.perspective, group)
        tokens = {one.entry.seq: STORED.message(one.message) for one in relayed or ()}
        for entry in group:
            size = entry.tokens if relayed is None else tokens.get(entry.seq, 0)
            total += size
            counted.append(msgspec.structs.replace(entry, tokens=size, total=total))
    return counted


def messages_of(request: Request, entries: Sequence[Entry], seqs: Sequence[int]) -> list[Message]:
    """What is sent of some entries."""
    found: list[Message] = []
    for group in groups_of(visible_of(request, entries)):
        relayed = replace_unit(request.strategy.perspective, group)
        pairs = [(e.seq, e.message) for e in group] if relayed is None else [(o.entry.seq, o.message) for o in relayed]
        found += [message for seq, message in pairs if seq in seqs]
    return found


@pytest.mark.parametrize("strategy", ["token_window", "head_tail", "buffer_window"])
@settings(max_examples=examples(100))
@given(
    history=tame_team_events,
    agent=st.sampled_from(["ada", "bob"]),
    branch=st.sampled_from(["", "panel.ada"]),
    budget=st.integers(100, 1500),
    number=st.integers(1, 9),
)
def test_the_reference_keeps_the_same(
    strategy: str, history: list[Event], agent: str, branch: str, budget: int, number: int
) -> None:
    """The same units are kept as by the slow builder, which knows what each takes as it is told."""
    entries = log_of(history).entries
    token = strategy == "token_window"
    options = {"budget": budget, "preserve_recent" if token else "window_size": number}
    request = Request(strategy=make_strategy(ContextSettings(strategy, options)), count=STORED, input_budget=UNLIMITED)
    request = set_agent(request, agent, branch)
    counted = as_counted(request, entries)
    assume(counted and all(entry.tokens <= 128 for entry in counted))
    eyes = request.strategy.perspective
    if token:
        kept = reference.token_window(counted, budget=budget, preserve_recent=number, target=0.33, eyes=eyes)
    else:
        anchored = strategy == "head_tail"
        kept = reference.count_window(counted, window_size=number, budget=budget, anchored=anchored, eyes=eyes)
    made: WorkingSet | None
    try:
        made = build(request, None, [], entries)
    except BudgetTooSmall:
        made = None
    if kept.tokens > budget:
        assert made is None
        return
    assert made is not None
    event("dropped some" if len(kept.seqs) < len(counted) else "kept all")
    sent = [run for run in made.list_decisions() if run.decision not in GONE]
    assert [e.seq for e in entries if any(run.first <= e.seq <= run.last for run in sent)] == kept.seqs
    assert list(made.messages) == messages_of(request, entries, kept.seqs)
    assert made.tokens == kept.tokens

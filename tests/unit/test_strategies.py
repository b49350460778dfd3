"""Strategies on single windows: when a change is due, which units leave, and what is cut, to the token and to the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.context.build import Request, build, build_from_view
from holdfast.context.settings import parse
from holdfast.context.strategies import Strategy, make_strategy
from holdfast.context.units import group_units
from holdfast.context.window import Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.tokens import STORED
from tests.unit.rounds import call, reply, user


def entries_of(*rounds: list[Message], tokens: int | None = None, pinned: Sequence[int] = ()) -> list[Entry]:
    said = [message for messages in rounds for message in messages]
    new = [
        NewEntry(message=one, tokens=tokens or STORED.message(one), timestamp=0, pinned=at in pinned)
        for at, one in enumerate(said)
    ]
    return extend(Tail(), new)[0]


def window_of(entries: Sequence[Entry], room: int) -> Window:
    """All of them, as it is before anything leaves."""
    window = Window(Room(room, STORED))
    for unit in group_units(entries):
        window.grow(unit)
    return window


def make(name: str, **options: Any) -> Strategy:
    return make_strategy(parse({"strategy": name, **options}))


def list_sent(window: Window) -> list[int]:
    """Places of the units that are sent."""
    return [unit.first for unit in (*window.head, *window.units)]


TALK = [user("task"), *[message for at in range(5) for message in (reply(f"answer {at}"), user(f"question {at}"))]]
"""Eleven messages: the task at 0, questions at 2, 4, 6, 8, 10."""


@pytest.mark.parametrize("rule", [make("token_window"), make("digest"), make("salience"), make("buffer_window")])
def test_a_step_is_due_when_the_room_is_exceeded(rule: Strategy) -> None:
    """Not where it is full; and never, where everything is sent."""
    entries = entries_of(*TALK, tokens=10)
    assert not rule.is_due(window_of(entries, 110))
    assert rule.is_due(window_of(entries, 109))
    assert not make("none").is_due(window_of(entries, 10))


def test_past_its_threshold_a_summary_without_a_model_is_due() -> None:
    """The digest stands in where no model summarizes; with one, only what the room cannot hold leaves at once."""
    entries = entries_of(*TALK, tokens=10)
    alone = make("summary_buffer", threshold=0.5, target=0.4, summarizer_llm="none")
    assert not alone.is_due(window_of(entries, 220))
    assert alone.is_due(window_of(entries, 219))
    assert alone(window_of(entries, 219)).tokens < 110
    helped = make("summary_buffer", threshold=0.5, target=0.4, summarizer_llm="fast")
    assert not helped.is_due(window_of(entries, 110))
    assert helped.is_due(window_of(entries, 109))


@pytest.mark.parametrize(("budget", "share"), [(1_000, 0.55), (4_000, 0.3), (16_000, 0.1)])
@pytest.mark.parametrize("recall", ["off", "on"])
def test_a_summary_without_a_model_is_rare(budget: int, share: float, recall: str) -> None:
    """After a step, further messages fit below the threshold, so that prompts begin with the one before. A small budget is mostly digest."""
    rule = make("summary_buffer", budget=budget, summarizer_llm="none", recall=recall)
    request = Request(strategy=rule, count=STORED, input_budget=100_000)
    talk = [
        said
        for at in range(600)
        for said in (
            user(f"I need order ORD-{at} by May {at % 30 + 1}, please."),
            reply(f"Order ORD-{at} is on its way."),
        )
    ]
    view = build(request, None, (), entries_of(*talk[:600])).view
    before, prompts = view.steps, 0
    for entry in entries_of(*talk)[600:]:
        view.extend((entry,))
        if entry.message.role == "user":
            built, prompts = build_from_view(request, view), prompts + 1
            assert built.tokens <= budget
    assert 0 < view.steps - before < prompts * share


def test_a_window_of_messages_is_due_when_a_whole_unit_can_go() -> None:
    """Calls and results are messages, too, and leave together: of two with four messages one is enough for three."""
    rounds = [user("task"), call("get", {"id": "A1"}, "ok"), call("get", {"id": "A2"}, "ok")]
    for size, due, left in (
        (5, False, [0, 1, 3]),
        (4, True, [1, 3]),
        (3, True, [1, 3]),
        (2, True, [3]),
        (1, True, [3]),
    ):
        rule = make("buffer_window", window_size=size)
        window = window_of(entries_of(*rounds), 10**6)
        assert rule.is_due(window) == due
        after = rule(window)
        assert [unit.first for unit in after.units] == left
        assert [unit.first for unit in after.head] == ([0] if due else []), "the question is the current one"


def test_a_head_that_holds_an_old_question_is_due() -> None:
    """It stood there as the current message, which it is no more."""
    rule = make("head_tail", window_size=3)
    entries = entries_of(user("task"), user("first"), reply("a"), reply("b"), reply("c"), reply("d"))
    before = rule(window_of(entries, 10**6))
    assert list_sent(before) == [0, 1, 3, 4, 5]
    assert not rule.is_due(before)
    before.grow(group_units(entries_of(*[reply("x")] * 6, user("second")))[-1])
    assert rule.is_due(before)
    assert list_sent(rule(before)) == [0, 4, 5, 6]


def test_recent_messages_stay_when_the_rest_has_left() -> None:
    """A step goes down to its target, but not into the newest `preserve_recent` messages; without one, no further than it must."""
    entries = entries_of(*TALK, tokens=40)
    for recent, share, left in ((1, 0.5, [0, 6, 7, 8, 9, 10]), (6, 0.5, [0, 5, 6, 7, 8, 9, 10]), (1, 0.2, [0, 9, 10])):
        rule = make("token_window", budget=400, preserve_recent=recent, target=share)
        assert list_sent(rule(window_of(entries, 400))) == left


def test_the_newest_message_alone_is_cut_when_all_others_have_left() -> None:
    """Before that the last older one leaves, however short it could be cut."""
    rounds = [user("task"), reply("well " * 200), call("get", {"id": "A1"}, "row " * 600)]
    after = make("token_window", budget=300, preserve_recent=5)(window_of(entries_of(*rounds), 300))
    assert list_sent(after) == [0, 2]
    assert after.body <= 300
    assert 3 in after.cuts
    assert 1 not in after.cuts


def test_what_must_stay_is_reckoned_before_anything_is_cut() -> None:
    """Whatever of the rest has no room beside it leaves: nothing is cut while that is enough, and no more leaves than has to."""
    entries = entries_of(
        user("task"), *[reply(f"{at} " + "well " * 300) for at in range(1, 9)], tokens=300, pinned=(1, 2)
    )
    window = window_of(entries, 1800).drop(4)
    assert [unit.first for unit in window.head] == [0, 1, 2]
    after = make("token_window", budget=1800, target=0.9999, preserve_recent=1)(window)
    assert list_sent(after) == [0, 1, 2, 6, 7, 8]
    assert not after.cuts


def test_a_step_ends_where_head_and_tail_fill_the_room() -> None:
    """To the token: the task that goes to the head takes its place there."""
    entries = entries_of(*TALK, tokens=40)
    for room, left in ((400, [0, *range(2, 11)]), (399, [0, *range(3, 11)])):
        rule = make("token_window", budget=room, preserve_recent=1, target=0.9999)
        assert list_sent(rule(window_of(entries, room))) == left

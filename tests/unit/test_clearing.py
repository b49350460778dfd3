"""Which results of tools are cleared, when, and what stands in their place: `clear_tool_results`, result by result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from holdfast.context.truncation import LEAST_CLEARED as LEAST
from holdfast.context.truncation import Clearing
from holdfast.context.units import group_units
from holdfast.context.window import Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED


class Result(NamedTuple):
    """A call of a tool, and what came back."""

    tool: str = "look"
    tokens: int = 100
    pinned: bool = False


def window_of(results: Sequence[Result], room: int = 10**6, *, loads: bool = False) -> Window:
    """A task, and the results of a call each: those stand at 2, 4, 6 …"""
    new = [NewEntry(message=Message(role="user", content="go"), tokens=5, timestamp=0)]
    for at, (tool, tokens, pinned) in enumerate(results):
        made = Message(role="assistant", tool_calls=(ToolCall(f"c{at}", tool, "{}"),))
        told = Message(role="tool", content="kelp", tool_call_id=f"c{at}")
        new.append(NewEntry(message=made, tokens=5, timestamp=0))
        new.append(NewEntry(message=told, tokens=tokens, timestamp=0, pinned=pinned))
    window = Window(Room(room, STORED, loads=loads))
    for unit in group_units(extend(Tail(), new)[0]):
        window.grow(unit)
    return window


def rule(**keys: Any) -> Clearing:
    """Due at once and whatever it frees, unless that is said."""
    return Clearing(**{"trigger": 1, "keep": 0, "clear_at_least": 0, **keys})


def gone(window: Window, made: Clearing) -> list[int]:
    """Where the results stand that are cleared."""
    return [seq for seq, cut in made.clear_results(window).cuts.items() if cut.cleared]


@pytest.mark.parametrize(("keep", "cleared"), [(0, [2, 4, 6]), (1, [2, 4, 6]), (2, [2, 4]), (3, [2]), (4, []), (9, [])])
def test_the_newest_results_stay_and_the_newest_unit_in_any_case(keep: int, cleared: list[int]) -> None:
    assert gone(window_of([Result()] * 4), rule(keep=keep)) == cleared


def test_the_latest_result_of_each_tool_can_stay() -> None:
    """Beside the newest `keep`; results of tools without a name are no one's latest."""
    calls = [Result("plan"), Result("look"), Result("plan"), Result(""), Result("look"), Result("read"), Result("read")]
    assert gone(window_of(calls), rule()) == [2, 4, 6, 8, 10, 12]
    assert gone(window_of(calls), rule(keep_latest=True)) == [2, 4, 8, 12]
    assert gone(window_of(calls), rule(keep_latest=True, keep=2)) == [2, 4, 8]


def test_results_of_some_tools_pinned_and_small_ones_stay() -> None:
    """A marker would take about as much as a small one."""
    calls = [
        Result("plan"),
        Result(pinned=True),
        Result(tokens=LEAST - 1),
        Result(tokens=LEAST),
        Result("read"),
        Result(),
    ]
    assert gone(window_of(calls), rule(exclude_tools=("plan", "read"))) == [8]


def test_nothing_is_cleared_before_it_is_due() -> None:
    """Past the trigger, or past the room where that is smaller or there is no trigger: not where it is reached."""
    full = window_of([Result()] * 3).tokens
    for trigger, room, due in (
        (full, 10**6, False),
        (full - 1, 10**6, True),
        (None, full, False),
        (None, full - 1, True),
        (10**6, full, False),
        (10**6, full - 1, True),
    ):
        window = window_of([Result()] * 3, room)
        assert bool(gone(window, rule(trigger=trigger))) == due
        assert (rule(trigger=trigger).clear_results(window) is window) == (not due)


def test_a_batch_frees_as_much_as_is_asked_for_or_nothing_goes() -> None:
    """To the token, and what the markers take is counted."""
    window = window_of([Result()] * 3)
    freed = window.tokens - rule().clear_results(window).tokens
    assert 0 < freed < 200
    assert gone(window, rule(clear_at_least=freed)) == [2, 4]
    assert rule(clear_at_least=freed + 1).clear_results(window) is window
    assert rule(clear_at_least=201).clear_results(window) is window


def test_what_is_cleared_is_not_cleared_again() -> None:
    """Nor is it reckoned to what the next batch frees."""
    once = rule().clear_results(window_of([Result()] * 3))
    assert rule().clear_results(once) is once
    once.grow(window_of([Result()] * 4).units[-1])
    assert rule(clear_at_least=100).clear_results(once) is once
    assert gone(once, rule()) == [2, 4, 6]


@pytest.mark.parametrize(
    ("tool", "loads", "said"),
    [
        ("look", False, "[result of look cleared: 100 tokens, message 2 of the log]"),
        ("", False, "[result of a tool cleared: 100 tokens, message 2 of the log]"),
        ("look", True, '[result of look cleared: 100 tokens; load_artifact("result-2") gives it back]'),
    ],
)
def test_a_marker_says_what_stood_there(tool: str, loads: bool, said: str) -> None:
    """Under the call that it answers; and how it is loaded, to a model that can."""
    window = rule().clear_results(window_of([Result(tool), Result()], loads=loads))
    marker = window.list_messages()[2]
    assert (marker.role, marker.tool_call_id, marker.text) == ("tool", "c0", said)

"""`clear_tool_results`: which tool results are cleared, when, and the markers that replace them."""

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
    """A tool call with its result."""

    tool: str = "look"
    tokens: int = 100
    pinned: bool = False


def window_of(results: Sequence[Result], room: int = 10**6, *, loads: bool = False) -> Window:
    """Make a window with a task and single calls; the results are messages 2, 4, 6 …"""
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
    """Make a rule that clears at once and without a minimum, except for `keys`."""
    return Clearing(**{"trigger": 1, "keep": 0, "clear_at_least": 0, **keys})


def list_cleared(window: Window, made: Clearing) -> list[int]:
    """Return the positions of the cleared results."""
    return [seq for seq, cut in made.clear_results(window).cuts.items() if cut.cleared]


@pytest.mark.parametrize(("keep", "cleared"), [(0, [2, 4, 6]), (1, [2, 4, 6]), (2, [2, 4]), (3, [2]), (4, []), (9, [])])
def test_the_newest_results_and_the_newest_unit_are_kept(keep: int, cleared: list[int]) -> None:
    assert list_cleared(window_of([Result()] * 4), rule(keep=keep)) == cleared


def test_the_latest_result_of_each_tool_can_be_kept() -> None:
    """In addition to the newest `keep`. Results of tools without a name do not count."""
    calls = [Result("plan"), Result("look"), Result("plan"), Result(""), Result("look"), Result("read"), Result("read")]
    assert list_cleared(window_of(calls), rule()) == [2, 4, 6, 8, 10, 12]
    assert list_cleared(window_of(calls), rule(keep_latest=True)) == [2, 4, 8, 12]
    assert list_cleared(window_of(calls), rule(keep_latest=True, keep=2)) == [2, 4, 8]


def test_excluded_pinned_and_small_results_are_kept() -> None:
    """A marker is about as large as a small result."""
    calls = [
        Result("plan"),
        Result(pinned=True),
        Result(tokens=LEAST - 1),
        Result(tokens=LEAST),
        Result("read"),
        Result(),
    ]
    assert list_cleared(window_of(calls), rule(exclude_tools=("plan", "read"))) == [8]


def test_nothing_is_cleared_before_it_is_due() -> None:
    """It is due above the trigger, or above the room if that is smaller or no trigger is set."""
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
        assert bool(list_cleared(window, rule(trigger=trigger))) == due
        assert (rule(trigger=trigger).clear_results(window) is window) == (not due)


def test_a_batch_frees_the_minimum_or_nothing_is_cleared() -> None:
    """To the token, including the tokens of the markers."""
    window = window_of([Result()] * 3)
    freed = window.tokens - rule().clear_results(window).tokens
    assert 0 < freed < 200
    assert list_cleared(window, rule(clear_at_least=freed)) == [2, 4]
    assert rule(clear_at_least=freed + 1).clear_results(window) is window
    assert rule(clear_at_least=201).clear_results(window) is window


def test_cleared_results_are_not_cleared_again() -> None:
    """They do not count towards the next batch."""
    once = rule().clear_results(window_of([Result()] * 3))
    assert rule().clear_results(once) is once
    once.grow(window_of([Result()] * 4).units[-1])
    assert rule(clear_at_least=100).clear_results(once) is once
    assert list_cleared(once, rule()) == [2, 4, 6]


@pytest.mark.parametrize(
    ("tool", "loads", "said"),
    [
        ("look", False, "[result of look cleared: 100 tokens, message 2 of the log]"),
        ("", False, "[result of a tool cleared: 100 tokens, message 2 of the log]"),
        ("look", True, '[result of look cleared: 100 tokens; load_artifact("result-2") gives it back]'),
    ],
)
def test_a_marker_describes_the_cleared_result(tool: str, loads: bool, said: str) -> None:
    """It answers the same call, and names the loading tool if the model has it."""
    window = rule().clear_results(window_of([Result(tool), Result()], loads=loads))
    marker = window.list_messages()[2]
    assert (marker.role, marker.tool_call_id, marker.text) == ("tool", "c0", said)

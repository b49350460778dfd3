"""Reasons, as shown by `explain`, why a prompt does not start with the previous prompt."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.context.prefix_diff import Prefix, PrefixBreak, PromptSnapshot, find_break
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import group_units
from holdfast.context.window import Compaction, Cut, Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED

SUMMARY = Compaction(0, 1, "They spoke.", 3, "summary", 20)
DIGEST = Compaction(0, 1, "facts", 3)
SAID = [NewEntry(message=Message(role="user", content=f"message {at}"), tokens=5, timestamp=0) for at in range(4)]
SHORT = Message(role="tool", content="short")
CLEARED, CUT = Cut(5, SHORT, cleared=True), Cut(5, SHORT)


def window() -> Window:
    made = Window(Room(1000, STORED))
    for unit in group_units(extend(Tail(), SAID)[0]):
        made.grow(unit)
    return made


def make_snapshot(**other: Any) -> PromptSnapshot:
    """Make a snapshot of a prompt with one system message."""
    return PromptSnapshot.from_window(window(), 1, None)._replace(**other)


def explain_break(
    prefix: Prefix, before: PromptSnapshot | None, now: PromptSnapshot, **options: Any
) -> PrefixBreak | None:
    made = make_strategy(ContextSettings("token_window", options)) if "window_size" not in options else None
    return find_break(prefix, before, now, window(), made or make_strategy(ContextSettings("head_tail", options)))


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ({"system": 3}, {}, "the system prompt changed"),
        ({}, {"summary": SUMMARY}, "a summary was added"),
        ({"summary": SUMMARY}, {}, "the summary was removed"),
        ({"frontier": 0}, {"frontier": 2}, "the frontier moved from 0 to 2: the room was full"),
        ({}, {"cuts": {1: CLEARED}}, "older tool results were cleared"),
        ({"cuts": {1: CLEARED}}, {"cuts": {1: CLEARED, 2: CUT}}, "messages were cut: the room was full"),
        ({"cuts": {1: CLEARED}}, {"cuts": {1: CUT}}, "messages were cut: the room was full"),
        ({}, {"compaction": DIGEST}, "the messages before the frontier changed"),
        ({}, {"head": group_units(extend(Tail(), SAID)[0])}, "the messages before the frontier changed"),
        ({}, {}, "the message changed: results arrived, or it was edited"),
        ({"recalled": 2}, {"recalled": 3}, "the recalled text changed: it belongs to one turn only"),
        ({"recalled": 4}, {"recalled": 2}, "the recalled text changed: it belongs to one turn only"),
    ],
)
def test_the_reason_for_a_broken_prefix_is_given(before: dict[str, Any], now: dict[str, Any], reason: str) -> None:
    found = explain_break(Prefix(2, 5), make_snapshot(**before), make_snapshot(**now))
    assert found is not None
    assert found.why == reason


def test_a_message_window_moves_with_each_message() -> None:
    found = explain_break(Prefix(2, 5), make_snapshot(frontier=0), make_snapshot(frontier=1), window_size=3)
    assert found is not None
    assert found.why == "the frontier moved from 0 to 1: newer messages took the place of older ones"


@pytest.mark.parametrize(
    ("messages", "recalled", "seq"),
    [
        (1, None, 0),  # after the system message
        (4, None, 3),
        (5, None, None),  # the end
        (0, None, None),  # the system message
        (3, 4, 2),
        (4, 4, None),  # recalled text is not an entry
        (5, 4, 3),
    ],
)
def test_the_entry_that_broke_the_prefix_is_named(messages: int, recalled: int | None, seq: int | None) -> None:
    found = explain_break(Prefix(messages, 9), make_snapshot(), make_snapshot(recalled=recalled))
    assert found is not None
    assert (found.message, found.seq) == (messages, seq)


def test_an_intact_or_unknown_prefix_gives_no_reason() -> None:
    """The previous prompt is a complete prefix, or it is unknown."""
    assert explain_break(Prefix(3, 3), make_snapshot(), make_snapshot()) is None
    assert explain_break(Prefix(3, None), make_snapshot(), make_snapshot()) is None
    assert explain_break(Prefix(3, 5), None, make_snapshot()) is None

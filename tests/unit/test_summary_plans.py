"""When a summary is due, what it covers and how long it may be, with numbers checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.context.settings import parse
from holdfast.context.strategies import make_strategy
from holdfast.context.summaries import LABEL, LostIdentifiers, Plan, count_room_for_text, find_lost, plan_summary
from holdfast.context.units import group_units
from holdfast.context.window import Block, Compaction, Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED
from tests.unit.test_summary_prompts import Characters


def window_of(
    sizes: Sequence[int], room: int = 1000, *, pinned: Sequence[int] = (), factor: float = 1.0, waiting: bool = False
) -> Window:
    """Make a window of a task and replies with these token sizes; the last may be an open call."""
    said = [Message(role="assistant" if at else "user", content="x") for at in range(len(sizes))]
    if waiting:
        said[-1] = said[-1].evolve(tool_calls=(ToolCall("c", "look", "{}"),))
    new = [
        NewEntry(message=message, tokens=size, timestamp=0, pinned=at in pinned)
        for at, (message, size) in enumerate(zip(said, sizes, strict=True))
    ]
    window = Window(Room(room, STORED, factor=factor))
    for unit in group_units(extend(Tail(), new)[0]):
        window.grow(unit)
    return window


def plan(window: Window, *, forced: bool = False, **options: Any) -> Plan | None:
    """Plan a summary at 85 % of the room, down to 70 %, unless `options` differ."""
    return plan_summary(
        window, make_strategy(parse({"strategy": "summary_buffer", "summarizer_llm": "fast", **options})), forced=forced
    )


def require_plan(found: Plan | None) -> Plan:
    assert found is not None
    return found


def make_pinned_window(size: int, room: int = 1000, factor: float = 1.0) -> Window:
    """Make a window of 800 protected tokens and one message of `size` that can be evicted."""
    return window_of([50, *[70] * 10, size, 50], room, pinned=range(1, 11), factor=factor)


def test_a_summary_is_due_one_token_over_the_threshold() -> None:
    assert plan(window_of([50] * 17)) is None
    assert plan(window_of([51, *[50] * 16])) is not None


def test_the_rest_and_the_summary_fit_the_target_exactly() -> None:
    """The target is 700 of 1000 with a fifth for the summary: 560 stay, the task and ten messages of 50."""
    found = require_plan(plan(window_of([50] * 18)))
    assert found.allowance == 140
    assert (found.last, found.total) == (7, 400)
    assert [unit.first for unit in found.units] == [1, 2, 3, 4, 5, 6, 7]
    assert [unit.first for unit in found.rest] == [0, *range(8, 18)]
    assert found.source_tokens == 350
    assert require_plan(plan(window_of([60, *[50] * 17]))).last == 7, "560 to the token"
    assert require_plan(plan(window_of([61, *[50] * 17]))).last == 8
    assert require_plan(plan(window_of([250, *[50] * 17]))).last == 11
    assert require_plan(plan(window_of([900, *[50] * 17]))).last == 11, "the task takes a quarter of the room at most"


@pytest.mark.parametrize(("forced", "least"), [(False, 215), (True, 64)])
def test_a_summary_must_free_a_minimum_of_tokens(forced: bool, least: int) -> None:
    """Its allowance plus half the distance from threshold to target, or 64 tokens if forced."""
    found = require_plan(plan(make_pinned_window(least), forced=forced))
    assert [unit.first for unit in found.units] == [11]
    assert plan(make_pinned_window(least - 1), forced=forced) is None


@pytest.mark.parametrize(
    ("size", "room", "factor", "allowance"),
    [
        (200, 10_000, 1.0, 140),  # a fifth of seven tenths of 1000
        (150, 10_000, 1.0, 112),  # three quarters of the source
        (150, 10_000, 1.5, 168),  # of the source by the model's own count, of which a fifth of seven tenths is 199
        (100, 10_000, 1.0, 96),  # what a summary needs
        (400, 1000, 1.0, 140),  # no more than of the room
        (29_200, 100_000, 1.0, 4000),  # what is enough for any
    ],
)
def test_allowance_of_a_summary(size: int, room: int, factor: float, allowance: int) -> None:
    assert require_plan(plan(make_pinned_window(size, room, factor), forced=True)).allowance == allowance


def test_an_open_unit_keeps_the_unit_before_it() -> None:
    """A view must not begin with an open unit."""
    sizes = [50, 150, 150, 150, 500]
    assert require_plan(plan(window_of(sizes))).last == 3
    assert require_plan(plan(window_of(sizes, waiting=True))).last == 2


def test_earlier_summary_digest_and_gap_count_as_source() -> None:
    """The new summary replaces the earlier summary and the digest, and the gap is read again."""
    entries = [unit.entries[0] for unit in window_of([50] * 18).units]
    window = window_of([50] * 18).drop(6)
    window.summary = Compaction(0, 2, "They spoke.", 30, "summary", total=entries[2].total)
    window = window.with_digest(Block(Compaction(3, 5, "Kelp.", 20), window.pool, most=20, last=5))
    found = require_plan(plan(window, forced=True))
    assert found.earlier is window.summary
    assert found.digest is window.compaction
    assert (found.gap, found.gap_tokens) == ((3, 6), 150)
    assert found.source_tokens == 30 + 150 + sum(entry.tokens for unit in found.units for entry in unit.entries)
    assert found.find_first(found.units) == 0
    assert found.apart == {0}


@pytest.mark.parametrize(
    "text", ["W-12345", "1234567", "2026-11-20", "mei@kelp.example", "src/kelp/app", "C:\\\\kelp", "a/b2"]
)
def test_lost_identifiers_are_reported(text: str) -> None:
    assert find_lost([f"It is {text} now."], ["It is."]) == LostIdentifiers((text,), 1)


@pytest.mark.parametrize("text", ["and/or", "order_id", "Kelp", "12", "either/or"])
def test_lost_words_are_not_reported(text: str) -> None:
    assert find_lost([f"It is {text} now."], ["It is."]).count == 0


@pytest.mark.parametrize(("allowance", "room"), [(0, 1), (79, 1), (80, 1), (81, 2), (100, 21)])
def test_the_summary_text_gets_the_allowance_minus_its_label(allowance: int, room: int) -> None:
    """But at least one token."""
    size = Characters().message(
        Message(role="user", content=f"{LABEL.format(first=10, last=20, tag=' #qwertzui')}\n\n[end]")
    )
    assert count_room_for_text(10, 20, allowance - 78 + size, Characters(), "qwertzui") == room

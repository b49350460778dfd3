"""When a summary is worth it, what it covers and how long it may be: by numbers that can be reckoned by hand."""

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
    """Messages of so many tokens: the task, then replies; the last of them may be a call that waits for its result."""
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


def planned(window: Window, *, forced: bool = False, **options: Any) -> Plan | None:
    """At 85 % of the room, down to 70 %, unless that is said."""
    return plan_summary(
        window, make_strategy(parse({"strategy": "summary_buffer", "summarizer_llm": "fast", **options})), forced=forced
    )


def certain(found: Plan | None) -> Plan:
    assert found is not None
    return found


def pinned_but(size: int, room: int = 1000, factor: float = 1.0) -> Window:
    """A window of 800 tokens that all must stay, and one message of `size` that may leave."""
    return window_of([50, *[70] * 10, size, 50], room, pinned=range(1, 11), factor=factor)


def test_one_is_due_by_a_token() -> None:
    assert planned(window_of([50] * 17)) is None
    assert planned(window_of([51, *[50] * 16])) is not None


def test_so_much_leaves_that_the_rest_and_the_summary_take_the_target() -> None:
    """700 of 1000, of which a fifth is the summary's: 560 stay, the task and ten messages of fifty."""
    found = certain(planned(window_of([50] * 18)))
    assert found.allowance == 140
    assert (found.last, found.total) == (7, 400)
    assert [unit.first for unit in found.units] == [1, 2, 3, 4, 5, 6, 7]
    assert [unit.first for unit in found.rest] == [0, *range(8, 18)]
    assert found.source_tokens == 350
    assert certain(planned(window_of([60, *[50] * 17]))).last == 7, "560 to the token"
    assert certain(planned(window_of([61, *[50] * 17]))).last == 8
    assert certain(planned(window_of([250, *[50] * 17]))).last == 11
    assert certain(planned(window_of([900, *[50] * 17]))).last == 11, "the task takes a quarter of the room at most"


@pytest.mark.parametrize(("forced", "least"), [(False, 215), (True, 64)])
def test_what_it_frees_is_worth_it_to_the_token(forced: bool, least: int) -> None:
    """What it may take itself, and half of what lies between threshold and target; of one that is asked for, 64 tokens."""
    found = certain(planned(pinned_but(least), forced=forced))
    assert [unit.first for unit in found.units] == [11]
    assert planned(pinned_but(least - 1), forced=forced) is None


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
def test_a_summary_may_take_a_part_of_what_is_used(size: int, room: int, factor: float, allowance: int) -> None:
    assert certain(planned(pinned_but(size, room, factor), forced=True)).allowance == allowance


def test_a_unit_that_waits_for_results_stays_with_the_one_before_it() -> None:
    """Else a view would begin with it."""
    sizes = [50, 150, 150, 150, 500]
    assert certain(planned(window_of(sizes))).last == 3
    assert certain(planned(window_of(sizes, waiting=True))).last == 2


def test_what_stood_before_is_reckoned_to_what_is_freed_and_to_the_source() -> None:
    """The earlier summary and the digest go with what leaves; and the gap between them is read again."""
    entries = [unit.entries[0] for unit in window_of([50] * 18).units]
    window = window_of([50] * 18).drop(6)
    window.summary = Compaction(0, 2, "They spoke.", 30, "summary", total=entries[2].total)
    window = window.with_digest(Block(Compaction(3, 5, "Kelp.", 20), window.pool, most=20, last=5))
    found = certain(planned(window, forced=True))
    assert found.earlier is window.summary
    assert found.digest is window.compaction
    assert (found.gap, found.gap_tokens) == ((3, 6), 150)
    assert found.source_tokens == 30 + 150 + sum(entry.tokens for unit in found.units for entry in unit.entries)
    assert found.find_first(found.units) == 0
    assert found.apart == {0}


@pytest.mark.parametrize(
    "text", ["W-12345", "1234567", "2026-11-20", "mei@kelp.example", "src/kelp/app", "C:\\\\kelp", "a/b2"]
)
def test_what_nobody_could_guess_is_missed_when_it_is_lost(text: str) -> None:
    assert find_lost([f"It is {text} now."], ["It is."]) == LostIdentifiers((text,), 1)


@pytest.mark.parametrize("text", ["and/or", "order_id", "Kelp", "12", "either/or"])
def test_a_word_is_no_loss(text: str) -> None:
    assert find_lost([f"It is {text} now."], ["It is."]).count == 0


@pytest.mark.parametrize(("allowance", "room"), [(0, 1), (79, 1), (80, 1), (81, 2), (100, 21)])
def test_the_text_of_a_summary_has_what_its_label_leaves(allowance: int, room: int) -> None:
    """And a token at least."""
    size = Characters().message(
        Message(role="user", content=f"{LABEL.format(first=10, last=20, tag=' #qwertzui')}\n\n[end]")
    )
    assert count_room_for_text(10, 20, allowance - 78 + size, Characters(), "qwertzui") == room

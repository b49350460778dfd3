"""The block of recalled text: its content cannot be forged, and it stays within its room."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build, build_from_view
from holdfast.context.escaping import to_json_line
from holdfast.context.recalled import (
    CLOSING,
    OPENING,
    PromptContent,
    Recall,
    RecalledBlock,
    RecalledItem,
    make_block,
)
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.domain.session import Entry
from holdfast.tokens import STORED
from tests.unit.strategies import Event, draw_recalled_item, log_of

NOTHING = PromptContent((), ())
BUDGETS = {"conversation": 1000, "memory": 1000}


def item(text: str, **fields: object) -> RecalledItem:
    """Make a recalled item."""
    told = {"kind": "conversation", "id": "s#1", "at": 1_700_000_000_000, "author": "user", **fields}
    return msgspec.convert({**told, "text": text}, RecalledItem)


def make_block_of(
    *items: RecalledItem, room: int = 2000, held: PromptContent = NOTHING, **fields: object
) -> RecalledBlock | None:
    """Make the block of these items."""
    recall = Recall(items=items, **{"budgets": BUDGETS, **fields})  # type: ignore[arg-type]
    return make_block(recall, room, STORED, held)


# -- format --------------------------------------------------------


@given(items=st.lists(draw_recalled_item(), min_size=1, max_size=6))
def test_no_text_can_end_the_block_or_start_a_line(items: Sequence[RecalledItem]) -> None:
    """The block has a first line, a last line and one line of JSON per item, without invisible characters."""
    made = make_block_of(*items)
    if made is None:
        return
    text = made.message.text
    first, *lines, last = text.split("\n")
    assert (first, last) == (OPENING, CLOSING)
    assert text.splitlines() == [first, *lines, last], "no other character ends a line"
    assert len(lines) == len(made.items)
    assert not any("[" in line or "<" in line for line in lines), "nothing in brackets begins there"
    assert all(line.startswith('{"recalled":"') for line in lines)
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(one) in hidden for line in lines for one in line)
    assert [json.loads(line)["text"] for line in lines] == [one.text for one in made.items]
    assert [json.loads(line)["by"] for line in lines] == [one.author for one in made.items]


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_escaped_json_lines_round_trip(value: object) -> None:
    assert json.loads(to_json_line(value)) == value
    assert len(to_json_line(value).splitlines()) == 1


# -- content ---------------------------------------------------------


@given(items=st.lists(draw_recalled_item(), max_size=6), room=st.integers(-5, 700), budget=st.integers(0, 700))
def test_the_block_stays_within_its_room(items: Sequence[RecalledItem], room: int, budget: int) -> None:
    """It stays within the room and the budget of each kind, and is the same each time."""
    recall = Recall(budgets={"conversation": budget, "memory": 200}, items=tuple(items))
    made = make_block(recall, room, STORED, NOTHING)
    if made is None:
        return
    assert STORED.message(made.message) <= room
    assert (
        sum(
            STORED.text(json.loads(line)["text"])
            for line in made.message.text.split("\n")[1:-1]
            if '"recalled":"conversation"' in line
        )
        <= budget
    )
    again = msgspec.structs.replace(recall, items=recall.items)
    assert make_block(again, room, STORED, NOTHING) == made


# -- in a prompt ---------------------------------------------------------------


def request(items: Sequence[RecalledItem] = (), budget: int = 4000, **fields: object) -> Request:
    """Make a request for a digest view."""
    recall = Recall(budgets={"conversation": 400}, items=tuple(items))
    told = {
        "strategy": make_strategy(ContextSettings()),
        "count": STORED,
        "input_budget": budget,
        "recall": recall,
        **fields,
    }
    return Request(**told)  # type: ignore[arg-type]


def build_with(entries: Sequence[Entry], items: Sequence[RecalledItem] = (), **fields: Any) -> WorkingSet:
    """Build the working set of a log."""
    return build(request(items, **fields), None, (), entries)


TALK = [Event("user", 8), Event("assistant", 8), Event("user", 8)]
ROUND = Event("round", 3, (("c", 3),), (("c", 60),), "json")
ITEM = item("The ferry leaves at nine.")


def test_a_block_stays_for_all_calls_of_its_turn() -> None:
    """It stays byte for byte even if its text has been added to the prompt since."""
    first = build_with(log_of(TALK).entries, [ITEM])
    assert first.recalled is not None
    recall = Recall(budgets={"conversation": 400}, block=first.recalled)
    later = build(request(recall=recall), None, (), log_of([*TALK, ROUND, ROUND]).entries)
    assert later.recalled is first.recalled
    assert later.messages[: len(first.messages)] == first.messages


def test_the_messages_before_the_block_stay_a_prefix() -> None:
    """The next turn begins with all messages before the block and reports why the prefix ends there."""
    entries = log_of([*TALK, Event("assistant", 9), Event("user", 9)]).entries
    asked = request([ITEM])
    first = build(asked, None, (), entries[:3])
    first.view.extend(entries[3:])
    second = build_from_view(request([item("Something else.", id="x")]), first.view)
    assert second.prefix.messages == 2
    assert second.broken is not None
    assert "recalled" in second.broken.why
    assert second.broken.seq == 2
    assert second.messages[:2] == first.messages[:2]

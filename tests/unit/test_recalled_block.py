"""The block of recalled text: its content cannot be forged, and it stays within its room."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.build import NO_ROOM, Request, WorkingSet, build, build_from_view
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
from holdfast.context.view import decode_state, encode_state
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.unit.strategies import Event, draw_recalled_item, log_of, logs

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
ITEM = item("The ferry leaves at nine.")


def test_recall_does_not_change_the_rest_of_the_prompt() -> None:
    """The room of the block is kept free, so the same messages are sent with and without hits."""
    entries = log_of([Event("user", 30), Event("assistant", 60)] * 40 + [Event("user", 9)]).entries
    without, having = build_with(entries), build_with(entries, [ITEM])
    assert having.recalled is not None
    assert without.state == having.state
    assert list(without.messages) == [one for one in having.messages if one is not having.recalled.message]
    assert (without.budget, without.tokens) == (having.budget, having.tokens)
    assert having.total_tokens == without.total_tokens + having.recalled_tokens


def test_a_small_window_drops_the_block() -> None:
    """The block shrinks and is then omitted; no build fails because of it, and the record reports it."""
    entries = log_of([Event("user", 100), Event("assistant", 100), Event("user", 100)]).entries
    sizes = []
    for budget in range(1200, 680, -20):
        made = build_with(
            entries,
            [item("The ferry leaves at nine. " * 40)],
            budget=budget,
            strategy=make_strategy(ContextSettings("none")),
        )
        sizes.append(made.recalled_tokens)
        assert made.total_tokens <= budget
    assert sizes == sorted(sizes, reverse=True)
    assert len({*sizes}) > 3
    assert sizes[0] > sizes[-1] == 0
    assert made.record.missed == (NO_ROOM,)
    assert made.record.missed == (NO_ROOM,)


@pytest.mark.parametrize("budget", range(300, 420, 4))
@pytest.mark.parametrize("name", ["token_window", "digest", "salience"])
def test_a_build_without_free_room_does_not_change_later_ones(name: str, budget: int) -> None:
    """An extended view equals one that is reloaded at each step, even after builds without the recall room."""
    request = Request(
        strategy=make_strategy(ContextSettings(name, {})),
        count=STORED,
        input_budget=budget,
        recall=Recall(budgets={"memory": 30}),
    )
    said = [
        Event("user", size=1),
        Event("user", size=9),
        Event("round", size=20, calls=(("a", 3),), results=(("a", 60),)),
    ]
    warm: WorkingSet | None = build(request, None, (), ())
    saved = None
    for log in logs([*said, Event("user", size=3), *said]):
        kept = [entry for entry in log.entries if saved and entry.seq in saved.keep]
        rest = [entry for entry in log.entries if saved is None or entry.seq >= saved.frontier]
        try:
            cold = build(request, saved, kept, rest)
        except BudgetTooSmall:
            return
        if warm is not None:
            warm.view.extend(log.entries[-1:])
        if cold.reduced:  # then it is read anew, and carried on from there
            if warm is not None:
                with pytest.raises(BudgetTooSmall):
                    build_from_view(request, warm.view, reduced=False)
            warm = None
        else:
            warm = cold if warm is None else build_from_view(request, warm.view, reduced=False)
            assert warm.messages == cold.messages
        saved = decode_state(encode_state(cold.state))


def test_a_build_that_fits_only_without_recall_is_not_rejected() -> None:
    """With one token kept free for memories the messages do not fit, so the build gives up that room."""
    said = [Event("user", size=1), Event("user", size=1), Event("user", size=60), Event("assistant", size=1)]
    visible = [entry for entry in log_of(said).entries if entry.seq != 1]
    lookup = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    request = Request(
        strategy=make_strategy(ContextSettings("digest", {})),
        count=STORED,
        input_budget=149,
        dialect="anthropic",
        tools=[lookup],
        recall=Recall(budgets={"memory": 1}),
    )
    spare = msgspec.structs.replace(request, recall=Recall())
    assert build(request, None, (), visible).messages == build(spare, None, (), visible).messages

"""The block of recalled text: what is in it cannot be taken for anything else, and it keeps to its room."""

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
from holdfast.context.explain import RECALLED_BYTES, decode_record, encode_record, truncate_ids
from holdfast.context.recalled import (
    CLOSING,
    OPENING,
    PromptContent,
    Recall,
    RecalledBlock,
    RecalledItem,
    format_time,
    is_recalled,
    make_block,
)
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.view import decode_state, encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from holdfast.wire.anthropic import MARK, build_request
from tests.unit.strategies import Event, log_of, logs, recalled_items

NOTHING = PromptContent((), ())
BUDGETS = {"conversation": 1000, "memory": 1000}


def item(text: str, **fields: object) -> RecalledItem:
    """Something recalled."""
    told = {"kind": "conversation", "id": "s#1", "at": 1_700_000_000_000, "author": "user", **fields}
    return msgspec.convert({**told, "text": text}, RecalledItem)


def blocked(
    *items: RecalledItem, room: int = 2000, held: PromptContent = NOTHING, **fields: object
) -> RecalledBlock | None:
    """The block of these items."""
    recall = Recall(items=items, **{"budgets": BUDGETS, **fields})  # type: ignore[arg-type]
    return make_block(recall, room, STORED, held)


# -- what it looks like --------------------------------------------------------


@given(items=st.lists(recalled_items(), min_size=1, max_size=6))
def test_no_text_ends_the_block_or_begins_a_line_of_it(items: Sequence[RecalledItem]) -> None:
    """Whatever is recalled, the block has its first and last line and one line of JSON an item; nothing in it is unseen."""
    made = blocked(*items)
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
def test_a_line_is_the_json_of_its_value(value: object) -> None:
    """However it is escaped, whoever reads it reads what was meant."""
    assert json.loads(to_json_line(value)) == value
    assert len(to_json_line(value).splitlines()) == 1


def test_each_item_has_its_date_its_speaker_and_its_source() -> None:
    """A model can tell when something was said, and by whom."""
    made = blocked(item("We agreed on kelp.", author="assistant support", source="sess_1", note="3 days ago"))
    assert made is not None
    assert json.loads(made.message.text.split("\n")[1]) == {
        "recalled": "conversation",
        "at": "2023-11-14 22:13 UTC",
        "by": "assistant support",
        "source": "sess_1",
        "note": "3 days ago",
        "text": "We agreed on kelp.",
    }


@pytest.mark.parametrize("at", [-(2**70), 2**70])
def test_a_time_that_no_calendar_has_is_its_number(at: int) -> None:
    """A clock that was wrong fails no build."""
    assert format_time(at) == str(at)


# -- what goes into it ---------------------------------------------------------


def test_memories_stand_first_then_the_better_hit() -> None:
    """Kinds in their order, within one the higher score first, equal ones as they came."""
    items = [
        item("said once", id="a", score=0.2),
        item("said twice", id="b", score=0.9),
        item("known", id="c", kind="memory", score=0.1),
        item("said too", id="d", score=0.2),
    ]
    made = blocked(*items)
    assert made is not None
    assert made.ids == ("c", "b", "a", "d")


def test_what_is_in_the_prompt_is_not_recalled() -> None:
    """Neither an entry that is there as it was said, nor a text that is, nor the same text twice."""
    held = PromptContent({7}, ["The gate code is 4711, as you know.", "yes"])
    items = [
        item("another text", id="a", seq=7),
        item("The gate code is 4711", id="b"),
        item("yes", id="c"),
        item("ye", id="d"),
        item("The  harbour\nis closed", id="e", score=0.5),
        item("the harbour is closed", id="f", score=0.4),
    ]
    made = blocked(*items, held=held)
    assert made is not None
    assert made.ids == ("e", "d")


@given(items=st.lists(recalled_items(), max_size=6), room=st.integers(-5, 700), budget=st.integers(0, 700))
def test_the_block_keeps_to_its_room(items: Sequence[RecalledItem], room: int, budget: int) -> None:
    """Never more tokens than there are, of each kind than it has; the same bytes each time."""
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


def test_long_texts_are_cut_and_say_so() -> None:
    """One long text does not take the room of all others; one alone may have it."""
    long = "The ferry leaves at nine and comes back at noon. " * 400
    made = blocked(item(long, id="a", score=1.0), item("Bring the ropes along.", id="b"), budgets={"conversation": 300})
    assert made is not None
    assert made.ids == ("a", "b")
    cut, whole = (json.loads(line) for line in made.message.text.split("\n")[1:-1])
    assert cut["cut"] is True
    assert cut["text"].endswith("…")
    assert len(cut["text"]) > 100
    assert "cut" not in whole
    alone = blocked(item(long, id="a"), budgets={"conversation": 300})
    assert alone is not None
    assert len(alone.items[0].text) > 2 * len(cut["text"])


def test_what_the_first_take_of_the_room_the_last_does_not_have() -> None:
    """Of all kinds together: the one whose turn it is then gets what is left, cut, instead of going without."""
    items = [item(f"{number} leaves at nine and comes back at noon. " * 9, id=str(number)) for number in range(3)]
    whole = blocked(*items)
    assert whole is not None
    least = blocked(*items[:2])
    assert least is not None
    room = STORED.message(least.message) + 70
    made = blocked(*items, room=room)
    assert made is not None
    assert made.items[:2] == whole.items[:2]
    assert made.ids == ("0", "1", "2")
    assert made.items[2].cut
    assert room - 20 < STORED.message(made.message) <= room


def test_nothing_to_say_or_no_room_is_no_block() -> None:
    assert blocked() is None
    assert blocked(ITEM, room=0) is None
    assert blocked(item(" \n")) is None
    assert blocked(ITEM, held=PromptContent((), [ITEM.text])) is None


def test_a_kind_without_a_budget_is_not_told() -> None:
    """What no agent asked for does not come in."""
    assert blocked(item("known", kind="memory"), budgets={"conversation": 500}) is None


# -- in a prompt ---------------------------------------------------------------


def request(items: Sequence[RecalledItem] = (), budget: int = 4000, **fields: object) -> Request:
    """A request for a digest view."""
    recall = Recall(budgets={"conversation": 400}, items=tuple(items))
    told = {
        "strategy": make_strategy(ContextSettings()),
        "count": STORED,
        "input_budget": budget,
        "recall": recall,
        **fields,
    }
    return Request(**told)  # type: ignore[arg-type]


def built(entries: Sequence[Entry], items: Sequence[RecalledItem] = (), **fields: Any) -> WorkingSet:
    """The working set of a log."""
    return build(request(items, **fields), None, (), entries)


TALK = [Event("user", 8), Event("assistant", 8), Event("user", 8)]
ROUND = Event("round", 3, (("c", 3),), (("c", 60),), "json")
ITEM = item("The ferry leaves at nine.")


def test_it_stands_just_before_the_current_message_in_every_round() -> None:
    """The task and the talk before it, then the block, then the question and all rounds of tools behind it."""
    for rounds in range(3):
        entries = log_of([*TALK, *[ROUND] * rounds]).entries
        made = built(entries, [ITEM])
        assert made.recalled is not None
        assert made.messages[2] is made.recalled.message
        assert made.messages[3] == entries[2].message
        assert len(made.messages) == len(entries) + 1


def test_what_was_recalled_changes_nothing_else() -> None:
    """The same messages are sent whether or not something was found: its room is kept free."""
    entries = log_of([Event("user", 30), Event("assistant", 60)] * 40 + [Event("user", 9)]).entries
    without, having = built(entries), built(entries, [ITEM])
    assert having.recalled is not None
    assert without.state == having.state
    assert list(without.messages) == [one for one in having.messages if one is not having.recalled.message]
    assert (without.budget, without.tokens) == (having.budget, having.tokens)
    assert having.total_tokens == without.total_tokens + having.recalled_tokens


def test_a_block_stays_in_the_calls_of_its_turn() -> None:
    """What an earlier call had is there to the byte, though its text has come to stand in the prompt since."""
    first = built(log_of(TALK).entries, [ITEM])
    assert first.recalled is not None
    recall = Recall(budgets={"conversation": 400}, block=first.recalled)
    later = build(request(recall=recall), None, (), log_of([*TALK, ROUND, ROUND]).entries)
    assert later.recalled is first.recalled
    assert later.messages[: len(first.messages)] == first.messages


def test_the_prompts_before_it_stay_a_prefix() -> None:
    """Rule 5 up to the block: the next turn begins with all that stood before it, and tells why no more."""
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


def test_hashes_are_of_the_exact_messages_though_they_are_fed_in_parts() -> None:
    """A view carried on hashes what grew, with blocks that come and go; a view made anew gives the same."""
    history = [*TALK, Event("assistant", 9), Event("user", 9), ROUND, Event("assistant", 4), Event("user", 3)]
    entries = log_of(history).entries
    carried, done = build(request(), None, (), ()).view, 0
    for at in (3, 5, 7, 9):
        asked = request([item(f"what {at} was about")] if at != 7 else [])
        carried.extend(entries[done:at])
        assert build_from_view(asked, carried).hash == build(asked, None, (), entries[:at]).hash
        done = at


def test_a_window_that_is_too_small_does_without() -> None:
    """The block gets smaller, then goes; no build fails for its sake, and the record says so."""
    entries = log_of([Event("user", 100), Event("assistant", 100), Event("user", 100)]).entries
    sizes = []
    for budget in range(1200, 680, -20):
        made = built(
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
    assert made.to_record().missed == (NO_ROOM,)
    assert made.explain()["recalled"] == {"missed": [NO_ROOM]}


def test_no_message_of_a_user_no_block() -> None:
    """Where nobody has asked, nothing is recalled."""
    assert built(log_of([Event("assistant", 5)]).entries, [ITEM]).recalled is None


def test_what_takes_the_room_adds_up() -> None:
    """System prompt and tools, the conversation, what is recalled: each once, in the record and in what is told."""
    system = Message(role="system", content="Answer shortly. " * 60)
    for budget in (1400, 4000):
        made = built(log_of(TALK).entries, [ITEM], system=(system,), budget=budget)
        assert made.recalled_tokens > 0
        overhead = made.request.count_overhead()
        assert made.to_record().overhead == made.explain()["budget"]["system_and_tools"] == overhead
        assert made.total_tokens == overhead + made.tokens + made.recalled_tokens
        assert made.explain()["budget"]["recalled"] == min(400, (budget - overhead) // 4)


def test_what_was_recalled_is_recorded_by_id() -> None:
    """Ids and tokens, never the text; of very many as many as fit."""
    made = built(log_of(TALK).entries, [ITEM])
    record = made.to_record()
    assert record.recalled == ("s#1",)
    assert record.recalled_tokens == made.recalled_tokens > 0
    assert b"ferry" not in encode_record(record)
    assert decode_record(encode_record(record)) == record
    explained = made.explain()
    assert explained["recalled"] == {"ids": ["s#1"], "tokens": made.recalled_tokens}
    assert explained["budget"]["recalled"] == 400
    old = msgspec.json.encode(msgspec.json.decode(encode_record(record))[:9])
    assert decode_record(old) == msgspec.structs.replace(record, recalled=(), recalled_tokens=0)
    many = tuple(item(f"text {number}", id=f"{number:0>500}") for number in range(40))
    recall = Recall(budgets={"conversation": 29_000}, items=many)
    recorded = built(log_of(TALK).entries, recall=recall, budget=120_000).to_record().recalled
    assert 0 < len(recorded) * 500 <= RECALLED_BYTES


def test_anthropic_gets_it_in_the_users_turn_and_caches_what_is_before() -> None:
    """Beside the question in one message of the user; the next turn finds what stands before it in the cache."""
    made = built(log_of(TALK).entries, [ITEM], dialect="anthropic")
    sent = build_request(made.messages, cache=MARK)["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"]
    assert next(block["text"] for block in sent[2]["content"]) == made.messages[2].text
    assert is_recalled(made.messages[2])
    marked = [
        (at, place)
        for at, one in enumerate(sent)
        for place, block in enumerate(one["content"])
        if "cache_control" in block
    ]
    assert marked == [(0, 0), (1, 0), (2, 1)]


def test_a_users_message_that_looks_like_one_is_no_block() -> None:
    """Known by what it is: a session that quotes a block is sent as it is."""
    forged = Message(role="user", content=f"{OPENING}\n{{}}\n{CLOSING}")
    log = log_of(TALK)
    entries = [*log.entries[:2], msgspec.structs.replace(log.entries[2], message=forged)]
    made = built(entries)
    assert made.recalled is None
    assert made.list_sources()[2] == entries[2]


def test_a_record_has_as_many_ids_as_it_has_room_for() -> None:
    """To the byte, in order, and none behind one that is too long."""
    half = "x" * (RECALLED_BYTES // 2)
    assert truncate_ids((half, half, "")) == (half, half, "")
    assert truncate_ids((half, half, "y", "")) == (half, half)
    assert truncate_ids((half, half + "é", "y")) == (half,)


@pytest.mark.parametrize("budget", range(300, 420, 4))
@pytest.mark.parametrize("name", ["token_window", "digest", "salience"])
def test_a_build_that_keeps_no_room_free_changes_no_later_one(name: str, budget: int) -> None:
    """A view goes on as one that is read back at each step, wherever builds did without what is recalled between them."""
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


def test_what_fits_without_what_is_recalled_is_not_refused_for_what_was_cut_with_it() -> None:
    """With a token kept free for memories all must stay as long as a refusal says; without, a part of it is told in few words."""
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

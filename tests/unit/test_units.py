"""Units: importance set by callers, token counts, and cut messages."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.context.truncation import list_units, squeeze
from holdfast.context.units import group_units
from holdfast.context.window import Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, Part
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.tokens import STORED
from tests.unit.rounds import call, reply, user


def entries_of(*rounds: list[Message], tokens: int | None = None) -> list[Entry]:
    new = [
        NewEntry(message=one, tokens=STORED.message(one) if tokens is None else tokens, timestamp=0)
        for messages in rounds
        for one in messages
    ]
    return list(extend(Tail(), new)[0])


def window_of(entries: Sequence[Entry], room: Room) -> Window:
    window = Window(room)
    for unit in group_units(entries):
        window.grow(unit)
    return window


def test_stored_importance_fills_missing_values() -> None:
    """By `seq`; an importance that a message already has is kept."""
    calls, result = entries_of(call("get", {"id": "A1"}, "ok"))
    [unit] = group_units([calls, replace(result, importance=0.5)])
    rated = unit.with_importances({0: 0.9, 1: 0.1, 2: 0.7})
    assert [entry.importance for entry in rated.entries] == [0.9, 0.5]
    assert [entry.importance for entry in group_units([calls, result])[0].with_importances({1: 0.1}).entries] == [
        None,
        0.1,
    ]
    assert [entry.importance for entry in unit.entries] == [None, 0.5]


def test_a_unit_without_new_importance_is_the_same_object() -> None:
    calls, result = entries_of(call("get", {"id": "A1"}, "ok"))
    [unit] = group_units([replace(calls, importance=0.2), replace(result, importance=0.5)])
    assert unit.with_importances({}) is unit
    assert unit.with_importances({2: 0.9}) is unit
    assert unit.with_importances({0: 0.9, 1: 0.9}) is unit


def test_pictures_are_counted_by_the_model_and_texts_by_stored_counts() -> None:
    """A factor on the stored count bounds the cost of a text, but not that of a picture."""
    picture = Message(role="user", content=(Part("text", "see"), Part("image_url", None, {"image_url": {"url": "u"}})))
    entries = entries_of([picture], reply("It is a harbour."), tokens=7)
    window = window_of(entries, Room(10**6, STORED, factor=1.5))
    assert window.list_sizes() == [STORED.message(picture), 11]
    cut = window.cut({1: 1})
    assert cut.measure_unit(cut.units[0]) == STORED.message(picture)


def test_results_are_cut_before_texts() -> None:
    """Older texts stay whole while cutting a newer result is enough."""
    entries = entries_of(user("Compare them. " * 100), call("get", {"id": "A1"}, "row " * 400), reply("Well. " * 100))
    window = window_of(entries, Room(10**6, STORED))
    assert set(squeeze(window, window.body - 100, 64, list_units).cuts) == {2}
    assert set(squeeze(window, window.body - 400, 64, list_units).cuts) == {0, 2}
    assert not squeeze(window, window.body, 64, list_units).cuts


def test_cut_messages_say_where_the_whole_is() -> None:
    """A result names the call that loads it if the model can; others name the position in the session."""
    rounds = [user("Go. " * 300), call("get", {"id": "A1"}, "row " * 300), reply("Well. " * 300)]
    for loads, whole in ((True, 'load_artifact("result-2")'), (False, "message 2 of the session")):
        window = window_of(entries_of(*rounds), Room(10**6, STORED, loads=loads)).cut({0: 150, 2: 150, 3: 150})
        texts = [message.text for message in window.list_messages()]
        assert "message 0 of the session" in texts[0]
        assert whole in texts[2]
        assert "message 3 of the session" in texts[3]


def test_a_task_stub_has_no_source_entry() -> None:
    """Other cut messages have one, and so have short tasks and unanchored ones."""
    entries = entries_of(user("Compare them. " * 100), reply("Well. " * 100), user("And now?"))
    window = window_of(entries, Room(10**6, STORED))
    assert window.list_sources() == entries
    assert window.cut({1: 64}).list_sources() == entries
    assert window.cut({0: 64, 1: 64}).list_sources() == [None, *entries[1:]]
    window.anchored = False
    assert window.cut({0: 64}).list_sources() == entries
    short = window_of(entries_of(user("Hi."), reply("Hello."), tokens=99), Room(10**6, STORED)).cut({0: 64})
    assert 0 in short.cuts
    assert short.list_sources()[0] is not None

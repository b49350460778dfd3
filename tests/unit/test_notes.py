"""Notes and origins change no prompt: not in any strategy, dialect or history, and neither totals nor digests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.build import Request, build
from holdfast.context.settings import STRATEGIES
from holdfast.domain.history import rebuild_log, to_old_entry
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall, InvalidMessage
from holdfast.tokens import STORED
from holdfast.wire.openai import parse_log_message, to_chat_message
from holdfast.wire.transcripts import Recording, read_recordings
from tests.unit.strategies import Event, Log, events, requests

PAYLOAD = {"event": "handoff", "to": "billing", "id": "secret payload"}
NOTE = NewEntry(message=Message(role="note", origin=PAYLOAD), tokens=0, timestamp=5, metadata={"by": "framework"})
counts = st.lists(st.integers(0, 3), max_size=30)
"""Numbers of notes before each message."""


class NotedLog(Log):
    """A log with notes before its messages, or the same log with unused numbers in their place."""

    def __init__(self, numbers: Sequence[int], *, noted: bool) -> None:
        super().__init__()
        self.notes: list[Entry] = []
        self._numbers, self._noted = iter(itertools.chain(numbers, itertools.repeat(0))), noted

    def append(self, message: Message, **options: Any) -> None:
        number = next(self._numbers)
        if self._noted:
            notes, self.tail = extend(self.tail, [NOTE] * number)
            self.notes += notes
            message = message.evolve(origin=PAYLOAD)
        else:
            self.tail = msgspec.structs.replace(self.tail, next_seq=self.tail.next_seq + number)
        super().append(message, **options)


def play(happened: Sequence[Event], numbers: Sequence[int], *, noted: bool) -> NotedLog:
    log = NotedLog(numbers, noted=noted)
    for event in happened:
        for _ in log.play(event):
            pass
    return log


def describe(request: Request, entries: Sequence[Entry]) -> Any:
    """Return what a model would receive, how each message was decided, and the totals; or the error."""
    try:
        built = build(request, None, (), entries)
    except BudgetTooSmall as refused:
        return str(refused)
    sent = [to_chat_message(message) for message in built.messages]
    return sent, [run.to_wire() for run in built.list_decisions()], built.tokens, built.explain()


@given(happened=events, numbers=counts)
def test_notes_only_take_numbers(happened: list[Event], numbers: list[int]) -> None:
    """Messages have the same unit, turn, total and digests as if the numbers of the notes were unused."""
    noted, plain = (play(happened, numbers, noted=noted) for noted in (True, False))
    assert noted.tail == plain.tail
    assert [
        msgspec.structs.replace(entry, message=entry.message.evolve(origin=None)) for entry in noted.entries
    ] == plain.entries
    assert all(note.tokens == 0 and note.retired_by == note.seq and note.is_note for note in noted.notes)


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_notes_and_origins_change_no_prompt(name: str, data: st.DataObject) -> None:
    """For any history, dialect and budget: the same messages, decisions and tokens."""
    request, happened, numbers = data.draw(requests(name)), data.draw(events), data.draw(counts)
    noted, plain = (play(happened, numbers, noted=noted) for noted in (True, False))
    made = describe(request, noted.entries)
    assert made == describe(request, plain.entries)
    assert "secret payload" not in repr(made)


@given(happened=events, numbers=counts)
def test_a_log_with_notes_is_rebuilt_from_its_entries(happened: list[Event], numbers: list[int]) -> None:
    """A copy has the same notes in the same places."""
    new = [one.message for one in play(happened, [], noted=False).entries]
    items = [
        item
        for message, number in zip(new, itertools.chain(numbers, itertools.repeat(0)), strict=False)
        for item in (*[NOTE] * number, NewEntry(message=message, tokens=STORED.message(message), timestamp=0))
    ]
    entries, tail = extend(Tail(), items)
    again, end, live = rebuild_log([to_old_entry(entry) for entry in entries])
    assert (again, end, live) == (entries, tail, len(new))


@pytest.mark.parametrize(
    ("note", "param"),
    [
        ({"role": "note", "tool_calls": []}, "message.tool_calls"),
        ({"role": "note", "origin": 1, "pinned": True}, "message.pinned"),
        ({"role": "note", "content": [{"type": "text", "text": "x"}]}, "message.content"),
        ({"role": "note", "origin": {"x": float("nan")}}, "message.origin.x"),
        ({"role": "note", "payload": 1}, "message.payload"),
    ],
)
def test_a_note_with_other_fields_is_refused(note: dict[str, Any], param: str) -> None:
    """The error names the field."""
    with pytest.raises(InvalidMessage) as refused:
        parse_log_message(note)
    assert refused.value.param == param


def test_recordings_are_read_without_notes() -> None:
    """`holdfast replay` reads an export with notes as if it had none."""
    note, hi = {"role": "note", "origin": 1}, {"role": "user", "content": "hi"}
    lines = [
        {"id": "a", "messages": [hi, note, hi]},
        [note, hi],
        {**note, "session_id": "b"},
        {**hi, "session_id": "b"},
    ]
    read = list(read_recordings([msgspec.json.encode(line) for line in lines], "file"))
    assert [[message.role for message in one.messages] for one in read if isinstance(one, Recording)] == [
        ["user", "user"],
        ["user"],
        ["user"],
    ]

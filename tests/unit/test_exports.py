"""Exports as JSON: round trips, and errors that name the wrong field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.history import OldEntry, Past, rebuild_log, to_old_entry
from holdfast.domain.log import extend, rewind
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Session, Tail
from holdfast.durations import LATEST_TIME
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.exports import SCHEMA, build_export, is_same, parse_export
from tests.unit.test_session import some_message

ROUND = st.tuples(st.lists(some_message, max_size=4), st.none() | st.integers(0, 30))
"""Messages to append, and the position to rewind to first."""


def grow_log(
    rounds: Sequence[tuple[Sequence[Message], int | None]], erase: frozenset[int] = frozenset()
) -> list[Entry]:
    """Build a log step by step like a store, then erase some entries."""
    log: list[Entry] = []
    tail = Tail()
    for messages, back in rounds:
        if back is not None and back <= tail.last_seq:
            log = [_retire(entry, back, tail.next_seq) for entry in log]
            tail = _tail(log, tail.next_seq)
        new = [NewEntry(message=message, tokens=10, timestamp=len(log) + at) for at, message in enumerate(messages)]
        written, tail = extend(tail, new)
        log += written
    return [msgspec.structs.replace(entry, erased=True) if entry.seq in erase else entry for entry in log]


def _retire(entry: Entry, back: int, by: int) -> Entry:
    gone = entry.retired_by is None and entry.seq >= back
    return msgspec.structs.replace(entry, retired_by=by) if gone else entry


def _tail(log: Sequence[Entry], next_seq: int) -> Tail:
    """Return the tail of the live path, using the function that stores use."""
    live = [entry for entry in log if entry.retired_by is None]
    begin = max((at for at, entry in enumerate(live) if entry.kind != "result"), default=0)
    visible = [entry.digest for entry in live if entry.message.visible]
    anchor = next((entry.seq for entry in live if entry.kind == "user"), None)
    return rewind(
        Tail(next_seq=next_seq), live[begin:], digest=visible[-1] if visible else Tail().digest, anchor=anchor
    )


def session(entries: Sequence[Entry], **fields: Any) -> Session:
    """Make a session with this log and the fields that an export reads."""
    tail = Tail(next_seq=len(entries), turn_id=max((one.turn_id for one in entries), default=-1))
    given = {"tenant": "t", "user_id": "ada", "id": "s", "created_at": 1, "updated_at": 2, "tail": tail}
    return Session(**{**given, **fields})


@given(st.lists(ROUND, max_size=6), st.frozensets(st.integers(0, 15)))
def test_a_log_is_rebuilt_from_its_old_entries(rounds: list[Any], erase: frozenset[int]) -> None:
    """With any retired and erased entries: equal entries, the same tail and the same number of live entries."""
    log = grow_log(rounds, erase)
    entries, tail, live = rebuild_log([to_old_entry(entry) for entry in log])
    kept = [one for one in log if one.retired_by is None]
    assert [(one.seq, one.unit, one.turn_id, one.total, one.digest, one.retired_by) for one in entries] == [
        (one.seq, one.unit, one.turn_id, one.total, one.digest, one.retired_by) for one in log
    ]
    assert (live, tail) == (len(kept), _tail(log, len(log)))


@given(st.lists(ROUND, max_size=6), st.frozensets(st.integers(0, 15)))
def test_an_export_round_trips(rounds: list[Any], erase: frozenset[int]) -> None:
    """Through JSON and twice: the same log and the same export."""
    log, _, _ = rebuild_log([to_old_entry(entry) for entry in grow_log(rounds, erase)])
    exported = json.loads(json.dumps(build_export(session(log), log, digests=True)))
    read = parse_export(exported)
    again, _, _ = rebuild_log(
        [OldEntry(message=one, **{"tokens": 10, **own}) for one, own in zip(read.messages, read.fields, strict=True)]
    )
    assert again == log
    assert build_export(session(again), again, digests=True) == exported
    assert is_same(read, parse_export(exported))


MESSAGE = {"role": "user", "content": "hi"}
EXPORT: dict[str, Any] = {"schema": SCHEMA, "messages": [MESSAGE]}


def test_fields_missing_from_an_export_get_defaults() -> None:
    """A closed session ended at its last update. Recordings without a schema have no past."""
    assert parse_export(EXPORT, now=9).past is None
    closed = parse_export({**EXPORT, "status": "closed", "updated_at": 5}, now=9).past
    assert closed == Past(created_at=5, updated_at=5, ended_at=5, end_reason="close")
    foreign = {"messages": [MESSAGE], "created_at": "2024-01-01", "usage": "much", "status": 7, "calls": "none"}
    assert parse_export(foreign).past is None
    with pytest.raises(InvalidRequest):
        parse_export({**foreign, "schema": SCHEMA})


def test_the_last_time_of_the_year_9999_is_accepted() -> None:
    """Later times of a session that is stored already are read, so that an import can replace it."""
    past = parse_export({**EXPORT, "updated_at": LATEST_TIME}).past
    assert past is not None
    assert past.updated_at == LATEST_TIME
    stored = parse_export({**EXPORT, "updated_at": 2**53 - 1}, own=True).past
    assert stored is not None
    assert stored.updated_at == 2**53 - 1


def messages(**fields: Any) -> dict[str, Any]:
    """Return two messages, the second with these additional fields."""
    return {"messages": [{**MESSAGE, "seq": 0, "retired_by": 1}, {**MESSAGE, **fields}]}


DIGEST = "00" * 16


def test_a_later_schema_is_rejected_with_a_hint_to_upgrade() -> None:
    with pytest.raises(InvalidRequest, match="a later release wrote this"):
        parse_export({"schema": SCHEMA + 1, "messages": []})


def test_unknown_message_fields_are_kept() -> None:
    (message,) = parse_export({**EXPORT, "messages": [{**MESSAGE, "x": [1]}], "whatever": 1}).messages
    assert message.extra == {"x": [1]}


def test_a_log_with_retired_messages_has_no_system_prompt_in_it() -> None:
    """Positions matter there, so a leading system message belongs to the log."""
    log = [{"role": "system", "content": "in the log", "retired_by": 1}, MESSAGE]
    read = parse_export({"messages": log})
    assert (len(read.messages), read.system_messages, read.has_retired) == (2, (), True)


def test_a_missing_digest_of_an_erased_message_gets_a_placeholder() -> None:
    """Derived from the position, not the content, and treated as equal to any real digest."""
    said = {**MESSAGE, "erased": True}
    read = parse_export({**EXPORT, "messages": [said, said, {**said, "digest": DIGEST}]})
    stands = [own["stands_for"] for own in read.fields]
    assert read.without_digest == {0, 1}
    assert len({*stands}) == 3
    assert [len(one) for one in stands] == [16] * 3
    assert stands[:2] == [own["stands_for"] for own in parse_export({**EXPORT, "messages": [said, said]}).fields]
    real = parse_export({**EXPORT, "messages": [{**said, "digest": DIGEST}] * 3})
    other = parse_export({**EXPORT, "messages": [{**said, "digest": "11" * 16}] * 3})
    assert is_same(read, real)
    assert is_same(real, read)
    assert not is_same(read, other)
    assert not is_same(real, other)
    assert not is_same(read, parse_export({**EXPORT, "messages": [MESSAGE] * 3}))
    behind = parse_export({"messages": [{"role": "system", "content": "be brief"}, said]})
    assert (len(behind.messages), [*behind.without_digest]) == (1, [0])


def test_decreasing_turns_are_rejected_only_on_the_live_path() -> None:
    """A branch may start in an earlier turn than the one it replaces."""
    entry = NewEntry(message=Message(role="user", content="hi"), tokens=1, timestamp=1)
    old = [OldEntry(**{**msgspec.structs.asdict(entry), "turn_id": turn}) for turn in (2, 5, 3)]
    old[1] = msgspec.structs.replace(old[1], retired_by=2)
    assert rebuild_log(old)[1].turn_id == 3
    with pytest.raises(InvalidMessage):
        rebuild_log([*old, msgspec.structs.replace(old[0], turn_id=1)])

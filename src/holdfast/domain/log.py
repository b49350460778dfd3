"""Append entries to a session's log, rewind it, and erase content.

Pure functions. A store calls `extend` inside its transaction, so that `seq`, unit, turn, running total and digest are
computed in one place for all stores. `extend` reads only the appended messages and the log's `Tail`, so its cost does
not depend on the length of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace as evolve

from holdfast.domain.messages import Message, Part, ToolCall, chain, make_alias
from holdfast.domain.session import ERASED, UNDELIVERED, Entry, Kind, NewEntry, Tail, get_kind


def to_sent_message(message: Message, metadata: Mapping[str, Any] | None) -> Message:
    """Return the message as the client received it.

    The result begins with `metadata.preface`, which contains the texts next to earlier tool calls of the same reply. A client
    cannot distinguish these texts from the reply's own text, and resends all of them as one text.

    If `metadata.returned` is not empty, it lists the indexes of the tool calls that the client received, and only these
    are included. If it is empty, the client has never received the message, and all calls are included.
    """
    returned = (metadata or {}).get("returned")
    if returned and isinstance(returned, list):
        message = message.evolve(tool_calls=tuple(call for at, call in enumerate(message.tool_calls) if at in returned))
    preface = (metadata or {}).get("preface")
    if not preface or not isinstance(preface, str):
        return message
    if isinstance(message.content, tuple):
        return message.evolve(content=(Part("text", preface), *message.content))
    return message.evolve(content=preface + message.text)


def extend(tail: Tail, new: Sequence[NewEntry]) -> tuple[list[Entry], Tail]:
    """Return the entries that result from appending `new` to a log, and the log's new tail.

    The digest of each entry is chained to the digest of the last visible message before it. Tool messages, assistant
    messages with tool calls, and notes are not visible. Clients may leave them out when they resend a conversation, and a
    transcript without them must lead to the same digests.

    Args:
        tail: the log's tail before the new entries.
        new: the messages to append, in order.
    """
    entries: list[Entry] = []
    for item in new:
        entry, tail = extend_by_one(tail, item)
        entries.append(entry)
    return entries, tail


def extend_by_one(tail: Tail, new: NewEntry) -> tuple[Entry, Tail]:
    """Return the entry that results from appending `new` to a log, and the log's new tail. See `extend`."""
    kind, seq = get_kind(new.message), tail.next_seq
    if kind == "note":
        return _make_note(tail, new), evolve(tail, next_seq=seq + 1)
    answers = kind == "result" and new.message.tool_call_id in tail.open_calls
    unit = tail.unit if answers else seq
    turn_id = new.turn_id if new.turn_id is not None else _determine_turn(tail, kind)
    total = tail.total + new.tokens
    sent = to_sent_message(new.message, new.metadata) if new.metadata else new.message
    digest = chain(tail.digest, sent)
    entry = Entry(
        seq=seq,
        turn_id=turn_id,
        unit=unit,
        timestamp=new.timestamp,
        tokens=new.tokens,
        total=total,
        digest=digest,
        message=new.message,
        metadata=new.metadata,
        agent=new.agent,
        importance=new.importance,
        pinned=new.pinned,
        alias=None if new.is_brought else make_alias(tail.digest, sent, cut=may_be_unheard(new.metadata)),
    )
    open_unit, open_calls = _find_open_calls(tail, entry, kind, answers=answers)
    return entry, Tail(
        next_seq=seq + 1,
        turn_id=turn_id,
        total=total,
        digest=tail.digest if kind in ("calls", "result") else digest,
        last_seq=seq,
        last_kind=kind,
        unit=open_unit,
        open_calls=open_calls,
        anchor=seq if tail.anchor is None and kind == "user" else tail.anchor,
    )


def may_be_unheard(metadata: Mapping[str, Any] | None) -> bool:
    """Return True for the metadata of a reply that broke off, or that could not be sent to its end: its client may have any beginning of it."""
    return metadata is not None and bool(metadata.get("interrupted") or metadata.get(UNDELIVERED))


def _make_note(tail: Tail, new: NewEntry) -> Entry:
    """Return the entry of a note. A note changes nothing in the log's tail except the next `seq`, so open tool calls stay open."""
    return Entry(
        seq=tail.next_seq,
        turn_id=max(tail.turn_id, 0),
        unit=tail.next_seq,
        timestamp=new.timestamp,
        tokens=0,
        total=tail.total,
        digest=tail.digest,
        message=new.message,
        metadata=new.metadata,
        agent=new.agent,
        retired_by=tail.next_seq,
    )


def _determine_turn(tail: Tail, kind: Kind) -> int:
    opens = kind == "user" and tail.last_kind != "user"
    return tail.turn_id + 1 if opens or tail.turn_id < 0 else tail.turn_id


def _find_open_calls(tail: Tail, entry: Entry, kind: Kind, *, answers: bool) -> tuple[int, tuple[str, ...]]:
    """Return the unit that can still get results after `entry`, and the ids of its calls without a result.

    Providers accept results only directly after their call. So any other message closes the unit, and the function
    returns -1 and no ids. A result after that is an orphan: a result without a call.
    """
    if kind == "calls":
        return entry.seq, tuple(call.id for call in entry.message.tool_calls)
    if answers:
        calls = list(tail.open_calls)
        calls.remove(str(entry.message.tool_call_id))
        return tail.unit, tuple(calls)
    if kind == "result":
        return tail.unit, tail.open_calls
    return -1, ()


def rewind(tail: Tail, before: Sequence[Entry], *, digest: bytes, anchor: int | None) -> Tail:
    """Return the tail of a log after a rewind, which makes the last entry of `before` the last live entry.

    Args:
        tail: the tail before the rewind. Its `next_seq` stays, because a `seq` is never reused.
        before: the last entries that are kept, in order: the last one that is not a tool result, and the tool results after
            it. Empty if nothing is kept. These entries need not be one unit, because an orphan result may be inside a unit
            that is still open.
        digest: the digest of the last visible entry that is kept; `GENESIS` if there is none.
        anchor: `seq` of the first live user message that is kept.
    """
    if not before:
        return Tail(next_seq=tail.next_seq)
    last = before[-1]
    open_calls: list[str] = []
    for entry in before:
        open_calls.extend(call.id for call in entry.message.tool_calls)
        if entry.kind == "result" and entry.message.tool_call_id in open_calls:
            open_calls.remove(entry.message.tool_call_id)
    return Tail(
        next_seq=tail.next_seq,
        turn_id=last.turn_id,
        total=last.total,
        digest=digest,
        last_seq=last.seq,
        last_kind=last.kind,
        unit=before[0].seq if before[0].kind == "calls" else -1,
        open_calls=tuple(open_calls),
        anchor=anchor,
    )


def erase_content(message: Message) -> Message:
    """Return the message with its content erased.

    The role, the ids, names and types of tool calls, and the call id of a result are kept, so that the message's unit
    stays valid.
    """
    calls = tuple(ToolCall(call.id, call.name, "{}", call.type) for call in message.tool_calls)
    content = None if calls else ERASED
    return Message(role=message.role, content=content, tool_calls=calls, tool_call_id=message.tool_call_id)

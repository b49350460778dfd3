"""How a session's log grows, is taken back, and what stays of what is erased.

Pure functions. A store calls `extend` inside its transaction, so that `seq`, unit, turn, running total and digest are
worked out in one place for all stores, from what is appended and the log's `Tail` alone: appending is O(appended).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain.messages import Message, Part, ToolCall, chain, make_alias
from holdfast.domain.session import ERASED, Entry, Kind, NewEntry, Tail, get_kind


def to_sent_message(message: Message, metadata: Mapping[str, Any] | None) -> Message:
    """`message` as the client was sent it: with the texts that stood with tool calls earlier in the same reply before it.

    A client cannot tell them from the reply's own text, and resends both as one. `metadata.preface` has them. Of calls those
    alone that it was sent, by `metadata.returned`; where it was sent none, it has never seen the message.
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
    """The entries that `new` becomes after `tail`, and the tail after them.

    A visible message's digest is chained to the visible message before it. Tool messages and assistant messages with
    tool calls are chained to it too, but nothing is chained to them: clients do not resend them, and a transcript
    without them has to lead to the same digests.
    """
    entries: list[Entry] = []
    for item in new:
        entry, tail = extend_by_one(tail, item)
        entries.append(entry)
    return entries, tail


def extend_by_one(tail: Tail, new: NewEntry) -> tuple[Entry, Tail]:
    """Return the entry that `new` becomes after `tail`, and the tail after it; see `extend`."""
    kind, seq = get_kind(new.message), tail.next_seq
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
        alias=make_alias(tail.digest, sent, cut=bool((new.metadata or {}).get("interrupted"))),
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


def _determine_turn(tail: Tail, kind: Kind) -> int:
    opens = kind == "user" and tail.last_kind != "user"
    return tail.turn_id + 1 if opens or tail.turn_id < 0 else tail.turn_id


def _find_open_calls(tail: Tail, entry: Entry, kind: Kind, *, answers: bool) -> tuple[int, tuple[str, ...]]:
    """The unit that may still get results, and its unanswered calls, after `entry`.

    Only what stands directly behind its call can be sent to a provider, so any other message closes the unit: a
    result that comes later is an orphan.
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
    """The tail of a log whose live path ends with `before`; entries after it are retired.

    Args:
        tail: the tail before the rewind; `next_seq` stays, because a retired `seq` is not given again.
        before: the live entries that stay, in order, from the last one on that is no tool result; empty when nothing
            stays. (Not the last unit: an orphan result may stand inside one that is still open.)
        digest: of the last visible entry that stays, `GENESIS` when there is none.
        anchor: the first live user message that stays.
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
    """What stays of `message` when its content is erased: enough that its unit is still legal."""
    calls = tuple(ToolCall(call.id, call.name, "{}", call.type) for call in message.tool_calls)
    content = None if calls else ERASED
    return Message(role=message.role, content=content, tool_calls=calls, tool_call_id=message.tool_call_id)

"""Read prompts that were sent: each is assembled from the record of its call, the messages of the log, and stored texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.context.explain import PrefixChange, find_change
from holdfast.context.parts import (
    Part,
    PromptRecord,
    ShownPrompt,
    assemble_prompt,
    decode_record,
    expand_record,
    list_text_ids,
)
from holdfast.context.presence import Departure
from holdfast.domain.session import Entry, ModelCall, SessionRef
from holdfast.stores.base import Store

_NEAR: Final = 64
"""Number of model calls in which the previous one of a view is searched. Ranges of messages that are closer are read at once."""


async def read_record(store: Store, ref: SessionRef, call: ModelCall) -> PromptRecord | None:
    """Return the record of a call with all its parts; None if the prompt of the call is not recorded."""
    record = decode_record(call.build) if call.through >= 0 else None
    if record is None or not record.base:
        return record
    base = await store.prompt_texts(ref, [record.base])
    return expand_record(record, base[0]) if base else None


async def read_prompt(store: Store, ref: SessionRef, call: ModelCall) -> ShownPrompt | None:
    """Return the prompt of a recorded call; None if it is not recorded."""
    record = await read_record(store, ref, call)
    if record is None:
        return None
    texts = {text.id: text for text in await store.prompt_texts(ref, list_text_ids(record))}
    entries: dict[int, Entry] = {}
    for first, last in _join_ranges(record.log_parts):
        found = await store.entries(ref, start=first, stop=last + 1, retired=True)
        entries |= {entry.seq: entry for entry in found}
    return assemble_prompt(record, entries, texts, call)


def _join_ranges(parts: Iterable[Part]) -> list[tuple[int, int]]:
    """Return the ranges of the log to read for parts, in order. Ranges near each other are read as one."""
    ranges: list[tuple[int, int]] = []
    for part in parts:
        if ranges and part.first - ranges[-1][1] <= _NEAR:
            ranges[-1] = (ranges[-1][0], max(part.last, ranges[-1][1]))
        else:
            ranges.append((part.first, part.last))
    return ranges


async def find_previous(store: Store, ref: SessionRef, view: str, call: ModelCall | None = None) -> ModelCall | None:
    """Return the last recorded call of a view before another call, among the newest ones; None if there is none.

    Args:
        store: the store.
        ref: the session.
        view: key of the view.
        call: the other call; None: return the last one.
    """
    if call is None:
        calls = await store.calls(ref, limit=_NEAR)
    else:
        of_turn = await store.calls(ref, turn_id=call.turn_id, limit=_NEAR)
        at = of_turn.index(call) if call in of_turn else -1
        calls = (*of_turn[at + 1 :], *await store.calls(ref, stop=call.turn_id, limit=_NEAR))
    return next((one for one in calls if one.view == view and one.through >= 0), None)


async def find_departure(store: Store, ref: SessionRef, view: str, entry: Entry, turn_id: int) -> Departure | None:
    """Return the first recorded prompt of a view that no longer contained a message completely; None if every one does.

    The prompts are searched by bisection, so that few of them are read.

    Args:
        store: the store.
        ref: the session.
        view: key of the view.
        entry: the message.
        turn_id: the turn of the last prompt to consider.
    """
    low, high = entry.turn_id, turn_id + 1
    found: tuple[ModelCall, PromptRecord] | None = None
    while low < high:
        middle = (low + high) // 2
        one = await _read_first(store, ref, view, range(middle, high), entry.seq)
        if one is None:
            high = middle
        elif one[1].is_sent_whole(entry.seq):
            low = one[0].turn_id + 1
        else:
            found, high = one, middle
    if found is None:
        return None
    call, record = found
    while (before := await find_previous(store, ref, view, call)) is not None and before.through >= entry.seq:
        earlier = await read_record(store, ref, before)
        if earlier is None:
            break
        if earlier.is_sent_whole(entry.seq) or before.turn_id < call.turn_id:
            return _describe(call, find_change(earlier, record))
        call, record = before, earlier
    return _describe(call, PrefixChange("already", (record.frontier, record.frontier)))


def _describe(call: ModelCall, change: PrefixChange) -> Departure:
    return Departure(call.turn_id, call.timestamp, str(change), change)


async def _read_first(
    store: Store, ref: SessionRef, view: str, turns: range, seq: int
) -> tuple[ModelCall, PromptRecord] | None:
    """Return the first call of a view in some turns whose prompt could contain a message, with its record."""
    while turns:
        calls = await store.calls(ref, start=turns.start, stop=turns.stop, limit=_NEAR, descending=False)
        for call in calls:
            if call.view == view and call.through >= seq and (record := await read_record(store, ref, call)):
                return call, record
        if len(calls) < _NEAR:
            return None
        turns = range(max(turns.start + 1, calls[-1].turn_id), turns.stop)
    return None

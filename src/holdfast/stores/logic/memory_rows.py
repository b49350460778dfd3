"""Rows of memories, signals and sweeps to structs and back."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, Owner, OwnerKind, Signal
from holdfast.stores.logic.rows import UNDECODABLE, text_of
from holdfast.stores.logic.steps import Row
from holdfast.stores.memory_checks import stored_memory

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def owner_of(kind: str | bytes, id_: str | bytes) -> Owner:
    """Whose memories, from its columns."""
    return Owner(cast(OwnerKind, text_of(kind)), text_of(id_))


def memory_of(owner: Owner, row: Row) -> Memory:
    """A memory from the last columns of a row of `memories_forward`."""
    number, _, version, data = row
    return stored_memory(data, owner, number, version)


def signal_of(row: Row) -> Signal:
    """A recall from a row of `signals_all`."""
    memory_id, at, query, score, session = row
    return Signal(memory_id=text_of(memory_id), at=at, query=query, score=score, session=text_of(session))


def diary_entry_of(row: Row) -> DiaryEntry | None:
    """Return the sweep in a row of `diary_newest`; None if it cannot be decoded."""
    id_, at, report = row
    try:
        return DiaryEntry(id=text_of(id_), at=at, report=_decode_object(report))
    except UNDECODABLE:
        return None


def diary_row(owner: Any, seq: int, entry: DiaryEntry) -> Row:
    """The parameters of `diary_insert`; `owner` is the owner's key."""
    return owner, seq, entry.id, entry.at, _encode(entry.report)

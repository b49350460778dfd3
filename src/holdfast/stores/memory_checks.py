"""Check owners, memories, signals and diary entries before a memory store uses them.

"Refuse" in a docstring here means: raise `InvalidRequest` or `TooLarge`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import Any, Final, get_args

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, OwnerKind, Signal, Status
from holdfast.domain.messages import UNWRITABLE
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import (
    DIARY_KEPT,
    MEMORIES_AT_ONCE,
    MEMORY_BYTES,
    MEMORY_TAG_CHARS,
    MEMORY_TAGS,
    METADATA_BYTES,
    PAGE,
)
from holdfast.numbers import check_number
from holdfast.stores.checks import check_choice, check_count, check_id, check_json, check_kind, check_limit, check_size
from holdfast.stores.memories import MemoryQuery

DIGEST_BYTES: Final = 64
"""Maximum bytes of `Signal.query`, the digest of a question."""
_KINDS: Final = get_args(OwnerKind)
_TIMES: Final = ("created_at", "updated_at", "valid_from", "valid_until", "promoted_at", "reviewed_at")
_NUMBERS: Final = 2**62
"""Numbers and times must be lower than this, so that they fit into the columns of a database."""
_ID: Final = re.compile("mem_[0-9a-f]{32}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NOBODY: Final = Owner("app")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Memory).decode


def check_owner(owner: Owner) -> None:
    """Refuse an invalid owner."""
    check_kind(owner, "owner", Owner, "an Owner")
    kind, id_ = owner
    if kind not in _KINDS:
        raise InvalidRequest(f"an owner's kind must be one of {', '.join(_KINDS)}, not {kind!r:.80}", param="owner")
    if kind != "app":
        check_id(id_, "owner")
    elif id_:
        raise InvalidRequest(f"an owner of kind app must have an empty id, not {id_!r:.80}", param="owner")


def keep_possible_ids(ids: Iterable[str]) -> list[str]:
    """Return the values in `ids` that are valid ids of memories, each once. A store need not search for the others."""
    return [id_ for id_ in dict.fromkeys(ids) if _ID.fullmatch(id_)]


def check_ids(ids: Collection[str] | None, param: str) -> None:
    """Refuse invalid ids, and more than `PAGE` at once."""
    check_count(len(ids or ()), PAGE, "ids", param)
    for id_ in ids or ():
        check_id(id_, param)


def check_query(owner: Owner, query: MemoryQuery) -> None:
    """Refuse an invalid owner or query."""
    check_owner(owner)
    check_limit(query.limit)
    check_ids(query.ids, "ids")
    check_count(len(query.numbers or ()), PAGE, "numbers", "numbers")
    if query.status is not None:
        check_choice(query.status, get_args(Status), "status")


def check_delta(owner: Owner, delta: MemoryDelta) -> list[bytes]:
    """Check a change of memories; return the encoded bytes of each memory to put, which `decode_memory` decodes.

    Raises:
        InvalidRequest: something in the change is invalid.
        TooLarge: a limit is exceeded.
    """
    check_owner(owner)
    check_count(len(delta.put) + len(delta.forget), MEMORIES_AT_ONCE, "memories", "put")
    put = {memory.id for memory in delta.put}
    if len(put) < len(delta.put) or not put.isdisjoint(delta.forget):
        raise InvalidRequest("one write can put a memory only once, and cannot forget it as well", param="put")
    check_ids(delta.forget, "forget")
    check_count(len(delta.signals), PAGE, "signals", "signals")
    for at, signal in enumerate(delta.signals):
        _check_signal(signal, f"signals[{at}]")
    _check_number(delta.signals_before, "signals_before")
    check_count(len(delta.diary), DIARY_KEPT, "diary entries", "diary")
    for at, entry in enumerate(delta.diary):
        _check_entry(entry, f"diary[{at}]")
    return [_encode_memory(owner, memory, f"put[{at}]") for at, memory in enumerate(delta.put)]


def check_change(timestamp: int, expect: int | None) -> None:
    """Refuse an invalid timestamp, or an invalid expected version."""
    _check_number(timestamp, "timestamp")
    _check_number(expect, "expect")


def decode_memory(data: bytes, owner: Owner, number: int, version: int) -> Memory:
    """Decode a memory from its stored bytes. Its owner, number and version are stored separately, and are passed as arguments."""
    return msgspec.structs.replace(_decode(data), owner=owner, number=number, version=version)


def _encode_memory(owner: Owner, memory: Memory, param: str) -> bytes:
    """Return a memory as JSON, without the fields that are stored separately.

    Raises:
        InvalidRequest: a field is not valid, or the memory belongs to another owner.
        TooLarge: the memory exceeds a limit.
    """
    if memory.owner != owner:
        raise InvalidRequest(f"{param} belongs to another owner", param=f"{param}.owner")
    if not _ID.fullmatch(memory.id):
        raise InvalidRequest(f"{param}.id must be mem_ and 32 hexadecimal digits", param=f"{param}.id")
    for name in ("importance", "trust"):
        check_number(getattr(memory, name), f"{param}.{name}", 0, 1)
    if memory.score is not None and not math.isfinite(memory.score):
        raise InvalidRequest(f"{param}.score must be a finite number", param=f"{param}.score")
    for name in _TIMES:
        _check_number(getattr(memory, name), f"{param}.{name}")
    if not 0 <= memory.number < _NUMBERS:
        raise InvalidRequest(f"{param}.number must be at least 0", param=f"{param}.number")
    try:
        data = _encode(msgspec.structs.replace(memory, owner=_NOBODY, number=0, version=0))
    except UNWRITABLE as exc:
        raise InvalidRequest(f"{param} cannot be written as JSON: {type(exc).__name__}", param=param) from exc
    check_size(len(data), param, MEMORY_BYTES)
    try:
        read = _decode(data)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"{param} has a field of the wrong type: {exc}", param=param) from exc
    _check_fields(read, param)
    return data


def _check_fields(memory: Memory, param: str) -> None:
    if not memory.content.strip():
        raise InvalidRequest(f"{param}.content is empty: a memory needs a text", param=f"{param}.content")
    if len(memory.tags) > MEMORY_TAGS:
        raise TooLarge(f"{param} has {len(memory.tags)} tags; the limit is {MEMORY_TAGS}", param=f"{param}.tags")
    for tag in memory.tags:
        if not tag.strip() or len(tag) > MEMORY_TAG_CHARS or _CONTROL.search(tag):
            rule = f"it must have 1 to {MEMORY_TAG_CHARS} characters, without line breaks or other control characters"
            raise InvalidRequest(f"{param}.tags has an invalid tag: {rule}", param=f"{param}.tags")
    if memory.agent is not None:
        check_id(memory.agent, f"{param}.agent")
    for source in memory.sources:
        check_id(source.session_id, "sources")
        check_id(source.user_id, "sources")
    others = (*memory.supersedes, *(() if memory.superseded_by is None else (memory.superseded_by,)))
    if len(keep_possible_ids(others)) < len(set(others)):
        raise InvalidRequest(f"{param} refers to another memory by an invalid id", param=f"{param}.supersedes")


def _check_signal(signal: Signal, param: str) -> None:
    check_id(signal.memory_id, f"{param}.memory_id")
    _check_number(signal.at, f"{param}.at")
    check_number(signal.score, f"{param}.score", 0, 1)
    if not isinstance(signal.query, bytes):
        raise InvalidRequest(f"{param}.query must be a digest as bytes", param=f"{param}.query")
    check_size(len(signal.query), f"{param}.query", DIGEST_BYTES)
    if signal.session:
        check_id(signal.session, f"{param}.session")


def _check_entry(entry: DiaryEntry, param: str) -> None:
    check_id(entry.id, f"{param}.id")
    _check_number(entry.at, f"{param}.at")
    if not isinstance(entry.report, dict):
        raise InvalidRequest(f"{param}.report must be an object", param=f"{param}.report")
    check_json(entry.report, f"{param}.report", METADATA_BYTES)


def _check_number(value: Any, param: str) -> None:
    """Refuse a number or time whose absolute value is 2**62 or more. None is allowed."""
    if value is not None and (not isinstance(value, int) or abs(value) >= _NUMBERS):
        raise InvalidRequest(f"{param} must be a whole number below 2**62", param=param)

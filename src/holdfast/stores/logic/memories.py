"""Read and write memories, and the signals and diary entries about them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, cast, get_args

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, OwnerKind, Signal, Status
from holdfast.domain.messages import UNWRITABLE
from holdfast.errors import InvalidRequest, MemoryNotFound, StaleMemories, StoreCorrupt, TooLarge
from holdfast.limits import (
    DIARY_KEPT,
    MEMORIES,
    MEMORIES_AT_ONCE,
    MEMORY_BYTES,
    METADATA_BYTES,
    PAGE,
    SIGNALS_KEPT,
)
from holdfast.numbers import check_number
from holdfast.recall.base import Space
from holdfast.stores.checks import check_choice, check_count, check_id, check_json, check_kind, check_limit, check_size
from holdfast.stores.logic.due import note_removals
from holdfast.stores.logic.handle import Handle, reads
from holdfast.stores.logic.items import trim_items
from holdfast.stores.logic.owners import OwnerKey, OwnerRow, delete_owner, lock_owner, read_owner, save_owner
from holdfast.stores.logic.rows import ENDLESS, UNDECODABLE, decode_text, encode_array
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps
from holdfast.stores.memories import MemoryQuery, OwnedMemories

_KIND: Final = "memories."
"""Beginning of the kinds of owners in the table of all owners."""
DIGEST_BYTES: Final = 64
"""Maximum bytes of `Signal.query`, the digest of a question."""
_KINDS: Final = get_args(OwnerKind)
_TIMES: Final = ("created_at", "updated_at", "valid_from", "valid_until", "promoted_at", "reviewed_at")
_NUMBERS: Final = 2**62
"""Numbers and times must be lower than this, so that they fit into the columns of a database."""
_ID: Final = re.compile("mem_[0-9a-f]{32}")
_NOBODY: Final = Owner("app")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Memory).decode
_decode_entry = msgspec.json.Decoder(DiaryEntry).decode


class MemoryStore(Handle):
    """Store the memories of a tenant. `holdfast.stores.memories` describes what all methods promise."""

    async def memories(
        self,
        owner: Owner,
        *,
        ids: Collection[str] | None = None,
        numbers: Collection[int] | None = None,
        since: int | None = None,
        status: str | None = None,
        after: int | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> OwnedMemories:
        """Return memories of an owner, all as of one moment.

        A memory must match all filters that are given.

        Args:
            owner: the owner of the memories.
            ids: return only memories with these ids; unknown ids are ignored.
            numbers: return only memories with these numbers.
            since: return only memories that changed after this version of the owner.
            status: return only memories with this status.
            after: return only memories that come after this number in the requested order.
            limit: maximum number of memories, 1 to `PAGE`.
            descending: if True, the highest number comes first.
        """
        filters = {"ids": ids, "numbers": numbers, "since": since, "status": status}
        query = MemoryQuery(**filters, after=after, limit=limit, descending=descending)  # type: ignore[arg-type]
        check_query(owner, query)
        return await self._read(partial(_read_memories, self.tenant, owner, query), single=True)

    async def find_memory(self, memory_id: str) -> Memory:
        """Return the memory with this id, of any owner. Raises `MemoryNotFound` if there is no such memory."""
        check_id(memory_id, "memory_id")
        found = None
        if keep_possible_ids((memory_id,)):
            found = await self._select_one(_decode_found_memory, "memory_find", memory_id)
        if found is None:
            raise MemoryNotFound(memory_id)
        return found

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """Change memories of an owner. Return the memories that were put, as stored, and the owner's new version.

        Args:
            owner: the owner, to whom every memory in `delta` must belong.
            delta: the changes.
            timestamp: milliseconds since the epoch.
            expect: the version that the owner must have; None: any.

        Raises:
            StaleMemories: the owner's version is not `expect`.
            MemoryNotFound: a memory to put has a number, but the owner has no such memory with that number.
            InvalidRequest: a memory to put has no number, but its id is already used; or a memory, signal or diary entry is
                invalid.
            TooLarge: a limit would be exceeded.
        """
        payloads = check_delta(owner, delta)
        check_change(timestamp, expect)
        steps = partial(_change_memories, self.tenant, owner, delta, payloads, timestamp=timestamp, expect=expect)
        # The old content of a replaced memory must be removed from the disk too.
        scrub = bool(delta.forget) or any(memory.number for memory in delta.put)
        return await self._write(steps, queue=(self.tenant, owner), scrub=scrub)

    async def signals(
        self, owner: Owner, *, memory_ids: Collection[str] | None = None, since: int | None = None
    ) -> tuple[Signal, ...]:
        """Return signals of an owner's memories, in the order in which they were written.

        Args:
            owner: the owner of the memories.
            memory_ids: return only signals of these memories; None: signals of all memories.
            since: return only signals at or after this time, in milliseconds since the epoch; None: all.
        """
        check_owner(owner)
        check_ids(memory_ids, "memory_ids")
        check_change(since or 0, None)
        begin = -ENDLESS if since is None else since
        if memory_ids is None:
            return await self._select(_decode_signal, "signals_all", _KIND + owner.kind, owner.id, begin)
        ids = encode_array(keep_possible_ids(memory_ids))
        return await self._select(_decode_signal, "signals_of", _KIND + owner.kind, owner.id, ids, begin)

    @reads()
    def diary(self, owner: Owner, *, limit: int = 20) -> Steps[tuple[DiaryEntry, ...]]:
        """Return the newest `limit` diary entries of an owner, newest first."""
        check_owner(owner)
        check_limit(limit)
        row = yield from read_owner(_make_owner_key(self.tenant, owner))
        if row is None:
            return ()
        rows = yield Query("items_before", (self.tenant, _format_diary(row.pk), ENDLESS, "", limit, None, 0))
        return tuple(entry for entry in map(_decode_diary_entry, rows) if entry is not None)

    async def memory_owners(self, *, after: Owner | None = None, limit: int = 100) -> tuple[tuple[Owner, int], ...]:
        """Return owners in order of kind and id, each with the time of its last write in milliseconds since the epoch.

        An owner is included even if all its memories were forgotten, but not if it was dropped.
        """
        if after is not None:
            check_owner(after)
        kind, id_ = after or ("", "")
        return await self._select(_decode_owner_time, "memory_owners_after", _KIND + kind, id_, limit)

    async def drop_memories(self, owner: Owner) -> int:
        """Delete all data of an owner: memories, signals, diary entries and its name, also from the disk. Return the number of memories."""
        check_owner(owner)

        def steps() -> Steps[int]:
            key = _make_owner_key(self.tenant, owner)
            row = yield from read_owner(key)
            if row is None:
                return 0
            yield Query("prompt_texts_about_owned", (self.tenant, row.pk))
            yield Query("signals_clear", (row.pk,))
            yield Query("memories_clear", (row.pk,))
            yield Query("items_clear", (self.tenant, _format_diary(row.pk)))
            yield from delete_owner(key, row)
            yield from note_removals(self.tenant, Space(owner.kind, owner.id), "")
            return row.items

        return await self._write(steps, queue=(self.tenant, owner), scrub=True)


class _Location(NamedTuple):
    """Owner and number of a memory, as in the columns of `memories_named` after the id."""

    owner: Any
    number: int


def _make_owner_key(tenant: str, owner: Owner) -> OwnerKey:
    return OwnerKey(tenant, _KIND + owner.kind, owner.id)


# -- reading -----------------------------------------------------------------


def _read_memories(tenant: str, owner: Owner, query: MemoryQuery) -> Steps[OwnedMemories]:
    """Return memories of an owner. They are read with a single statement, so all are as of one moment."""
    filtered = query.ids is not None and query.numbers is not None
    limit = PAGE if filtered else query.limit
    rows = yield _query_page(_make_owner_key(tenant, owner)[:3], query, limit + 1)
    version, total = rows[0][:2] if rows else (0, 0)
    found = [row[2:] for row in rows if row[2] is not None]
    if filtered:
        wanted = set(query.numbers or ())
        found, limit = [row for row in found if row[0] in wanted], query.limit
    memories, damaged = _decode_memories(owner, found[:limit])
    return OwnedMemories(version, memories, total, len(found) > limit, damaged)


def _decode_memories(owner: Owner, rows: Rows) -> tuple[tuple[Memory, ...], tuple[int, ...]]:
    """Return the memories that can be decoded, and the numbers of those that cannot."""
    memories: list[Memory] = []
    damaged: list[int] = []
    for row in rows:
        try:
            memories.append(_decode_memory(owner, row))
        except UNDECODABLE:
            damaged.append(row[0])
    return tuple(memories), tuple(damaged)


def _query_page(place: Row, query: MemoryQuery, limit: int) -> Query:
    since = min(query.since or 0, ENDLESS)
    sign = -1 if query.descending else 1
    after = -ENDLESS if query.after is None else max(-ENDLESS, min(query.after * sign, ENDLESS))
    rest = (since, query.status or "", sign, after, limit)
    if query.ids is not None:
        return Query("memories_of_ids", (*place, encode_array(keep_possible_ids(query.ids)), *rest))
    if query.numbers is not None:
        numbers = sorted({number for number in query.numbers if 0 < number < ENDLESS})
        return Query("memories_of_numbers", (*place, encode_array(numbers), *rest))
    if since > 0:
        return Query("memories_since", (*place, *rest))
    way = "backward" if query.descending else "forward"
    if query.status is not None:
        return Query(f"memories_{way}_of", (*place, query.status, after * sign, limit))
    return Query(f"memories_{way}", (*place, after * sign, limit))


# -- writing -----------------------------------------------------------------


def _change_memories(
    tenant: str, owner: Owner, delta: MemoryDelta, payloads: Sequence[bytes], *, timestamp: int, expect: int | None
) -> Steps[OwnedMemories]:
    key = _make_owner_key(tenant, owner)
    makes = bool(delta.put or delta.diary) and not expect
    row = (yield from lock_owner(key)) if makes else (yield from read_owner(key))
    if expect is not None and expect != (row.version if row else 0):
        raise StaleMemories(expected=expect, version=row.version if row else 0)
    if row is None:  # without memories there is nothing to forget and nothing that a signal could refer to
        return OwnedMemories(0, ())
    found = yield from _locate_memories(tenant, delta)
    here = {id_: place.number for id_, place in found.items() if place.owner == row.pk}
    _refuse_wrong_ids(delta.put, found, here)
    forgotten = [id_ for id_ in dict.fromkeys(delta.forget) if id_ in here]
    gone = [here.pop(id_) for id_ in forgotten]
    # A new owner of the name of a deleted one continues above its numbers.
    last = row.numbers if row.version else max(row.numbers, row.floor)
    fresh = count(last + 1)
    numbers = [memory.number or next(fresh) for memory in delta.put]
    new = sum(not memory.number for memory in delta.put)
    after = row._replace(
        version=row.next_version if delta.put or gone else row.version,
        items=row.items + new - len(gone),
        numbers=last + new if new else row.numbers,
        entries=row.entries + len(delta.diary),
        updated_at=timestamp,
    )
    if new and after.items > MEMORIES:
        raise TooLarge(f"the owner has {row.items} memories; the limit is {MEMORIES}", param="put")
    yield from _put_memories(tenant, after, delta.put, payloads, numbers)
    if gone:
        yield Many("signals_delete", [(row.pk, number) for number in gone])
        yield Many("memory_delete", [(row.pk, number) for number in gone])
        yield Many("prompt_texts_about", [(tenant, id_) for id_ in forgotten])
        yield from note_removals(tenant, Space(owner.kind, owner.id), "", gone)
    here |= {memory.id: number for memory, number in zip(delta.put, numbers, strict=True)}
    after = after._replace(signals=row.signals + (yield from _write_signals(row, here, delta)))
    yield from _write_diary(key, row, delta.diary)
    if after._replace(updated_at=row.updated_at) != row or delta.signals_before is not None:
        yield from save_owner(after)
    put = [decode_memory(data, owner, number, after.version) for data, number in zip(payloads, numbers, strict=True)]
    return OwnedMemories(after.version, tuple(sorted(put, key=lambda memory: memory.number)), after.items)


# -- parts of a write --------------------------------------------------------


def _locate_memories(tenant: str, delta: MemoryDelta) -> Steps[dict[str, _Location]]:
    named = (*(memory.id for memory in delta.put), *delta.forget, *(signal.memory_id for signal in delta.signals))
    ids = keep_possible_ids(named)
    rows = (yield Query("memories_named", (tenant, encode_array(ids)))) if ids else ()
    return {decode_text(row[0]): _Location(*row[1:]) for row in rows}


def _refuse_wrong_ids(put: Sequence[Memory], found: Collection[str], here: Mapping[str, int]) -> None:
    """Refuse to put memories that are not stored under their ids and numbers, and new ones whose ids are in use.

    Args:
        put: the memories.
        found: those of their ids that are in use.
        here: the numbers of the owner's memories, by id.
    """
    for memory in put:
        if memory.number and here.get(memory.id) != memory.number:
            raise MemoryNotFound(memory.id)
        if not memory.number and memory.id in found:
            raise InvalidRequest(
                f"memory {memory.id} exists already: to change it, put it with its number", param="put"
            )


def _put_memories(
    tenant: str, after: OwnerRow, put: Sequence[Memory], payloads: Sequence[bytes], numbers: Sequence[int]
) -> Steps[None]:
    new: list[Row] = []
    old: list[Row] = []
    for memory, data, number in zip(put, payloads, numbers, strict=True):
        written = (after.version, memory.status, data)
        if memory.number:
            old.append((after.pk, number, *written))
        else:
            new.append((after.pk, number, tenant, memory.id, *written))
    if new:
        yield Many("memory_insert", new)
    if old:
        yield Many("memory_put", old)


def _write_signals(owner: OwnerRow, here: Mapping[str, int], delta: MemoryDelta) -> Steps[int]:
    """Write signals of memories that exist; return the number of written signals.

    Signals older than `delta.signals_before` are deleted. Of each memory, only the newest `SIGNALS_KEPT` signals are kept.

    Args:
        owner: the owner before the write.
        here: number of each memory that the write refers to and that exists after it, by id.
        delta: the write.
    """
    before = delta.signals_before
    if before is not None:
        yield Query("signals_before", (owner.pk, before))
    wanted = [one for one in delta.signals if one.memory_id in here and (before is None or one.at >= before)]
    rows = [
        (owner.pk, here[one.memory_id], seq, one.at, one.query, float(one.score), one.session)
        for seq, one in enumerate(wanted, owner.signals)
    ]
    if rows:
        yield Many("signal_insert", rows)
        numbers = dict.fromkeys(row[1] for row in rows)
        yield Many("signals_trim", [(owner.pk, number, SIGNALS_KEPT) for number in numbers])
    return len(rows)


def _write_diary(key: OwnerKey, owner: OwnerRow, entries: Sequence[DiaryEntry]) -> Steps[None]:
    """Write diary entries, and delete the oldest beyond the limit."""
    if entries:
        kind = _format_diary(owner.pk)
        rows = [(key.tenant, kind, str(seq), seq, "", _encode(one)) for seq, one in enumerate(entries, owner.entries)]
        yield Many("item_new", rows)
        yield from trim_items(key.tenant, kind, DIARY_KEPT, PAGE)


def _format_diary(owner: int) -> str:
    """Return the kind of the items that are entries of an owner's diary; `at` is their number."""
    return f"diary {owner}"


# -- rows ----------------------------------------------------------------------


def _decode_owner(kind: str | bytes, id_: str | bytes) -> Owner:
    return Owner(cast(OwnerKind, decode_text(kind).removeprefix(_KIND)), decode_text(id_))


def _decode_owner_time(row: Row) -> tuple[Owner, int]:
    return _decode_owner(row[0], row[1]), row[2]


def _decode_found_memory(row: Row) -> Memory:
    kind, id_, *memory = row
    try:
        return _decode_memory(_decode_owner(kind, id_), memory)
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"memory {decode_text(memory[1])} is damaged and cannot be decoded ({exc})") from exc


def _decode_memory(owner: Owner, row: Row) -> Memory:
    """Decode a memory from the last columns of a row of `memories_forward`."""
    number, _, version, data = row
    return decode_memory(data, owner, number, version)


def _decode_signal(row: Row) -> Signal:
    memory_id, at, query, score, session = row
    return Signal(memory_id=decode_text(memory_id), at=at, query=query, score=score, session=decode_text(session))


def _decode_diary_entry(row: Row) -> DiaryEntry | None:
    """Decode an entry of a diary; return None if it is damaged."""
    try:
        return _decode_entry(row[0])
    except UNDECODABLE:
        return None


# -- checks --------------------------------------------------------------------
#
# "Refuse" in a docstring here means: raise `InvalidRequest` or `TooLarge`.


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

"""Memories of users, agents and tenants in Redis.

The memories of one owner are stored together, and one guard, in the owner's head, protects them. The tenant's keys contain the
list of all owners, and a hash that maps each memory's id to its owner.

A user's memories are in the user's slot. The memories of an agent or of the tenant are in the tenant's slot. If the two slots are
on different servers, new ids are added to the tenant's hash before the write, and deleted ids are removed afterwards. So the
tenant's keys may list memories that do not exist, and readers check for that.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.errors import InvalidRequest, MemoryNotFound, StaleMemories, StoreCorrupt, TooLarge
from holdfast.limits import DIARY_KEPT, MEMORIES, SIGNALS_KEPT
from holdfast.stores import checks, memory_checks
from holdfast.stores.memories import MemoryQuery, OwnedMemories
from holdfast.stores.memory_checks import decode_memory, keep_possible_ids
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Transaction, split_command
from holdfast.stores.redis.handle import Handle, read_transaction, write_transaction
from holdfast.stores.redis.keys import ScopeKeys, TenantKeys, decode_names, decode_number, encode_name, encode_number
from holdfast.stores.redis.records import ENDLESS, check_int64, decode_object, pack, to_json, unpack_list

_END: Final = b"\xff" * 9
_TOKEN_BYTES: Final = 6
_LISTED: Final = b"\0"
"""Prefix of fields that show that an owner is listed. They are in the hash of memory ids. No memory id begins with this byte."""


class _OwnerTotals(NamedTuple):
    """The stored counters of an owner: version, number of memories, next number of each kind, and time of the last change."""

    version: int = 0
    memories: int = 0
    next_memory: int = 1
    next_signal: int = 1
    next_entry: int = 1
    updated_at: int = 0


def resolve_owner_keys(handle: Handle, owner: Owner) -> ScopeKeys:
    """Return the keys of the owner that is passed as a method's first argument."""
    memory_checks.check_owner(owner)
    return handle.database.keys.owner(handle.tenant, owner)


class MemoryMethods(Handle):
    """The methods of `holdfast.stores.memories.MemoryStore`."""

    @read_transaction(resolve_owner_keys)
    async def memories(
        self,
        tx: Transaction,
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
        filters: dict[str, Any] = {"ids": ids, "numbers": numbers, "since": since, "status": status}
        query = MemoryQuery(**filters, after=after, limit=limit, descending=descending)
        memory_checks.check_query(owner, query)
        head, found = await _find_numbers(tx, query)
        if head is None:
            return OwnedMemories(0, ())
        rows = await _read_rows(tx, found[: query.limit + 1])
        memories, damaged = _decode_rows(owner, rows[: query.limit])
        totals = _OwnerTotals(*unpack_list(head))
        return OwnedMemories(totals.version, memories, totals.memories, len(rows) > query.limit, damaged)

    @read_transaction()
    async def find_memory(self, tx: Transaction, memory_id: str) -> Memory:
        checks.check_id(memory_id, "memory_id")
        (known,) = await tx.read((b"HGET", self._tenant_keys.memory_ids, memory_id))
        if known is None or not keep_possible_ids((memory_id,)):
            raise MemoryNotFound(memory_id)
        kind, id_, _ = unpack_list(known)
        found = await self.memories(Owner(kind, id_), ids=(memory_id,))
        if found.damaged:
            raise StoreCorrupt(f"memory {memory_id} is damaged and cannot be decoded")
        if not found.memories:
            raise MemoryNotFound(memory_id)
        return found.memories[0]

    @write_transaction(resolve_owner_keys)
    async def change_memories(
        self, tx: Transaction, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        payloads = memory_checks.check_delta(owner, delta)
        memory_checks.check_change(timestamp, expect)
        stored, floor = await _load_totals(tx, expect)
        if stored is None and not (delta.put or delta.diary):
            # An owner without memories has nothing to forget, and nothing that was recalled.
            return OwnedMemories(0, ())
        totals = stored or _OwnerTotals()
        if stored is None:
            _list_owner(tx)
        own_numbers, elsewhere, known = await _find_owners(tx, delta)
        for memory in delta.put:
            if memory.number and own_numbers.get(memory.id) != memory.number:
                raise MemoryNotFound(memory.id)
            if not memory.number and (memory.id in own_numbers or memory.id in elsewhere):
                raise InvalidRequest(
                    f"memory {memory.id} exists already: to change it, put it with its number", param="put"
                )
        forgotten = {id_: own_numbers.pop(id_) for id_ in dict.fromkeys(delta.forget) if id_ in own_numbers}
        first = totals.next_memory if totals.version else max(totals.next_memory, floor + 1)
        new_numbers = count(first)
        numbers = [memory.number or next(new_numbers) for memory in delta.put]
        new = next(new_numbers) - first
        if new and totals.memories + new - len(forgotten) > MEMORIES:
            raise TooLarge(f"the owner has {totals.memories} memories; the limit is {MEMORIES}", param="put")
        version = (totals.version or floor) + 1 if delta.put or forgotten else totals.version
        statuses = await _read_statuses(
            tx, [*forgotten.values(), *(memory.number for memory in delta.put if memory.number)]
        )
        for memory, body, number in zip(delta.put, payloads, numbers, strict=True):
            _put_memory(tx, memory, number, version, body, statuses.get(number), known)
        own_numbers |= {memory.id: number for memory, number in zip(delta.put, numbers, strict=True)}
        await _forget_memories(tx, forgotten, statuses)
        signals = await _add_signals(tx, totals, delta, own_numbers)
        _add_diary_entries(tx, totals, delta.diary)
        after = totals._replace(
            version=version,
            memories=totals.memories + new - len(forgotten),
            next_memory=first + new if new else totals.next_memory,
            next_signal=totals.next_signal + signals,
            next_entry=totals.next_entry + len(delta.diary),
        )
        if after != totals or delta.signals_before is not None:
            tx.queue("HSET", tx.keys.head, "m", pack(after._replace(updated_at=timestamp)))
        put = [
            decode_memory(data, tx.keys.owner, number, version) for data, number in zip(payloads, numbers, strict=True)
        ]
        return OwnedMemories(version, tuple(sorted(put, key=lambda memory: memory.number)), after.memories)

    @read_transaction(resolve_owner_keys)
    async def signals(
        self, tx: Transaction, owner: Owner, *, memory_ids: Collection[str] | None = None, since: int | None = None
    ) -> tuple[Signal, ...]:
        memory_checks.check_ids(memory_ids, "memory_ids")
        memory_checks.check_change(since or 0, None)
        begin = -ENDLESS if since is None else since
        if memory_ids is None:
            (found,) = await tx.read((b"ZRANGEBYSCORE", tx.keys.recalled, begin, b"+inf"))
            numbers = [int(number) for number in found]
            named = {at: unpack_list(meta)[0] for at, meta in (await tx.read_fields(tx.keys.metas, numbers)).items()}
        else:
            stored = await tx.read_fields(tx.keys.ids, keep_possible_ids(memory_ids))
            named = {int(number): id_ for id_, number in stored.items()}
        members = await tx.read(*((b"ZRANGE", tx.keys.signals_key(number), 0, -1) for number in named))
        rows = sorted(
            (tuple(unpack_list(member)), id_)
            for id_, some in zip(named.values(), members, strict=True)
            for member in some
        )
        return tuple(
            Signal(memory_id=id_, at=at, query=query, score=score, session=session)
            for (_, at, query, score, session), id_ in rows
            if at >= begin
        )

    @read_transaction(resolve_owner_keys)
    async def diary(self, tx: Transaction, owner: Owner, *, limit: int = 20) -> tuple[DiaryEntry, ...]:
        checks.check_limit(limit)
        (found,) = await tx.read((b"ZREVRANGE", tx.keys.diary, 0, limit - 1))
        entries = []
        for _, id_, at, data in map(unpack_list, found):
            report = decode_object(None, data)
            if report is not None:
                entries.append(DiaryEntry(id=id_, at=at, report=report))
        return tuple(entries)

    @read_transaction()
    async def memory_owners(
        self, tx: Transaction, *, after: Owner | None = None, limit: int = 100
    ) -> tuple[tuple[Owner, int], ...]:
        """Return owners and the time of their last change. Listed owners whose first write was never completed are left out."""
        if after is not None:
            memory_checks.check_owner(after)
        checks.check_limit(limit)
        key, place = self._tenant_keys.memory_owners, b"" if after is None else _encode_owner(after)
        owners: list[tuple[Owner, int]] = []
        while len(owners) < limit:
            begin = b"(" + place if place else b"-"
            (found,) = await tx.read((b"ZRANGEBYLEX", key, begin, b"+", b"LIMIT", 0, limit))
            listed = [Owner(*decode_names(member)) for member in found]  # type: ignore[arg-type]  # its kind
            heads = await tx.read(*((b"HGET", self.database.keys.owner(self.tenant, one).head, b"m") for one in listed))
            owners += [
                (one, _OwnerTotals(*unpack_list(head)).updated_at)
                for one, head in zip(listed, heads, strict=True)
                if head
            ]
            if len(found) < limit:
                break
            place = found[-1]
        return tuple(owners[:limit])

    @write_transaction(resolve_owner_keys)
    async def drop_memories(self, tx: Transaction, owner: Owner) -> int:
        """Delete all memories of an owner.

        The highest version or number used is kept, so that none is used again. It is stored under a key that has only a hash of
        the owner's name.
        """
        totals, floor = await _load_totals(tx)
        if totals is None:
            return 0
        keys, tenants, member = tx.keys, _get_tenant_keys(tx), _encode_owner(tx.keys.owner)
        metas, recalled = await tx.read((b"HVALS", keys.metas), (b"ZRANGE", keys.recalled, 0, -1))
        await _forget_ids(tx, [unpack_list(meta)[0] for meta in metas])
        for key in (*(keys.signals_key(int(number)) for number in recalled), keys.recalled, keys.diary):
            tx.queue("UNLINK", key)
        for key in (keys.bodies, keys.metas, keys.ids, keys.versions, keys.places):
            tx.queue("UNLINK", key)
        ceiling = max(totals.version + (1 if totals.memories else 0), totals.next_memory - 1)
        tx.queue("HSET", keys.head, "f", max(floor, ceiling))
        tx.queue("HDEL", keys.head, "m")
        if not _is_tenant_remote(tx):
            tx.queue("ZREM", tenants.memory_owners, member)
        else:  # the owner is removed from the list after the write, unless it was listed again meanwhile
            (token,) = await tx.read((b"HGET", tenants.memory_ids, _LISTED + member))
            tx.obsolete += (_LISTED + member, token or b"")
        return totals.memories


# -- reading -----------------------------------------------------------------


async def _find_numbers(tx: Transaction, query: MemoryQuery) -> tuple[bytes | None, list[int]]:
    """Return the owner's encoded counters, and the numbers of the memories that match a query, in the order of the query."""
    keys, after = tx.keys, query.after
    head: Command = (b"HGET", keys.head, b"m")
    if query.ids is not None or query.numbers is not None or (query.since or 0) > 0:
        return await _select(tx, head, query)
    part = encode_name(query.status or "")
    first = b"[" + part if after is None or query.descending else b"(" + part + encode_number(_clamp(after))
    last = b"(" + part + (_END if after is None or not query.descending else encode_number(_clamp(after)))
    name, ends = (b"ZREVRANGEBYLEX", (last, first)) if query.descending else (b"ZRANGEBYLEX", (first, last))
    stored, found = await tx.read(head, (name, keys.places, *ends, b"LIMIT", 0, query.limit + 1))
    return stored, [decode_number(member[len(part) :]) for member in found]


def _clamp(number: int) -> int:
    return max(-ENDLESS, min(number, ENDLESS))


async def _select(tx: Transaction, head: Command, query: MemoryQuery) -> tuple[bytes | None, list[int]]:
    """Return the owner's encoded counters, and the numbers of the memories that match a query by ids, by numbers or by `since`, in order."""
    keys, since = tx.keys, min(query.since or 0, ENDLESS)
    if query.ids is not None:
        stored, *parts = await tx.read(head, *split_command(b"HMGET", keys.ids, keep_possible_ids(query.ids)))
        numbers = {int(number) for some in parts for number in some if number is not None}
    elif query.numbers is not None:
        (stored,), numbers = await tx.read(head), {*query.numbers}
    else:
        stored, found = await tx.read(head, (b"ZRANGEBYSCORE", keys.versions, b"(%d" % since, b"+inf"))
        numbers = {int(number) for number in found}
    if query.ids is not None and query.numbers is not None:
        numbers &= {*query.numbers}
    if query.after is not None:
        numbers = {one for one in numbers if (one < query.after if query.descending else one > query.after)}
    ordered = sorted((one for one in numbers if 0 < one < ENDLESS), reverse=query.descending)
    fitting: list[int] = []
    for number, meta in (await tx.read_fields(keys.metas, ordered)).items():
        _, version, status = unpack_list(meta)
        if version > since and query.status in (None, status):
            fitting.append(number)
    return stored, fitting


async def _read_rows(tx: Transaction, numbers: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """Return `(number, version, encoded memory)` for each of these numbers that exists."""
    if not numbers:
        return []
    parts = (*split_command(b"HMGET", tx.keys.metas, numbers), *split_command(b"HMGET", tx.keys.bodies, numbers))
    found = [value for some in await tx.read(*parts) for value in some]
    rows = zip(numbers, found[: len(numbers)], found[len(numbers) :], strict=True)
    return [(number, unpack_list(meta)[1], body) for number, meta, body in rows if None not in (meta, body)]


def _decode_rows(owner: Owner, rows: Sequence[tuple[int, int, bytes]]) -> tuple[tuple[Memory, ...], tuple[int, ...]]:
    """Return the memories that can be decoded, and the numbers of those that cannot."""
    memories: list[Memory] = []
    damaged: list[int] = []
    for number, version, body in rows:
        try:
            memories.append(decode_memory(body, owner, number, version))
        except (msgspec.MsgspecError, ValueError):
            damaged.append(number)
    return tuple(memories), tuple(damaged)


# -- writing -----------------------------------------------------------------


async def _load_totals(tx: Transaction, expect: int | None = None) -> tuple[_OwnerTotals | None, int]:
    """Return the owner's counters, and the highest version or number that was used before the owner's memories were last deleted.

    The counters are None if the owner has no memories now.

    Raises:
        StaleMemories: the owner's version is not `expect`.
    """
    stored, floor = await tx.read((b"HGET", tx.keys.head, b"m"), (b"HGET", tx.keys.head, b"f"))
    totals = None if stored is None else _OwnerTotals(*unpack_list(stored))
    version = 0 if totals is None else totals.version
    if expect is not None and expect != version:
        raise StaleMemories(expected=expect, version=version)
    return totals, int(floor or 0)


async def _find_owners(tx: Transaction, delta: MemoryDelta) -> tuple[dict[str, int], set[str], Mapping[str, Any]]:
    """Look up the memories that a write refers to.

    Returns:
        Three values: the numbers of the owner's memories, by id; the ids that belong to other owners; and the fields that the
        tenant's hash of memory ids has for ids that the owner does not have.
    """
    named = (*(memory.id for memory in delta.put), *delta.forget, *(signal.memory_id for signal in delta.signals))
    ids = keep_possible_ids(named)
    own_numbers = {id_: int(number) for id_, number in (await tx.read_fields(tx.keys.ids, ids)).items()}
    others = [id_ for id_ in ids if id_ not in own_numbers]
    database, tenants = tx.database, _get_tenant_keys(tx)
    known = await tx.read_fields(tenants.memory_ids, others)
    elsewhere: dict[str, Command] = {}
    for id_, field in known.items():
        kind, owner_id, _ = unpack_list(field)
        keys = database.keys.owner(tx.keys.tenant, Owner(kind, owner_id))
        if keys.head != tx.keys.head:
            elsewhere[id_] = (b"HGET", keys.ids, id_)
    found = await database.fetch(list(elsewhere.values()))
    return own_numbers, {id_ for id_, number in zip(elsewhere, found, strict=True) if number is not None}, known


def _get_tenant_keys(tx: Transaction) -> TenantKeys:
    return tx.database.keys.tenant(tx.keys.tenant)


def _is_tenant_remote(tx: Transaction) -> bool:
    """Return True if the owner's memories and its tenant may be on different servers."""
    return tx.is_cluster and bool(tx.keys.user_id)


def _encode_owner(owner: Owner) -> bytes:
    return encode_name(owner.kind) + encode_name(owner.id)


def _queue_for_tenant(tx: Transaction, *command: Any) -> None:
    """Queue a command for the tenant's slot. It is part of the commit, or is sent before it if the tenant may be on another server."""
    tx.tenant_commands.append(command) if _is_tenant_remote(tx) else tx.queue(*command)


def _list_owner(tx: Transaction) -> None:
    """Add an owner to the tenant's list of owners, before the owner has any memories."""
    tenants, member = _get_tenant_keys(tx), _encode_owner(tx.keys.owner)
    tx.is_new = True
    if _is_tenant_remote(tx):  # the mark comes first: `drop_memories` reads it to see if the owner was listed again
        tx.tenant_commands.append(("HSET", tenants.memory_ids, _LISTED + member, secrets.token_bytes(_TOKEN_BYTES)))
    _queue_for_tenant(tx, b"ZADD", tenants.memory_owners, 0, member)


async def _read_statuses(tx: Transaction, numbers: Sequence[int]) -> dict[int, str]:
    return {number: unpack_list(meta)[2] for number, meta in (await tx.read_fields(tx.keys.metas, numbers)).items()}


def _put_memory(
    tx: Transaction,
    memory: Memory,
    number: int,
    version: int,
    body: bytes,
    before: str | None,
    known: Mapping[str, Any],
) -> None:
    keys = tx.keys
    if not memory.number:
        tenants = _get_tenant_keys(tx)
        if not _is_tenant_remote(tx):
            tx.check(tenants.memory_ids, memory.id, known.get(memory.id))
        owner_field = pack((keys.owner.kind, keys.owner.id, secrets.token_bytes(_TOKEN_BYTES)))
        _queue_for_tenant(tx, "HSET", tenants.memory_ids, memory.id, owner_field)
        tx.queue("HSET", keys.ids, memory.id, number)
        tx.queue("ZADD", keys.places, 0, encode_name("") + encode_number(number))
    elif before is not None and before != memory.status:
        tx.queue("ZREM", keys.places, encode_name(before) + encode_number(number))
    tx.queue("ZADD", keys.places, 0, encode_name(memory.status) + encode_number(number))
    tx.queue("ZADD", keys.versions, version, number)
    tx.queue("HSET", keys.metas, number, pack((memory.id, version, memory.status)))
    tx.queue("HSET", keys.bodies, number, body)


async def _forget_memories(tx: Transaction, forgotten: Mapping[str, int], statuses: Mapping[int, str]) -> None:
    keys = tx.keys
    await _forget_ids(tx, list(forgotten))
    for id_, number in forgotten.items():
        tx.queue("HDEL", keys.bodies, number)
        tx.queue("HDEL", keys.metas, number)
        tx.queue("HDEL", keys.ids, id_)
        tx.queue("ZREM", keys.versions, number)
        places = [encode_name(status) + encode_number(number) for status in ("", statuses.get(number, ""))]
        tx.queue("ZREM", keys.places, *places)
        tx.queue("UNLINK", keys.signals_key(number))
        tx.queue("ZREM", keys.recalled, number)


async def _forget_ids(tx: Transaction, ids: Sequence[str]) -> None:
    """Remove ids from the tenant's hash of memory ids: in the commit, or after it if the tenant may be on another server."""
    key = _get_tenant_keys(tx).memory_ids
    if not _is_tenant_remote(tx):
        for command in split_command(b"HDEL", key, ids):
            tx.queue("HDEL", key, *command[2:])
        return
    for id_, value in (await tx.read_fields(key, ids)).items():
        tx.obsolete += (id_, value)


async def _add_signals(
    tx: Transaction, totals: _OwnerTotals, delta: MemoryDelta, own_numbers: Mapping[str, int]
) -> int:
    """Write signals (records that a memory was recalled) of existing memories, and return how many were written.

    Signals that are older than `delta.signals_before` are deleted. Of each memory, only the newest `SIGNALS_KEPT` signals are kept.
    """
    keys, before = tx.keys, delta.signals_before
    if before is not None:
        (found,) = await tx.read((b"ZRANGE", keys.recalled, 0, -1))
        signals = [keys.signals_key(int(number)) for number in found]
        for key, members in zip(signals, await tx.read(*((b"ZRANGE", key, 0, -1) for key in signals)), strict=True):
            old = [member for member in members if unpack_list(member)[1] < before]
            if old:
                tx.queue("ZREM", key, *old)
    wanted = [one for one in delta.signals if one.memory_id in own_numbers and (before is None or one.at >= before)]
    for seq, one in enumerate(wanted, totals.next_signal):
        number = own_numbers[one.memory_id]
        tx.queue("ZADD", keys.signals_key(number), seq, pack((seq, one.at, one.query, float(one.score), one.session)))
        tx.queue("ZADD", keys.recalled, "GT", check_int64(one.at), number)
    for number in dict.fromkeys(own_numbers[one.memory_id] for one in wanted):
        tx.queue("ZREMRANGEBYRANK", keys.signals_key(number), 0, -1 - SIGNALS_KEPT)
    return len(wanted)


def _add_diary_entries(tx: Transaction, totals: _OwnerTotals, entries: Sequence[DiaryEntry]) -> None:
    """Write diary entries, and delete the oldest beyond the limit."""
    for seq, one in enumerate(entries, totals.next_entry):
        tx.queue("ZADD", tx.keys.diary, seq, pack((seq, one.id, one.at, to_json(one.report))))
    if entries:
        tx.queue("ZREMRANGEBYSCORE", tx.keys.diary, "-inf", f"({totals.next_entry + len(entries) - DIARY_KEPT}")

"""Records of sessions, users and the tenant in Redis.

The owner of records is a session, a user or the tenant. A record's place is its encoded namespace and key. Each owner has these keys
in its own slot:

- a hash of the records' fields other than the value, by place;
- a hash of the records' values, by place;
- a sorted set of all places, from which lists are read;
- a sorted set of the places of records that expire, by time;
- a hash of the texts of searchable records, by place;
- a sorted set of the searchable records: version, number and place.

The owner's head contains the guard of all its writes.

The tenant's slot has two sorted sets. One lists the users that have records, and the tenant itself if it has any. The other one
lists all owners by the time at which their first record expires. A member is added before the write, together with a new random
token. It is removed only if its token has not changed since, and every write that was computed before then fails and is run again. So an
owner without records may be listed, but no owner with records is missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.artifact import UserRef
from holdfast.domain.record import (
    ChangedRecords,
    Namespace,
    Record,
    RecordChange,
    RecordInfo,
    RecordName,
    RecordOwner,
    RecordPage,
    SearchablePage,
    TenantRef,
    decode_place,
    encode_namespace,
    end_of_namespace,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound
from holdfast.limits import PAGE
from holdfast.stores import checks
from holdfast.stores.record_checks import (
    EncodedChange,
    RecordRow,
    assign_numbers,
    check_list,
    check_names,
    check_namespaces,
    check_owner,
    check_searchable,
    check_sizes,
    choose_first_version,
    count_page,
    encode_changes_off_loop,
    make_info,
    make_record,
    make_row,
    make_searchable,
    refuse_stale,
)
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import MAX_ARGUMENTS, Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, write_transaction
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys, decode_names, encode_name, encode_number
from holdfast.stores.redis.nodes import load_script
from holdfast.stores.redis.records import check_int64, pack, unpack_list

_DISCARD: Final = load_script("discard")
_TOKEN_BYTES: Final = 6
_TOTAL: Final = b""
"""Field that contains the owner's version, in the hash of the records' fields. After all records were deleted, the version begins with
`_DROPPED`."""
_DROPPED: Final = b"-"
_NUMBERS: Final = b"n"
"""Field that contains how many numbers the owner has given to searchable records, in the same hash. No place is equal to it."""
_OWNER, _EXPIRING = b"o", b"e"
"""First bytes of the members of the tenant's two sorted sets."""
_MEMBER_HEAD: Final = 16
"""Bytes before the place, in a member of the sorted set of searchable records."""
_PAGE: Final = 16
"""Number of places that are read at once to find the first record of a range."""


def _resolve_owner_keys(handle: Handle, owner: RecordOwner) -> ScopeKeys:
    check_owner(owner)
    if isinstance(owner, SessionRef):
        return handle._make_session_keys(owner)  # noqa: SLF001 - of the package
    return handle.database.keys.user(handle.tenant, getattr(owner, "user_id", ""))


class RecordMethods(Handle):
    """The methods of `holdfast.stores.records.RecordStore`."""

    @read_transaction(_resolve_owner_keys)
    async def records(
        self,
        tx: Transaction,
        owner: RecordOwner,
        names: Sequence[RecordName],
        *,
        now: int,
        identity: str | None = None,
    ) -> tuple[Record | None, ...]:
        places = check_names(owner, names, now)
        rows = {place: row for place, row in (await _read_rows(tx, places)).items() if row.is_there(now)}
        _require_owner(tx, identity)
        check_sizes([row.size for row in rows.values()])
        found = await _read_values(tx, rows)
        return tuple(found.get(place) for place in places)

    @read_transaction(_resolve_owner_keys)
    async def list_records(
        self,
        tx: Transaction,
        owner: RecordOwner,
        namespace: Namespace,
        *,
        now: int,
        identity: str | None = None,
        prefix: str = "",
        nested: bool = False,
        after: RecordName | None = None,
        limit: int = 100,
        descending: bool = False,
        values: bool = True,
    ) -> RecordPage:
        checks.check_int(now, "now")
        bounds = check_list(namespace, prefix, nested=nested, after=after, limit=limit, descending=descending)
        rows = await _read_range(tx, bounds, limit + 1, now, descending=descending)
        _require_owner(tx, identity)
        listed = list(rows.items())
        number = count_page([row.size for row in rows.values()], limit) if values else min(len(listed), limit)
        page = dict(listed[:number])
        records: tuple[RecordInfo, ...] = tuple(make_info(decode_place(place), row) for place, row in page.items())
        if values:
            found = await _read_values(tx, page)
            records = tuple(found[place] for place in page)
        total = (await tx.read_fields(tx.keys.record_infos, [_TOTAL])).get(_TOTAL)
        return RecordPage(records, len(listed) > number, _parse_version(total))

    @read_transaction(_resolve_owner_keys)
    async def record_namespaces(
        self,
        tx: Transaction,
        owner: RecordOwner,
        prefix: Namespace = (),
        *,
        now: int,
        identity: str | None = None,
        depth: int | None = None,
        after: Namespace | None = None,
        limit: int = 100,
    ) -> tuple[Namespace, ...]:
        checks.check_int(now, "now")
        check_namespaces(prefix, depth, after, limit)
        found: list[Namespace] = []
        begin, end = encode_namespace(prefix), end_of_namespace(prefix, nested=True)
        if after is not None:
            begin = max(begin, end_of_namespace(after, nested=len(after) == depth))
        while len(found) < limit and (rows := await _read_range(tx, (begin, end), 1, now)):
            namespace = decode_place(next(iter(rows))).namespace[:depth]
            found.append(namespace)
            begin = end_of_namespace(namespace, nested=len(namespace) == depth)
        _require_owner(tx, identity)
        return tuple(found)

    @write_transaction(_resolve_owner_keys)
    async def change_records(
        self,
        tx: Transaction,
        owner: RecordOwner,
        changes: Sequence[RecordChange],
        *,
        timestamp: int,
        identity: str | None = None,
    ) -> ChangedRecords:
        checks.check_int(timestamp, "timestamp")
        changed = await write_record_changes(tx, await encode_changes_off_loop(changes), timestamp)
        _require_owner(tx, identity)
        return changed

    @read_transaction(_resolve_owner_keys)
    async def searchable_records(
        self,
        tx: Transaction,
        owner: RecordOwner,
        *,
        now: int,
        since: tuple[int, int] = (0, 0),
        names: Sequence[RecordName] | None = None,
        limit: int = 100,
        identity: str | None = None,
    ) -> SearchablePage:
        places = check_searchable(owner, since, names, now, limit)
        has_more = False
        if names is None:
            begin = b"[" + encode_number(since[0]) + encode_number(since[1] + 1)
            command: Command = (b"ZRANGEBYLEX", tx.keys.record_searched, begin, b"+", b"LIMIT", 0, limit + 1)
            (members,) = await tx.read(command)
            has_more, places = len(members) > limit, [member[_MEMBER_HEAD:] for member in members[:limit]]
        rows = await _read_rows(tx, places)
        _require_owner(tx, identity)
        total = (await tx.read_fields(tx.keys.record_infos, [_TOTAL])).get(_TOTAL)
        rows = {place: row for place, row in rows.items() if row.number is not None and row.is_there(now)}
        texts = await tx.read_fields(tx.keys.record_texts, list(rows)) if rows else {}
        found = [make_searchable(decode_place(place), rows[place], text) for place, text in texts.items()]
        found.sort(key=lambda one: (one.version, one.number))
        known = tx.record.session.identity if isinstance(tx.keys, SessionKeys) and tx.record is not None else ""
        return SearchablePage(tuple(found), has_more, _parse_version(total), known)

    async def record_users(self, *, after: str | None = None, limit: int = 100) -> tuple[str, ...]:
        checks.check_limit(limit)
        last = None if after is None else _OWNER + (encode_name(after) if after else b"")
        begin = b"-" if last is None else b"(" + last
        key = self._tenant_keys.record_owners
        (members,) = await self.database.fetch(((b"ZRANGEBYLEX", key, begin, b"+", b"LIMIT", 0, limit),))
        return tuple(getattr(_decode_owner(member), "user_id", "") for member in members)

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
        """Delete all records of an owner, and return their number.

        The owner's version is kept, so that no version is used again. The name of the key that has it contains only a hash of the
        owner's name.
        """
        check_owner(owner)
        member = _OWNER + _encode_owner(owner)
        (token,) = await self.database.fetch(((b"HGET", self._tenant_keys.record_tokens, b"\0" + member),))
        number = await self._drop_records(owner, identity)
        if not isinstance(owner, SessionRef):
            await _discard(self, self._tenant_keys.record_owners, member, token)
        await unlist_expiring(self, owner)
        return number

    @write_transaction(_resolve_owner_keys)
    async def _drop_records(self, tx: Transaction, owner: RecordOwner, identity: str | None) -> int:
        keys = tx.keys
        number, total = await tx.read((b"HLEN", keys.record_values), (b"HGET", keys.record_infos, _TOTAL))
        _require_owner(tx, identity)
        if total is not None:
            for key in keys.of_records:
                tx.queue("UNLINK", key)
            version = _parse_version(total) + (1 if number else 0)
            tx.queue("HSET", keys.record_infos, _TOTAL, _DROPPED + b"%d" % version)
        return int(number)

    async def sweep_records(self, *, now: int, limit: int = 100) -> int:
        checks.check_int(now, "now")
        checks.check_limit(limit)
        tenant, swept = self._tenant_keys, 0
        command: Command = (b"ZRANGEBYSCORE", tenant.record_expiries, b"-inf", check_int64(now), b"LIMIT", 0, limit)
        (members,) = await self.database.fetch((command,))
        for member in members:
            if swept >= limit:
                break
            (token,) = await self.database.fetch(((b"HGET", tenant.record_tokens, b"\0" + member),))
            number, following = 0, None
            try:
                number, following = await self._sweep_owner(_decode_owner(member), now=now, limit=limit - swept)
            except SessionNotFound:
                pass
            swept += number
            if following is None:
                await _discard(self, tenant.record_expiries, member, token)
            else:
                await self._postpone(member, token, following)
        return swept

    @write_transaction(_resolve_owner_keys)
    async def _sweep_owner(self, tx: Transaction, owner: RecordOwner, *, now: int, limit: int) -> tuple[int, Any]:
        """Delete at most `limit` expired records of an owner.

        Returns:
            The number of deleted records, and the time when the next record expires; None if no other record expires.
        """
        keys = tx.keys
        (found,) = await tx.read((b"ZRANGE", keys.record_expiries, 0, limit, b"WITHSCORES"))
        _require_owner(tx)
        due = [(place, int(float(score))) for place, score in zip(found[::2], found[1::2], strict=True)]
        gone = [place for place, score in due[:limit] if score <= now]
        _queue_deletion(tx, gone, await _read_rows(tx, gone) if gone else {})
        if not gone:
            _outdate_writes(tx)
        return len(gone), due[len(gone)][1] if len(due) > len(gone) else None

    @write_transaction()
    async def _postpone(self, tx: Transaction, member: bytes, token: bytes | None, time: int) -> None:
        """Set the time at which an owner is swept again, unless the owner was listed again since its token was read."""
        keys, field = self._tenant_keys, b"\0" + member
        (found,) = await tx.read((b"HGET", keys.record_tokens, field))
        if found == token:
            tx.check(keys.record_tokens, field, token)
            tx.queue("ZADD", keys.record_expiries, "XX", time, member)


# -- owners ----------------------------------------------------------------------


def _encode_owner(owner: RecordOwner) -> bytes:
    if isinstance(owner, SessionRef):
        return encode_name(owner.user_id) + encode_name(owner.id)
    return encode_name(owner.user_id) if isinstance(owner, UserRef) else b""


def _decode_owner(member: bytes) -> RecordOwner:
    names = decode_names(member[1:])
    if len(names) > 1:
        return SessionRef(*names)
    return UserRef(*names) if names else TenantRef()


def _get_owner(keys: ScopeKeys) -> RecordOwner:
    if isinstance(keys, SessionKeys):
        return SessionRef(keys.user_id, keys.id)
    return UserRef(keys.user_id) if keys.user_id else TenantRef()


def _require_owner(tx: Transaction, identity: str | None = None) -> None:
    """Raise `SessionNotFound` if the owner is a session that does not exist, or that has another identity than `identity`."""
    if not isinstance(tx.keys, SessionKeys):
        return
    if tx.record is None or identity not in {None, tx.record.session.identity}:
        raise SessionNotFound(tx.keys.id)


def _parse_version(total: bytes | None) -> int:
    return int((total or b"0").removeprefix(_DROPPED))


async def unlist_expiring(handle: Handle, owner: RecordOwner) -> None:
    """Remove an owner from the tenant's list of owners with expiring records, if the owner no longer has such a record."""
    tenant = handle.database.keys.tenant(handle.tenant)
    member = _EXPIRING + _encode_owner(owner)
    (token,) = await handle.database.fetch(((b"HGET", tenant.record_tokens, b"\0" + member),))
    if token is None:
        return

    async def has_expiring(tx: Transaction) -> bool:
        (left,) = await tx.read((b"ZCARD", tx.keys.record_expiries))
        if not left and (tx.record is not None or not isinstance(tx.keys, SessionKeys)):
            _outdate_writes(tx)
        return bool(left)

    if not await handle.run(_resolve_owner_keys(handle, owner), has_expiring, write=True):
        await _discard(handle, tenant.record_expiries, member, token)


def _outdate_writes(tx: Transaction) -> None:
    """Give the owner a new guard, although no data of the owner change.

    A write lists the owner before it is committed. So a token that was read may be that of a write whose records are not stored yet.
    With a new guard, this write is run again, and lists the owner with another token.
    """
    tx.queue("EXISTS", tx.keys.head)


async def _discard(handle: Handle, key: bytes, member: bytes, token: bytes | None) -> None:
    """Remove a member from one of the tenant's sorted sets, unless it was added again since its token was read."""
    tokens = handle.database.keys.tenant(handle.tenant).record_tokens
    await handle.database.nodes.run(_DISCARD, [tokens, key], (b"\0" + member, token or b""), once=False)


# -- reading -----------------------------------------------------------------


async def _read_rows(tx: Transaction, places: Sequence[bytes]) -> dict[bytes, RecordRow]:
    """Return the rows of the records at these places, in this order. Expired records are included; places without a record are not."""
    found = await tx.read_fields(tx.keys.record_infos, places) if places else {}
    if not places:
        await tx.read()
    _require_owner(tx)
    return {place: RecordRow(*unpack_list(data)) for place, data in found.items()}


async def _read_values(tx: Transaction, rows: dict[bytes, RecordRow]) -> dict[bytes, Record]:
    values = await tx.read_fields(tx.keys.record_values, list(rows)) if rows else {}
    searchable = [place for place, row in rows.items() if row.number is not None]
    texts = await tx.read_fields(tx.keys.record_texts, searchable) if searchable else {}
    return {
        place: make_record(decode_place(place), rows[place], data, texts.get(place)) for place, data in values.items()
    }


async def _read_range(
    tx: Transaction, bounds: tuple[bytes, bytes], limit: int, now: int, *, descending: bool = False
) -> dict[bytes, RecordRow]:
    """Return the rows of the first `limit` unexpired records in a range of places, by place and in order."""
    (begin, end), found = bounds, dict[bytes, RecordRow]()
    while len(found) < limit and begin < end:
        ends = (b"(" + end, b"[" + begin) if descending else (b"[" + begin, b"(" + end)
        name, size = (b"ZREVRANGEBYLEX" if descending else b"ZRANGEBYLEX"), max(limit - len(found), _PAGE)
        (places,) = await tx.read((name, tx.keys.record_places, *ends, b"LIMIT", 0, size))
        rows = await _read_rows(tx, places)
        for place in places:
            if len(found) < limit and place in rows and rows[place].is_there(now):
                found[place] = rows[place]
        if len(places) < size:
            break
        begin, end = (begin, places[-1]) if descending else (places[-1] + b"\0", end)
    _require_owner(tx)
    return found


# -- writing -----------------------------------------------------------------


async def write_record_changes(
    tx: Transaction, changes: Sequence[EncodedChange], timestamp: int, *, fresh: bool = False
) -> ChangedRecords:
    """Queue changes of records. Their owner is the scope of the transaction.

    Args:
        tx: the write.
        changes: the changes.
        timestamp: time of the write, in milliseconds since the epoch.
        fresh: True if the same write creates the session. Stored records then belong to an earlier session, and are ignored.

    Raises:
        StaleRecord: a record does not have the version that its change expects.
        SessionNotFound: the owner is a session that does not exist.
    """
    keys, places = tx.keys, _list_fields(changes)
    found = {} if fresh else await tx.read_fields(keys.record_infos, places)
    _require_owner(tx)
    total, numbers = found.pop(_TOTAL, None), int(found.pop(_NUMBERS, 0))
    stored = {place: RecordRow(*unpack_list(data)) for place, data in found.items()}
    refuse_stale(changes, stored, timestamp)
    existed = tuple(change.place in stored and stored[change.place].is_there(timestamp) for change in changes)
    put = {change.place: change for change in changes if change.put}
    gone = [change.place for change in changes if not change.put and change.place in stored]
    version = _parse_version(total)
    if put or gone:
        version = (version or choose_first_version(timestamp, 0)) + 1
    given, freed, after = assign_numbers(changes, stored, numbers, timestamp)
    for place, change in put.items():
        row = make_row(change, stored.get(place), version, timestamp, given.get(place))
        if row.expires_at is not None:
            check_int64(row.expires_at)
        tx.queue("HSET", keys.record_values, place, change.data)
        tx.queue("HSET", keys.record_infos, place, _pack_row(row))
        if place not in stored:
            tx.queue("ZADD", keys.record_places, 0, place)
        if row.expires_at is not None:
            tx.queue("ZADD", keys.record_expiries, row.expires_at, place)
        elif place in stored and stored[place].expires_at is not None:
            tx.queue("ZREM", keys.record_expiries, place)
        _queue_text(tx, place, change.text, row, stored.get(place))
    if put or gone:
        tx.queue("HSET", keys.record_infos, _TOTAL, version)
    if after != numbers:
        tx.queue("HSET", keys.record_infos, _NUMBERS, after)
    if put:
        _list_owner(tx, list(put.values()), is_new=total is None or total.startswith(_DROPPED))
    _queue_deletion(tx, gone, stored)
    return ChangedRecords(version, existed, freed)


def _list_fields(changes: Sequence[EncodedChange]) -> list[bytes]:
    """Return the fields of the hash of records that a write reads. The counter of numbers is needed only for searchable records."""
    fields = [_TOTAL, *(change.place for change in changes)]
    return [*fields, _NUMBERS] if any(change.text is not None for change in changes) else fields


def _pack_row(row: RecordRow) -> bytes:
    """Encode a row. Without a number, it has the form of earlier releases, of which a process may still run."""
    return pack(row if row.number is not None else row[:-1])


def _queue_text(tx: Transaction, place: bytes, text: bytes | None, row: RecordRow, before: RecordRow | None) -> None:
    """Queue the searchable text of a record that is put. A record that is not searchable, and was not before, needs no command."""
    keys, was_searchable = tx.keys, before is not None and before.number is not None
    if before is not None and was_searchable:
        tx.queue("ZREM", keys.record_searched, _make_member(place, before))
    if text is not None:
        tx.queue("HSET", keys.record_texts, place, text)
        tx.queue("ZADD", keys.record_searched, 0, _make_member(place, row))
    elif was_searchable:
        tx.queue("HDEL", keys.record_texts, place)


def _make_member(place: bytes, row: RecordRow) -> bytes:
    """Return the member of a searchable record in the sorted set of these records."""
    assert row.number is not None, "it is searchable"
    return encode_number(row.version) + encode_number(row.number) + place


def _queue_deletion(tx: Transaction, places: Sequence[bytes], stored: Mapping[bytes, RecordRow]) -> None:
    """Queue the deletion of records. `stored` has the rows of those that are searchable, or of more."""
    keys = tx.keys
    searchable = [place for place in places if place in stored and stored[place].number is not None]
    for at in range(0, len(searchable), MAX_ARGUMENTS):
        part = searchable[at : at + MAX_ARGUMENTS]
        tx.queue("HDEL", keys.record_texts, *part)
        tx.queue("ZREM", keys.record_searched, *[_make_member(place, stored[place]) for place in part])
    for at in range(0, len(places), MAX_ARGUMENTS):
        some = places[at : at + MAX_ARGUMENTS]
        for name, key in (("HDEL", keys.record_values), ("HDEL", keys.record_infos)):
            tx.queue(name, key, *some)
        for key in (keys.record_places, keys.record_expiries):
            tx.queue("ZREM", key, *some)


def _list_owner(tx: Transaction, put: Sequence[EncodedChange], *, is_new: bool) -> None:
    """Add the owner to the tenant's lists of owners.

    When the first record of a user or of the tenant is written, this owner is added to the list of owners. Sessions are not in
    that list. Any owner except a withdrawn session is added to the list of expiry times if a record in `put` expires.
    """
    keys, tenant = tx.keys, tx.database.keys.tenant(tx.keys.tenant)
    member = _encode_owner(_get_owner(keys))
    listed: list[tuple[bytes, bytes, tuple[Any, ...]]] = []
    if is_new and not isinstance(keys, SessionKeys):
        tx.is_new = True
        listed.append((_OWNER + member, tenant.record_owners, (0,)))
    times = [change.expires_at for change in put if change.expires_at is not None]
    if times and not getattr(keys, "withdrawn", ""):
        listed.append((_EXPIRING + member, tenant.record_expiries, (b"LT", min(times))))
    for one, key, score in listed:
        token = secrets.token_bytes(_TOKEN_BYTES)
        tx.tenant_commands.append((b"HSET", tenant.record_tokens, b"\0" + one, token))
        tx.tenant_commands.append((b"ZADD", key, *score, one))


async def count_records(tx: Transaction) -> tuple[int, int, int]:
    """Return three values for the transaction's session: number of records, total bytes of their values, and version of the records."""
    keys, begin, number, size = tx.keys, b"-", 0, 0
    total: bytes | None = None
    while True:
        page: Command = (b"ZRANGEBYLEX", keys.record_places, begin, b"+", b"LIMIT", 0, PAGE)
        places, total = await tx.read(page, (b"HGET", keys.record_infos, _TOTAL))
        if not places:
            return number, size, _parse_version(total)
        number += len(places)
        size += sum([row.size for row in (await _read_rows(tx, places)).values()])
        begin = b"(" + places[-1]

"""The part of the store contract about records: values under a namespace and a key, owned by a session, a user or the tenant.

A record's name is a namespace and a key. It is unique for its owner, and owners never see each other's records. A value is bytes
or JSON. `holdfast.domain.record` has the types and the rules for names.

**Versions.** An owner has a version, which grows with each write that changes its records. Records that a write puts get the
version after the write. So a version is never reused, even if a record is deleted and created again, or after `drop_records`. But a
session that was removed and created again is another owner; the argument `identity` of all methods distinguishes the two sessions: if
the session has another identity, they raise `SessionNotFound`. The first version of an owner depends on the time, and not on how much
other owners have written.

**Compare and set.** A change with `expect` takes effect only if the record has this version. All changes of a call take effect,
or none. Of several calls with the same `expect`, one succeeds and the others raise `StaleRecord`.

**Expiry.** A record with `expires_at` no longer exists from that time on, by the `now` or `timestamp` of the call. `sweep_records`
deletes expired records from the database. Until then they only use space.

**Searchable records.** A record with a text is searchable. It has a number, which is unique among the owner's searchable records and is
kept while the record stays searchable. Records without a text cost a store nothing more. `searchable_records` returns what an index
needs; the text is deleted, copied and replaced together with the value.

**Size.** The values of a page, and of what one transaction deletes, have at most `RECORD_PAGE_BYTES` bytes together, unless the first
record alone has more. So no caller with large records delays another one for long.

**Deletion and copies.** `remove` and `replace` delete the records of a session. A session that loses its name keeps them until it
is removed. Records change neither the version nor the times of a session. `Append.records` writes records of the session in the
same transaction as entries.

If an owner with many or large records is deleted, its row loses its name in the same transaction. So the records no longer exist for
readers, and no transaction is longer than a batch. The rows of the records are deleted afterwards in batches (`purge_records`), or by
`sweep_records` if the process dies in between.

A record's place is its encoded name: a byte string that sorts by namespace and key. "Refuse" has the same meaning as in `holdfast.stores.checks`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from holdfast.accounting import run_cpu
from holdfast.domain import record as domain
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import (
    MISSING,
    ChangedRecords,
    DeleteRecord,
    Namespace,
    PutRecord,
    Record,
    RecordChange,
    RecordInfo,
    RecordName,
    RecordOwner,
    RecordPage,
    SearchablePage,
    SearchableRecord,
    TenantRef,
    decode_place,
    end_of_namespace,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, StaleRecord, StoreCorrupt, TooLarge
from holdfast.limits import PAGE, RECORD_CHANGES, RECORD_PAGE_BYTES, RECORDS_BYTES
from holdfast.stores import checks
from holdfast.stores.logic.due import note_removed_records
from holdfast.stores.logic.handle import Handle, read_session_row, reads
from holdfast.stores.logic.owners import OwnerKey, OwnerRow, lock_owner, raise_floor, read_owner, save_owner
from holdfast.stores.logic.rows import UNDECODABLE, decode_text, encode_array, get_identity
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps

_READ_AT_ONCE: Final = 2
"""Up to this number, records are read without reading their sizes first."""
_VERSIONS_A_MILLISECOND: Final = 1024
_LATEST_TIME: Final = 2**53 // _VERSIONS_A_MILLISECOND - 1
"""Keeps the first version below 2**53, because JavaScript has no larger whole numbers. It is a time in the year 2248."""


class RecordStore(Handle):
    """Read, list, change and delete records. The module docstring describes what all methods promise.

    If the owner is a session that does not exist, all methods raise `SessionNotFound`.
    """

    @reads()
    def records(
        self, owner: RecordOwner, names: Sequence[RecordName], *, now: int, identity: str | None = None
    ) -> Steps[tuple[Record | None, ...]]:
        """Return records by name, as of one moment. A name without a record gives None.

        Args:
            owner: the owner.
            names: at most `RECORD_CHANGES` names.
            now: milliseconds since the epoch; expired records are left out.
            identity: the identity that the session must have; None: any.

        Raises:
            TooLarge: there are too many names, or the values have more than `RECORDS_BYTES` bytes together.
        """
        places = check_names(owner, names, now)
        key, _ = yield from _locate_owner(self.tenant, owner, identity)
        if len(places) > _READ_AT_ONCE:
            rows = yield Query("records_sizes", (*key, _encode_places(places), now))
            sizes = [row[0] for row in rows]
            if sum(sizes) > RECORDS_BYTES:
                raise TooLarge(
                    f"the values have {sum(sizes)} bytes together; at most {RECORDS_BYTES} are read at once: name fewer records",
                    param="names",
                )
        found = yield from _read_values(key, places, now)
        return tuple(found.get(place) for place in places)

    @reads()
    def list_records(
        self,
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
    ) -> Steps[RecordPage]:
        """Return a page of records, in order of namespace and key by their bytes.

        A page ends early if its values have more than `RECORD_PAGE_BYTES` bytes together. It has at least one record if there is one.

        Args:
            owner: the owner.
            namespace: the namespace.
            now: milliseconds since the epoch; expired records are left out.
            identity: the identity that the session must have; None: any.
            prefix: only keys that begin with this text; not together with `nested`.
            nested: also include records of namespaces below this one. The namespace may then be empty.
            after: the last record of the previous page, which need not exist any more.
            limit: maximum number of records, 1 to `PAGE`.
            descending: True: the last record first.
            values: False: return `RecordInfo` without values, which costs less.
        """
        check_owner(owner)
        begin, end = check_list(namespace, prefix, nested=nested, after=after, limit=limit, descending=descending)
        name = "records_backward" if descending else "records_forward"
        key, _ = yield from _locate_owner(self.tenant, owner, identity)
        return (yield from _list_records(key, name, (begin, end, now), limit=limit, values=values))

    @reads()
    def record_namespaces(
        self,
        owner: RecordOwner,
        prefix: Namespace = (),
        *,
        now: int,
        identity: str | None = None,
        depth: int | None = None,
        after: Namespace | None = None,
        limit: int = 100,
    ) -> Steps[tuple[Namespace, ...]]:
        """Return the namespaces that contain records, in order. The cost grows with the number of namespaces, not of records.

        Args:
            owner: the owner.
            prefix: only namespaces that begin with these labels.
            now: milliseconds since the epoch; expired records are left out.
            identity: the identity that the session must have; None: any.
            depth: cut namespaces to this number of labels, and return each result once; None: do not cut.
            after: the last namespace of the previous page.
            limit: maximum number of namespaces, 1 to `PAGE`.
        """
        check_owner(owner)
        domain.check_namespace(prefix, empty=True)
        checks.check_int(depth, "depth", none=True, low=1)
        if after is not None:
            domain.check_namespace(after)
        checks.check_limit(limit)
        begin, end = domain.encode_namespace(prefix), end_of_namespace(prefix, nested=True)
        if after is not None:
            begin = max(begin, end_of_namespace(after, nested=len(after) == depth))
        key, _ = yield from _locate_owner(self.tenant, owner, identity)
        row, found = (yield from read_owner(key)), list[Namespace]()
        # Each statement searches after the last record of the previous namespace.
        while row and len(found) < limit and (rows := (yield Query("records_forward", (row.pk, begin, end, now, 1)))):
            namespace = decode_place(rows[0][0]).namespace[:depth]
            found.append(namespace)
            begin = end_of_namespace(namespace, nested=len(namespace) == depth)
        return tuple(found)

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        """Put and delete records of one owner, all or none.

        Args:
            owner: the owner.
            changes: at most `RECORD_CHANGES` changes, of different names.
            timestamp: milliseconds since the epoch.
            identity: the identity that the session must have; None: any.

        Raises:
            StaleRecord: a record does not have the expected version.
            InvalidRequest: a name or a value cannot be stored, or two changes have the same name.
            TooLarge: a value, or the whole write, is too large.
        """
        check_owner(owner)
        encoded = await encode_changes_off_loop(changes)

        def steps() -> Steps[ChangedRecords]:
            key, _ = yield from _locate_owner(self.tenant, owner, identity)
            return (yield from change_owned(key, owner, encoded, timestamp))

        return await self._write(steps, _get_scope(owner), scrub=not all(change.put for change in encoded))

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
        """Delete all records of an owner, also from the disk; return the number of records.

        For readers, all records disappear at the same moment. If the owner is a user, the user's name is deleted too. Expired records that
        were not swept yet are counted. If the process dies meanwhile, `sweep_records` deletes what is left on the disk.

        Args:
            owner: the owner.
            identity: the identity that the session must have; None: any.
        """
        check_owner(owner)
        steps = partial(_drop_records, self.tenant, owner, identity)
        dropped = await self._write(steps, _get_scope(owner), scrub=True)
        return (await self._purge_records(dropped)).records

    async def _purge_records(self, dropped: DroppedRecords) -> DroppedRecords:
        """Delete what `dropped` left to be deleted, in one transaction per batch. Return the total."""
        while dropped.left is not None:
            dropped += await self._write(partial(purge_records, dropped.left), scrub=True)
        return dropped

    async def sweep_records(self, *, now: int, limit: int = 100) -> int:
        """Delete a batch of at most `limit` records of the tenant that have expired at `now`; return their number.

        Afterwards, delete a batch of those that an interrupted deletion has left. 0 means that there is nothing left to be deleted.
        """
        if not await self._read(partial(_has_records_to_sweep, self.tenant, now)):
            return 0
        return await self._write(partial(_sweep_records, self.tenant, now, limit), scrub=True)

    @reads()
    def searchable_records(
        self,
        owner: RecordOwner,
        *,
        now: int,
        since: tuple[int, int] = (0, 0),
        names: Sequence[RecordName] | None = None,
        limit: int = 100,
        identity: str | None = None,
    ) -> Steps[SearchablePage]:
        """Return searchable records without their values, in order of version and number.

        The cost depends on the number of records returned, and not on the number of the owner's records.

        Args:
            owner: the owner.
            now: milliseconds since the epoch; expired records are left out.
            since: a version and a number; only records after both are returned.
            names: only these records, at most `RECORD_CHANGES`; `since` and `limit` then have no effect. None: all.
            limit: maximum number of records, 1 to `RECORD_CHANGES`.
            identity: the identity that the session must have; None: any.
        """
        places = check_searchable(owner, since, names, now, limit)
        key, known = yield from _locate_owner(self.tenant, owner, identity)
        row = yield from read_owner(key)
        if row is None:
            return SearchablePage((), has_more=False, version=0, identity=known)
        rows: Rows = ()
        if names is None:
            rows = yield Query("records_searchable", (row.pk, *since, now, limit + 1))
        elif places:
            rows = yield Query("records_searchable_named", (row.pk, _encode_places(places), now))
        found = _decode_searchable(rows)
        last = limit if names is None else len(found)
        return SearchablePage(tuple(found[:last]), len(found) > last, row.version, known)

    async def record_users(self, *, after: str | None = None, limit: int = 100) -> tuple[str, ...]:
        """Return users that have searchable records of their own, in order, and possibly others. An empty name stands for the tenant.

        Args:
            after: the last name of the previous page; None: from the beginning.
            limit: maximum number of names, 1 to `PAGE`.
        """
        rows = await self._select(tuple, "record_users", after or "", int(after is None), limit)
        return tuple(decode_text(user) for (user,) in rows)


def _get_scope(owner: RecordOwner) -> SessionRef | UserRef:
    return owner if isinstance(owner, SessionRef) else UserRef(getattr(owner, "user_id", ""))


class DroppedRecords(NamedTuple):
    """Result of deleting records."""

    records: int = 0
    """Number of records that were deleted."""
    bytes: int = 0
    """Bytes of their values."""
    left: int | None = None
    """Primary key of an owner without a name whose records are still to be deleted; None: all are deleted."""

    def __add__(self, other: DroppedRecords) -> DroppedRecords:  # type: ignore[override]
        """Add up the numbers. `left` is that of the later result."""
        return DroppedRecords(self.records + other.records, self.bytes + other.bytes, other.left)


def make_record_key(tenant: str, owner: RecordOwner, session: int = 0) -> OwnerKey:
    """Return the name of an owner of records; `session` is the primary key of a session."""
    return OwnerKey(tenant, "records", getattr(owner, "user_id", ""), session)


def _locate_owner(tenant: str, owner: RecordOwner, identity: str | None) -> Steps[tuple[OwnerKey, str]]:
    """Return the name of an owner, and the identity of the session; the identity of other owners is empty."""
    if not isinstance(owner, SessionRef):
        return make_record_key(tenant, owner), ""
    row = yield from read_session_row(tenant, owner, identity)
    return make_record_key(tenant, owner, row[0]), get_identity(row)


# -- reading -----------------------------------------------------------------


def _read_values(key: OwnerKey, places: Collection[bytes], now: int) -> Steps[dict[bytes, Record]]:
    rows = (yield Query("records_named", (*key, _encode_places(places), now))) if places else ()
    try:
        return {
            bytes(row[0]): make_record(
                decode_place(row[0]), RecordRow(*row[1:-2]), bytes(row[-2]), row[-1] and bytes(row[-1])
            )
            for row in rows
        }
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"a record is damaged and cannot be decoded ({exc})") from exc


def _list_records(key: OwnerKey, statement: str, bounds: Row, *, limit: int, values: bool) -> Steps[RecordPage]:
    """Return a page of records. The sizes are read before the values, so that the page can be limited in bytes."""
    owner = yield from read_owner(key)
    if owner is None:
        return RecordPage((), has_more=False)
    rows = yield Query(statement, (owner.pk, *bounds, limit + 1))
    infos = [(bytes(row[0]), RecordRow(*row[1:])) for row in rows]
    number = count_page([row.size for _, row in infos], limit) if values else min(len(infos), limit)
    page = infos[:number]
    records: tuple[RecordInfo, ...] = tuple(make_info(decode_place(place), row) for place, row in page)
    if values:
        found = yield from _read_values(key, [place for place, _ in page], bounds[-1])
        records = tuple(found[place] for place, _ in page)
    return RecordPage(records, len(infos) > number, owner.version)


def _decode_searchable(rows: Rows) -> list[SearchableRecord]:
    try:
        return [make_searchable(decode_place(row[0]), RecordRow(*row[1:-1]), bytes(row[-1])) for row in rows]
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"a searchable record is damaged and cannot be decoded ({exc})") from exc


def _encode_places(places: Collection[bytes]) -> str:
    return encode_array(place.hex() for place in places)


# -- writing -----------------------------------------------------------------


def change_owned(
    key: OwnerKey, owner: RecordOwner, changes: Sequence[EncodedChange], timestamp: int
) -> Steps[ChangedRecords]:
    """Put and delete records of an owner.

    Args:
        key: the name of the owner.
        owner: the owner.
        changes: the changes.
        timestamp: milliseconds since the epoch.

    Raises:
        StaleRecord: a record does not have the expected version.
    """
    puts = any(change.put for change in changes)
    before = (yield from lock_owner(key)) if puts else (yield from read_owner(key))
    stored: dict[bytes, RecordRow] = {}
    if before is not None and before.version:
        rows = yield Query("records_info", (before.pk, _encode_places([change.place for change in changes])))
        stored = {bytes(row[0]): RecordRow(*row[1:]) for row in rows}
    refuse_stale(changes, stored, timestamp)
    existed = tuple(change.place in stored and stored[change.place].is_there(timestamp) for change in changes)
    if before is None or not (puts or stored):
        return ChangedRecords(before.version if before else 0, existed)
    version = (before.version or choose_first_version(timestamp, before.floor)) + 1
    given, freed, numbers = assign_numbers(changes, stored, before.numbers, timestamp)
    if gone := [(before.pk, change.place) for change in changes if not change.put and change.place in stored]:
        yield Many("record_delete", gone)
    put: list[Row] = []
    for change in changes:
        if change.put:
            row = make_row(change, stored.get(change.place), version, timestamp, given.get(change.place))
            put.append((before.pk, change.place, key.tenant, *row, change.data, change.text))
    if put:
        yield Many("record_put", put)
    yield from save_owner(before._replace(version=version, numbers=numbers))
    if freed:
        yield from note_removed_records(key.tenant, owner, freed)
    return ChangedRecords(version, existed, freed)


def _drop_records(tenant: str, owner: RecordOwner, identity: str | None) -> Steps[DroppedRecords]:
    """Delete all records of an owner, or take them away from it."""
    key, _ = yield from _locate_owner(tenant, owner, identity)
    row = yield from read_owner(key)
    if row is not None:
        yield from raise_floor(key, row.version + 1)
        yield from note_removed_records(tenant, owner)
    return (yield from drop_owned(row))


def drop_owned(owner: OwnerRow | None) -> Steps[DroppedRecords]:
    """Delete an owner with its records. If these are too many or too large for one transaction, the owner only loses its name."""
    dropped = (yield from purge_records(owner.pk, whole=True)) if owner else DroppedRecords()
    if dropped.left is not None:
        yield Query("owner_detach", (dropped.left,))
    return dropped


def purge_records(pk: int, *, whole: bool = False) -> Steps[DroppedRecords]:
    """Delete a batch of an owner's records, and with the last of them the owner.

    Args:
        pk: primary key of the owner.
        whole: True: delete nothing if there are more records than fit into a batch.
    """
    rows = yield Query("records_first", (pk, PAGE + 1))
    number = count_page([row[1] for row in rows], PAGE)
    last = number == len(rows)
    if whole and not last:
        return DroppedRecords(left=pk)
    if number:
        yield Query("records_delete_through", (pk, rows[number - 1][0]))
    if last:
        yield Query("owner_delete", (pk,))
    return DroppedRecords(number, sum(row[1] for row in rows[:number]), None if last else pk)


def _has_records_to_sweep(tenant: str, now: int) -> Steps[bool]:
    found = (yield Query("records_expired", (tenant, now, 1))) or (yield Query("owner_detached", (tenant, "records")))
    return bool(found)


def _sweep_records(tenant: str, now: int, limit: int) -> Steps[int]:
    """Delete a batch of expired records, or else of those that an interrupted deletion has left.

    If a record was put again in the meantime, it is kept: each row is checked again when it is deleted.
    """
    rows = yield Query("records_expired", (tenant, now, limit))
    if rows:
        batch = rows[: count_page([row[2] for row in rows], limit)]
        yield Many("record_expire", [(*row[:2], now) for row in batch])
        return len(batch)
    detached = yield Query("owner_detached", (tenant, "records"))
    return (yield from purge_records(detached[0][0])).records if detached else 0


# -- checks and conversion ------------------------------------------------------


class EncodedChange(NamedTuple):
    """A change of a record, ready to be stored."""

    key: str
    place: bytes
    expect: int | None
    put: bool
    expires_at: int | None = None
    raw: bool = False
    data: bytes = b""
    times: tuple[int, int] | None = None
    text: bytes | None = None


class RecordRow(NamedTuple):
    """The stored fields of a record besides its name and value."""

    version: int
    created_at: int
    updated_at: int
    expires_at: int | None
    raw: int
    """1 if the value is bytes, 0 if it is JSON."""
    size: int
    """Bytes of the value and of the searchable text."""
    number: int | None = None
    """Number of the record among the owner's searchable records; None: it is not searchable."""

    def is_there(self, now: int) -> bool:
        """Return True if the record has not expired at `now`."""
        return self.expires_at is None or self.expires_at > now


def check_owner(owner: RecordOwner) -> None:
    """Refuse an owner that cannot exist."""
    if isinstance(owner, SessionRef):
        checks.check_ref(owner)
    elif isinstance(owner, UserRef):
        checks.check_id(owner.user_id, "user_id")
    else:
        checks.check_kind(owner, "owner", TenantRef, "a SessionRef, a UserRef or a TenantRef")


def check_names(owner: RecordOwner, names: Sequence[RecordName], now: int) -> list[bytes]:
    """Return the places of records. Refuse invalid names, and too many names at once."""
    check_owner(owner)
    checks.check_int(now, "now")
    checks.check_count(len(names), RECORD_CHANGES, "records", "names")
    return [_encode_name(name) for name in names]


def _encode_name(name: RecordName) -> bytes:
    domain.check_namespace(name.namespace)
    domain.check_record_key(name.key)
    return domain.encode_place(name)


def check_list(
    namespace: Namespace, prefix: str, *, nested: bool, after: RecordName | None, limit: int, descending: bool
) -> tuple[bytes, bytes]:
    """Return the first place of a page in a list of records, and the end of the range, exclusive. Refuse invalid arguments."""
    domain.check_namespace(namespace, empty=nested)
    domain.check_record_key(prefix, empty=True)
    checks.check_limit(limit)
    if prefix and nested:
        raise InvalidRequest("prefix and nested cannot be combined: a prefix belongs to one namespace", param="prefix")
    begin, end = domain.find_range(namespace, prefix, nested=nested)
    if after is not None:
        last = _encode_name(after)
        begin, end = (begin, min(end, last)) if descending else (max(begin, last + b"\0"), end)
    return begin, end


def check_searchable(
    owner: RecordOwner, since: tuple[int, int], names: Sequence[RecordName] | None, now: int, limit: int
) -> list[bytes]:
    """Return the places of the named records. Refuse invalid arguments of a read of searchable records."""
    places = check_names(owner, names or (), now)
    for one in since:
        checks.check_int(one, "since")
    checks.check_limit(limit, highest=RECORD_CHANGES)
    return places


def encode_changes(changes: Sequence[RecordChange], *, unlimited: bool = False) -> list[EncodedChange]:
    """Encode changes of records. Refuse invalid ones, and two of the same name.

    Args:
        changes: the changes.
        unlimited: if False, also refuse too many changes, and values that are too large together.
    """
    if not unlimited:
        checks.check_count(len(changes), RECORD_CHANGES, "records", "records")
    encoded = [_encode_change(change) for change in changes]
    if len({change.place for change in encoded}) < len(encoded):
        raise InvalidRequest("a write can change each record only once", param="records")
    size = sum(measure_change(change) for change in encoded)
    if size > RECORDS_BYTES and not unlimited:
        raise TooLarge(f"the values have {size} bytes together; at most {RECORDS_BYTES} are allowed", param="records")
    return encoded


def measure_change(change: EncodedChange) -> int:
    """Return the bytes of the value and of the searchable text of a record that is put."""
    return len(change.data) + len(change.text or b"")


async def encode_changes_off_loop(changes: Sequence[RecordChange], *, unlimited: bool = False) -> list[EncodedChange]:
    """Return `encode_changes(…)`. Large values are encoded in a thread, so that other requests do not wait."""
    long = any(isinstance(change, PutRecord) and domain.is_large_value(change.value) for change in changes)
    return await run_cpu(partial(encode_changes, changes, unlimited=unlimited), long=long)


def _encode_change(change: RecordChange) -> EncodedChange:
    checks.check_kind(change, "records", PutRecord | DeleteRecord, "a PutRecord or a DeleteRecord")
    place = _encode_name(change.name)
    checks.check_int(change.expect, "expect", none=True, low=MISSING)
    if isinstance(change, DeleteRecord):
        return EncodedChange(change.name.key, place, change.expect, put=False)
    checks.check_int(change.expires_at, "expires_at", none=True)
    for time in change.times or ():
        checks.check_int(time, "times")
    raw, data = domain.encode_record_value(change.value)
    text = domain.encode_record_text(change.text)
    return EncodedChange(change.name.key, place, change.expect, True, change.expires_at, raw, data, change.times, text)


def refuse_stale(changes: Sequence[EncodedChange], stored: dict[bytes, RecordRow], now: int) -> None:
    """Raise `StaleRecord` if a record does not have the version that a change expects.

    Args:
        changes: the changes.
        stored: the stored records by place.
        now: milliseconds since the epoch. An expired record is treated as missing.
    """
    for change in changes:
        if change.expect is None:
            continue
        row = stored.get(change.place)
        version = row.version if row is not None and row.is_there(now) else MISSING
        if version != change.expect:
            raise StaleRecord(change.key, expected=change.expect, version=version)


def make_row(change: EncodedChange, before: RecordRow | None, version: int, now: int, number: int | None) -> RecordRow:
    """Return the stored fields of a record that is put.

    Args:
        change: the change.
        before: the record that it replaces, which may have expired.
        version: the owner's version after the write.
        now: milliseconds since the epoch.
        number: the record's number among the owner's searchable records.
    """
    created_at = before.created_at if before is not None and before.is_there(now) else now
    created_at, updated_at = change.times or (created_at, now)
    size = measure_change(change)
    return RecordRow(version, created_at, updated_at, change.expires_at, int(change.raw), size, number)


def assign_numbers(
    changes: Sequence[EncodedChange], stored: dict[bytes, RecordRow], numbers: int, now: int
) -> tuple[dict[bytes, int], tuple[int, ...], int]:
    """Give the records that become searchable a number. Records that are searchable already keep theirs.

    Args:
        changes: the changes.
        stored: the stored records by place.
        numbers: how many numbers the owner has given.
        now: milliseconds since the epoch. A record that has expired is another one than the record that replaces it.

    Returns:
        The number of each record that is put with a text, by place; the numbers of records that are not searchable any more; and
        how many numbers the owner has given after the write.
    """
    given: dict[bytes, int] = {}
    freed: list[int] = []
    for change in changes:
        row = stored.get(change.place)
        known = None if row is None else row.number
        if change.text is not None:
            if row is not None and known is not None and row.is_there(now):
                given[change.place] = known
                continue
            given[change.place] = numbers
            numbers += 1
        if known is not None:
            freed.append(known)
    return given, tuple(freed), numbers


def choose_first_version(timestamp: int, floor: int) -> int:
    """Return the version from which an owner without a version counts on.

    It is derived from the time, so that it does not show how much other owners have written, and is higher than the versions of a
    deleted owner of the same name. An owner would need more than 1,024 writes in each millisecond to overtake the clock.

    Args:
        timestamp: time of the owner's first write, in milliseconds since the epoch.
        floor: the highest version of any owner that was deleted. It matters only if a clock was set back.
    """
    return max(floor, min(max(timestamp, 0), _LATEST_TIME) * _VERSIONS_A_MILLISECOND)


def make_info(name: RecordName, row: RecordRow) -> RecordInfo:
    """Return a `RecordInfo`, which is a record without its value."""
    return RecordInfo(name=name, **_get_fields(row))


def make_record(name: RecordName, row: RecordRow, data: bytes, text: bytes | None) -> Record:
    """Return a record with its value."""
    return Record(
        name=name, is_json=not row.raw, data=data, text=None if text is None else text.decode(), **_get_fields(row)
    )


def make_searchable(name: RecordName, row: RecordRow, text: bytes) -> SearchableRecord:
    """Return a searchable record without its value."""
    assert row.number is not None, "it is searchable"
    return SearchableRecord(name=name, number=row.number, text=text.decode(), **_get_fields(row))


def _get_fields(row: RecordRow) -> dict[str, Any]:
    fields = row._asdict()
    del fields["raw"], fields["number"]
    return fields


def count_page(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the records with these sizes fit on one page: at least one, if there are any."""
    total = 0
    for number, size in enumerate(sizes[:limit]):
        total += size
        if number and total > RECORD_PAGE_BYTES:
            return number
    return min(len(sizes), limit)

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
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

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
    SearchableRecord,
    decode_place,
    encode_namespace,
    end_of_namespace,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreCorrupt
from holdfast.limits import PAGE
from holdfast.stores.logic.due import note_removed_records
from holdfast.stores.logic.handle import Handle, read_session_row
from holdfast.stores.logic.owners import OwnerKey, OwnerRow, lock_owner, raise_floor, read_owner, save_owner
from holdfast.stores.logic.rows import UNDECODABLE, decode_text, encode_array, get_identity
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps
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

_READ_AT_ONCE: Final = 2
"""Up to this number, records are read without reading their sizes first."""


class RecordStore(Handle):
    """Read, list, change and delete records. The module docstring describes what all methods promise.

    If the owner is a session that does not exist, all methods raise `SessionNotFound`.
    """

    async def records(
        self, owner: RecordOwner, names: Sequence[RecordName], *, now: int, identity: str | None = None
    ) -> tuple[Record | None, ...]:
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

        def steps() -> Steps[tuple[Record | None, ...]]:
            key, _ = yield from _locate_owner(self.tenant, owner, identity)
            if len(places) > _READ_AT_ONCE:
                rows = yield Query("records_sizes", (*key, _encode_places(places), now))
                check_sizes([row[0] for row in rows])
            found = yield from _read_values(key, places, now)
            return tuple(found.get(place) for place in places)

        return await self._read(steps)

    async def list_records(
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
    ) -> RecordPage:
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

        def steps() -> Steps[RecordPage]:
            key, _ = yield from _locate_owner(self.tenant, owner, identity)
            return (yield from _list_records(key, name, (begin, end, now), limit=limit, values=values))

        return await self._read(steps)

    async def record_namespaces(
        self,
        owner: RecordOwner,
        prefix: Namespace = (),
        *,
        now: int,
        identity: str | None = None,
        depth: int | None = None,
        after: Namespace | None = None,
        limit: int = 100,
    ) -> tuple[Namespace, ...]:
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
        check_namespaces(prefix, depth, after, limit)
        first, end = encode_namespace(prefix), end_of_namespace(prefix, nested=True)
        if after is not None:
            first = max(first, end_of_namespace(after, nested=len(after) == depth))

        def steps() -> Steps[tuple[Namespace, ...]]:
            key, _ = yield from _locate_owner(self.tenant, owner, identity)
            row, begin, found = (yield from read_owner(key)), first, list[Namespace]()
            # Each statement searches after the last record of the previous namespace.
            while (
                row and len(found) < limit and (rows := (yield Query("records_forward", (row.pk, begin, end, now, 1))))
            ):
                namespace = decode_place(rows[0][0]).namespace[:depth]
                found.append(namespace)
                begin = end_of_namespace(namespace, nested=len(namespace) == depth)
            return tuple(found)

        return await self._read(steps)

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

    async def searchable_records(
        self,
        owner: RecordOwner,
        *,
        now: int,
        since: tuple[int, int] = (0, 0),
        names: Sequence[RecordName] | None = None,
        limit: int = 100,
        identity: str | None = None,
    ) -> SearchablePage:
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

        def steps() -> Steps[SearchablePage]:
            key, known = yield from _locate_owner(self.tenant, owner, identity)
            row = yield from read_owner(key)
            if row is None:
                return SearchablePage((), has_more=False, version=0, identity=known)
            if names is None:
                rows = yield Query("records_searchable", (row.pk, *since, now, limit + 1))
            else:
                rows = (
                    (yield Query("records_searchable_named", (row.pk, _encode_places(places), now))) if places else ()
                )
            found = _decode_searchable(rows)
            last = limit if names is None else len(found)
            return SearchablePage(tuple(found[:last]), len(found) > last, row.version, known)

        return await self._read(steps)

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

"""Read and write records. The functions are generators of statements, see `steps`.

Each owner has a row, which only one writer at a time can lock. It has the owner's highest version.

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
    decode_place,
    encode_namespace,
    end_of_namespace,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound, StoreCorrupt
from holdfast.limits import PAGE
from holdfast.stores import checks
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.rows import UNDECODABLE, decode_session, decode_text, encode_array
from holdfast.stores.logic.steps import Many, Query, Row, Steps
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


class RecordMethods(Handle):
    """Implements the methods of `RecordStore` on a SQL database. `LogicStore` inherits from this class."""

    async def records(
        self, owner: RecordOwner, names: Sequence[RecordName], *, now: int, identity: str | None = None
    ) -> tuple[Record | None, ...]:
        places = check_names(owner, names, now)
        return await self._read(partial(_read_records, self.tenant, owner, identity, places, now))

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
        check_owner(owner)
        checks.check_int(now, "now")
        begin, end = check_list(namespace, prefix, nested=nested, after=after, limit=limit, descending=descending)
        name = "records_backward" if descending else "records_forward"
        steps = partial(_list_records, self.tenant, owner, identity, name)
        steps = partial(steps, bounds=(begin, end, now), limit=limit, values=values)
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
        check_owner(owner)
        checks.check_int(now, "now")
        check_namespaces(prefix, depth, after, limit)
        return await self._read(
            partial(_list_namespaces, self.tenant, owner, identity, prefix, now, depth=depth, after=after, limit=limit)
        )

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        check_owner(owner)
        checks.check_int(timestamp, "timestamp")
        encoded = await encode_changes_off_loop(changes)
        steps = partial(_change_records, self.tenant, owner, encoded, timestamp, identity)
        scrub = not all(change.put for change in encoded)
        return await self._write(steps, _get_scope(owner), scrub=scrub)

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
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
        checks.check_int(now, "now")
        checks.check_limit(limit)
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
        places = check_searchable(owner, since, names, now, limit)
        wanted = None if names is None else places
        return await self._read(
            partial(_read_searchable, self.tenant, owner, identity, wanted, since=since, now=now, limit=limit)
        )

    async def record_users(self, *, after: str | None = None, limit: int = 100) -> tuple[str, ...]:
        checks.check_limit(limit)
        return await self._read(partial(_list_users, self.tenant, after, limit), single=True)


def _get_scope(owner: RecordOwner) -> SessionRef | UserRef:
    return owner if isinstance(owner, SessionRef) else UserRef(getattr(owner, "user_id", ""))


class _OwnerRow(NamedTuple):
    """An owner's row, with the columns that the statement `record_owner_get` returns."""

    pk: int
    version: int
    """Grows with each write. It is the highest version of any record of the owner."""
    floor: int
    """The highest version that any dropped owner of the tenant reached. A new owner continues above it."""
    numbers: int
    """Count of the numbers that the owner has given to searchable records."""


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


def _locate_owner(tenant: str, owner: RecordOwner, identity: str | None = None) -> Steps[Row]:
    """Return the key columns of an owner: tenant, user and session. Raises `SessionNotFound` if the session does not exist."""
    return (yield from _identify_owner(tenant, owner, identity))[0]


def _identify_owner(tenant: str, owner: RecordOwner, identity: str | None) -> Steps[tuple[Row, str]]:
    """Return the key columns of an owner, and the identity of the session; the identity of other owners is empty."""
    if not isinstance(owner, SessionRef):
        return (tenant, getattr(owner, "user_id", ""), 0), ""
    row = yield from read_session_row(tenant, owner)
    known = decode_session(row).identity
    if identity not in {None, known}:
        raise SessionNotFound(owner.id)
    return (tenant, owner.user_id, row[0]), known


# -- reading -----------------------------------------------------------------


def _read_records(
    tenant: str, owner: RecordOwner, identity: str | None, places: Sequence[bytes], now: int
) -> Steps[tuple[Record | None, ...]]:
    key = yield from _locate_owner(tenant, owner, identity)
    if len(places) > _READ_AT_ONCE:
        rows = yield Query("records_sizes", (*key, _encode_places(places), now))
        check_sizes([row[0] for row in rows])
    found = yield from _read_values(key, places, now)
    return tuple(found.get(place) for place in places)


def _read_values(key: Row, places: Collection[bytes], now: int) -> Steps[dict[bytes, Record]]:
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


def _list_records(
    tenant: str,
    owner: RecordOwner,
    identity: str | None,
    statement: str,
    *,
    bounds: Row,
    limit: int,
    values: bool,
) -> Steps[RecordPage]:
    """Return a page of records. The sizes are read before the values, so that the page can be limited in bytes."""
    key = yield from _locate_owner(tenant, owner, identity)
    found_owner = yield Query("record_owner_get", key)
    if not found_owner:
        return RecordPage((), has_more=False)
    pk, version, *_ = found_owner[0]
    rows = yield Query(statement, (pk, *bounds, limit + 1))
    infos = [(bytes(row[0]), RecordRow(*row[1:])) for row in rows]
    number = count_page([row.size for _, row in infos], limit) if values else min(len(infos), limit)
    page = infos[:number]
    records: tuple[RecordInfo, ...] = tuple(make_info(decode_place(place), row) for place, row in page)
    if values:
        found = yield from _read_values(key, [place for place, _ in page], bounds[-1])
        records = tuple(found[place] for place, _ in page)
    return RecordPage(records, len(infos) > number, version)


def _list_namespaces(
    tenant: str,
    owner: RecordOwner,
    identity: str | None,
    prefix: Namespace,
    now: int,
    *,
    depth: int | None,
    after: Namespace | None,
    limit: int,
) -> Steps[tuple[Namespace, ...]]:
    """Return namespaces that contain records.

    Each namespace is found with one statement, which searches after the last record of the previous namespace.
    """
    key = yield from _locate_owner(tenant, owner, identity)
    found: list[Namespace] = []
    found_owner = yield Query("record_owner_get", key)
    if not found_owner:
        return ()
    begin, end = encode_namespace(prefix), end_of_namespace(prefix, nested=True)
    if after is not None:
        begin = max(begin, end_of_namespace(after, nested=len(after) == depth))
    while len(found) < limit and (rows := (yield Query("records_forward", (found_owner[0][0], begin, end, now, 1)))):
        namespace = decode_place(rows[0][0]).namespace[:depth]
        found.append(namespace)
        begin = end_of_namespace(namespace, nested=len(namespace) == depth)
    return tuple(found)


def _read_searchable(
    tenant: str,
    owner: RecordOwner,
    identity: str | None,
    places: Sequence[bytes] | None,
    *,
    since: tuple[int, int],
    now: int,
    limit: int,
) -> Steps[SearchablePage]:
    key, known = yield from _identify_owner(tenant, owner, identity)
    found_owner = yield Query("record_owner_get", key)
    if not found_owner:
        return SearchablePage((), has_more=False, version=0, identity=known)
    pk, version, *_ = found_owner[0]
    if places is None:
        rows = yield Query("records_searchable", (pk, *since, now, limit + 1))
    else:
        rows = (yield Query("records_searchable_named", (pk, _encode_places(places), now))) if places else ()
    try:
        found = [make_searchable(decode_place(row[0]), RecordRow(*row[1:-1]), bytes(row[-1])) for row in rows]
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"a searchable record is damaged and cannot be decoded ({exc})") from exc
    last = limit if places is None else len(found)
    return SearchablePage(tuple(found[:last]), len(found) > last, version, known)


def _list_users(tenant: str, after: str | None, limit: int) -> Steps[tuple[str, ...]]:
    rows = yield Query("record_users", (tenant, after or "", int(after is None), limit))
    return tuple(decode_text(row[0]) for row in rows)


def _encode_places(places: Collection[bytes]) -> str:
    return encode_array(place.hex() for place in places)


# -- writing -----------------------------------------------------------------


def _change_records(
    tenant: str, owner: RecordOwner, changes: Sequence[EncodedChange], timestamp: int, identity: str | None
) -> Steps[ChangedRecords]:
    key = yield from _locate_owner(tenant, owner, identity)
    plan = yield from plan_record_changes(key, changes, timestamp)
    return (yield from write_record_plan(plan))


class RecordPlan(NamedTuple):
    """Checked changes of records, as rows to write. Writing them cannot fail because of a stale version."""

    owner: int
    result: ChangedRecords
    numbers: int
    """Count of the numbers that the owner has given to searchable records, after the write."""
    put: Sequence[Row]
    """Parameters of `record_put`."""
    gone: Sequence[Row]
    """Parameters of `record_delete`."""


def plan_record_changes(key: Row, changes: Sequence[EncodedChange], timestamp: int) -> Steps[RecordPlan]:
    """Lock the owner's row, check changes of the owner's records, and compute the rows to write.

    Args:
        key: tenant, user and session of the owner.
        changes: the changes.
        timestamp: milliseconds since the epoch.

    Raises:
        StaleRecord: a record does not have the expected version.
    """
    owner = yield from _lock_owner(key, make=any(change.put for change in changes))
    stored: dict[bytes, RecordRow] = {}
    if owner is not None and owner.version:
        rows = yield Query("records_info", (owner.pk, _encode_places([change.place for change in changes])))
        stored = {bytes(row[0]): RecordRow(*row[1:]) for row in rows}
    refuse_stale(changes, stored, timestamp)
    existed = tuple(change.place in stored and stored[change.place].is_there(timestamp) for change in changes)
    if owner is None:
        return RecordPlan(0, ChangedRecords(0, existed), 0, (), ())
    gone = [(owner.pk, change.place) for change in changes if not change.put and change.place in stored]
    if not gone and not any(change.put for change in changes):
        return RecordPlan(owner.pk, ChangedRecords(owner.version, existed), owner.numbers, (), ())
    version = (owner.version or choose_first_version(timestamp, owner.floor)) + 1
    given, freed, numbers = assign_numbers(changes, stored, owner.numbers, timestamp)
    put: list[Row] = []
    for change in changes:
        if change.put:
            row = make_row(change, stored.get(change.place), version, timestamp, given.get(change.place))
            put.append((owner.pk, change.place, key[0], *row, change.data, change.text))
    return RecordPlan(owner.pk, ChangedRecords(version, existed, freed), numbers, put, gone)


def write_record_plan(plan: RecordPlan) -> Steps[ChangedRecords]:
    """Write the rows that `plan_record_changes` computed, and return the result of the changes."""
    if plan.gone:
        yield Many("record_delete", plan.gone)
    if plan.put:
        yield Many("record_put", plan.put)
    if plan.gone or plan.put:
        yield Query("record_owner_put", (plan.owner, plan.result.version, plan.numbers))
    return plan.result


def _drop_records(tenant: str, owner: RecordOwner, identity: str | None) -> Steps[DroppedRecords]:
    """Delete all records of an owner, or take them away from it. A session stays an owner, because it keeps its version."""
    key = yield from _locate_owner(tenant, owner, identity)
    row = yield from _lock_owner(key, make=False)
    if row is None:
        return DroppedRecords()
    dropped = yield from drop_owner(row.pk)
    if not isinstance(owner, SessionRef):
        yield Query("record_floor_raise", (tenant, row.version))
    elif row.version:
        fresh = yield from _lock_owner(key, make=True)
        assert fresh is not None, "it was just made"
        changed = dropped.records or dropped.left is not None
        yield Query("record_owner_put", (fresh.pk, row.version + (1 if changed else 0), row.numbers))
    return dropped


def drop_owner(pk: int) -> Steps[DroppedRecords]:
    """Delete an owner with its records. If these are too many or too large for one transaction, the owner only loses its name."""
    dropped = yield from purge_records(pk, whole=True)
    if dropped.left is not None:
        yield Query("record_owner_detach", (pk,))
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
        yield Query("record_owner_delete", (pk,))
    return DroppedRecords(number, sum(row[1] for row in rows[:number]), None if last else pk)


def _has_records_to_sweep(tenant: str, now: int) -> Steps[bool]:
    found = (yield Query("records_expired", (tenant, now, 1))) or (yield Query("record_owner_detached", (tenant,)))
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
    detached = yield Query("record_owner_detached", (tenant,))
    return (yield from purge_records(detached[0][0])).records if detached else 0


def _lock_owner(key: Row, *, make: bool) -> Steps[_OwnerRow | None]:
    """Lock an owner's row until the transaction ends, and return it. If the row is missing, create it if `make` is True, else return None."""
    rows = yield Query("record_owner_get", key)
    if not rows and make:
        yield Query("record_owner_new", key)
        rows = yield Query("record_owner_get", key)
    return _OwnerRow(*rows[0]) if rows else None

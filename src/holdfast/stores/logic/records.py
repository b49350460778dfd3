"""Read and write records. The functions are generators of statements, see `steps`.

Each owner has a row, which only one writer at a time can lock. It has the owner's highest version.
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
    decode_place,
    encode_namespace,
    end_of_namespace,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound, StoreCorrupt
from holdfast.stores import checks
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.rows import UNDECODABLE, decode_session, encode_array
from holdfast.stores.logic.steps import Many, Query, Row, Steps
from holdfast.stores.record_checks import (
    EncodedChange,
    RecordRow,
    check_list,
    check_names,
    check_namespaces,
    check_owner,
    check_sizes,
    count_page,
    encode_changes,
    make_info,
    make_record,
    make_row,
    refuse_stale,
)

_READ_AT_ONCE: Final = 2
"""Up to this number, records are read without reading their sizes first."""


class RecordMethods(Handle):
    """Implements the methods of `RecordStore` on a SQL database. `LogicStore` inherits from this class."""

    async def records(self, owner: RecordOwner, names: Sequence[RecordName], *, now: int) -> tuple[Record | None, ...]:
        places = check_names(owner, names, now)
        return await self._read(partial(_read_records, self.tenant, owner, places, now))

    async def list_records(
        self,
        owner: RecordOwner,
        namespace: Namespace,
        *,
        now: int,
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
        steps = partial(_list_records, self.tenant, owner, name, (begin, end, now), limit, values=values)
        return await self._read(steps)

    async def record_namespaces(
        self,
        owner: RecordOwner,
        prefix: Namespace = (),
        *,
        now: int,
        depth: int | None = None,
        after: Namespace | None = None,
        limit: int = 100,
    ) -> tuple[Namespace, ...]:
        check_owner(owner)
        checks.check_int(now, "now")
        check_namespaces(prefix, depth, after, limit)
        return await self._read(
            partial(_list_namespaces, self.tenant, owner, prefix, now, depth=depth, after=after, limit=limit)
        )

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        check_owner(owner)
        checks.check_int(timestamp, "timestamp")
        encoded = encode_changes(changes)
        steps = partial(_change_records, self.tenant, owner, encoded, timestamp, identity)
        scrub = not all(change.put for change in encoded)
        scope = owner if isinstance(owner, SessionRef) else UserRef(getattr(owner, "user_id", ""))
        return await self._write(steps, scope, scrub=scrub)

    async def drop_records(self, owner: RecordOwner) -> int:
        check_owner(owner)
        scope = owner if isinstance(owner, SessionRef) else UserRef(getattr(owner, "user_id", ""))
        return await self._write(partial(_drop_records, self.tenant, owner), scope, scrub=True)

    async def sweep_records(self, *, now: int, limit: int = 100) -> int:
        checks.check_int(now, "now")
        checks.check_limit(limit)
        if not await self._read(partial(_find_expired, self.tenant, now, 1), single=True):
            return 0
        return await self._write(partial(_sweep_records, self.tenant, now, limit), scrub=True)


class _OwnerRow(NamedTuple):
    """An owner's row, with the columns that the statement `record_owner_get` returns."""

    pk: int
    version: int
    """Grows with each write. It is the highest version of any record of the owner."""
    floor: int
    """The highest version or number that any dropped owner of the tenant reached. A new owner continues above it."""

    @property
    def next_version(self) -> int:
        """The version after the next write."""
        return (self.version or self.floor) + 1


def _locate_owner(tenant: str, owner: RecordOwner, identity: str | None = None) -> Steps[Row]:
    """Return the key columns of an owner: tenant, user and session. Raises `SessionNotFound` if the session does not exist."""
    if not isinstance(owner, SessionRef):
        return tenant, getattr(owner, "user_id", ""), 0
    row = yield from read_session_row(tenant, owner)
    if identity not in {None, decode_session(row).identity}:
        raise SessionNotFound(owner.id)
    return tenant, owner.user_id, row[0]


# -- reading -----------------------------------------------------------------


def _read_records(
    tenant: str, owner: RecordOwner, places: Sequence[bytes], now: int
) -> Steps[tuple[Record | None, ...]]:
    key = yield from _locate_owner(tenant, owner)
    if len(places) > _READ_AT_ONCE:
        rows = yield Query("records_sizes", (*key, _encode_places(places), now))
        check_sizes([row[0] for row in rows])
    found = yield from _read_values(key, places, now)
    return tuple(found.get(place) for place in places)


def _read_values(key: Row, places: Collection[bytes], now: int) -> Steps[dict[bytes, Record]]:
    rows = (yield Query("records_named", (*key, _encode_places(places), now))) if places else ()
    try:
        return {bytes(row[0]): make_record(decode_place(row[0]), RecordRow(*row[1:-1]), bytes(row[-1])) for row in rows}
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"a record is damaged and cannot be decoded ({exc})") from exc


def _list_records(
    tenant: str, owner: RecordOwner, statement: str, bounds: Row, limit: int, *, values: bool
) -> Steps[RecordPage]:
    """Return a page of records. The sizes are read before the values, so that the page can be limited in bytes."""
    key = yield from _locate_owner(tenant, owner)
    found_owner = yield Query("record_owner_get", key)
    if not found_owner:
        return RecordPage((), has_more=False)
    pk, version, _ = found_owner[0]
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
    key = yield from _locate_owner(tenant, owner)
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


def _encode_places(places: Collection[bytes]) -> str:
    return encode_array(place.hex() for place in places)


# -- writing -----------------------------------------------------------------


def _change_records(
    tenant: str, owner: RecordOwner, changes: Sequence[EncodedChange], timestamp: int, identity: str | None
) -> Steps[ChangedRecords]:
    key = yield from _locate_owner(tenant, owner, identity)
    plan = yield from plan_record_changes(key, changes, timestamp)
    yield from write_record_plan(plan)
    return plan.result


class RecordPlan(NamedTuple):
    """Checked changes of records, as rows to write. Writing them cannot fail because of a stale version."""

    owner: int
    result: ChangedRecords
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
        return RecordPlan(0, ChangedRecords(0, existed), (), ())
    gone = [(owner.pk, change.place) for change in changes if not change.put and change.place in stored]
    if not gone and not any(change.put for change in changes):
        return RecordPlan(owner.pk, ChangedRecords(owner.version, existed), (), ())
    version = owner.next_version
    put = [
        (owner.pk, change.place, key[0], *make_row(change, stored.get(change.place), version, timestamp), change.data)
        for change in changes
        if change.put
    ]
    return RecordPlan(owner.pk, ChangedRecords(version, existed), put, gone)


def write_record_plan(plan: RecordPlan) -> Steps[None]:
    """Write the rows that `plan_record_changes` computed."""
    if plan.gone:
        yield Many("record_delete", plan.gone)
    if plan.put:
        yield Many("record_put", plan.put)
    if plan.gone or plan.put:
        yield Query("record_owner_put", (plan.owner, plan.result.version))


def _drop_records(tenant: str, owner: RecordOwner) -> Steps[int]:
    """Delete all records of an owner. A session's row in `record_owners` stays, because the row keeps the version. Return their number."""
    row = yield from _lock_owner((yield from _locate_owner(tenant, owner)), make=False)
    if row is None:
        return 0
    number: int = (yield Query("records_count", (row.pk,)))[0][0]
    yield Query("records_clear", (row.pk,))
    if number and isinstance(owner, SessionRef):
        yield Query("record_owner_put", (row.pk, row.next_version))
    if not isinstance(owner, SessionRef):
        yield Query("floor_raise", (tenant, row.version))
        yield Query("record_owner_delete", (row.pk,))
    return number


def _find_expired(tenant: str, now: int, limit: int) -> Steps[Sequence[Row]]:
    return (yield Query("records_expired", (tenant, now, limit)))


def _sweep_records(tenant: str, now: int, limit: int) -> Steps[int]:
    """Delete expired records. If a record was put again in the meantime, it is kept: each row is checked again when it is deleted."""
    rows = yield from _find_expired(tenant, now, limit)
    if rows:
        yield Many("record_expire", [(*row, now) for row in rows])
    return len(rows)


def _lock_owner(key: Row, *, make: bool) -> Steps[_OwnerRow | None]:
    """Lock an owner's row until the transaction ends, and return it. If the row is missing, create it if `make` is True, else return None."""
    rows = yield Query("record_owner_get", key)
    if not rows and make:
        yield Query("record_owner_new", key)
        rows = yield Query("record_owner_get", key)
    return _OwnerRow(*rows[0]) if rows else None

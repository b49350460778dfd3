"""Check arguments about records before a store uses them, and encode values.

"Refuse" in a docstring here has the same meaning as in `holdfast.stores.checks`. A record's place is its encoded name: a byte string that
sorts by namespace and key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from holdfast.accounting import run_cpu
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import (
    MISSING,
    DeleteRecord,
    Namespace,
    PutRecord,
    Record,
    RecordChange,
    RecordInfo,
    RecordName,
    RecordOwner,
    SearchableRecord,
    TenantRef,
    check_namespace,
    check_record_key,
    encode_place,
    encode_record_text,
    encode_record_value,
    find_range,
    is_large_value,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, StaleRecord, TooLarge
from holdfast.limits import RECORD_CHANGES, RECORD_PAGE_BYTES, RECORDS_BYTES
from holdfast.stores import checks

_VERSIONS_A_MILLISECOND: Final = 1024
_LATEST_TIME: Final = 2**53 // _VERSIONS_A_MILLISECOND - 1
"""Keeps the first version below 2**53, because JavaScript has no larger whole numbers. It is a time in the year 2248."""


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
    check_namespace(name.namespace)
    check_record_key(name.key)
    return encode_place(name)


def check_list(
    namespace: Namespace, prefix: str, *, nested: bool, after: RecordName | None, limit: int, descending: bool
) -> tuple[bytes, bytes]:
    """Return the first place of a page in a list of records, and the end of the range, exclusive. Refuse invalid arguments."""
    check_namespace(namespace, empty=nested)
    check_record_key(prefix, empty=True)
    checks.check_limit(limit)
    if prefix and nested:
        raise InvalidRequest("prefix and nested cannot be combined: a prefix belongs to one namespace", param="prefix")
    begin, end = find_range(namespace, prefix, nested=nested)
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


def check_namespaces(prefix: Namespace, depth: int | None, after: Namespace | None, limit: int) -> None:
    """Refuse invalid arguments of a list of namespaces."""
    check_namespace(prefix, empty=True)
    checks.check_int(depth, "depth", none=True, low=1)
    if after is not None:
        check_namespace(after)
    checks.check_limit(limit)


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
    long = any(isinstance(change, PutRecord) and is_large_value(change.value) for change in changes)
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
    raw, data = encode_record_value(change.value)
    text = encode_record_text(change.text)
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


def check_sizes(sizes: Sequence[int]) -> None:
    """Raise `TooLarge` if the values with these sizes are together too large to be read at once."""
    if sum(sizes) > RECORDS_BYTES:
        raise TooLarge(
            f"the values have {sum(sizes)} bytes together; at most {RECORDS_BYTES} are read at once: name fewer records",
            param="names",
        )

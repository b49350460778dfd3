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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.domain.record import (
    ChangedRecords,
    Namespace,
    Record,
    RecordChange,
    RecordName,
    RecordOwner,
    RecordPage,
    SearchablePage,
)


class RecordStore(Protocol):
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
        ...

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
        ...

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
        ...

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
        ...

    async def drop_records(self, owner: RecordOwner, *, identity: str | None = None) -> int:
        """Delete all records of an owner, also from the disk; return the number of records.

        For readers, all records disappear at the same moment. If the owner is a user, the user's name is deleted too. Expired records that
        were not swept yet are counted. If the process dies meanwhile, `sweep_records` deletes what is left on the disk.

        Args:
            owner: the owner.
            identity: the identity that the session must have; None: any.
        """
        ...

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
        ...

    async def record_users(self, *, after: str | None = None, limit: int = 100) -> tuple[str, ...]:
        """Return users that have searchable records of their own, in order, and possibly others. An empty name stands for the tenant.

        Args:
            after: the last name of the previous page; None: from the beginning.
            limit: maximum number of names, 1 to `PAGE`.
        """
        ...

    async def sweep_records(self, *, now: int, limit: int = 100) -> int:
        """Delete a batch of at most `limit` records of the tenant that have expired at `now`; return their number.

        Afterwards, delete a batch of those that an interrupted deletion has left. 0 means that there is nothing left to be deleted.
        """
        ...

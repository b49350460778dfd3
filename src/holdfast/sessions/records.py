"""Records for users of the library: values under a namespace and a key, owned by a session, a user or the tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import (
    ChangedRecords,
    DeleteRecord,
    Namespace,
    PutRecord,
    Record,
    RecordChange,
    RecordName,
    RecordOwner,
    RecordPage,
    TenantRef,
    check_namespace,
)
from holdfast.domain.session import SessionRef
from holdfast.durations import parse_milliseconds
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.limits import RECORD_CHANGES, RECORD_INLINE_BYTES
from holdfast.recall.base import SearchMode
from holdfast.search.records import FoundRecords, RecordQuery, search_records
from holdfast.stores.checks import check_new_id
from holdfast.stores.logic.records import check_owner, count_page
from holdfast.wire.sendable import check_text

_BATCH_RECORDS = 100
"""Number of records that `Records.iterate` reads at a time."""


class Records:
    """Reads and writes the records of one owner in a namespace. Every method uses the store; nothing is cached.

    A value is bytes or JSON; None is stored as null. Each write gives the record a new version. With `expect`, a write fails unless the
    record has that version.

    Attributes:
        owner: the owner: a `SessionRef`, `UserRef` or `TenantRef`.
        namespace: the labels of the namespace.

    Args:
        identity: the identity that the session must have. If the session was deleted and created again, it has another identity, and every
            method raises `SessionNotFound`. None: any session of the name.
    """

    def __init__(
        self, engine: Engine, owner: RecordOwner, namespace: str | Sequence[str], *, identity: str | None = None
    ) -> None:
        self._engine = engine
        self.owner = owner
        self.namespace = parse_namespace(namespace)
        self._identity = identity

    def __repr__(self) -> str:
        return f"<records {'/'.join(self.namespace)!r} of {self.owner}>"

    def below(self, *labels: str) -> Self:
        """Return the records of a namespace below this one."""
        return type(self)(self._engine, self.owner, (*self.namespace, *labels), identity=self._identity)

    def _get_identity(self) -> str | None:
        return None if self._identity is None else self._engine.get_current_identity(self._identity)

    # -- reading -------------------------------------------------------------

    async def get(self, key: str) -> Record | None:
        """Return a record with its value and version, or None if there is none."""
        return (await self.get_many([key])).get(key)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        """Return the records with these keys by key, all as of one moment. Missing records are left out.

        Raises:
            TooLarge: there are more than 100 keys, or the values have more than 64 MiB together.
        """
        names = [self._name(key) for key in dict.fromkeys(keys)]
        now, identity = self._engine.clock(), self._get_identity()
        found = await self._engine.store.records(self.owner, names, now=now, identity=identity)
        return {one.key: one for one in await decode_records([one for one in found if one is not None])}

    async def list(
        self,
        prefix: str = "",
        *,
        nested: bool = False,
        after: Record | RecordName | str | None = None,
        limit: int = 100,
        descending: bool = False,
        values: bool = True,
    ) -> RecordPage:
        """Return a page of records, sorted by the bytes of namespace and key.

        Args:
            prefix: only keys that begin with this text.
            nested: also include records of namespaces below this one; not together with `prefix`.
            after: the last record of the previous page, or its key.
            limit: maximum number of records, 1 to 1,000. A page ends early if its values have more than 4 MiB together: see `has_more`.
                It has at least one record if there is one.
            descending: True returns the last record first.
            values: False leaves out the values, which costs less.
        """
        page = await self.read_page(
            prefix, nested=nested, after=after, limit=limit, descending=descending, values=values
        )
        await decode_records([one for one in page.records if isinstance(one, Record)])
        return page

    async def read_page(
        self,
        prefix: str = "",
        *,
        nested: bool = False,
        after: Record | RecordName | str | None = None,
        limit: int = 100,
        descending: bool = False,
        values: bool = True,
    ) -> RecordPage:
        """Return the same page as `list`, with values that are decoded when they are first used."""
        last = self._name(after) if isinstance(after, str) else after.name if isinstance(after, Record) else after
        return await self._engine.store.list_records(
            self.owner,
            self.namespace,
            now=self._engine.clock(),
            identity=self._get_identity(),
            prefix=prefix,
            nested=nested,
            after=last,
            limit=limit,
            descending=descending,
            values=values,
        )

    async def iterate(self, prefix: str = "", *, nested: bool = False) -> AsyncIterator[Record]:
        """Yield all records in order. They are read page by page, so writes in the meantime may or may not be included."""
        after: RecordName | None = None
        while True:
            page = await self.list(prefix, nested=nested, after=after, limit=_BATCH_RECORDS)
            for record in page.records:
                assert isinstance(record, Record)
                yield record
            if not page.has_more:
                return
            after = page.records[-1].name

    async def namespaces(
        self, *, depth: int | None = None, after: Namespace | None = None, limit: int = 100
    ) -> tuple[Namespace, ...]:
        """Return those namespaces that have records, in order: this namespace and the ones below it.

        Args:
            depth: shorten each namespace to its first labels, at most this many, and return each shortened one once; None: do not shorten.
            after: the last namespace of the previous page.
            limit: maximum number of namespaces, 1 to 1,000.
        """
        return await self._engine.store.record_namespaces(
            self.owner,
            self.namespace,
            now=self._engine.clock(),
            identity=self._get_identity(),
            depth=depth,
            after=after,
            limit=limit,
        )

    # -- searching -----------------------------------------------------------

    async def search(
        self,
        query: str,
        *,
        prefix: str = "",
        nested: bool = False,
        limit: int = 10,
        mode: SearchMode | None = None,
        values: bool = True,
    ) -> FoundRecords:
        """Return the records whose searchable text answers a question, best first. Only records that were put with a `text` are found.

        Args:
            query: a question, or words; there is no query syntax.
            prefix: only keys that begin with this text.
            nested: also search namespaces below this one; not together with `prefix`.
            limit: maximum number of hits, 1 to 100. There are fewer if their values have more than 4 MiB together, but at least one.
            mode: `keyword`, `vector` or `hybrid`; None: the default mode of the index. Without an embedder, `hybrid` is the same as
                `keyword`.
            values: False leaves out the values, which costs less.

        Raises:
            InvalidRequest: an argument is invalid, there is no index, or `vector` was requested and there is no embedder.
            SessionNotFound: the owner is a session that does not exist.
            EmbeddingFailed: with `vector`, the query could not be embedded.
        """
        found = await search_records(
            self._engine,
            RecordQuery(
                owner=self.owner,
                namespace=self.namespace,
                text=query,
                identity=self._get_identity(),
                prefix=prefix,
                nested=nested,
                limit=limit,
                mode=mode,
            ),
        )
        if not values:
            return found
        filled = await self.fill_hits(found)
        await decode_records([hit.record for hit in filled.hits if isinstance(hit.record, Record)])
        return filled

    async def fill_hits(self, found: FoundRecords) -> FoundRecords:
        """Return hits with the values of their records, which are decoded when they are first used.

        Hits that were deleted or changed meanwhile are left out. So are the last ones if the values have more than 4 MiB together.
        """
        hits = found.hits[: count_page([hit.record.size for hit in found.hits], len(found.hits))]
        now, identity = self._engine.clock(), self._get_identity()
        names = [hit.record.name for hit in hits]
        read = await self._engine.store.records(self.owner, names, now=now, identity=identity) if names else ()
        filled = [
            msgspec.structs.replace(hit, record=one)
            for hit, one in zip(hits, read, strict=True)
            if one is not None and one.version == hit.record.version
        ]
        return msgspec.structs.replace(found, hits=tuple(filled))

    # -- writing -------------------------------------------------------------

    async def put(
        self,
        key: str,
        value: Any,
        *,
        text: str | None = None,
        expect: int | None = None,
        ttl: str | float | None = None,
    ) -> int:
        """Create a record or replace its value, and return its new version.

        Args:
            key: the key.
            value: bytes, or anything that can be written as JSON.
            text: the text by which `search` finds the record; None: `search` does not find it.
            expect: the version that the record must have; 0: there must be no record; None: any.
            ttl: time after which the record is deleted, written like `24h` or as a number of seconds; None: never.

        Raises:
            StaleRecord: the record is not at version `expect`.
            InvalidRequest: the key or the value cannot be stored.
            TooLarge: the value is too large.
            SessionNotFound: the owner is a session that does not exist.
        """
        return (await self.change([self.make_put(key, value, text=text, expect=expect, ttl=ttl)])).version

    async def put_many(self, values: Mapping[str, Any], *, ttl: str | float | None = None) -> int:
        """Create or replace at most 100 records, either all or none, and return the version that all of them get.

        Raises the errors of `put`.
        """
        return (await self.change([self.make_put(key, value, ttl=ttl) for key, value in values.items()])).version

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        """Delete a record, and return True if it existed. Raises `StaleRecord` if the record is not at version `expect`."""
        return (await self.change([self.make_delete(key, expect=expect)])).existed[0]

    async def clear(self, *, nested: bool = False) -> int:
        """Delete all records of the namespace, and with `nested` also of the namespaces below it. Return the number of deleted records.

        The records are deleted in batches. After a crash in between, the remaining records still exist.
        """
        number = 0
        while True:
            page = await self.read_page(nested=nested, limit=RECORD_CHANGES, values=False)
            batch = page.records[: count_page([one.size for one in page.records], RECORD_CHANGES)]
            if not batch:
                return number
            number += sum((await self.change([DeleteRecord(name=one.name) for one in batch])).existed)

    async def drop(self) -> int:
        """Delete all records of the owner, in all namespaces. Return the number of deleted records.

        For readers, all records disappear at the same moment. The database deletes them in batches, so that other writers do not wait.
        """
        return await self._engine.store.drop_records(self.owner, identity=self._get_identity())

    async def change(self, changes: Sequence[RecordChange]) -> ChangedRecords:
        """Put and delete up to 100 records of the owner, either all or none. The records may be in other namespaces than this one.

        Args:
            changes: results of `make_put` and `make_delete`, at most one for each record.

        Raises:
            StaleRecord: a record is not at the expected version.
        """
        if isinstance(self.owner, SessionRef):
            await self._engine.ensure_present(self.owner)
        elif isinstance(self.owner, UserRef) and any(isinstance(one, PutRecord) for one in changes):
            check_new_id(self.owner.user_id, "user_id")
        now, identity = self._engine.clock(), self._get_identity()
        return await self._engine.store.change_records(self.owner, changes, timestamp=now, identity=identity)

    def make_put(
        self,
        key: str,
        value: Any,
        *,
        text: str | None = None,
        expect: int | None = None,
        ttl: str | float | None = None,
    ) -> PutRecord:
        """Return a change that creates or replaces a record, for `change` or `SessionHandle.append`. The time of `ttl` begins now."""
        ends = None if ttl is None else self._engine.clock() + max(1, parse_milliseconds(ttl, "ttl"))
        return PutRecord(name=self._name(key), value=value, text=text, expect=expect, expires_at=ends)

    def make_delete(self, key: str, *, expect: int | None = None) -> DeleteRecord:
        """Return a change that deletes a record, for `change` or `SessionHandle.append`."""
        return DeleteRecord(name=self._name(key), expect=expect)

    def _name(self, key: str) -> RecordName:
        return RecordName(self.namespace, key)


async def decode_records(records: Sequence[Record]) -> Sequence[Record]:
    """Decode the values of records, large ones in a thread, and return the records. Raises `StoreCorrupt` for damaged JSON."""
    long = sum([one.size for one in records if one.is_json]) > RECORD_INLINE_BYTES
    await run_cpu(_decode_values, records, long=long)
    return records


def _decode_values(records: Sequence[Record]) -> None:
    for one in records:
        one.value  # noqa: B018 - a cached property


def parse_namespace(namespace: str | Sequence[str]) -> Namespace:
    """Return the labels of a namespace, which can be given as one label or as several.

    Raises:
        InvalidRequest: the labels are not valid.
    """
    if not isinstance(namespace, str | list | tuple):
        raise InvalidRequest(
            f"namespace must be a string or a tuple of strings, not {type(namespace).__name__}", param="namespace"
        )
    labels = (namespace,) if isinstance(namespace, str) else tuple(namespace)
    check_namespace(labels, empty=True)
    return labels


def resolve_owner(user_id: str | None, session: SessionRef | None) -> RecordOwner:
    """Return the owner of records: the session or the user that is given, or else the tenant. Raises `InvalidRequest` if both are given."""
    if session is not None:
        if user_id not in {None, session.user_id}:
            raise InvalidRequest("the session belongs to another user: leave out user_id", param="user_id")
        owner: RecordOwner = session
    elif user_id is not None:
        check_text(user_id, "user_id")
        owner = UserRef(user_id)
    else:
        owner = TenantRef()
    check_owner(owner)
    return owner

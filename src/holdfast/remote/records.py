"""Records of a session, a user or the tenant on a server."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

from holdfast.domain.artifact import UserRef
from holdfast.domain.record import (
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
    check_namespace,
    check_record_key,
    encode_record_text,
    encode_record_value,
)
from holdfast.domain.session import SessionRef
from holdfast.durations import parse_milliseconds
from holdfast.errors import InvalidRequest, RecordNotFound, TooLarge
from holdfast.limits import RECORD_CHANGES
from holdfast.numbers import check_whole
from holdfast.recall.base import SearchMode
from holdfast.remote.objects import decode
from holdfast.remote.transport import Transport
from holdfast.search.records import FoundRecord, FoundRecords
from holdfast.sessions.records import Records, parse_namespace
from holdfast.wire.records import format_path, parse_path
from holdfast.wire.sendable import check_text

_PATH: Final = ("v1", "records")
_INFO: Final = ("version", "created_at", "updated_at", "expires_at", "size")


class TimedPut(PutRecord, frozen=True, kw_only=True):
    """A change of `RemoteRecords.make_put`."""

    ttl: int | None = None
    """Milliseconds from the time at which the server gets the change until the record is deleted; None: never."""


class RemoteRecords(Records):
    """Reads and writes the records of one owner on a server, in a namespace. The methods are those of the library's `Records`.

    Unlike there, `get_many` reads the records one after another, so they may be of different moments, and the `version` of a page is not
    known, so it is 0. The time of `ttl` begins when the server gets the change.

    Args:
        transport: the connections.
        owner: the owner.
        namespace: one label, or several.
    """

    def __init__(self, transport: Transport, owner: RecordOwner, namespace: str | Sequence[str]) -> None:
        # Not the initializer of `Records`: there is no engine.
        self._transport = transport
        self.owner = owner
        self.namespace = parse_namespace(namespace)
        self._query = _make_query(owner)

    def below(self, *labels: str) -> Self:
        """Return the records of a namespace below this one."""
        return type(self)(self._transport, self.owner, (*self.namespace, *labels))

    async def get(self, key: str) -> Record | None:
        """Return a record with its value and version, or None if there is none."""
        check_record_key(key)
        query = {**self._query, "namespace": self._format_namespace(), "key": key}
        try:
            return await self._transport.call("GET", *_PATH, "record", query=query, parse=_parse_record)
        except RecordNotFound:
            return None

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        """Return the records with these keys by key. They are read one after another; missing records are left out.

        Raises:
            TooLarge: there are more than 100 keys.
        """
        wanted = dict.fromkeys(keys)
        if len(wanted) > RECORD_CHANGES:
            raise TooLarge(f"{len(wanted)} records at once; at most {RECORD_CHANGES} are allowed", param="keys")
        found = [await self.get(key) for key in wanted]
        return {one.key: one for one in found if one is not None}

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
        """Return the same page as `list`."""
        check_record_key(prefix, empty=True)
        last = self._name(after) if isinstance(after, str) else after.name if isinstance(after, RecordInfo) else after
        query: dict[str, Any] = {
            "namespace": self._format_namespace(),
            "prefix": prefix or None,
            "nested": nested,
            "values": values,
            "limit": limit,
            "order": "desc" if descending else "asc",
            "after": None if last is None else format_path((*last.namespace, last.key)),
        }
        return await self._transport.call("GET", *_PATH, query={**self._query, **query}, parse=_parse_page)

    async def namespaces(
        self, *, depth: int | None = None, after: Namespace | None = None, limit: int = 100
    ) -> tuple[Namespace, ...]:
        """Return those namespaces that have records. The arguments are those of `Records.namespaces`."""
        query: dict[str, Any] = {
            "namespace": self._format_namespace(),
            "depth": depth,
            "limit": limit,
            "after": None if after is None else format_path(after),
        }
        return await self._transport.call(
            "GET", *_PATH, "namespaces", query={**self._query, **query}, parse=_parse_namespaces
        )

    async def drop(self) -> int:
        """Delete all records of the owner, in all namespaces. Return the number of deleted records."""
        dropped = await self._transport.call("DELETE", *_PATH, query=self._query, parse=decode)
        return int(dropped["records"])

    async def change(self, changes: Sequence[RecordChange]) -> ChangedRecords:
        """Put and delete up to 100 records of the owner, either all or none. The arguments and errors are those of `Records.change`."""
        if not changes:
            return ChangedRecords(0, ())
        body = {"changes": to_record_operations(changes)}
        changed = await self._transport.call("POST", *_PATH, query=self._query, body=body, parse=decode)
        return ChangedRecords(changed["version"], tuple(changed["existed"]))

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
        """Return the records whose searchable text answers a question, best first. The arguments and errors are those of `Records.search`."""
        check_text(query, "query")
        wanted: dict[str, Any] = {
            "q": query,
            "namespace": self._format_namespace(),
            "prefix": prefix or None,
            "nested": nested,
            "limit": limit,
            "mode": mode,
            "values": values,
        }
        return await self._transport.call("GET", *_PATH, query={**self._query, **wanted}, parse=_parse_hits)

    def make_put(
        self,
        key: str,
        value: Any,
        *,
        text: str | None = None,
        expect: int | None = None,
        ttl: str | float | None = None,
    ) -> PutRecord:
        """Return a change that creates or replaces a record, for `change` or `RemoteSession.append`."""
        lasts = None if ttl is None else max(1, parse_milliseconds(ttl, "ttl"))
        return TimedPut(name=self._name(key), value=value, text=text, expect=expect, ttl=lasts)

    def _format_namespace(self) -> str | None:
        return format_path(self.namespace) or None


def _make_query(owner: RecordOwner) -> dict[str, str]:
    """Return the query parameters that name the owner."""
    if isinstance(owner, SessionRef):
        return {"session_id": owner.id, "user_id": owner.user_id}
    return {"user_id": owner.user_id} if isinstance(owner, UserRef) else {"scope": "tenant"}


# -- requests ------------------------------------------------------------------------


def to_record_operations(changes: Sequence[RecordChange]) -> list[dict[str, Any]]:
    """Return changes of records as operations of the REST API.

    Raises:
        InvalidRequest: a name or a value cannot be stored.
        TooLarge: a value is too large.
    """
    return [_to_operation(one) for one in changes]


def _to_operation(change: RecordChange) -> dict[str, Any]:
    check_namespace(change.name.namespace)
    check_record_key(change.name.key)
    if change.expect is not None:
        check_whole(change.expect, "expect")
    made: dict[str, Any] = {"namespace": change.name.namespace, "key": change.name.key, "expect": change.expect}
    if isinstance(change, DeleteRecord):
        return {"op": "delete", **made}
    if change.times is not None:
        raise InvalidRequest("times of a record cannot be set over HTTP", param="times")
    is_bytes, data = encode_record_value(change.value)
    value = {"encoding": "base64", "value": data} if is_bytes else {"value": msgspec.Raw(data)}
    encode_record_text(change.text)  # refuses what cannot be stored
    return {"op": "put", **made, **value, "text": change.text, "ttl": _find_ttl(change)}


def _find_ttl(change: PutRecord) -> int | None:
    if isinstance(change, TimedPut):
        return change.ttl
    return None if change.expires_at is None else max(1, change.expires_at - int(time.time() * 1000))


# -- answers -------------------------------------------------------------------------


def _to_record(data: dict[str, Any]) -> RecordInfo:
    """Convert a `Record` object, with or without its value."""
    name = RecordName(tuple(data["namespace"]), data["key"])
    info = {field: data[field] for field in _INFO}
    if "value" not in data:
        return RecordInfo(name=name, **info)
    is_json = data["encoding"] == "json"
    value = msgspec.json.encode(data["value"]) if is_json else base64.b64decode(data["value"], validate=True)
    return Record(name=name, **info, is_json=is_json, data=value, text=data.get("text"))


def _parse_record(data: bytes) -> Record:
    found = _to_record(decode(data))
    if isinstance(found, Record):
        return found
    raise LookupError("value")


def _parse_page(data: bytes) -> RecordPage:
    page = decode(data)
    return RecordPage(tuple(_to_record(one) for one in page["data"]), page["has_more"])


def _parse_namespaces(data: bytes) -> tuple[Namespace, ...]:
    return tuple(parse_path(one["id"]) for one in decode(data)["data"])


def _parse_hits(data: bytes) -> FoundRecords:
    page = decode(data)
    return FoundRecords(hits=tuple(map(_to_hit, page["data"])), mode=page["mode"], notes=tuple(page["notes"]))


def _to_hit(data: dict[str, Any]) -> FoundRecord:
    highlights = tuple((start, stop) for start, stop in data["highlights"])
    own = {name: data[name] for name in ("score", "parts", "snippet")}
    return FoundRecord(record=_to_record(data), highlights=highlights, **own)

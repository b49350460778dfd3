"""Records of a session, a user or the tenant on a server."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

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
from holdfast.remote.objects import Page, decode, parse_page
from holdfast.remote.transport import Transport, name_order
from holdfast.search.records import FoundRecord, FoundRecords
from holdfast.sessions.records import Records, parse_namespace
from holdfast.signatures import Arguments, like
from holdfast.wire.records import format_name, format_path, parse_path
from holdfast.wire.sendable import check_text

_PATH: Final = ("v1", "records")
T = TypeVar("T")


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
        query = {**self._query, "namespace": format_path(self.namespace) or None, "key": key}
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

    @like(Records.read_page)
    async def read_page(self, given: Arguments) -> RecordPage:
        """Return the same page as `list`."""
        after, prefix = given["after"], given["prefix"]
        check_record_key(prefix, empty=True)
        last = self._name(after) if isinstance(after, str) else after.name if isinstance(after, RecordInfo) else after
        query = {**name_order(given), "prefix": prefix or None, "after": None if last is None else format_name(last)}
        page = await self._list(parse_page(_to_record), **query)
        return RecordPage(page.items, page.has_more)

    async def namespaces(
        self, *, depth: int | None = None, after: Namespace | None = None, limit: int = 100
    ) -> tuple[Namespace, ...]:
        """Return those namespaces that have records. The arguments are those of `Records.namespaces`."""
        query = {"depth": depth, "limit": limit, "after": None if after is None else format_path(after)}
        return (await self._list(_parse_namespaces, "namespaces", **query)).items

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

    @like(Records.search)
    async def search(self, given: Arguments) -> FoundRecords:
        """Return the records whose searchable text answers a question, best first. The arguments and errors are those of `Records.search`."""
        question = given.pop("query")
        check_text(question, "query")
        page = await self._list(parse_page(_to_hit), **{**given, "q": question, "prefix": given["prefix"] or None})
        return FoundRecords(hits=page.items, mode=page.fields["mode"], notes=tuple(page.fields["notes"]))

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

    async def _list(self, parse: Callable[[bytes], Page[T]], *path: str, **query: Any) -> Page[T]:
        query |= {**self._query, "namespace": format_path(self.namespace) or None}
        return await self._transport.call("GET", *_PATH, *path, query=query, parse=parse)


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
    named = {**data, "name": RecordName(tuple(data["namespace"]), data["key"])}
    if "value" not in data:
        return msgspec.convert(named, RecordInfo)
    is_json = data["encoding"] == "json"
    value = msgspec.json.encode(data["value"]) if is_json else base64.b64decode(data["value"], validate=True)
    return msgspec.convert({**named, "is_json": is_json, "data": value}, Record)


def _parse_record(data: bytes) -> Record:
    found = _to_record(decode(data))
    if isinstance(found, Record):
        return found
    raise LookupError("value")


def _to_hit(data: dict[str, Any]) -> FoundRecord:
    named = {name: data[name] for name in ("score", "parts", "snippet")}
    return FoundRecord(record=_to_record(data), highlights=tuple(map(tuple, data["highlights"])), **named)


_parse_namespaces: Final = parse_page(lambda one: parse_path(one["id"]))

"""REST API for records: values that an application stores under a namespace and a key.

A session, a user or the tenant owns each record. The path says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from holdfast import limits
from holdfast.accounting import run_cpu
from holdfast.domain.record import MISSING, Record, RecordChange, RecordInfo, RecordName, RecordPage
from holdfast.errors import InvalidRequest, RecordNotFound
from holdfast.recall.base import SearchMode
from holdfast.search.records import FoundRecord
from holdfast.server.http import Call
from holdfast.server.routes import BODY, OF_SESSION, STORE, Order, PageLimit, Routes, describe_header, describe_headers
from holdfast.sessions.records import Records
from holdfast.stores.record_checks import count_page
from holdfast.wire.objects import Answer, Count, NonEmpty, Page, Request, Share, Time, json_schema
from holdfast.wire.records import (
    Encoding,
    Namespace,
    RecordKey,
    RecordObject,
    RecordPath,
    RecordVersion,
    decode_value,
    format_path,
    parse_path,
)

routes = Routes("records")
_SESSION: Final = "/v1/sessions/{session_id}/records"
_USER: Final = "/v1/users/{user_id}/records"
_TENANT: Final = "/v1/records"
_ETAG: Final = describe_headers(ETag="version of the record")
_MATCH: Final = describe_header("If-Match", "version that the record must have")
_NONE_MATCH: Final = describe_header("If-None-Match", "`*`: there must be no such record")
_OF_USER: Final = (*STORE, 404)

Space = Annotated[
    str,
    json_schema(
        description="labels of the namespace, separated by `/`; in a label `~1` stands for `/`, and `~0` for `~`",
        minLength=1,
    ),
]
Value = Annotated[Any, json_schema(description=f"JSON, or base64; at most {limits.MESSAGE_BYTES} bytes")]
SearchableText = Annotated[
    str | None,
    json_schema(
        description=f"text by which a search finds the record, at most {limits.RECORD_TEXT_BYTES} bytes; null: no search finds it",
        minLength=1,
    ),
]
Lifetime = Annotated[
    int | None, json_schema(description="milliseconds after which the record is deleted; null: never", minimum=1)
]


class ListQuery(Request, kw_only=True):
    """Query parameters of a list of records."""

    namespace: Space | None = None
    """Namespace of the records. It may be left out only with `nested`."""
    prefix: NonEmpty | None = None
    """Only keys that begin with this text; not together with `nested`."""
    nested: bool = False
    """`true`: also records of namespaces below this one."""
    values: bool = True
    """`false`: leave out the values."""
    limit: PageLimit = 20
    order: Order = "asc"
    after: RecordPath | None = None
    """`last_id` of the previous page, after which this page begins."""


class SearchQuery(Request, kw_only=True):
    """Query parameters of a search of records."""

    q: Annotated[
        str,
        json_schema(description=f"a question, in plain words; at most {limits.QUERY_CHARS:,} characters", minLength=1),
    ]
    namespace: Space | None = None
    """Namespace of the records. It may be left out only with `nested`."""
    prefix: NonEmpty | None = None
    """Only keys that begin with this text; not together with `nested`."""
    nested: bool = False
    """`true`: also records of namespaces below this one."""
    mode: SearchMode | None = None
    """Kind of search; default: that of the index."""
    values: bool = True
    """`false`: leave out the values."""
    limit: Annotated[
        int,
        json_schema(description="maximum number of hits; default 10", minimum=1, maximum=limits.SEARCH_RESULTS),
    ] = 10


class NamespacesQuery(Request, kw_only=True):
    """Query parameters of a list of namespaces."""

    namespace: Space | None = None
    """Only this namespace and those below it."""
    depth: Annotated[int | None, json_schema(minimum=1, maximum=limits.NAMESPACE_LABELS)] = None
    """Shorten namespaces to their first labels, at most this many, and list each shortened namespace once."""
    limit: PageLimit = 20
    after: Space | None = None
    """`last_id` of the previous page, after which this page begins."""


class NameQuery(Request, kw_only=True):
    """Query parameters that name a record."""

    namespace: Space
    key: RecordKey


class DropQuery(Request, kw_only=True):
    """No query parameters."""


_OWNED: Final = "User of the session. Default: the key's user. Without one, the session of the user `default`, or else the only one with this id."


class SessionListQuery(ListQuery, kw_only=True):
    """Query parameters of a list of a session's records."""

    user_id: Annotated[str | None, json_schema(description=_OWNED, minLength=1)] = None


class SessionSearchQuery(SearchQuery, kw_only=True):
    """Query parameters of a search of a session's records."""

    user_id: Annotated[str | None, json_schema(description=_OWNED, minLength=1)] = None


class SessionNamespacesQuery(NamespacesQuery, kw_only=True):
    """Query parameters of a list of the namespaces of a session's records."""

    user_id: Annotated[str | None, json_schema(description=_OWNED, minLength=1)] = None


class SessionNameQuery(NameQuery, kw_only=True):
    """Query parameters that name a record of a session."""

    user_id: Annotated[str | None, json_schema(description=_OWNED, minLength=1)] = None


class SessionDropQuery(DropQuery, kw_only=True):
    """Query parameters of routes that change or delete records of a session."""

    user_id: Annotated[str | None, json_schema(description=_OWNED, minLength=1)] = None


class NewRecord(Request, kw_only=True):
    """The value of a record."""

    value: Value
    encoding: Encoding = "json"
    text: SearchableText = None
    ttl: Lifetime = None


class PutRecordChange(Request, tag_field="op", tag="put", kw_only=True):
    """Create a record, or replace its value."""

    namespace: Namespace
    key: RecordKey
    value: Value
    encoding: Encoding = "json"
    text: SearchableText = None
    ttl: Lifetime = None
    expect: Count | None = None
    """Version that the record must have; 0: there must be no such record; null: any."""


class DeleteRecordChange(Request, tag_field="op", tag="delete", kw_only=True):
    """Delete a record. A missing record is no error, unless a version is expected."""

    namespace: Namespace
    key: RecordKey
    expect: Count | None = None
    """Version that the record must have; null: any."""


class RecordChanges(Request):
    """Changes to records of one owner. Either all of them take effect, or none."""

    changes: Annotated[
        list[PutRecordChange | DeleteRecordChange],
        json_schema(
            minItems=1, description=f"at most {limits.RECORD_CHANGES} changes of different records; more get status 413"
        ),
    ]


class RecordList(Page[RecordObject, RecordPath]):
    """A page of records, in order of namespace and key."""


class FoundRecordObject(RecordObject, kw_only=True):
    """A record that a search found."""

    score: Share
    """Value by which the hits are ranked. Scores of different searches cannot be compared."""
    parts: Mapping[str, float]
    """Parts of the score: `keyword`, the share of the question that the words answer, and `vector`, the similarity."""
    snippet: str
    """Part of the searchable text that matches best. Each run of white space is one space."""
    highlights: tuple[tuple[Count, ...], ...]
    """Start and stop of each matching word, in characters (code points) of `snippet`."""


class FoundRecordList(Page[FoundRecordObject, RecordPath], kw_only=True):
    """The records that a search found, best first."""

    mode: SearchMode
    """Kind of search that was used."""
    notes: list[str]
    """Notes on how the search that was done differs from the requested search."""


class NamespaceObject(Answer, kw_only=True):
    """A namespace that has records."""

    object: Literal["record.namespace"] = "record.namespace"
    id: Space
    """The namespace as a path."""
    namespace: Namespace


class NamespaceList(Page[NamespaceObject, Space]):
    """A page of namespaces, in order."""


class RecordWritten(Answer, kw_only=True):
    """Result of putting a record."""

    object: Literal["record"] = "record"
    id: RecordPath
    namespace: Namespace
    key: RecordKey
    version: RecordVersion
    created: bool
    """True if there was no such record before."""
    expires_at: Time | None


class RecordsChanged(Answer, kw_only=True):
    """Result of changing records: the new version, and which of the records existed before."""

    object: Literal["record.change"] = "record.change"
    version: Count
    """New version of all records that were put."""
    existed: list[bool]
    """For each change, in order: true if the record existed before."""


class DeletedRecord(Answer, kw_only=True):
    """A deleted record."""

    object: Literal["record"] = "record"
    id: RecordPath
    namespace: Namespace
    key: RecordKey
    deleted: Literal[True] = True


class DeletedRecords(Answer, kw_only=True):
    """Result of deleting all records of an owner."""

    object: Literal["records"] = "records"
    deleted: Literal[True] = True
    records: Count
    """Number of deleted records."""


# -- one record ------------------------------------------------------------------


@routes.add(
    "GET", f"{_SESSION}/record", "read", query=SessionNameQuery, error_statuses=OF_SESSION, response_headers=_ETAG
)
@routes.add("GET", f"{_USER}/record", "read", error_statuses=_OF_USER, response_headers=_ETAG)
@routes.add("GET", f"{_TENANT}/record", "shared", error_statuses=_OF_USER, response_headers=_ETAG)
async def read(call: Call, query: NameQuery) -> RecordObject:
    """Return a record of a session, a user or the tenant."""
    # The first key that begins with a key is that key itself.
    page = await _read_page(call, await _get_records(call, query.namespace), prefix=query.key, limit=1)
    if not page.records or page.records[0].key != query.key:
        raise RecordNotFound(query.key)
    call.set_etag(page.records[0].version)
    return await run_cpu(RecordObject.from_record, page.records[0], long=_is_large(page.records))


@routes.add(
    "PUT",
    f"{_SESSION}/record",
    "write",
    query=SessionNameQuery,
    error_statuses=(*BODY, *OF_SESSION, 412, 422),
    request_headers=(_MATCH, _NONE_MATCH),
    response_headers=_ETAG,
)
@routes.add(
    "PUT",
    f"{_USER}/record",
    "write",
    error_statuses=(*BODY, *_OF_USER, 412, 422),
    request_headers=(_MATCH, _NONE_MATCH),
    response_headers=_ETAG,
)
@routes.add(
    "PUT",
    f"{_TENANT}/record",
    "shared write",
    error_statuses=(*BODY, *STORE, 412, 422),
    request_headers=(_MATCH, _NONE_MATCH),
    response_headers=_ETAG,
)
async def put(call: Call, query: NameQuery, body: NewRecord) -> RecordWritten:
    """Create a record of a session, a user or the tenant, or replace its value.

    With `If-Match`, the record must have that version. With `If-None-Match: *`, there must be no such record.
    """
    records = await _get_records(call, query.namespace)
    value = await run_cpu(decode_value, body.encoding, body.value, long=call.held.size > limits.RECORD_INLINE_BYTES)
    expect, ttl = _read_expected(call), _to_seconds(body.ttl)
    change = records.make_put(query.key, value, text=body.text, expect=expect, ttl=ttl)
    async with call.transfer(call.held.size):
        changed = await records.change([change])
    call.set_etag(changed.version)
    return RecordWritten(
        id=_format_name(change.name),
        namespace=list(records.namespace),
        key=query.key,
        version=changed.version,
        created=not changed.existed[0],
        expires_at=change.expires_at,
    )


@routes.add(
    "DELETE",
    f"{_SESSION}/record",
    "write",
    query=SessionNameQuery,
    error_statuses=(*OF_SESSION, 412),
    request_headers=(_MATCH,),
)
@routes.add("DELETE", f"{_USER}/record", "write", error_statuses=(*_OF_USER, 412), request_headers=(_MATCH,))
@routes.add("DELETE", f"{_TENANT}/record", "shared write", error_statuses=(*_OF_USER, 412), request_headers=(_MATCH,))
async def delete(call: Call, query: NameQuery) -> DeletedRecord:
    """Delete a record of a session, a user or the tenant. With `If-Match`, the record must have that version."""
    records = await _get_records(call, query.namespace)
    if not await records.delete(query.key, expect=call.get_expected_version()):
        raise RecordNotFound(query.key)
    name = RecordName(records.namespace, query.key)
    return DeletedRecord(id=_format_name(name), namespace=list(records.namespace), key=query.key)


# -- several records ---------------------------------------------------------------


@routes.add("GET", _SESSION, "read", query=SessionListQuery, error_statuses=OF_SESSION)
@routes.add("GET", _USER, "read", error_statuses=_OF_USER)
@routes.add("GET", _TENANT, "shared", error_statuses=STORE)
async def list_records(call: Call, query: ListQuery) -> RecordList:
    """List the records of a session, a user or the tenant in a namespace, in order of their keys.

    A page ends early if its values have more than 4 MiB together, but it has at least one record.
    """
    records = await _get_records(call, query.namespace)
    page = await _read_page(
        call,
        records,
        prefix=query.prefix or "",
        nested=query.nested,
        after=None if query.after is None else _parse_name(query.after),
        limit=query.limit,
        descending=query.order == "desc",
        values=query.values,
    )
    objects = await run_cpu(_make_objects, page.records, long=_is_large(page.records))
    return RecordList.of(objects, has_more=page.has_more)


@routes.add("GET", f"{_SESSION}/search", "read", query=SessionSearchQuery, error_statuses=(*OF_SESSION, 502))
@routes.add("GET", f"{_USER}/search", "read", error_statuses=(*_OF_USER, 502))
@routes.add("GET", f"{_TENANT}/search", "shared", error_statuses=(*STORE, 502))
async def search(call: Call, query: SearchQuery) -> FoundRecordList:
    """Search the records of a session, a user or the tenant. Only records that were put with a `text` are found, best first.

    There are fewer hits than `limit` if their values have more than 4 MiB together, but at least one.
    """
    if not query.q.strip() or len(query.q) > limits.QUERY_CHARS:
        raise InvalidRequest(f"q must have 1 to {limits.QUERY_CHARS:,} characters and not only white space", param="q")
    records = await _get_records(call, query.namespace)
    found = await records.search(
        query.q,
        prefix=query.prefix or "",
        nested=query.nested,
        limit=query.limit,
        mode=query.mode,
        values=False,
    )
    size = sum([hit.record.size for hit in found.hits])
    if query.values and found.hits:
        await call.reserve_answer(min(size, limits.RECORD_PAGE_BYTES + found.hits[0].record.size))
        async with call.transfer(size):
            found = await records.fill_hits(found)
    objects = await run_cpu(_make_hits, found.hits, long=_is_large([hit.record for hit in found.hits]))
    return FoundRecordList.of(objects, has_more=False, mode=found.mode, notes=list(found.notes))


@routes.add("GET", f"{_SESSION}/namespaces", "read", query=SessionNamespacesQuery, error_statuses=OF_SESSION)
@routes.add("GET", f"{_USER}/namespaces", "read", error_statuses=_OF_USER)
@routes.add("GET", f"{_TENANT}/namespaces", "shared", error_statuses=STORE)
async def list_namespaces(call: Call, query: NamespacesQuery) -> NamespaceList:
    """List the namespaces in which a session, a user or the tenant has records."""
    records = await _get_records(call, query.namespace)
    after = None if query.after is None else parse_path(query.after)
    more = min(query.limit + 1, limits.PAGE)
    found = await records.namespaces(depth=query.depth, after=after, limit=more)
    listed = [NamespaceObject(id=format_path(one), namespace=list(one)) for one in found[: query.limit]]
    return NamespaceList.of(listed, has_more=len(found) > query.limit or len(found) == limits.PAGE)


@routes.add("POST", _SESSION, "write", query=SessionDropQuery, error_statuses=(*BODY, *OF_SESSION, 412, 422))
@routes.add("POST", _USER, "write", error_statuses=(*BODY, *_OF_USER, 412, 422))
@routes.add("POST", _TENANT, "shared write", error_statuses=(*BODY, *STORE, 412, 422))
async def change(call: Call, query: DropQuery, body: RecordChanges) -> RecordsChanged:
    """Put and delete records of a session, a user or the tenant. Either all changes take effect, or none."""
    if not body.changes:
        raise InvalidRequest("changes must contain at least one change", param="changes")
    owned = await _get_records(call, None)
    long = call.held.size > limits.RECORD_INLINE_BYTES
    changes = await run_cpu(make_changes, owned, body.changes, long=long)
    async with call.transfer(call.held.size):
        changed = await owned.change(changes)
    return RecordsChanged(version=changed.version, existed=list(changed.existed))


@routes.add("DELETE", _SESSION, "write", query=SessionDropQuery, error_statuses=OF_SESSION)
@routes.add("DELETE", _USER, "write", error_statuses=_OF_USER)
@routes.add("DELETE", _TENANT, "shared write", error_statuses=STORE)
async def drop(call: Call, query: DropQuery) -> DeletedRecords:
    """Delete all records of a session, a user or the tenant, in all namespaces."""
    return DeletedRecords(records=await (await _get_records(call, None)).drop())


# -- reading and writing -----------------------------------------------------------


async def _read_page(call: Call, records: Records, *, limit: int, values: bool = True, **more: Any) -> RecordPage:
    """Return a page of records. The sizes are read first, so that the values are read only when the server has memory for them."""
    page = await records.read_page(limit=limit, values=False, **more)
    number = count_page([one.size for one in page.records], limit)
    if not values or not number:
        return page
    size = sum([one.size for one in page.records[:number]])
    await call.reserve_answer(size)
    async with call.transfer(size):
        return await records.read_page(limit=number, **more)


def _is_large(records: Sequence[RecordInfo]) -> bool:
    return sum([one.size for one in records if isinstance(one, Record)]) > limits.RECORD_INLINE_BYTES


def _make_objects(records: Sequence[RecordInfo]) -> list[RecordObject]:
    return [RecordObject.from_record(one) for one in records]


def _make_hits(hits: Sequence[FoundRecord]) -> list[FoundRecordObject]:
    return [
        FoundRecordObject.from_record(
            hit.record, score=hit.score, parts=hit.parts, snippet=hit.snippet, highlights=hit.highlights
        )
        for hit in hits
    ]


def make_changes(
    owned: Records, given: Sequence[PutRecordChange | DeleteRecordChange], name: str = "changes"
) -> list[RecordChange]:
    """Convert the changes in a request.

    Args:
        owned: all records of the owner.
        given: the changes.
        name: name of the field that has them, for errors.
    """
    changes: list[RecordChange] = []
    for at, one in enumerate(given):
        records = owned.below(*one.namespace)
        if isinstance(one, DeleteRecordChange):
            changes.append(records.make_delete(one.key, expect=one.expect))
        else:
            value = decode_value(one.encoding, one.value, f"{name}[{at}].value")
            ttl = _to_seconds(one.ttl)
            changes.append(records.make_put(one.key, value, text=one.text, expect=one.expect, ttl=ttl))
    return changes


# -- parts -------------------------------------------------------------------------


async def _get_records(call: Call, namespace: str | None) -> Records:
    """Return the records of the owner in the path: a session, a user, or the tenant.

    Raises:
        SessionNotFound: there is no such session.
        UserNotFound: the key belongs to another user.
    """
    labels = parse_path(namespace or "")
    if "session_id" in call.path:
        session = await call.get_session()
        return Records(call.hf.engine, session.ref, labels, identity=session.identity)
    return call.hf.records(labels, user_id=call.get_owner(call.path["user_id"]) if "user_id" in call.path else None)


def _parse_name(path: str) -> RecordName:
    *labels, key = parse_path(path)
    return RecordName(tuple(labels), key)


def _format_name(name: RecordName) -> str:
    return format_path((*name.namespace, name.key))


def _to_seconds(ttl: int | None) -> float | None:
    if ttl is not None and ttl < 1:
        raise InvalidRequest(f"ttl must be at least 1 millisecond, or null for no limit, not {ttl}", param="ttl")
    return None if ttl is None else ttl / 1000


def _read_expected(call: Call) -> int | None:
    """Return the version that the record must have, from `If-Match`. Return `MISSING` for `If-None-Match: *`, and None for any version.

    Raises:
        InvalidRequest: a header is not valid, or both are given.
    """
    none = call.get_header("if-none-match")
    if none is None:
        return call.get_expected_version()
    if none.strip() != "*" or call.get_header("if-match") is not None:
        raise InvalidRequest(
            "use either If-None-Match: * (there must be no such record) or If-Match with a version",
            param="If-None-Match",
        )
    return MISSING

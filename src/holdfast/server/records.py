"""REST API for records: values that an application stores under a namespace and a key.

A session, a user or the tenant owns each record. The query parameters say which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from holdfast import limits
from holdfast.accounting import run_cpu
from holdfast.domain.objects import Answer, Count, NonEmpty, Page, Request, Share, Time, json_schema
from holdfast.domain.record import MISSING, Record, RecordChange, RecordInfo, RecordName, RecordPage
from holdfast.domain.session import Session
from holdfast.errors import InvalidRequest, RecordNotFound
from holdfast.recall.base import SearchMode
from holdfast.search.records import FoundRecord
from holdfast.server.http import Call
from holdfast.server.routes import Order, OwnerQuery, PageLimit, Routes, describe_header, describe_headers, find_owner
from holdfast.sessions.records import Records
from holdfast.stores.logic.records import count_page
from holdfast.wire.records import (
    Encoding,
    NamedRecord,
    Namespace,
    RecordKey,
    RecordObject,
    RecordPath,
    RecordVersion,
    decode_value,
    format_name,
    format_path,
    parse_path,
)

routes = Routes("records")
_ALL: Final = "/v1/records"
_ONE: Final = "/v1/records/record"
_ETAG: Final = describe_headers(ETag="version of the record")
_MATCH: Final = describe_header("If-Match", "version that the record must have")
_NONE_MATCH: Final = describe_header("If-None-Match", "`*`: there must be no such record")

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


class ListQuery(OwnerQuery, kw_only=True):
    """Query parameters for listing or searching records."""

    q: Annotated[
        str | None,
        json_schema(
            description=f"a question, in plain words: search the records, best first; at most {limits.QUERY_CHARS:,} characters",
            minLength=1,
        ),
    ] = None
    namespace: Space | None = None
    """Namespace of the records. It may be left out only with `nested`."""
    prefix: NonEmpty | None = None
    """Only keys that begin with this text; not together with `nested`."""
    nested: bool = False
    """`true`: also records of namespaces below this one."""
    values: bool = True
    """`false`: leave out the values."""
    limit: PageLimit | None = None
    """Maximum number of records. Default: 20, or 10 with `q`."""
    order: Order = "asc"
    """Without `q`: order of the keys."""
    after: RecordPath | None = None
    """Without `q`: `last_id` of the previous page, after which this page begins."""
    mode: SearchMode | None = None
    """With `q`: kind of search; default: that of the index."""


class NamespacesQuery(OwnerQuery, kw_only=True):
    """Query parameters of a list of namespaces."""

    namespace: Space | None = None
    """Only this namespace and those below it."""
    depth: Annotated[int | None, json_schema(minimum=1, maximum=limits.NAMESPACE_LABELS)] = None
    """Shorten namespaces to their first labels, at most this many, and list each shortened namespace once."""
    limit: PageLimit = 20
    after: Space | None = None
    """`last_id` of the previous page, after which this page begins."""


class NameQuery(OwnerQuery, kw_only=True):
    """Query parameters that name a record."""

    namespace: Space
    key: RecordKey


class NewRecord(Request, kw_only=True):
    """The value of a record."""

    value: Value
    encoding: Encoding = "json"
    text: SearchableText = None
    ttl: Lifetime = None


class PutRecordChange(NewRecord, tag_field="op", tag="put", kw_only=True):
    """Create a record, or replace its value."""

    namespace: Namespace
    key: RecordKey
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


class RecordWritten(NamedRecord, kw_only=True):
    """Result of putting a record."""

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


class DeletedRecord(NamedRecord, kw_only=True):
    """A deleted record."""

    deleted: Literal[True] = True


class DeletedRecords(Answer, kw_only=True):
    """Result of deleting all records of an owner."""

    object: Literal["records"] = "records"
    deleted: Literal[True] = True
    records: Count
    """Number of deleted records."""


# -- one record ------------------------------------------------------------------


@routes.add("GET", _ONE, "read", response_headers=_ETAG)
async def read(call: Call, query: NameQuery) -> RecordObject:
    """Return a record of a session, a user or the tenant."""
    # The first key that begins with a key is that key itself.
    page = await _read_page(call, await _get_records(call, query, query.namespace), prefix=query.key, limit=1)
    if not page.records or page.records[0].key != query.key:
        raise RecordNotFound(query.key)
    call.set_etag(page.records[0].version)
    return await run_cpu(RecordObject.from_record, page.records[0], long=_is_large(page.records))


@routes.add("PUT", _ONE, "write", error_statuses=(422,), request_headers=(_MATCH, _NONE_MATCH), response_headers=_ETAG)
async def put(call: Call, query: NameQuery, body: NewRecord) -> RecordWritten:
    """Create a record of a session, a user or the tenant, or replace its value.

    With `If-Match`, the record must have that version. With `If-None-Match: *`, there must be no such record.
    """
    records = await _get_records(call, query, query.namespace)
    value = await run_cpu(decode_value, body.encoding, body.value, long=call.body_size > limits.RECORD_INLINE_BYTES)
    expect, ttl = _read_expected(call), _to_seconds(body.ttl)
    change = records.make_put(query.key, value, text=body.text, expect=expect, ttl=ttl)
    await call.admit(call.body_size)
    changed = await records.change([change])
    call.set_etag(changed.version)
    return RecordWritten(
        id=format_name(change.name),
        namespace=list(records.namespace),
        key=query.key,
        version=changed.version,
        created=not changed.existed[0],
        expires_at=change.expires_at,
    )


@routes.add("DELETE", _ONE, "write", request_headers=(_MATCH,))
async def delete(call: Call, query: NameQuery) -> DeletedRecord:
    """Delete a record of a session, a user or the tenant. With `If-Match`, the record must have that version."""
    records = await _get_records(call, query, query.namespace)
    if not await records.delete(query.key, expect=call.get_expected_version()):
        raise RecordNotFound(query.key)
    name = RecordName(records.namespace, query.key)
    return DeletedRecord(id=format_name(name), namespace=list(records.namespace), key=query.key)


# -- several records ---------------------------------------------------------------


@routes.add("GET", _ALL, "read", error_statuses=(502,), answer=(RecordList, FoundRecordList))
async def list_records(call: Call, query: ListQuery) -> RecordList | FoundRecordList:
    """List the records of a session, a user or the tenant in a namespace, in order of their keys, or search them.

    A page ends early if its values have more than 4 MiB together, but it has at least one record. With `q`, only records that were put
    with a `text` are found, best first.
    """
    if query.q is not None:
        return await _search(call, query, query.q)
    if query.mode is not None:
        raise InvalidRequest("mode needs q, the question to search for", param="mode")
    records = await _get_records(call, query, query.namespace)
    page = await _read_page(
        call,
        records,
        prefix=query.prefix or "",
        nested=query.nested,
        after=None if query.after is None else _parse_name(query.after),
        limit=query.limit or 20,
        descending=query.order == "desc",
        values=query.values,
    )
    objects = await run_cpu(lambda: [*map(RecordObject.from_record, page.records)], long=_is_large(page.records))
    return RecordList.of(objects, has_more=page.has_more)


async def _search(call: Call, query: ListQuery, question: str) -> FoundRecordList:
    if not question.strip() or len(question) > limits.QUERY_CHARS:
        raise InvalidRequest(f"q must have 1 to {limits.QUERY_CHARS:,} characters and not only white space", param="q")
    if query.after is not None or query.order != "asc":
        param = "order" if query.after is None else "after"
        raise InvalidRequest(
            f"{param} cannot be used together with q: hits are the best first, on one page", param=param
        )
    records = await _get_records(call, query, query.namespace)
    found = await records.search(
        question,
        prefix=query.prefix or "",
        nested=query.nested,
        limit=query.limit or 10,
        mode=query.mode,
        values=False,
    )
    size = sum([hit.record.size for hit in found.hits])
    if query.values and found.hits:
        await call.admit(size)
        found = await records.fill_hits(found)
    objects = await run_cpu(_make_hits, found.hits, long=_is_large([hit.record for hit in found.hits]))
    return FoundRecordList.of(objects, has_more=False, mode=found.mode, notes=list(found.notes))


@routes.add("GET", f"{_ALL}/namespaces", "read")
async def list_namespaces(call: Call, query: NamespacesQuery) -> NamespaceList:
    """List the namespaces in which a session, a user or the tenant has records."""
    records = await _get_records(call, query, query.namespace)
    after = None if query.after is None else parse_path(query.after)
    more = min(query.limit + 1, limits.PAGE)
    found = await records.namespaces(depth=query.depth, after=after, limit=more)
    listed = [NamespaceObject(id=format_path(one), namespace=list(one)) for one in found[: query.limit]]
    return NamespaceList.of(listed, has_more=len(found) > query.limit or len(found) == limits.PAGE)


@routes.add("POST", _ALL, "write", error_statuses=(412, 422))
async def change(call: Call, query: OwnerQuery, body: RecordChanges) -> RecordsChanged:
    """Put and delete records of a session, a user or the tenant. Either all changes take effect, or none."""
    if not body.changes:
        raise InvalidRequest("changes must contain at least one change", param="changes")
    owned = await _get_records(call, query)
    long = call.body_size > limits.RECORD_INLINE_BYTES
    changes = await run_cpu(make_changes, owned, body.changes, long=long)
    await call.admit(call.body_size)
    changed = await owned.change(changes)
    return RecordsChanged(version=changed.version, existed=list(changed.existed))


@routes.add("DELETE", _ALL, "write")
async def drop(call: Call, query: OwnerQuery) -> DeletedRecords:
    """Delete all records of a session, a user or the tenant, in all namespaces."""
    return DeletedRecords(records=await (await _get_records(call, query)).drop())


# -- reading and writing -----------------------------------------------------------


async def _read_page(call: Call, records: Records, *, limit: int, values: bool = True, **more: Any) -> RecordPage:
    """Return a page of records. The sizes are read first, so that the values are read only when the tenant may have another large request."""
    page = await records.read_page(limit=limit, values=False, **more)
    number = count_page([one.size for one in page.records], limit)
    if not values or not number:
        return page
    size = sum([one.size for one in page.records[:number]])
    await call.admit(size)
    return await records.read_page(limit=number, **more)


def _is_large(records: Sequence[RecordInfo]) -> bool:
    return sum([one.size for one in records if isinstance(one, Record)]) > limits.RECORD_INLINE_BYTES


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


async def _get_records(call: Call, query: OwnerQuery, namespace: str | None = None) -> Records:
    labels = parse_path(namespace or "")
    owner = await find_owner(call, query, read="shared", write="shared write")
    if isinstance(owner, Session):
        return Records(call.hf.engine, owner.ref, labels, identity=owner.identity)
    return call.hf.records(labels, user_id=owner)


def _parse_name(path: str) -> RecordName:
    *labels, key = parse_path(path)
    return RecordName(tuple(labels), key)


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

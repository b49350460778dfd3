"""Pages about records: namespaces, lists, search, and one record, which is changed only in the version that the page showed."""

from __future__ import annotations

from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.domain.objects import NonEmpty
from holdfast.server.http import Call
from holdfast.server.inspector.access import make_error_page
from holdfast.server.inspector.actions import check_form, declare_notice, decode_field, return_to
from holdfast.server.inspector.frame import HTML, format_editable_json, render
from holdfast.server.inspector.places import Place, PlaceQuery, find_need, find_place, parse_place
from holdfast.server.inspector.rest import call_rest, read_rest
from holdfast.server.inspector.session_frame import check_content
from holdfast.server.permissions import Refused, is_permitted
from holdfast.server.replies import Reply
from holdfast.server.routes import Order, Routes

routes = Routes("inspector")
_forms = Routes("inspector", lenient=True)
_LIST: Final = "/inspect/state/records"
_REST: Final = "/v1/records"
_LISTED: Final = 25
"""Records on a page."""
_NAMESPACES: Final = 200
"""Namespaces that a page lists."""
declare_notice("record_saved", "The record was saved.")
declare_notice("record_deleted", "The record was deleted.")


class RecordsQuery(PlaceQuery, kw_only=True):
    """Query parameters of the list of records."""

    namespace: NonEmpty | None = None
    """Labels of the namespace, separated by `/`."""
    prefix: NonEmpty | None = None
    q: NonEmpty | None = None
    """Question that the records must answer."""
    order: Order = "asc"
    after: NonEmpty | None = None
    """Id of the last record on the page before."""


class RecordQuery(PlaceQuery, kw_only=True):
    """Query parameters of the page of a record."""

    namespace: NonEmpty | None = None
    key: NonEmpty | None = None
    """The key; without it, the page adds a record."""


@routes.add("GET", _LIST, "read", answer=HTML)
async def show_records(call: Call, query: RecordsQuery) -> Reply:
    """Return the records of an owner in a namespace, or those that answer a question."""
    place = find_place(call, query)
    given = place.query
    namespaces = await read_rest(call, f"{_REST}/namespaces", limit=_NAMESPACES, **given)
    selected: dict[str, Any] = {"namespace": query.namespace, "prefix": query.prefix, "nested": query.namespace is None}
    if query.prefix is not None:
        selected["nested"] = False
    found: dict[str, Any] = {"data": [], "has_more": False, "notes": []}
    if query.q is not None:
        check_content(call)  # searching for words would reveal them
        found = await read_rest(call, _REST, q=query.q, limit=_LISTED, **selected, **given)
    elif namespaces["data"] or query.namespace:
        found = await read_rest(call, _REST, limit=_LISTED, order=query.order, after=query.after, **selected, **given)
    kept = {"namespace": query.namespace, "prefix": query.prefix, "order": query.order}
    return await render(
        call,
        "records.html",
        title="Records",
        place=place,
        query=query,
        namespaces=namespaces["data"],
        has_more_namespaces=namespaces["has_more"],
        records=found["data"],
        notes=found.get("notes", []),
        next_url=place.make_url(_LIST, **kept, after=found["last_id"]) if found["has_more"] else "",
        first_url=place.make_url(_LIST, **kept) if query.after else None,
        can_change=is_permitted(call.request.scope, find_need(place, "records")),
    )


# -- one record --------------------------------------------------------------------


@routes.add("GET", "/inspect/state/record", "read", answer=HTML)
async def show_record(call: Call, query: RecordQuery) -> Reply:
    """Return a record with the form that changes it, or an empty form."""
    place, record = find_place(call, query), None
    if query.key is not None:
        record = await read_rest(call, f"{_REST}/record", namespace=query.namespace, key=query.key, **place.query)
    return await _show_form(call, place, query.namespace or "", query.key or "", record)


async def _show_form(
    call: Call,
    place: Place,
    namespace: str,
    key: str,
    record: Any,
    *,
    mine: str | None = None,
    error: str = "",
    is_conflict: bool = False,
) -> Reply:
    """Return the page of a record.

    Args:
        call: the request.
        place: owner of the record.
        namespace: labels, separated by `/`.
        key: the key; empty: the form asks for it.
        record: the record as REST returns it; None: there is no such record.
        mine: value in the form; None: the value of the record.
        error: reason why the value in the form was not saved.
        is_conflict: True if the record has another version than the form was made for.
    """
    left = None
    if record is not None and record["expires_at"] is not None:
        left = max(1, (record["expires_at"] - call.hf.clock()) // 1000)
    value = "" if record is None else await run_cpu(_format, record)
    return await render(
        call,
        "record.html",
        title=key or "New record",
        status=409 if is_conflict else 400 if error else 200,
        place=place,
        namespace=namespace,
        key=key,
        record=record,
        value=value,
        text=value if mine is None else mine,
        seconds_left=left,
        error=error,
        is_conflict=is_conflict,
        can_change=is_permitted(call.request.scope, find_need(place, "records")),
        list_url=place.make_url(_LIST, namespace=namespace),
    )


def _format(record: Any) -> str:
    """Return the value of a record as indented JSON, or in base64."""
    if record["encoding"] == "base64":
        return str(record["value"])
    return format_editable_json(record["value"])


@_forms.add("POST", "/inspect/state/record/save", "write", answer=HTML)
async def save_record(call: Call) -> Reply:
    """Put or delete a record if it has the version in the form. Otherwise return the form with both values."""
    form = await call.read_form()
    check_form(call, form)
    check_content(call)
    names = ("namespace", "key", "value", "text", "encoding", "seconds", "version", "delete")
    given = {name: form.get(name, [""])[0] for name in names}
    place, namespace, key = parse_place(call, form), given["namespace"], given["key"]
    path = f"{_REST}/record"
    name = {"namespace": namespace, "key": key, **place.query}
    body = None
    if not given["delete"]:
        try:
            body = await run_cpu(_read_body, given)
        except ValueError as exc:
            record = await _find_record(call, path, name)
            return await _show_form(call, place, namespace, key, record, mine=given["value"], error=str(exc))
    method, version = "DELETE" if given["delete"] else "PUT", given["version"]
    if version:
        status, answer = await call_rest(call, method, path, query=name, body=body, version=version)
    elif await _find_record(call, path, name) is not None:
        status, answer = 412, {}
    else:
        status, answer = await call_rest(call, method, path, query=name, body=body)
    if status == 412:
        record = await _find_record(call, path, name)
        return await _show_form(call, place, namespace, key, record, mine=given["value"] or None, is_conflict=True)
    if status >= 400:
        return make_error_page(call.request.scope, status, answer["error"], place.make_url(_LIST, namespace=namespace))
    if given["delete"]:
        return return_to(place.make_url(_LIST, namespace=namespace), "record_deleted")
    return return_to(place.make_url("/inspect/state/record", namespace=namespace, key=key), "record_saved")


routes.all.extend(_forms.all)


def _read_body(given: dict[str, str]) -> dict[str, Any]:
    """Return the body of the request that puts a record. Raise `ValueError` if a field is not valid."""
    value: Any = given["value"]
    if given["encoding"] != "base64":
        try:
            value = decode_field(value)
        except ValueError as exc:
            raise ValueError(f"Nothing was saved, because {exc}. A text needs quotation marks.") from exc
    if given["seconds"] and not given["seconds"].isdecimal():
        raise ValueError("The lifetime is a whole number of seconds.")
    ttl = int(given["seconds"]) * 1000 if given["seconds"] else None
    return {"value": value, "encoding": given["encoding"] or "json", "text": given["text"] or None, "ttl": ttl}


async def _find_record(call: Call, path: str, name: dict[str, str]) -> Any:
    """Return a record as REST returns it, or None if there is none."""
    try:
        return await read_rest(call, path, **name)
    except Refused as exc:
        if exc.status == 404:
            return None
        raise

"""Pages about state and records of the app, a user or a session. A value is changed only in the version that the page showed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.objects import Id, NonEmpty
from holdfast.domain.session import Session
from holdfast.domain.state import get_scope
from holdfast.errors import HoldfastError, RecordNotFound
from holdfast.server.http import Call
from holdfast.server.inspector.actions import call_route, decode_field, read_form, return_to
from holdfast.server.inspector.frame import (
    HTML,
    PageQuery,
    Values,
    check_content,
    format_editable_json,
    make_origin,
    make_session_url,
    make_url,
    render,
)
from holdfast.server.inspector.session import SESSION, SessionPageQuery, SessionPages
from holdfast.server.permissions import Need, is_permitted, permit
from holdfast.server.replies import Reply
from holdfast.server.routes import Order
from holdfast.wire.artifacts import ArtifactObject

routes = SessionPages()
_RECORDS: Final = "/inspect/state/records"
_KEYS: Final = 100
"""Keys on a page."""
_LISTED: Final = 25
"""Records on a page."""
_NAMESPACES: Final = 200
"""Namespaces that a page lists."""
Scope = Literal["app", "user", "session"]


class PlaceQuery(PageQuery, kw_only=True):
    """Query parameters that name the owner of data."""

    scope: Scope | None = None
    user_id: Id | None = None
    session_id: Id | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The owner of data. `user_id` and `session_id` are empty if they do not apply."""

    scope: Scope
    user_id: str = ""
    session_id: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters of pages, which name the owner."""
        return {"scope": self.scope, "user_id": self.user_id, "session_id": self.session_id}

    @property
    def query(self) -> dict[str, str]:
        """Query parameters of the REST routes `/v1/state` and `/v1/records`, which name the owner."""
        named = {name: value for name, value in self.parameters.items() if value and name != "scope"}
        return named or {"scope": "tenant"}

    def make_rest_url(self, path: str) -> str:
        """Return the address of the owner's data at a REST route."""
        return make_url(path, **self.query)

    def make_url(self, path: str, **query: Any) -> str:
        """Return the address of a page about this owner."""
        return make_url(path, **self.parameters, **query)

    @property
    def state_url(self) -> str:
        """Address of the page with the owner's state."""
        return make_session_url(self, "state") if self.scope == "session" else self.make_url("/inspect/state")

    def get_need(self, kind: Literal["records", "state"]) -> Need:
        """Return the permission that is needed to change data of the owner.

        An admin key of one user may change the state of the app, but not its records, which it cannot read either.
        """
        if self.scope != "app":
            return "write"
        return "tenant" if kind == "state" else "shared write"


def find_place(call: Call, query: PlaceQuery) -> Place:
    """Return the owner that a request names.

    Without one, it is the key's user, or else the app. The routes that read the data check the caller's rights.

    Raises:
        UserNotFound: the key belongs to another user.
    """
    bound = call.principal.user_id
    if query.session_id is not None:
        return Place(scope="session", user_id=query.user_id or bound or "", session_id=query.session_id)
    if (query.scope or ("user" if query.user_id or bound else "app")) == "app":
        return Place(scope="app")
    return Place(scope="user", user_id=call.get_owner_or_default(query.user_id))


# -- state -------------------------------------------------------------------------


class StateQuery(PlaceQuery, kw_only=True):
    """Query parameters of the page with the state of the app or a user."""

    q: NonEmpty | None = None
    """Text that keys must contain."""
    after: NonEmpty | None = None
    """Last key on the page before."""


class SessionStateQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the page with the state of a session."""

    after: NonEmpty | None = None
    """Last key on the page before."""


@routes.page("/inspect/state", "read", "state.html", "State")
async def show_state(call: Call, query: StateQuery) -> Values:
    """Return the state of the app or of a user."""
    place = find_place(call, query)
    state = await _read_state(call, place)
    keys = sorted(key for key in state if (query.q or "") in key and key > (query.after or ""))
    return {
        "place": place,
        "rows": await run_cpu(_make_rows, state, keys[:_KEYS]),
        "total": len(state),
        "more": {**place.parameters, "after": keys[_KEYS - 1]} if len(keys) > _KEYS else None,
        "can_change": is_permitted(call.request.scope, place.get_need("state")),
        "origin": make_origin(call),
    }


@routes.page(f"{SESSION}/state", "read", "session_state.html", "State and files", tab="state")
async def show_session_state(call: Call, query: SessionStateQuery, session: Session) -> Values:
    """Return the state and the artifacts of a session."""
    place = Place(scope="session", user_id=session.user_id, session_id=session.id)
    state = await _read_state(call, place)
    own = sorted(key for key in state if get_scope(key) == "session" and key > (query.after or ""))
    shared = sorted(key for key in state if get_scope(key) != "session")
    artifacts = await call.hf.artifacts.page(session.ref, limit=_KEYS)
    return {
        "place": place,
        "rows": await run_cpu(_make_rows, state, own[:_KEYS]),
        "more": {"after": own[_KEYS - 1]} if len(own) > _KEYS else None,
        "shared": await run_cpu(_make_rows, state, shared[:_KEYS]),
        "more_shared": len(shared[_KEYS:]),
        "artifacts": [ArtifactObject.from_artifact(one) for one in artifacts.artifacts],
        "has_more": artifacts.has_more,
    }


def _make_rows(state: Mapping[str, Any], keys: list[str]) -> list[tuple[str, str, int]]:
    """Return key, JSON and size in bytes of each value."""
    encoded = [(key, msgspec.json.encode(state[key])) for key in keys]
    return [(key, msgspec.json.format(data).decode(), len(data)) for key, data in encoded]


async def _read_state(call: Call, place: Place) -> dict[str, Any]:
    found: dict[str, Any] = await call_route(call, "GET /v1/state", query=place.query)
    return found


# -- records -----------------------------------------------------------------------


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


@routes.page(_RECORDS, "read", "records.html", "Records")
async def show_records(call: Call, query: RecordsQuery) -> Values:
    """Return the records of an owner in a namespace, or those that answer a question."""
    place = find_place(call, query)
    namespaces = await call_route(call, "GET /v1/records/namespaces", query={**place.query, "limit": _NAMESPACES})
    selected: dict[str, Any] = {
        **place.query,
        "limit": _LISTED,
        "namespace": query.namespace,
        "prefix": query.prefix,
        "nested": query.namespace is None and query.prefix is None,
    }
    found: dict[str, Any] = {"data": [], "has_more": False}
    if query.q is not None:
        check_content(call)  # searching for words would reveal them
        found = await call_route(call, "GET /v1/records", query={**selected, "q": query.q})
    elif namespaces["data"] or query.namespace:
        selected |= {"order": query.order, "after": query.after}
        found = await call_route(call, "GET /v1/records", query=selected)
    return {
        "place": place,
        "namespaces": namespaces["data"],
        "has_more_namespaces": namespaces["has_more"],
        "records": found["data"],
        "notes": found.get("notes", []),
        "more": {**place.parameters, "after": found["last_id"]} if found["has_more"] else None,
        "can_change": is_permitted(call.request.scope, place.get_need("records")),
    }


# -- one value ---------------------------------------------------------------------


class KeyQuery(PlaceQuery, kw_only=True):
    """Query parameters of the pages that show one value."""

    key: NonEmpty | None = None
    """The key; without it, the page adds a value."""


class RecordQuery(KeyQuery, kw_only=True):
    """Query parameters of the page of a record."""

    namespace: NonEmpty | None = None


@dataclass(kw_only=True)
class ValueForm:
    """The form that changes a value of the state or a record."""

    kind: Literal["records", "state"]
    place: Place
    key: str
    """The key; empty: the form asks for it."""
    namespace: str = ""
    text: str | None = None
    """The value in the form: JSON, or base64 for bytes; None: the present value."""
    value: str = ""
    """The present value, in the same form; empty: there is none."""
    present: Any = None
    """The present value of a key of the state."""
    base: str = ""
    """Precondition for saving the form: version of a record, or fingerprint of a value of the state."""
    record: Any = None
    """The record as REST returns it; None: there is none."""
    error: str = ""
    """Reason why the value in the form was not saved."""
    is_conflict: bool = False
    """True if the value is not the one any more that the form was made for."""

    @property
    def need(self) -> Need:
        """Permission that is needed to change the value."""
        return self.place.get_need(self.kind)

    @property
    def list_url(self) -> str:
        """Address of the list with the value."""
        if self.kind == "state":
            return self.place.state_url
        return self.place.make_url(_RECORDS, namespace=self.namespace)

    async def read(self, call: Call) -> Self:
        """Read the present value, and return the form."""
        if self.kind == "state":
            self.present = (await _read_state(call, self.place)).get(self.key)
            self.base = fingerprint(self.present)
            self.value = "" if self.present is None else await run_cpu(format_editable_json, self.present)
            return self
        query = {"namespace": self.namespace, "key": self.key, **self.place.query}
        try:
            self.record = await call_route(call, "GET /v1/records/record", query=query)
        except RecordNotFound:
            self.record, self.base, self.value = None, "", ""
            return self
        value, self.base = self.record["value"], str(self.record["version"])
        self.value = value if self.record["encoding"] == "base64" else await run_cpu(format_editable_json, value)
        return self

    def show(self, call: Call) -> dict[str, Any]:
        """Return the variables of the page of the value with the form."""
        left = None
        if self.record is not None and self.record["expires_at"] is not None:
            left = max(1, (self.record["expires_at"] - call.hf.clock()) // 1000)
        return {
            "template": "value.html",
            "title": self.key or ("Add a value" if self.kind == "state" else "New record"),
            "status": 409 if self.is_conflict else 400 if self.error else 200,
            "form": self,
            "place": self.place,
            "seconds_left": left,
            "can_change": is_permitted(call.request.scope, self.need),
        }


@routes.page("/inspect/state/edit", "write", "value.html")
async def edit_state(call: Call, query: KeyQuery) -> Values:
    """Return the form that changes a key, or adds one."""
    check_content(call)
    form = ValueForm(kind="state", place=find_place(call, query), key=query.key or "")
    permit(call.request.scope, form.need)
    return (await form.read(call)).show(call)


@routes.page("/inspect/state/record", "read", "value.html")
async def show_record(call: Call, query: RecordQuery) -> Values:
    """Return a record with the form that changes it, or an empty form."""
    place = find_place(call, query)
    form = ValueForm(kind="records", place=place, key=query.key or "", namespace=query.namespace or "")
    if form.key and (await form.read(call)).record is None:
        raise RecordNotFound(form.key)
    return form.show(call)


@routes.add("POST", "/inspect/state/save", "write", answer=HTML, lenient=True)
async def save_state(call: Call) -> Reply:
    """Change a key if its value is still the one in the form. Otherwise return the form with both values."""
    return await _save(call, "state")


@routes.add("POST", "/inspect/state/record/save", "write", answer=HTML, lenient=True)
async def save_record(call: Call) -> Reply:
    """Put or delete a record if it has the version in the form. Otherwise return the form with both values."""
    return await _save(call, "records")


_FIELDS: Final = ("scope", "user_id", "session_id", "namespace", "key", "value", "text", "encoding", "seconds", "base")


async def _save(call: Call, kind: Literal["records", "state"]) -> Reply:
    fields = await read_form(call)
    check_content(call)
    given = {name: fields.get(name, [""])[0] for name in (*_FIELDS, "delete")}
    query = PlaceQuery(user_id=given["user_id"] or None, session_id=given["session_id"] or None)
    query.scope = "app" if given["scope"] == "app" else None
    form = ValueForm(kind=kind, place=find_place(call, query), key=given["key"], namespace=given["namespace"])
    form.text = given["value"] or None
    if kind == "state" and form.place.scope != "session" and get_scope(form.key) == "session":
        form.key = f"{form.place.scope}:{form.key}"
    call.request.scope["state"]["back"] = form.list_url
    body: Any = None
    try:
        if not given["delete"]:
            body = (
                await run_cpu(_make_record, given)
                if kind == "records"
                else {"value": await run_cpu(_decode, given["value"])}
            )
    except ValueError as exc:
        form.error = str(exc)
        await form.read(call)
        form.base = given["base"]
        return await render(call, **form.show(call))
    form.is_conflict = (await form.read(call)).base != given["base"] or not await _write(call, form, body)
    if form.is_conflict:
        return await render(call, **(await form.read(call)).show(call))
    done = ("state" if kind == "state" else "record") + ("_deleted" if given["delete"] else "_saved")
    if kind == "state" or given["delete"]:
        return return_to(form.list_url, done)
    return return_to(form.place.make_url("/inspect/state/record", namespace=form.namespace, key=form.key), done)


async def _write(call: Call, form: ValueForm, body: Any) -> bool:
    """Write the value, or delete it if `body` is None. Return False if it is not the one any more that the form has read."""
    query: dict[str, Any] = form.place.query
    try:
        if form.kind == "records":
            query = {**query, "namespace": form.namespace, "key": form.key}
            route = f"{'DELETE' if body is None else 'PUT'} /v1/records/record"
            await call_route(call, route, query=query, body=body, version=form.base)
        else:
            operation = {"op": "delete", "key": form.key} if body is None else {"op": "set", "key": form.key, **body}
            expect = {"op": "expect", "key": form.key, "value": form.present}
            await call_route(call, "POST /v1/state", query=query, body={"changes": [expect, operation]})
    except HoldfastError as exc:
        if exc.http_status != 412:
            raise
        return False
    return True


def _make_record(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the request that puts a record. Raise `ValueError` if a field is not valid."""
    value = given["value"] if given["encoding"] == "base64" else _decode(given["value"])
    if given["seconds"] and not given["seconds"].isdecimal():
        raise ValueError("The lifetime is a whole number of seconds.")
    ttl = int(given["seconds"]) * 1000 if given["seconds"] else None
    return {"value": value, "encoding": given["encoding"] or "json", "text": given["text"] or None, "ttl": ttl}


def _decode(text: str) -> Any:
    try:
        return decode_field(text)
    except ValueError as exc:
        raise ValueError(f"Nothing was saved, because {exc}. A text needs quotation marks.") from exc


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal values. A form contains it in place of the value, which may be long."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]

"""Pages about state: of the app, of a user and of a session. A value is changed only if it is still the value that the page showed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.objects import NonEmpty
from holdfast.domain.state import get_scope
from holdfast.server.http import Call
from holdfast.server.inspector.access import make_error_page
from holdfast.server.inspector.actions import check_form, declare_notice, decode_field, return_to
from holdfast.server.inspector.frame import HTML, format_editable_json, make_origin, render
from holdfast.server.inspector.places import Place, PlaceQuery, find_need, find_place, parse_place
from holdfast.server.inspector.rest import call_rest, read_rest
from holdfast.server.inspector.session_frame import (
    SESSION,
    SessionPageQuery,
    check_content,
    render_session,
)
from holdfast.server.permissions import is_permitted, permit
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.wire.artifacts import ArtifactObject

routes = Routes("inspector")
_forms = Routes("inspector", lenient=True)
_REST: Final = "/v1/state"
_LISTED: Final = 100
"""Keys on a page."""
declare_notice("state_saved", "The value was saved.")
declare_notice("state_deleted", "The key was deleted.")


class StateQuery(PlaceQuery, kw_only=True):
    """Query parameters of the page with the state of the app or a user."""

    q: NonEmpty | None = None
    """Text that keys must contain."""
    after: NonEmpty | None = None
    """Last key on the page before."""


class KeyQuery(PlaceQuery, kw_only=True):
    """Query parameters of the page that edits a key."""

    key: NonEmpty | None = None
    """The key; without it, the page adds one."""


# -- lists -------------------------------------------------------------------------


@routes.add("GET", "/inspect/state", "read", answer=HTML)
async def show_state(call: Call, query: StateQuery) -> Reply:
    """Return the state of the app or of a user."""
    place = find_place(call, query)
    state = await read_rest(call, _REST, **place.query)
    keys = sorted(key for key in state if (query.q or "") in key and key > (query.after or ""))
    return await render(
        call,
        "state.html",
        title="State",
        place=place,
        query=query,
        rows=await run_cpu(_make_rows, {key: state[key] for key in keys[:_LISTED]}),
        total=len(state),
        next_url=place.make_url("/inspect/state", q=query.q, after=keys[_LISTED - 1]) if len(keys) > _LISTED else "",
        can_change=is_permitted(call.request.scope, find_need(place, "state")),
        origin=make_origin(call),
    )


class SessionStateQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the page with the state of a session."""

    after: NonEmpty | None = None
    """Last key on the page before."""


@routes.add("GET", f"{SESSION}/state", "read", answer=HTML)
async def show_session_state(call: Call, query: SessionStateQuery) -> Reply:
    """Return the state and the artifacts of a session."""
    session = await call.get_session()
    place = Place(scope="session", user_id=session.user_id, session_id=session.id)
    state = await read_rest(call, _REST, **place.query)
    own = sorted(key for key in state if get_scope(key) == "session")
    shared = sorted(state.keys() - set(own))
    listed = [key for key in own if key > (query.after or "")]
    artifacts = await call.hf.artifacts.page(session.ref, limit=_LISTED)
    return await render_session(
        call,
        session,
        "session_state.html",
        tab="state",
        title="State and files",
        place=place,
        query=query,
        rows=await run_cpu(_make_rows, {key: state[key] for key in listed[:_LISTED]}),
        next_key=listed[_LISTED - 1] if len(listed) > _LISTED else None,
        shared=await run_cpu(_make_rows, {key: state[key] for key in shared[:_LISTED]}),
        more_shared=len(shared[_LISTED:]),
        artifacts=[ArtifactObject.from_artifact(one) for one in artifacts.artifacts],
        has_more=artifacts.has_more,
    )


def _make_rows(state: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return key, JSON and size in bytes of each value, in order of the keys."""
    encoded = [(key, msgspec.json.encode(state[key])) for key in sorted(state)]
    return [(key, msgspec.json.format(data).decode(), len(data)) for key, data in encoded]


# -- one key -----------------------------------------------------------------------


@routes.add("GET", "/inspect/state/edit", "write", answer=HTML)
async def edit_state(call: Call, query: KeyQuery) -> Reply:
    """Return the form that changes a key, or adds one."""
    check_content(call)
    place = find_place(call, query)
    permit(call.request.scope, find_need(place, "state"))
    value = None
    if query.key is not None:
        value = (await read_rest(call, _REST, **place.query)).get(query.key)
    text = "" if value is None else await run_cpu(format_editable_json, value)
    return await _show_form(call, place, query.key or "", text, base=fingerprint(value))


@_forms.add("POST", "/inspect/state/save", "write", answer=HTML)
async def save_state(call: Call) -> Reply:
    """Change a key if its value is still the one in the form. Otherwise return the form with both values."""
    form = await call.read_form()
    check_form(call, form)
    check_content(call)
    fields = {name: form.get(name, [""])[0] for name in ("key", "value", "base", "delete")}
    place, key, text = parse_place(call, form), fields["key"], fields["value"]
    if place.scope != "session" and get_scope(key) == "session":
        key = f"{place.scope}:{key}"
    operation: dict[str, Any] = {"op": "delete", "key": key}
    if not fields["delete"]:
        try:
            value = await run_cpu(decode_field, text)
        except ValueError as exc:
            error = f"Nothing was saved, because {exc}. A text needs quotation marks."
            return await _show_form(call, place, key, text, base=fields["base"], error=error)
        operation = {"op": "set", "key": key, "value": value}
    current = (await read_rest(call, _REST, **place.query)).get(key)
    status = 412
    answer: Any = None
    if fingerprint(current) == fields["base"]:
        changes = [{"op": "expect", "key": key, "value": current}, operation]
        status, answer = await call_rest(call, "POST", _REST, query=place.query, body={"changes": changes})
    if status == 412:
        current = (await read_rest(call, _REST, **place.query)).get(key)
        theirs = "" if current is None else await run_cpu(format_editable_json, current)
        return await _show_form(call, place, key, text, base=fingerprint(current), theirs=theirs, is_conflict=True)
    if status >= 400:
        return make_error_page(call.request.scope, status, answer["error"], place.state_url)
    return return_to(place.state_url, "state_deleted" if fields["delete"] else "state_saved")


routes.all.extend(_forms.all)


async def _show_form(
    call: Call,
    place: Place,
    key: str,
    text: str,
    *,
    base: str,
    error: str = "",
    theirs: str = "",
    is_conflict: bool = False,
) -> Reply:
    """Return the form that changes a key.

    Args:
        call: the request.
        place: owner of the state.
        key: the key; empty: the form asks for it.
        text: JSON of the value in the form.
        base: fingerprint of the value that the key has.
        error: reason why the value in the form was not saved.
        theirs: JSON of the present value of the key, if it differs from the value that the form was made for.
        is_conflict: True if the key has another value than the form was made for.
    """
    status = 409 if is_conflict else 400 if error else 200
    return await render(
        call,
        "state_edit.html",
        title=key or "Add a value",
        status=status,
        place=place,
        key=key,
        text=text,
        base=base,
        error=error,
        theirs=theirs,
        is_conflict=is_conflict,
    )


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal values. A form contains it in place of the value, which may be long."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]

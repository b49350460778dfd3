"""REST API for the state of sessions, users and the app. Keys include the prefix of their scope, such as `user:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from holdfast import limits
from holdfast.domain.objects import Answer, Count, JsonObject, OpenObject, Request, json_schema
from holdfast.domain.session import Session
from holdfast.domain.state import Change, Extend, Increment, Scope, add_prefix, combine_changes
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.server import limits as server_limits
from holdfast.server.http import Call
from holdfast.server.permissions import check_app
from holdfast.server.routes import (
    ETAG,
    MATCH,
    OwnerQuery,
    Routes,
    SessionQuery,
    SharedQuery,
    describe_header,
    describe_headers,
    find_owner,
    get_shared_owner,
)

routes = Routes("state")
_SESSION: Final = "/v1/sessions/{session_id}/state"
_SHARED: Final = "/v1/state"
_SCOPE_MATCH: Final = describe_header("If-Match", "version that the state must have")
_SCOPE_ETAG: Final = describe_headers(ETag="version of the state")


class State(OpenObject):
    """State as an object: values by key.

    Keys that begin with `user:` or `app:` are shared; keys of the session's own state have no prefix.
    """


State.__doc__ = f"{State.__doc__} Each scope has at most {limits.STATE_KEYS} keys and {limits.STATE_BYTES} bytes."
Key = Annotated[
    str,
    json_schema(
        description=f"key with the prefix of its scope (`user:`, `app:`, `temp:`, or none for the session's own); at most"
        f" {limits.STATE_KEY_BYTES} bytes after the prefix",
        minLength=1,
    ),
]
Value = Annotated[
    Any, json_schema(description=f"any JSON, at most {limits.STATE_VALUE_BYTES} bytes; null for no value")
]


class _Operation(Request):
    key: Key


class SetState(_Operation, tag_field="op", tag="set"):
    """Set a key to a value."""

    value: Value


class DeleteState(_Operation, tag_field="op", tag="delete"):
    """Delete a key."""


class IncrementState(_Operation, tag_field="op", tag="increment"):
    """Add to the number that a key has. A missing key counts as 0."""

    by: Annotated[Any, json_schema(type="number", description="amount; default 1")] = 1


class AppendState(_Operation, tag_field="op", tag="append"):
    """Append to the list that a key has. A missing key counts as an empty list."""

    values: list[Value]


class ExpectState(_Operation, tag_field="op", tag="expect"):
    """Apply the changes only if a key has this value before them. If the key has another value, the status is 412."""

    value: Value


StateOperation = SetState | DeleteState | IncrementState | AppendState | ExpectState


class StateOperations(Request):
    """Operations on keys of the state, applied in this order. Either all of them take effect, or none. `expect` is checked first."""

    changes: Annotated[
        list[StateOperation],
        json_schema(minItems=1, description=f"at most {server_limits.STATE_CHANGES} operations; more get status 413"),
    ]


class StateChanged(Answer, kw_only=True):
    """The new values of the keys that were changed, and the new version of the session or the shared state."""

    object: Literal["state.change"] = "state.change"
    version: Count
    """New version of the session, or of the state of the user or the app."""
    values: JsonObject
    """New values of the changed keys; null for deleted keys."""


class DeletedState(Answer, kw_only=True):
    """Result of deleting the state of a user or the app."""

    object: Literal["state"] = "state"
    user_id: str | None
    """User of the deleted state; null for the app's state."""
    deleted: Literal[True] = True
    keys: Count
    """Number of deleted keys."""


# -- read and change -----------------------------------------------------------


@routes.add("GET", _SESSION, "read", query=SessionQuery, response_headers=ETAG, answer=State)
@routes.add("GET", _SHARED, "read", query=OwnerQuery, response_headers=_SCOPE_ETAG, answer=State)
async def get(call: Call, query: OwnerQuery | SessionQuery) -> JsonObject:
    """Return the state of a session, of a user, or of the app as one object.

    The state of a session includes the shared state of its user (`user:`) and of the app (`app:`).
    """
    owner = await (call.get_session() if isinstance(query, SessionQuery) else find_owner(call, query, write="tenant"))
    if not isinstance(owner, Session):
        return await _read_scope(call, owner)
    call.set_etag(owner.version)
    return await call.hf.engine.scopes.read_all(owner)


@routes.add(
    "PATCH",
    _SESSION,
    "write",
    query=SessionQuery,
    error_statuses=(422,),
    request_headers=(MATCH,),
    response_headers=ETAG,
    body=State,
    answer=State,
)
@routes.add(
    "PATCH",
    _SHARED,
    "write",
    query=OwnerQuery,
    error_statuses=(422,),
    request_headers=(_SCOPE_MATCH,),
    response_headers=_SCOPE_ETAG,
    body=State,
    answer=State,
)
async def patch(call: Call, query: OwnerQuery | SessionQuery, body: JsonObject) -> JsonObject:
    """Change keys of the state of a session, of a user, or of the app, and return the new state.

    Either all keys are changed, or none. Null deletes a key. In a session, keys of the shared state (`user:`, `app:`) are allowed; `app:`
    keys need an API key without a user, or an admin key. `temp:` keys exist only during a turn: they are accepted and ignored.
    """
    owner = await (call.get_session() if isinstance(query, SessionQuery) else find_owner(call, query, write="tenant"))
    if not isinstance(owner, Session):
        await call.hf.engine.scopes.change_scope(owner, body, version=call.get_expected_version())
        return await _read_scope(call, owner)
    check_app(call.principal, body)
    await call.hf.engine.scopes.change(owner.ref, body, version=call.get_expected_version())
    after = await call.hf.store.get(owner.ref)
    call.set_etag(after.version)
    return await call.hf.engine.scopes.read_all(after)


@routes.add(
    "POST", _SHARED, "write", error_statuses=(422,), request_headers=(_SCOPE_MATCH,), response_headers=_SCOPE_ETAG
)
async def change(call: Call, query: OwnerQuery, body: StateOperations) -> StateChanged:
    """Apply operations to keys of the state of a session, of a user, or of the app: set, delete, increment and append.

    Either all operations are applied, or none. An `expect` operation names the value that a key must have before the changes, or null if
    it must be missing. In a session, the keys of all `expect` operations must have the same scope; if it is a shared scope (`user:`,
    `app:`), the keys of all other operations must have this scope too. The response has the new values of the changed keys.
    """
    changes, scopes = read_changes(body.changes), call.hf.engine.scopes
    owner = await find_owner(call, query, write="tenant")
    more: dict[str, Any] = {"expect": changes.expect, "version": call.get_expected_version()}
    if isinstance(owner, Session):
        check_app(call.principal, changes.delta)
        changed = await scopes.change(owner.ref, changes.delta, **more)
    else:
        changed = await scopes.change_scope(owner, changes.delta, **more)
    values = changed.values or {}
    call.set_etag(changed.version)
    return StateChanged(version=changed.version, values={key: values.get(key) for key in changes.delta})


@routes.add("DELETE", _SHARED, "write", error_statuses=(404,), request_headers=(_SCOPE_MATCH,))
async def drop(call: Call, query: SharedQuery) -> DeletedState:
    """Delete the state that all sessions of a user share, or the state of the app."""
    owner = get_shared_owner(call, query, write="tenant")
    keys = await call.hf.engine.scopes.drop(owner, version=call.get_expected_version())
    return DeletedState(user_id=owner, keys=keys)


async def _read_scope(call: Call, user_id: str | None) -> JsonObject:
    found = await call.hf.engine.scopes.read(user_id)
    scope: Scope = "app" if user_id is None else "user"
    call.set_etag(found.version)
    return add_prefix(found.values or {}, scope)


# -- changes -------------------------------------------------------------------


class Changes(NamedTuple):
    """The operations of a request: for each key, how it changes, and the value that it must have before."""

    delta: Mapping[str, Change]
    expect: Mapping[str, Any]


def read_changes(changes: Sequence[StateOperation]) -> Changes:
    """Combine the operations of a request into one change per key.

    Raises:
        InvalidRequest: there is no operation that changes something, or there are two `expect` operations for one key.
        TooLarge: there are too many operations.
    """
    if not changes:
        raise InvalidRequest("changes must contain at least one operation", param="changes")
    if len(changes) > server_limits.STATE_CHANGES:
        message = f"changes has {len(changes):,} operations; at most {server_limits.STATE_CHANGES:,} are allowed"
        raise TooLarge(message, param="changes")
    delta: dict[str, Change] = {}
    expect: dict[str, Any] = {}
    for at, one in enumerate(changes):
        if not isinstance(one, ExpectState):
            made = _convert_change(one)
            delta[one.key] = combine_changes(one.key, delta[one.key], made) if one.key in delta else made
        elif one.key in expect:
            place = f"changes[{at}]"
            raise InvalidRequest(f"{place}: duplicate expect for {one.key!r:.80}", param=place)
        else:
            expect[one.key] = one.value
    if not delta:
        raise InvalidRequest("changes contains only expect operations: add one that changes something", param="changes")
    return Changes(delta, expect)


def _convert_change(one: SetState | DeleteState | IncrementState | AppendState) -> Change:
    match one:
        case IncrementState():
            return Increment(one.by)
        case AppendState():
            return Extend(tuple(one.values))
        case SetState():
            return one.value
        case _:
            return None

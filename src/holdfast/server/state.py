"""REST API for the state of sessions, users and the app. Keys include the prefix of their scope, such as `user:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from holdfast import limits
from holdfast.domain.session import Session
from holdfast.domain.state import Change, Extend, Increment, Scope, add_prefix, combine_changes
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.server import limits as server_limits
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.permissions import check_app, permit
from holdfast.server.routes import (
    BODY,
    ETAG,
    MATCH,
    OF_SESSION,
    STORE,
    Routes,
    SessionQuery,
    describe_header,
    describe_headers,
)
from holdfast.wire.objects import Answer, Count, JsonObject, NonEmpty, OpenObject, Request, json_schema

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


TenantScope = Annotated[
    Literal["tenant"] | None,
    json_schema(
        description="`tenant`: the state of the app, which all users share. Without `session_id` and `user_id`, it is required to write, and the default to read"
    ),
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


class OwnerQuery(Request, kw_only=True):
    """Query parameters that name the owner of state: a session, a user, or the app."""

    session_id: NonEmpty | None = None
    """Session whose state it is, with the state that it shares."""
    user_id: NonEmpty | None = None
    """User whose sessions share the state, or with `session_id`, user of the session."""
    scope: TenantScope = None


class UserQuery(Request, kw_only=True):
    """Query parameters that name the owner of shared state: a user, or the app."""

    user_id: NonEmpty | None = None
    """User whose sessions share the state."""
    scope: TenantScope = None


# -- read and change -----------------------------------------------------------


@routes.add("GET", _SESSION, "read", query=SessionQuery, error_statuses=OF_SESSION, response_headers=ETAG, answer=State)
@routes.add(
    "GET", _SHARED, "read", query=OwnerQuery, error_statuses=OF_SESSION, response_headers=_SCOPE_ETAG, answer=State
)
async def get(call: Call, query: OwnerQuery | SessionQuery) -> JsonObject:
    """Return the state of a session, of a user, or of the app as one object.

    The state of a session includes the shared state of its user (`user:`) and of the app (`app:`).
    """
    session = await _find_session(call, query)
    if session is None:
        if query.user_id is not None and getattr(query, "scope", None) is not None:
            raise InvalidRequest("scope cannot be used together with user_id", param="scope")
        return await _read_scope(call, None if query.user_id is None else call.get_owner(query.user_id))
    call.set_etag(session.version)
    return await call.hf.engine.scopes.read_all(session)


@routes.add(
    "PATCH",
    _SESSION,
    "write",
    query=SessionQuery,
    error_statuses=(*BODY, *OF_SESSION, 412, 422),
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
    error_statuses=(*BODY, *OF_SESSION, 412, 422),
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
    session = await _find_session(call, query)
    if session is None:
        user_id = _get_shared_owner(call, query)
        await call.hf.engine.scopes.change_scope(user_id, body, version=call.get_expected_version())
        return await _read_scope(call, user_id)
    check_app(call.principal, body)
    await call.hf.engine.scopes.change(session.ref, body, version=call.get_expected_version())
    after = await call.hf.store.get(session.ref)
    call.set_etag(after.version)
    return await call.hf.engine.scopes.read_all(after)


@routes.add(
    "POST",
    _SHARED,
    "write",
    error_statuses=(*BODY, *OF_SESSION, 412, 422),
    request_headers=(_SCOPE_MATCH,),
    response_headers=_SCOPE_ETAG,
)
async def change(call: Call, query: OwnerQuery, body: StateOperations) -> StateChanged:
    """Apply operations to keys of the state of a session, of a user, or of the app: set, delete, increment and append.

    Either all operations are applied, or none. An `expect` operation names the value that a key must have before the changes, or null if
    it must be missing. In a session, the keys of all `expect` operations must have the same scope; if it is a shared scope (`user:`,
    `app:`), the keys of all other operations must have this scope too. The response has the new values of the changed keys.
    """
    changes, scopes = read_changes(body.changes), call.hf.engine.scopes
    session = await _find_session(call, query)
    more: dict[str, Any] = {"expect": changes.expect, "version": call.get_expected_version()}
    if session is None:
        changed = await scopes.change_scope(_get_shared_owner(call, query), changes.delta, **more)
    else:
        check_app(call.principal, changes.delta)
        changed = await scopes.change(session.ref, changes.delta, **more)
    values = changed.values or {}
    call.set_etag(changed.version)
    return StateChanged(version=changed.version, values={key: values.get(key) for key in changes.delta})


@routes.add("DELETE", _SHARED, "write", error_statuses=(*STORE, 404, 412), request_headers=(_SCOPE_MATCH,))
async def drop(call: Call, query: UserQuery) -> DeletedState:
    """Delete the state that all sessions of a user share, or the state of the app."""
    user_id = _get_shared_owner(call, query)
    return DeletedState(
        user_id=user_id, keys=await call.hf.engine.scopes.drop(user_id, version=call.get_expected_version())
    )


async def _find_session(call: Call, query: OwnerQuery | SessionQuery) -> Session | None:
    """Return the session that the path or the query names, or None for shared state."""
    if isinstance(query, SessionQuery):
        return await call.get_session()
    if query.session_id is None:
        return None
    if query.scope is not None:
        raise InvalidRequest("scope cannot be used together with session_id", param="scope")
    return await get_session_by_id(call.hf, query.session_id, call.get_owner(query.user_id))


def _get_shared_owner(call: Call, query: OwnerQuery | SessionQuery | UserQuery) -> str | None:
    """Return the user whose shared state the request may change, or None for the app.

    Raises:
        InvalidRequest: neither a user nor the app is named. A client that loses a parameter must not change what all users share.
        UserNotFound: the key belongs to another user.
        Refused: the key belongs to a user, but the state of the app belongs to all users.
    """
    scope = getattr(query, "scope", None)
    if query.user_id is not None and scope is None:
        return call.get_owner(query.user_id)
    permit(call.request.scope, "tenant")
    if scope is None or query.user_id is not None:
        raise InvalidRequest("name one owner: session_id, user_id, or scope=tenant", param="scope")
    return None


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

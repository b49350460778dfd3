"""The REST API over state: of a session with all that it shares, of a user, of the tenant. Keys are spelt with their prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from holdfast import limits
from holdfast.domain.state import Change, Extend, Increment, Scope, combined, prefixed
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.server.http import Call
from holdfast.server.permissions import check_app
from holdfast.server.routes import BODY, ETAG, MATCH, OF_SESSION, STORE, Routes, SessionQuery, gives, header
from holdfast.wire.objects import Answer, Count, JsonObject, OpenObject, Request, json_schema

routes = Routes("state")
_SESSION: Final = "/v1/sessions/{session_id}/state"
_USER: Final = "/v1/users/{user_id}/state"
_APP: Final = "/v1/state"
_SCOPE_MATCH: Final = header("If-Match", "the version that the state must be at")
_SCOPE_ETAG: Final = gives(ETag="the version of the state")
_CHANGING: Final = (*BODY, *STORE, 412, 422)


class State(OpenObject):
    """Values by key, with the prefix of its scope: `user:`, `app:`; none: the session's own."""


State.__doc__ = f"{State.__doc__} Of each scope at most {limits.STATE_KEYS} keys and {limits.STATE_BYTES} bytes."
Key = Annotated[
    str,
    json_schema(
        description=f"with the prefix of its scope (`user:`, `app:`, `temp:`; none: the session's own); at most"
        f" {limits.STATE_KEY_BYTES} bytes after it",
        minLength=1,
    ),
]
Value = Annotated[Any, json_schema(description=f"any JSON, at most {limits.STATE_VALUE_BYTES} bytes; null: nothing")]


class _Operation(Request):
    key: Key


class SetState(_Operation, tag_field="op", tag="set"):
    """Store a value under a key."""

    value: Value


class DeleteState(_Operation, tag_field="op", tag="delete"):
    """Delete what is under a key."""


class IncrementState(_Operation, tag_field="op", tag="increment"):
    """IncrementState to the number under a key, to 0 where there is none."""

    by: Annotated[Any, json_schema(type="number", description="unset: 1")] = 1


class AppendState(_Operation, tag_field="op", tag="append"):
    """IncrementState to the end of the list under a key, of an empty one where there is none."""

    values: list[Value]


class ExpectState(_Operation, tag_field="op", tag="expect"):
    """What must be under a key before; else 412."""

    value: Value


class StateOperations(Request):
    """What is to be done, all of it or nothing, in this order; what is expected is looked at first."""

    changes: Annotated[
        list[SetState | DeleteState | IncrementState | AppendState | ExpectState],
        json_schema(minItems=1, description=f"at most {limits.STATE_CHANGES}; more are a 413"),
    ]


class StateChanged(Answer, kw_only=True):
    """What was changed."""

    object: Literal["state.change"] = "state.change"
    version: Count
    """The session's, or the scope's."""
    values: JsonObject
    """What is under the changed keys; null: nothing."""


class DeletedState(Answer, kw_only=True):
    """It is gone."""

    object: Literal["state"] = "state"
    user_id: str | None
    """Whose it was; null: the tenant's."""
    deleted: Literal[True] = True
    keys: Count
    """How many there were."""


# -- of a session ------------------------------------------------------------


@routes.add("GET", _SESSION, "read", fails=OF_SESSION, gives=ETAG, answer=State)
async def get(call: Call, query: SessionQuery) -> JsonObject:
    """A session's state, with what its user's sessions share (`user:`) and all of the tenant (`app:`), as one flat object."""
    session = await call.session()
    call.tag(session.version)
    return await call.hf.engine.scopes.all(session)


@routes.add(
    "PATCH",
    _SESSION,
    "write",
    fails=(*BODY, *OF_SESSION, 412, 422),
    takes=(MATCH,),
    gives=ETAG,
    body=State,
    answer=State,
)
async def patch(call: Call, query: SessionQuery, body: JsonObject) -> JsonObject:
    """Change keys of a session's state, and of what it shares: all of them, or none; null deletes one. The state after that.

    `temp:` keys are those of a turn: here they are accepted and dropped. `app:` keys take an API key that is of no user, or an
    admin's.
    """
    session = await call.session()
    check_app(call.principal, body)
    await call.hf.engine.scopes.change(session.ref, body, version=call.if_match())
    after = await call.hf.store.get(session.ref)
    call.tag(after.version)
    return await call.hf.engine.scopes.all(after)


@routes.add("POST", _SESSION, "write", fails=(*BODY, *OF_SESSION, 412, 422), takes=(MATCH,), gives=ETAG)
async def change(call: Call, query: SessionQuery, body: StateOperations) -> StateChanged:
    """Set, delete, increment and append to keys of a session's state, and compare them first: all of it, or nothing.

    What is expected (`expect`) is what must be there before that, null for nothing; of one scope a request, and where that is shared
    all changes must be of it. What is under the changed keys then is answered.
    """
    asked = _read_changes(body)
    session = await call.session()
    check_app(call.principal, asked.delta)
    scopes = call.hf.engine.scopes
    changed = await scopes.change(session.ref, asked.delta, expect=asked.expect, version=call.if_match())
    return _show(call, asked.delta, changed.version, changed.values)


# -- of a scope: of a user where the path names one, else of the tenant ------------


@routes.add("GET", _USER, "read", fails=(*STORE, 404), gives=_SCOPE_ETAG, answer=State)
@routes.add("GET", _APP, "read", fails=STORE, gives=_SCOPE_ETAG, answer=State)
async def get_scope(call: Call) -> JsonObject:
    """All that a scope holds."""
    return await _whole(call, _owner(call))


@routes.add(
    "PATCH",
    _USER,
    "write",
    fails=(*_CHANGING, 404),
    takes=(_SCOPE_MATCH,),
    gives=_SCOPE_ETAG,
    body=State,
    answer=State,
)
@routes.add(
    "PATCH", _APP, "tenant", fails=_CHANGING, takes=(_SCOPE_MATCH,), gives=_SCOPE_ETAG, body=State, answer=State
)
async def patch_scope(call: Call, body: JsonObject) -> JsonObject:
    """Change keys of a scope: all of them, or none; null deletes one. The whole of it after that."""
    user_id = _owner(call)
    await call.hf.engine.scopes.change_scope(user_id, body, version=call.if_match())
    return await _whole(call, user_id)


@routes.add("POST", _USER, "write", fails=(*_CHANGING, 404), takes=(_SCOPE_MATCH,), gives=_SCOPE_ETAG)
@routes.add("POST", _APP, "tenant", fails=_CHANGING, takes=(_SCOPE_MATCH,), gives=_SCOPE_ETAG)
async def change_scope(call: Call, body: StateOperations) -> StateChanged:
    """Set, delete, increment and append to keys of a scope, and compare them first: all of it, or nothing.

    What is expected (`expect`) is what must be there before that, null for nothing. What is under the changed keys then is
    answered.
    """
    asked, user_id = _read_changes(body), _owner(call)
    scopes = call.hf.engine.scopes
    changed = await scopes.change_scope(user_id, asked.delta, expect=asked.expect, version=call.if_match())
    return _show(call, asked.delta, changed.version, changed.values or {})


@routes.add("DELETE", _USER, "write", fails=(*STORE, 404, 412), takes=(_SCOPE_MATCH,))
@routes.add("DELETE", _APP, "tenant", fails=(*STORE, 412), takes=(_SCOPE_MATCH,))
async def drop_scope(call: Call) -> DeletedState:
    """Delete all that a scope holds."""
    user_id = _owner(call)
    return DeletedState(user_id=user_id, keys=await call.hf.engine.scopes.drop(user_id, version=call.if_match()))


def _owner(call: Call) -> str | None:
    """Return the user that the path names. Raises `UserNotFound` for another one than the key's."""
    return call.owner(call.path["user_id"]) if "user_id" in call.path else None


async def _whole(call: Call, user_id: str | None) -> JsonObject:
    found = await call.hf.engine.scopes.read(user_id)
    scope: Scope = "app" if user_id is None else "user"
    call.tag(found.version)
    return prefixed(found.values or {}, scope)


# -- changes -------------------------------------------------------------------


class _Changes(NamedTuple):
    """The operations of a request."""

    delta: Mapping[str, Change]
    expect: Mapping[str, Any]


def _read_changes(body: StateOperations) -> _Changes:
    """Return the operations in a body, those of one key as one. Raises `InvalidRequest`, `TooLarge`."""
    changes = body.changes
    if not changes:
        raise InvalidRequest("changes must be a list of at least one operation", param="changes")
    if len(changes) > limits.STATE_CHANGES:
        message = f"changes has {len(changes):,} operations; at most {limits.STATE_CHANGES:,} are taken"
        raise TooLarge(message, param="changes")
    delta: dict[str, Change] = {}
    expect: dict[str, Any] = {}
    for at, one in enumerate(changes):
        if not isinstance(one, ExpectState):
            made = _change(one)
            delta[one.key] = combined(one.key, delta[one.key], made) if one.key in delta else made
        elif one.key in expect:
            place = f"changes[{at}]"
            raise InvalidRequest(f"{place}: what is expected of {one.key!r:.80} was said already", param=place)
        else:
            expect[one.key] = one.value
    if not delta:
        raise InvalidRequest("changes only says what is expected, and changes nothing", param="changes")
    return _Changes(delta, expect)


def _change(one: SetState | DeleteState | IncrementState | AppendState) -> Change:
    match one:
        case IncrementState():
            return Increment(one.by)
        case AppendState():
            return Extend(tuple(one.values))
        case SetState():
            return one.value
        case _:
            return None


def _show(call: Call, delta: Mapping[str, Change], version: int, values: Mapping[str, Any]) -> StateChanged:
    call.tag(version)
    return StateChanged(version=version, values={key: values.get(key) for key in delta})

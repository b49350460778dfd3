"""The REST API over state: of a session with all that it shares, of a user, of the tenant. Keys are spelt with their prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.state import Change, Extend, Increment, Scope, combined, prefixed
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import STATE_CHANGES
from holdfast.server.fields import check_fields, if_match
from holdfast.server.http import Call, Handler, refuse_unknown
from holdfast.server.permissions import check_app
from holdfast.server.replies import Reply, tagged

_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "set": ("value",),
    "delete": (),
    "increment": ("by",),
    "append": ("values",),
    "expect": ("value",),
}
"""What an operation has beside `op` and `key`."""
_OPTIONAL: Final = ("by",)


class _Asked(NamedTuple):
    """The operations of a request."""

    delta: Mapping[str, Change]
    expect: Mapping[str, Any]


# -- of a session ------------------------------------------------------------


async def get(call: Call) -> Reply:
    """A session's state, with what its user's sessions share (`user:`) and all of the tenant (`app:`), as one flat object."""
    session = await call.session()
    return Reply(await call.hf.engine.scopes.all(session), headers=tagged(session.version))


async def patch(call: Call) -> Reply:
    """Change keys of a session's state, and of what it shares: all of them, or none; null deletes one. The state after that.

    `temp:` keys are those of a turn: here they are accepted and dropped. `app:` keys take an API key that is of no user, or an
    admin's.
    """
    delta = await call.body()
    session = await call.session()
    check_app(call.principal, delta)
    await call.hf.engine.scopes.change(session.ref, delta, version=if_match(call))
    after = await call.hf.store.get(session.ref)
    return Reply(await call.hf.engine.scopes.all(after), headers=tagged(after.version))


async def change(call: Call) -> Reply:
    """Set, delete, increment and append to keys of a session's state, and compare them first: all of it, or nothing.

    What is expected (`expect`) is what must stand before that, null for nothing; of one scope a request, and where that is shared
    all changes must be of it. What stands under the changed keys then is answered.
    """
    asked = _operations(await call.body())
    session = await call.session()
    check_app(call.principal, asked.delta)
    scopes = call.hf.engine.scopes
    changed = await scopes.change(session.ref, asked.delta, expect=asked.expect, version=if_match(call))
    return _changed(asked.delta, changed.version, changed.values)


# -- of a scope --------------------------------------------------------------


async def _get_scope(call: Call) -> Reply:
    """All that a scope holds."""
    return await _whole(call, _owner(call))


async def _patch_scope(call: Call) -> Reply:
    """Change keys of a scope: all of them, or none; null deletes one. The whole of it after that."""
    delta, user_id = await call.body(), _owner(call)
    await call.hf.engine.scopes.change_scope(user_id, delta, version=if_match(call))
    return await _whole(call, user_id)


async def _change_scope(call: Call) -> Reply:
    """Set, delete, increment and append to keys of a scope, and compare them first: all of it, or nothing.

    What is expected (`expect`) is what must stand before that, null for nothing. What stands under the changed keys then is
    answered.
    """
    asked, user_id = _operations(await call.body()), _owner(call)
    scopes = call.hf.engine.scopes
    changed = await scopes.change_scope(user_id, asked.delta, expect=asked.expect, version=if_match(call))
    return _changed(asked.delta, changed.version, changed.values or {})


async def _drop_scope(call: Call) -> Reply:
    """Delete all that a scope holds."""
    user_id = _owner(call)
    keys = await call.hf.engine.scopes.drop(user_id, version=if_match(call))
    return Reply({"object": "state", "user_id": user_id, "deleted": True, "keys": keys})


SCOPE: Final[Mapping[str, Handler]] = {
    "GET": _get_scope,
    "PATCH": _patch_scope,
    "POST": _change_scope,
    "DELETE": _drop_scope,
}
"""Of a path that names a user, and of one that does not: then it is the tenant's."""


def _owner(call: Call) -> str | None:
    """The user that the path names. Raises `UserNotFound` for another one than the key's."""
    return call.owner(call.path["user_id"]) if "user_id" in call.path else None


async def _whole(call: Call, user_id: str | None) -> Reply:
    found = await call.hf.engine.scopes.read(user_id)
    scope: Scope = "app" if user_id is None else "user"
    return Reply(prefixed(found.values or {}, scope), headers=tagged(found.version))


# -- what is asked for, and answered -----------------------------------------


def _operations(body: dict[str, Any]) -> _Asked:
    """The operations in a body, those of one key as one. Raises `InvalidRequest`, `TooLarge`."""
    check_fields(body, "changes")
    changes = body.get("changes")
    if not isinstance(changes, list) or not changes:
        raise InvalidRequest("changes must be a list of at least one operation", param="changes")
    if len(changes) > STATE_CHANGES:
        message = f"changes has {len(changes):,} operations; at most {STATE_CHANGES:,} are taken"
        raise TooLarge(message, param="changes")
    delta: dict[str, Change] = {}
    expect: dict[str, Any] = {}
    for at, one in enumerate(changes):
        place = f"changes[{at}]"
        key = _checked(one, place)
        if one["op"] != "expect":
            made = _change(one, place)
            delta[key] = combined(key, delta[key], made) if key in delta else made
        elif key in expect:
            raise InvalidRequest(f"{place}: what is expected of {key!r:.80} was said already", param=place)
        else:
            expect[key] = one["value"]
    if not delta:
        raise InvalidRequest("changes only says what is expected, and changes nothing", param="changes")
    return _Asked(delta, expect)


def _checked(one: Any, place: str) -> str:
    """The key of an operation that has all that it needs, and nothing else. Raises `InvalidRequest`."""
    if not isinstance(one, dict) or one.get("op") not in tuple(_FIELDS):
        message = f"{place} must be an object whose op is one of {', '.join(_FIELDS)}"
        raise InvalidRequest(message, param=f"{place}.op")
    fields = ("key", *_FIELDS[one["op"]])
    refuse_unknown(one, ("op", *fields), f"field of {place}")
    for name in fields:
        if name not in one and name not in _OPTIONAL:
            raise InvalidRequest(f"{place}.{name} is missing: op {one['op']!r} needs it", param=f"{place}.{name}")
    if not isinstance(one["key"], str):
        raise InvalidRequest(f"{place}.key must be a string", param=f"{place}.key")
    return one["key"]


def _change(one: Mapping[str, Any], place: str) -> Change:
    if one["op"] == "increment":
        return Increment(one.get("by", 1))
    if one["op"] == "append":
        if not isinstance(one["values"], list):
            raise InvalidRequest(f"{place}.values must be a list", param=f"{place}.values")
        return Extend(tuple(one["values"]))
    return one.get("value")


def _changed(delta: Mapping[str, Change], version: int, values: Mapping[str, Any]) -> Reply:
    told = {key: values.get(key) for key in delta}
    return Reply({"object": "state.change", "version": version, "values": told}, headers=tagged(version))

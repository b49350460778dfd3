"""Read and write state that sessions share. Each scope is an owner, which has the scope's keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from holdfast.domain.artifact import UserRef
from holdfast.domain.state import Change, Scope, add_prefix, split_by_scope
from holdfast.errors import StaleState
from holdfast.stores import checks
from holdfast.stores.logic.handle import SHARED_SCOPES, Handle
from holdfast.stores.logic.owners import OwnerKey, OwnerRow, delete_owner, lock_owner, read_owner, save_owner
from holdfast.stores.logic.rows import decode_text, encode_array
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps
from holdfast.stores.scope_changes import change_values, decode_value
from holdfast.stores.session_changes import check_expected
from holdfast.stores.state import ScopedState

_decode = msgspec.json.Decoder().decode


class StateStore(Handle):
    """Read and change state that sessions share. If `user_id` is None, a method uses the tenant's own scope, `app:`."""

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        """Return the contents of a scope, all as of one moment.

        Args:
            user_id: the user whose scope is read; None: the tenant's scope.
            names: return only these keys, at most `STATE_KEYS`; None: all keys.
            known: the version that the caller already has. If it is the present version, no values are returned.
        """
        checks.check_state_names(user_id, names or ())
        params: Row = (*make_state_key(self.tenant, user_id)[1:3], -1 if known is None else known)
        name = "state_read"
        if names is not None:
            name, params = "state_read_named", (*params, encode_names(names))
        return _decode_state(await self._select(tuple, name, *params), known)

    async def change_state(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        """Change a scope in one transaction; return its new version and the values of the keys in `delta`.

        Args:
            user_id: the user whose scope is changed; None: the tenant's scope.
            delta: the changes in order, by key without prefix; see `holdfast.domain.state.Change`.
            timestamp: milliseconds since the epoch.
            expect: the version that the scope must have; None: any.
            values: values that keys must have before the change, as `holdfast.domain.state.is_same_json` compares them; None as
                a value: the key must not exist.

        Raises:
            StaleState: the scope has another version than `expect`, or a key has another value than in `values`.
            InvalidRequest: a value to increment is not a number, or one to extend is not a list.
            TooLarge: a limit would be exceeded.
        """
        checks.check_scope_state(user_id, delta, values)
        scope: Scope = "app" if user_id is None else "user"

        def steps() -> Steps[ScopedState]:
            owner = yield from lock_owner(make_state_key(self.tenant, user_id))
            if expect is not None and expect != owner.version:
                raise StaleState(f"the state is at version {owner.version}, not {expect}", version=owner.version)
            if values:
                rows = yield Query("state_named", (owner.pk, encode_names(values)))
                stored = {name: decode_value(name, value) for name, value in _decode_names(rows).items()}
                check_expected(add_prefix(values, scope), add_prefix(stored, scope), owner.version)
            return (yield from _change_scope(owner, scope, delta, timestamp))

        return await self._write(steps, UserRef(user_id or ""))

    async def drop_state(self, user_id: str | None) -> int:
        """Delete all keys of a scope and the name of its user, also from the disk; return the number of keys."""
        checks.check_state_names(user_id, ())
        key = make_state_key(self.tenant, user_id)

        def steps() -> Steps[int]:
            owner = yield from read_owner(key)
            if owner is None:
                return 0
            yield Query("state_clear", (owner.pk,))
            yield from delete_owner(key, owner)
            return owner.items

        return await self._write(steps, UserRef(user_id or ""), scrub=True)


def make_state_key(tenant: str, user_id: str | None) -> OwnerKey:
    """Return the name of the owner of a scope. If `user_id` is None, the scope is the tenant's own."""
    return OwnerKey(tenant, "state", user_id or "")


def encode_names(names: Collection[str]) -> str:
    """Return keys as one parameter, a JSON array of hexadecimal bytes, so that no dialect's rules for text apply to them."""
    return encode_array(name.encode().hex() for name in names)


def _decode_state(rows: Rows, known: int | None) -> ScopedState:
    version = rows[0][0] if rows else 0
    if version == known:
        return ScopedState(version, None)
    values: dict[str, Any] = {}
    damaged: list[str] = []
    for _, column, value in rows:
        if value is not None:
            name = decode_text(column)
            try:
                values[name] = _decode(value)
            except msgspec.MsgspecError:
                damaged.append(name)
    return ScopedState(version, values, tuple(damaged))


def _decode_names(rows: Rows) -> dict[str, bytes]:
    return {decode_text(name): value for name, value in rows}


# -- writing -----------------------------------------------------------------


def change_scopes(tenant: str, user_id: str, delta: Mapping[str, Change] | None, timestamp: int) -> Steps[None]:
    """Change the shared scopes whose keys are in `delta`.

    Raises:
        InvalidRequest: a change does not fit its value, see `holdfast.domain.state.apply_change`.
        TooLarge: a limit would be exceeded.
    """
    parts = split_by_scope(delta or {})
    for scope in SHARED_SCOPES:
        if scope in parts:
            owner = yield from lock_owner(make_state_key(tenant, user_id if scope == "user" else None))
            yield from _change_scope(owner, scope, parts[scope], timestamp)


def _change_scope(owner: OwnerRow, scope: Scope, delta: Mapping[str, Change], timestamp: int) -> Steps[ScopedState]:
    """Change a scope whose row is locked. Values that stay the same are not written. The keys in `delta` have no prefix."""
    stored = _decode_names((yield Query("state_named", (owner.pk, encode_names(delta))))) if delta else {}
    after, keys, size = change_values(scope, stored, delta, keys=owner.items, size=owner.bytes)
    written = {name: value for name, value in after.items() if value != stored.get(name)}
    version = owner.next_version if written else owner.version
    if put := [(owner.pk, name, value) for name, value in written.items() if value is not None]:
        yield Many("state_put", put)
    if gone := [(owner.pk, name) for name, value in written.items() if value is None]:
        yield Many("state_drop", gone)
    if written:
        yield from save_owner(owner._replace(version=version, items=keys, bytes=size, updated_at=timestamp))
    return ScopedState(version, {name: _decode(value) for name, value in after.items() if value is not None})

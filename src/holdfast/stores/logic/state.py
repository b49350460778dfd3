"""Read and write state that sessions share.

A scope has a row, which only one writer at a time can lock, and a row for each key. A scope is identified by tenant and user;
the tenant's own scope has an empty user. A write first checks all changes and computes the new values (`plan_changes`). If
anything is invalid, an error is raised before `write_plans` writes the first value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.domain.artifact import UserRef
from holdfast.domain.state import Change, Scope, add_prefix, split_by_scope
from holdfast.errors import StaleState
from holdfast.stores import checks
from holdfast.stores.logic.handle import SHARED_SCOPES, Handle
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
        params: Row = (user_id or "", -1 if known is None else known)
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
        place = make_scope_key(self.tenant, user_id)

        def steps() -> Steps[ScopedState]:
            before = yield from lock_scope(place)
            if expect is not None and expect != before.version:
                raise StaleState(f"the state is at version {before.version}, not {expect}", version=before.version)
            if values:
                stored = yield from _read_values(place, values)
                check_expected(add_prefix(values, scope), add_prefix(stored, scope), before.version)
            plan = yield from _plan_scope(place, scope, before, delta)
            yield from write_plans([plan], timestamp)
            return ScopedState(plan.version, {name: _decode(value) for name, value in plan.after.items()})

        return await self._write(steps, UserRef(user_id or ""))

    async def drop_state(self, user_id: str | None) -> int:
        """Delete all keys of a scope, also from the disk; return their number.

        If the scope is a user's, the user's name is deleted too.
        """
        checks.check_state_names(user_id, ())
        place = make_scope_key(self.tenant, user_id)

        def steps() -> Steps[int]:
            rows = yield Query("scope_get", place)
            scope_row = _ScopeRow(*rows[0]) if rows else _ScopeRow()
            if scope_row.keys:
                yield Query("state_clear", place)
                yield Query("scope_put", (*place, scope_row.version + 1, 0, 0, scope_row.updated_at))
            if rows and user_id is not None:  # the tenant's own row stays, because it keeps the version
                yield Query("floor_raise", (self.tenant, scope_row.version + (1 if scope_row.keys else 0)))
                yield Query("scope_delete", place)
            return scope_row.keys

        return await self._write(steps, UserRef(user_id or ""), scrub=True)


class _ScopeRow(NamedTuple):
    """The row of a scope, with the columns that the statement `scope_get` returns."""

    version: int = 0
    keys: int = 0
    size: int = 0
    """Sum of the weights of all keys, see `holdfast.domain.state.compute_weight`."""
    updated_at: int = 0
    floor: int = 0
    """The highest version that any dropped scope of the tenant reached. A new scope continues above it."""


class ScopePlan(msgspec.Struct, frozen=True):
    """The checked changes of one scope, with the values to write."""

    place: Row
    """The key columns of the scope: tenant and user."""
    before: _ScopeRow
    """The scope's row before the change."""
    delta: Mapping[str, Change]
    """The changes by key without prefix."""
    keys: int
    size: int
    put: Mapping[str, bytes]
    """The new values by key, as JSON; keys whose value stays the same are left out."""
    gone: Sequence[str]
    after: Mapping[str, bytes]
    """The values of all keys in `delta` after the change, as JSON. Deleted keys are left out."""

    @property
    def version(self) -> int:
        """The scope's version after the change. It stays the same if no value changes."""
        before = self.before
        floor = before.floor if self.place[1] else 0  # the tenant's own row is never deleted
        return (before.version or floor) + 1 if self.put or self.gone else before.version


def make_scope_key(tenant: str, user_id: str | None) -> Row:
    """Return the key columns of a scope. If `user_id` is None, it is the tenant's own scope."""
    return tenant, user_id or ""


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


# -- writing -----------------------------------------------------------------


def plan_changes(tenant: str, user_id: str, delta: Mapping[str, Change] | None) -> Steps[Sequence[ScopePlan]]:
    """Lock the shared scopes that `delta` changes, check the changes, and compute the new values.

    Raises:
        InvalidRequest: a change does not fit its value, see `holdfast.domain.state.apply_change`.
        TooLarge: a limit would be exceeded.
    """
    if not delta:
        return ()
    parts = split_by_scope(delta)
    plans = []
    for scope in SHARED_SCOPES:
        if scope in parts:
            place = make_scope_key(tenant, user_id if scope == "user" else None)
            plans.append((yield from _plan_scope(place, scope, (yield from lock_scope(place)), parts[scope])))
    return plans


def write_plans(plans: Sequence[ScopePlan], timestamp: int) -> Steps[None]:
    """Write the values that `plan_changes` computed. Values that stay the same are not written."""
    for plan in plans:
        if plan.put:
            yield Many("state_put", [(*plan.place, name, value) for name, value in plan.put.items()])
        if plan.gone:
            yield Many("state_drop", [(*plan.place, name) for name in plan.gone])
        if plan.put or plan.gone:
            row = (*plan.place, plan.version, plan.keys, plan.size, timestamp)
            yield Query("scope_put", row)


# -- parts of a write --------------------------------------------------------


def lock_scope(place: Row) -> Steps[_ScopeRow]:
    """Lock a scope's row until the transaction ends, and return it. A missing row is created."""
    rows = yield Query("scope_get", place)
    if not rows:
        yield Query("scope_new", place)
        rows = yield Query("scope_get", place)
    return _ScopeRow(*rows[0])


def _read_values(place: Row, names: Collection[str]) -> Steps[dict[str, Any]]:
    rows = yield Query("state_named", (*place, encode_names(names)))
    return {decode_text(name): decode_value(decode_text(name), value) for name, value in rows}


def _plan_scope(place: Row, scope: Scope, scope_row: _ScopeRow, delta: Mapping[str, Change]) -> Steps[ScopePlan]:
    """Check the changes of a scope whose row is locked, and compute the new values. The keys in `delta` have no prefix."""
    rows = (yield Query("state_named", (*place, encode_names(delta)))) if delta else ()
    stored = {decode_text(name): value for name, value in rows}
    after, keys, size = change_values(scope, stored, delta, keys=scope_row.keys, size=scope_row.size)
    written = {name: value for name, value in after.items() if value != stored.get(name)}
    put = {name: value for name, value in written.items() if value is not None}
    gone = [name for name in written if name not in put]
    there = {name: value for name, value in after.items() if value is not None}
    return ScopePlan(place, scope_row, delta, keys, size, put, gone, there)

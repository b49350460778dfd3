"""State that sessions share, in Redis. Each user and each tenant has a hash of JSON values.

The field with the empty name contains the version, the bytes and the number of keys.

A write to a session first checks that its changes of shared state are possible. The script that commits the write then applies
the changes to the values that are stored at that moment. So writers of the same scope do not wait for each other. If the changes
are no longer possible then, the write is run again.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.state import (
    Change,
    Extend,
    Increment,
    Scope,
    add_prefix,
    compute_weight,
    encode_value,
    split_by_scope,
)
from holdfast.errors import StaleState
from holdfast.limits import STATE_BYTES, STATE_KEYS, STATE_VALUE_BYTES
from holdfast.stores import checks
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, write_transaction
from holdfast.stores.redis.keys import ScopeKeys
from holdfast.stores.scope_changes import change_values, decode_value
from holdfast.stores.session_changes import check_expected
from holdfast.stores.state import ScopedState

_SHARED: Final[tuple[Scope, ...]] = ("user", "app")
_LIMITS: Final = (STATE_VALUE_BYTES, STATE_BYTES - 1, STATE_KEYS)
"""Maximum bytes of a value, maximum bytes of a scope, and maximum number of keys. For a scope, `state.lua` counts one byte less than its
JSON object has."""
_ID_BYTES: Final = 12
_decode = msgspec.json.Decoder().decode


def _resolve_state_keys(handle: Handle, user_id: str | None) -> ScopeKeys:
    checks.check_state_names(user_id, ())
    return handle.database.keys.user(handle.tenant, user_id or "")


class StateMethods(Handle):
    """The methods of `holdfast.stores.state.StateStore`."""

    @read_transaction()
    async def state(
        self, tx: Transaction, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        checks.check_state_names(user_id, names or ())
        keys = await self._load_scope_keys(user_id)
        if known is not None:
            version = _ScopeTotals((await tx.read_fields(keys.state, [b""])).get(b"")).version
            if version == known:
                return ScopedState(version, None)
        if names is None:
            (flat,) = await tx.read((b"HGETALL", keys.state))
            found = dict(zip(flat[::2], flat[1::2], strict=True))
        else:
            found = await tx.read_fields(keys.state, [b"", *(name.encode() for name in names)])
        return _decode_state(_ScopeTotals(found.pop(b"", None)).version, found)

    @write_transaction(_resolve_state_keys)
    async def change_state(
        self,
        tx: Transaction,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        checks.check_scope_state(user_id, delta, values)
        scope: Scope = "app" if user_id is None else "user"
        keys = await self._load_scope_keys(user_id)
        stored = await tx.read_fields(keys.state, [b"", *delta, *(values or {})])
        meta = stored.pop(b"", None)
        totals = _ScopeTotals(meta)
        if expect is not None and expect != totals.version:
            raise StaleState(f"the state is at version {totals.version}, not {expect}", version=totals.version)
        known = {name: decode_value(name, data) for name, data in stored.items() if name in (values or {})}
        check_expected(add_prefix(values or {}, scope), add_prefix(known, scope), totals.version)
        after, *_ = change_values(scope, stored, delta, keys=totals.keys, size=totals.size)
        written = {name: after[name] for name in delta if after[name] != stored.get(name)}
        if written:
            tx.check(keys.state, b"", meta)
            tx.queue("share", keys.state, *_LIMITS, *_encode_operations(written))
        current = {name: _decode(value) for name, value in after.items() if value is not None}
        return ScopedState(totals.version + bool(written), current)

    @write_transaction(_resolve_state_keys)
    async def drop_state(self, tx: Transaction, user_id: str | None) -> int:
        keys = await self._load_scope_keys(user_id)
        meta = (await tx.read_fields(keys.state, [b""])).get(b"")
        totals = _ScopeTotals(meta)
        if totals.keys:
            tx.check(keys.state, b"", meta)
            tx.queue("UNLINK", keys.state)
            tx.queue("HSET", keys.state, b"", b"%d 0 0" % (totals.version + 1))
        return totals.keys

    async def _load_scope_keys(self, user_id: str | None) -> ScopeKeys:
        if user_id is None:  # some changes of the tenant's state may still be in users' outboxes
            await self._tidy()
        return self._make_scope_keys(user_id)


class _ScopeTotals:
    """Version, bytes and number of keys of a scope."""

    __slots__ = ("keys", "size", "version")

    def __init__(self, meta: bytes | None) -> None:
        self.version, self.size, self.keys = map(int, (meta or b"0 0 0").split())


def _decode_state(version: int, fields: Mapping[bytes, bytes]) -> ScopedState:
    values: dict[str, Any] = {}
    damaged: list[str] = []
    for name, value in fields.items():
        try:
            values[name.decode()] = _decode(value)
        except msgspec.MsgspecError:
            damaged.append(name.decode())
    return ScopedState(version, values, tuple(damaged))


async def share_changes(tx: Transaction, delta: Mapping[str, Change] | None) -> None:
    """Queue the changes that a session's write makes to shared state.

    Raises:
        InvalidRequest: a change cannot be applied to the stored value.
        TooLarge: a scope or a value would exceed its limit.
    """
    parts = split_by_scope(delta) if delta else {}
    for scope in _SHARED:
        if scope not in parts:
            continue
        keys, part = tx.database.keys.user(tx.keys.tenant, tx.keys.user_id if scope == "user" else ""), parts[scope]
        stored = await tx.read_fields(keys.state, [b"", *part])
        meta = stored.pop(b"", None)
        totals = _ScopeTotals(meta)
        after, *_ = change_values(scope, stored, part, keys=totals.keys, size=totals.size)
        written = {name: value for name, value in after.items() if value != stored.get(name)}
        if not written:
            continue
        if scope == "app" and tx.is_cluster:
            tx.add_news(b"v", secrets.token_bytes(_ID_BYTES), *_encode_operations(part))
        elif tx.job.is_optimistic:
            tx.queue("share", keys.state, *_LIMITS, *_encode_operations(part))
        else:
            tx.check(keys.state, b"", meta)
            tx.queue("share", keys.state, *_LIMITS, *_encode_operations(written))


def _encode_operations(changes: Mapping[str, Change | bytes]) -> list[bytes | int]:
    """Encode changes as arguments of `state.lua`. A value of type bytes is already encoded as JSON."""
    flat: list[bytes | int] = []
    for name, change in changes.items():
        flat += (name.encode(), compute_weight(name, b""), *_encode_operation(name, change))
    return flat


def _encode_operation(name: str, change: Change | bytes) -> tuple[bytes, bytes]:
    if change is None:
        return b"-", b""
    if isinstance(change, Increment):
        return b"+", encode_value(name, change.by)
    if isinstance(change, Extend):
        return b"&", encode_value(name, change.values)[1:-1]
    return b"=", change if isinstance(change, bytes) else encode_value(name, change)

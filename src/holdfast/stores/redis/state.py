"""State that sessions share: a hash for each user and each tenant, JSON by key; under no name version, bytes and number of keys.

A write of a session first checks that its changes are possible. The script that commits it applies them to the values of that
moment, so writers of one scope need not wait for each other. If they are not possible any more, the write is worked out again.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.state import (
    Change,
    Extend,
    Increment,
    Scope,
    changed,
    check_room,
    encoded,
    prefixed,
    split,
    weight,
)
from holdfast.errors import StaleState, StoreCorrupt
from holdfast.limits import STATE_BYTES, STATE_KEYS, STATE_VALUE_BYTES
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Transaction, in_parts
from holdfast.stores.redis.handle import Handle
from holdfast.stores.redis.keys import ScopeKeys
from holdfast.stores.session_changes import check_expected
from holdfast.stores.state import ScopedState

_SHARED: Final[tuple[Scope, ...]] = ("user", "app")
_LIMITS: Final = (STATE_VALUE_BYTES, STATE_BYTES - 1, STATE_KEYS)
"""As `state.lua` takes them: keys and values have one byte less than the whole as JSON."""
_ID_BYTES: Final = 12
_decode = msgspec.json.Decoder().decode


class StateMethods(Handle):
    """State that sessions share; see `holdfast.stores.state.StateStore`."""

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        checks.check_state_names(user_id, names or ())
        keys, wanted = await self._scope(user_id), list(names or ())
        commands = [(b"HGETALL", keys.state)] if names is None else _named(keys, wanted)

        async def work(tx: Transaction) -> ScopedState:
            if known is not None:
                version = _Held((await tx.database.fetch([_meta(keys)]))[0]).version
                if version == known:
                    return ScopedState(version, None)
            meta, *found = await tx.database.fetch([_meta(keys), *commands])
            if names is None:
                held = dict(zip(found[0][::2], found[0][1::2], strict=True))
                meta = held.pop(b"", None)
            else:
                values = [value for some in found for value in some]
                held = {name.encode(): value for name, value in zip(wanted, values, strict=True) if value is not None}
            return _scoped(_Held(meta).version, held)

        return await self._read(None, work)

    async def change_state(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        checks.check_scope_state(user_id, delta, values)
        scope: Scope = "app" if user_id is None else "user"
        keys, wanted = await self._scope(user_id), list({**delta, **(values or {})})

        async def work(tx: Transaction) -> ScopedState:
            meta, *found = await tx.read(_meta(keys), *_named(keys, wanted))
            held = _Held(meta)
            if expect is not None and expect != held.version:
                raise StaleState(f"the state is at version {held.version}, not {expect}", version=held.version)
            stored = _stored(wanted, found)
            known = {name: _value(name, data) for name, data in stored.items() if name in (values or {})}
            check_expected(prefixed(values or {}, scope), prefixed(known, scope), held.version)
            after = _after_all(scope, held, stored, delta)
            written = {name: after[name] for name in delta if after[name] != stored.get(name)}
            if written:
                tx.check(keys.state, b"", meta)
                tx.do("share", keys.state, *_LIMITS, *_operations(written))
            there = {name: _decode(value) for name, value in after.items() if value is not None}
            return ScopedState(held.version + bool(written), there)

        return await self._write(keys, work)

    async def drop_state(self, user_id: str | None) -> int:
        checks.check_state_names(user_id, ())
        keys = await self._scope(user_id)

        async def work(tx: Transaction) -> int:
            (meta,) = await tx.read(_meta(keys))
            held = _Held(meta)
            if held.keys:
                tx.check(keys.state, b"", meta)
                tx.do("UNLINK", keys.state)
                tx.do("HSET", keys.state, b"", b"%d 0 0" % (held.version + 1))
            return held.keys

        return await self._write(keys, work)

    async def _scope(self, user_id: str | None) -> ScopeKeys:
        if user_id is None:  # what sessions changed of it may still be in their users' outboxes
            await self._tidied()
        return self._scope_keys(user_id)


class _Held:
    """What a scope has: version, bytes and number of keys."""

    __slots__ = ("keys", "size", "version")

    def __init__(self, meta: bytes | None) -> None:
        self.version, self.size, self.keys = map(int, (meta or b"0 0 0").split())


def _meta(keys: ScopeKeys) -> Command:
    return (b"HGET", keys.state, b"")


def _named(keys: ScopeKeys, names: Sequence[str]) -> list[Command]:
    return in_parts(b"HMGET", keys.state, [name.encode() for name in names])


def _stored(names: Sequence[str], found: Sequence[Sequence[bytes | None]]) -> dict[str, bytes]:
    values = [value for some in found for value in some]
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _scoped(version: int, held: Mapping[bytes, bytes]) -> ScopedState:
    values: dict[str, Any] = {}
    damaged: list[str] = []
    for name, value in held.items():
        try:
            values[name.decode()] = _decode(value)
        except msgspec.MsgspecError:
            damaged.append(name.decode())
    return ScopedState(version, values, tuple(damaged))


def _value(key: str, data: bytes) -> Any:
    try:
        return _decode(data)
    except msgspec.MsgspecError as exc:
        raise StoreCorrupt(f"the value of the state key {key!r:.80} is damaged; set it again ({exc})") from exc


def _after_all(
    scope: Scope, held: _Held, stored: Mapping[str, bytes], delta: Mapping[str, Change]
) -> dict[str, bytes | None]:
    """Return what is under each changed key afterwards, as JSON. Raises `InvalidRequest`, `TooLarge`."""
    keys, size, after = held.keys, held.size, dict[str, bytes | None]()
    for name, change in delta.items():
        key, old = f"{scope}:{name}", stored.get(name)
        relative = isinstance(change, Increment | Extend)
        value = changed(key, _value(key, old) if relative and old is not None else None, change)
        new = after[name] = None if value is None else encoded(key, value)
        if new != old:
            keys += (new is not None) - (old is not None)
            size += sum(weight(name, one) * sign for one, sign in ((new, 1), (old, -1)) if one is not None)
    check_room(scope, keys=keys, size=size + 1, grown=keys > held.keys, larger=size > held.size)
    return after


async def share(tx: Transaction, delta: Mapping[str, Change] | None) -> None:
    """Add what a session's write changes of shared state. Raises `InvalidRequest`, `TooLarge`."""
    parts = split(delta) if delta else {}
    for scope in _SHARED:
        if scope not in parts:
            continue
        keys, part = tx.database.keys.user(tx.keys.tenant, tx.keys.user_id if scope == "user" else ""), parts[scope]
        names = list(part)
        meta, *found = await tx.read(_meta(keys), *_named(keys, names))
        stored = _stored(names, found)
        after = _after_all(scope, _Held(meta), stored, part)
        written = {name: value for name, value in after.items() if value != stored.get(name)}
        if not written:
            continue
        if scope == "app" and tx.apart:
            tx.tell(b"v", secrets.token_bytes(_ID_BYTES), *_operations(part))
        elif tx.job.hopeful:
            tx.do("share", keys.state, *_LIMITS, *_operations(part))
        else:
            tx.check(keys.state, b"", meta)
            tx.do("share", keys.state, *_LIMITS, *_operations(written))


def _operations(changes: Mapping[str, Change | bytes]) -> list[bytes | int]:
    """Return changes as `state.lua` takes them; a value that is bytes is JSON already."""
    flat: list[bytes | int] = []
    for name, change in changes.items():
        flat += (name.encode(), weight(name, b""), *_operation(name, change))
    return flat


def _operation(name: str, change: Change | bytes) -> tuple[bytes, bytes]:
    if change is None:
        return b"-", b""
    if isinstance(change, Increment):
        return b"+", encoded(name, change.by)
    if isinstance(change, Extend):
        return b"&", encoded(name, change.values)[1:-1]
    return b"=", change if isinstance(change, bytes) else encoded(name, change)

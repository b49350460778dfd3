"""The statements about state that sessions share, on a working copy: a user's in the user's slot, a tenant's in the tenant's.

A write of a session does not depend on what a scope holds, once it is known that it can be done: the script that commits it does
the operations on whatever stands there then, so writers of one scope need not wait for each other. Where it finds that they
cannot be done after all, what it was worked out from is checked instead, and so it is for whoever has to know what comes out.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.state import Change, Extend, Increment, encoded, weight
from holdfast.limits import STATE_BYTES, STATE_KEYS, STATE_VALUE_BYTES
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys
from holdfast.stores.redis.work import MARKED, Work

_LIMITS: Final = (STATE_VALUE_BYTES, STATE_BYTES - 1, STATE_KEYS)
"""As `state.lua` takes them: keys and values have one byte less than the whole as JSON."""
_ID_BYTES: Final = 12
_names = msgspec.json.Decoder(list[str]).decode


def _asked(work: Work, keys: ScopeKeys, *commands: Command) -> list[Any]:
    """The answers, at one moment with the rest where the write depends on them."""
    return (work.ask_once if _loose(work, keys) else work.ask)(*commands)


def _loose(work: Work, keys: ScopeKeys) -> bool:
    """Whether what is read of a scope only tells if a session's write can be done, and not what comes out."""
    guarded = work.guarded
    return guarded is not None and isinstance(guarded.keys, SessionKeys) and (work.hopeful or _apart(work, keys))


def _apart(work: Work, keys: ScopeKeys) -> bool:
    """Whether a scope lies elsewhere than what else is written."""
    return work.apart and not keys.user_id and work.guarded is not None and work.guarded.keys.tag != keys.tag


def _meta(keys: ScopeKeys) -> Command:
    return (b"HGET", keys.state, b"")


def _numbers(stored: bytes | None) -> Row:
    """Version, bytes and number of keys."""
    return [int(number) for number in (stored or b"0 0 0").split()]


def _values(keys: ScopeKeys, names: list[bytes]) -> list[Command]:
    return [(b"HMGET", keys.state, *names[at : at + MARKED]) for at in range(0, len(names), MARKED)]


def _named(hexadecimal: str) -> list[bytes]:
    return [bytes.fromhex(name) for name in _names(hexadecimal)]


# -- reading -----------------------------------------------------------------


def scope_get(work: Work, tenant: str, user_id: str) -> Rows:
    """Version, keys and bytes of a scope, which is always there. Who writes to nothing else is guarded by its head."""
    keys = work.keys.user(tenant, user_id)
    if work.guarded is None:
        work.guarded = work.state(keys)
    values = _values(keys, [name.encode() for name in work.aside or ()])
    version, size, count = _numbers(_asked(work, keys, _meta(keys), *values)[0])
    return [(version, count, size, 0)]


def scope_new(work: Work, tenant: str, user_id: str) -> None:
    """A scope that nothing was written to: nothing is kept of it."""


def scope_delete(work: Work, tenant: str, user_id: str) -> None:
    """A scope that is dropped: no name is kept of it, and its version stays."""


def state_named(work: Work, tenant: str, user_id: str, hexadecimal: str) -> Rows:
    """What stands under some keys."""
    keys, names = work.keys.user(tenant, user_id), _named(hexadecimal)
    found = _asked(work, keys, *_values(keys, names))
    values = [value for some in found for value in some]
    return [(name, value) for name, value in zip(names, values, strict=True) if value is not None]


def state_read(work: Work, tenant: str, user_id: str, known: int) -> Rows:
    """All that a scope holds, with its version; of a version that is known only that."""
    keys = work.keys.user(tenant, user_id)
    if known >= 0:
        version = _numbers(work.ask_once(_meta(keys))[0])[0]
        if version == known:
            return [(version, None, None)]
    flat = work.ask_once((b"HGETALL", keys.state))[0]
    held = dict(zip(flat[::2], flat[1::2], strict=True))
    version = _numbers(held.pop(b"", None))[0]
    return [(version, None, None), *((version, name, value) for name, value in held.items())]


def state_read_named(work: Work, tenant: str, user_id: str, known: int, hexadecimal: str) -> Rows:
    """What stands under some keys, with the version of the scope."""
    keys, names = work.keys.user(tenant, user_id), _named(hexadecimal)
    meta, *found = work.ask_once(_meta(keys), *_values(keys, names))
    version = _numbers(meta)[0]
    values = [value for some in found for value in some]
    return [(version, None, None), *((version, *row) for row in zip(names, values, strict=True))]


# -- writing -----------------------------------------------------------------


def _parts(work: Work, user_id: str) -> dict[str, bytes | None]:
    """What becomes of the keys of a scope, as far as that was told."""
    parts: dict[str, bytes | None] = work.overlay.setdefault(("parts", user_id), {})
    return parts


def state_put(work: Work, tenant: str, user_id: str, name: str, value: bytes) -> None:
    """A value, in place of what stands under its key."""
    _parts(work, user_id)[name] = value


def state_drop(work: Work, tenant: str, user_id: str, name: str) -> None:
    """A key that goes."""
    _parts(work, user_id)[name] = None


def state_clear(work: Work, tenant: str, user_id: str) -> None:
    """All keys of a scope go: its version is written by what follows."""
    work.overlay["cleared", user_id] = True


def scope_put(work: Work, tenant: str, user_id: str, version: int, keys: int, size: int, timestamp: int) -> None:
    """A scope after its keys have changed: that is when they do."""
    scope = work.keys.user(tenant, user_id)
    if _apart(work, scope):
        work.tell(b"v", secrets.token_bytes(_ID_BYTES), *_operations(work.aside))
        return
    if _loose(work, scope):
        _share(work, scope, _operations(work.aside))
        return
    work.check(scope.state, b"", work.ask(_meta(scope))[0])
    if ("cleared", user_id) in work.overlay:
        work.do("UNLINK", scope.state)
        work.do("HSET", scope.state, b"", b"%d %d %d" % (version, size, keys))
    else:
        _share(work, scope, _operations(_parts(work, user_id)))


def _share(work: Work, scope: ScopeKeys, operations: list[bytes | int]) -> None:
    work.do("share", scope.state, *_LIMITS, *operations)


def _operations(changes: Mapping[str, Change]) -> list[bytes | int]:
    """Changes as `state.lua` takes them; a value that is bytes is JSON already."""
    flat: list[bytes | int] = []
    for name, change in changes.items():
        flat += (name.encode(), weight(name, b""), *_operation(name, change))
    return flat


def _operation(name: str, change: Change) -> tuple[bytes, bytes]:
    if change is None:
        return b"-", b""
    if isinstance(change, Increment):
        return b"+", encoded(name, change.by)
    if isinstance(change, Extend):
        return b"&", encoded(name, change.values)[1:-1]
    return b"=", change if isinstance(change, bytes) else encoded(name, change)

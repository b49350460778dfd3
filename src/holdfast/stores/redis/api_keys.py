"""The statements about API keys, on a working copy: all of a tenant's lie in its own slot."""

from __future__ import annotations

from typing import Any, Final

from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.records import fitting, list_from, packed
from holdfast.stores.redis.work import Work

_REVOKED_AT: Final = 8
_USED_AT: Final = 9
"""Places in a row of `key_get`."""


def _key(work: Work, tenant: str, id_: str) -> tuple[bytes | None, list[Any]]:
    """A key as it is stored, and its row as it stands now."""
    (found,) = work.ask_once((b"HGET", work.keys.tenant(tenant).api_keys, id_))
    row: list[Any] = work.overlay.get(("key", id_)) or ([] if found is None else list_from(found))
    return found, row


def _put(work: Work, tenant: str, id_: str, stored: bytes | None, row: Row) -> None:
    keys = work.of_tenant(tenant)
    work.check(keys.api_keys, id_, stored)
    work.do("HSET", keys.api_keys, id_, packed(row))
    work.overlay["key", id_] = row


def key_get(work: Work, tenant: str, id_: str) -> Rows:
    """One API key."""
    row = _key(work, tenant, id_)[1]
    return [row] if row else ()


def key_of_hash(work: Work, tenant: str, hash_: bytes) -> Rows:
    """An API key by its hash."""
    (id_,) = work.ask_once((b"HGET", work.keys.tenant(tenant).api_hashes, hash_))
    return () if id_ is None else key_get(work, tenant, id_.decode())


def keys_after(work: Work, tenant: str, after: str, limit: int) -> Rows:
    """API keys in order of id, behind one of them."""
    keys, begin = work.keys.tenant(tenant), b"(" + after.encode() if after else b"-"
    (ids,) = work.ask_once((b"ZRANGEBYLEX", keys.api_ids, begin, b"+", b"LIMIT", 0, limit))
    return [list_from(found) for found in work.ask_once(*((b"HGET", keys.api_keys, id_) for id_ in ids)) if found]


def key_insert(work: Work, tenant: str, id_: str, hash_: bytes, *row: Any) -> None:
    """A new API key. Two with the same id, and two with the same hash, collide."""
    keys = work.of_tenant(tenant)
    _put(work, tenant, id_, None, (id_, hash_, *row))
    work.check(keys.api_hashes, hash_, None)
    work.do("HSET", keys.api_hashes, hash_, id_)
    work.do("ZADD", keys.api_ids, 0, id_)


def key_revoke(work: Work, tenant: str, id_: str, timestamp: int) -> None:
    """An API key that is not valid any more."""
    stored, row = _key(work, tenant, id_)
    if row and row[_REVOKED_AT] is None:
        _put(work, tenant, id_, stored, _with(row, _REVOKED_AT, timestamp))


def key_use(work: Work, tenant: str, id_: str, timestamp: int) -> None:
    """When an API key was used last."""
    stored, row = _key(work, tenant, id_)
    if row and (row[_USED_AT] is None or row[_USED_AT] < timestamp):
        _put(work, tenant, id_, stored, _with(row, _USED_AT, timestamp))


def _with(row: list[Any], at: int, timestamp: int) -> list[Any]:
    return [*row[:at], fitting(timestamp), *row[at + 1 :]]

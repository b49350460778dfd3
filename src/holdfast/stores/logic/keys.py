"""What is asked for API keys, which a tenant's handle keeps."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.stores.keys import ApiKey
from holdfast.stores.logic.rows import key_from, key_row
from holdfast.stores.logic.steps import Query, Steps


def add(tenant: str, key: ApiKey) -> Steps[None]:
    """See `KeyStore.add_key`."""
    if (yield Query("key_get", (tenant, key.id))) or (yield Query("key_of_hash", (tenant, key.hash))):
        raise InvalidRequest(f"there is a key {key.id!r} already, or one of that hash", param="id")
    yield Query("key_insert", key_row(tenant, key))


def of_hash(tenant: str, hash_: bytes) -> Steps[ApiKey | None]:
    """See `KeyStore.key_of`."""
    rows = yield Query("key_of_hash", (tenant, hash_))
    return key_from(rows[0]) if rows else None


def keys(tenant: str, after: str, limit: int) -> Steps[Sequence[ApiKey]]:
    """See `KeyStore.keys`."""
    rows = yield Query("keys_after", (tenant, after, limit))
    return tuple(key_from(row) for row in rows)


def revoke(tenant: str, key_id: str, timestamp: int) -> Steps[ApiKey]:
    """See `KeyStore.revoke_key`."""
    yield Query("key_revoke", (tenant, key_id, timestamp))
    rows = yield Query("key_get", (tenant, key_id))
    if not rows:
        raise KeyNotFound(key_id)
    return key_from(rows[0])


def use(tenant: str, key_id: str, timestamp: int) -> Steps[None]:
    """See `KeyStore.use_key`."""
    yield Query("key_use", (tenant, key_id, timestamp))

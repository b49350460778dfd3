"""Store leases, calibration data of models, API keys and the journal of deletions of a tenant.

The functions are generators of statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, cast

import msgspec

from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.limits import LEARNED_BYTES, LEARNED_MODELS, PAGE
from holdfast.stores import checks
from holdfast.stores.deletions import Deletion, DeletionKind
from holdfast.stores.keys import ApiKey
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.rows import ENDLESS, decode_key, decode_text, encode_key
from holdfast.stores.logic.steps import Many, Query, Row, Steps

_STALE: Final = 3_600_000
"""Milliseconds after its expiry at which a lease is deleted. The delay keeps a caller whose clock is fast from deleting leases in use."""


class TenantMethods(Handle):
    """Implements the methods of `TenantStore` and `KeyStore` on a SQL database. `LogicStore` inherits from this class."""

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        checks.check_limit(limit)
        return await self._read(partial(_list_tenants, after, limit))

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        checks.check_lease(name, holder, now, until)
        return await self._write(partial(_take_lease, self.tenant, name, holder, now, until))

    async def leased_by(self, name: str, *, now: int) -> str | None:
        checks.check_id(name, "name")
        return await self._read(partial(_read_lease_holder, self.tenant, name, now), single=True)

    async def release(self, name: str, holder: str) -> None:
        checks.check_id(name, "name")
        checks.check_id(holder, "holder")
        await self._write(partial(_release_lease, self.tenant, name, holder))

    async def learned(self, model: str) -> bytes | None:
        checks.check_id(model, "model")
        return await self._read(partial(_read_learned, self.tenant, model), single=True)

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        checks.check_id(model, "model")
        checks.check_size(len(data), "data", LEARNED_BYTES)
        return await self._write(partial(_learn, self.tenant, model, data, timestamp, expect))

    async def add_key(self, key: ApiKey) -> None:
        checks.check_key(key)
        await self._write(partial(_add_key, self.tenant, key))

    async def get_key(self, key_id: str) -> ApiKey | None:
        checks.check_id(key_id, "key_id")
        return await self._read(partial(_get_key, self.tenant, key_id), single=True)

    async def keys(self, *, after: str = "", limit: int = 100, tenant: str | None = None) -> Sequence[ApiKey]:
        checks.check_limit(limit)
        return await self._read(partial(_list_keys, self.tenant, after, limit, tenant), single=True)

    async def revoke_key(self, key_id: str, *, timestamp: int) -> ApiKey:
        checks.check_id(key_id, "key_id")
        return await self._write(partial(_revoke_key, self.tenant, key_id, timestamp))

    async def use_key(self, key_id: str, *, timestamp: int) -> None:
        checks.check_id(key_id, "key_id")
        await self._write(partial(_use_key, self.tenant, key_id, timestamp))


def _list_tenants(after: str, limit: int) -> Steps[Sequence[str]]:
    found: list[str] = []
    while len(found) < limit and (rows := (yield Query("tenant_after", (found[-1] if found else after,)))):
        found.append(decode_text(rows[0][0]))
    return tuple(found)


def _take_lease(tenant: str, name: str, holder: str, now: int, until: int) -> Steps[bool]:
    """Acquire or renew a lease; return True if `holder` has it afterwards.

    The first statement takes the lease if it is free, and the second reads who holds it.
    """
    yield Query("lease_put", (tenant, name, holder, until, now))
    rows = yield Query("lease_get", (tenant, name))
    yield Query("leases_clean", (tenant, now - _STALE))
    return decode_text(rows[0][0]) == holder


def _read_lease_holder(tenant: str, name: str, now: int) -> Steps[str | None]:
    rows = yield Query("lease_get", (tenant, name))
    return decode_text(rows[0][0]) if rows and rows[0][1] > now else None


def _release_lease(tenant: str, name: str, holder: str) -> Steps[None]:
    yield Query("lease_delete", (tenant, name, holder))


def _learn(tenant: str, model: str, data: bytes, timestamp: int, expect: bytes | None) -> Steps[bool]:
    rows = yield Query("learned_get", (tenant, model))
    if (rows[0][0] if rows else None) != expect:
        return False
    yield Query("learned_new" if expect is None else "learned_put", (tenant, model, timestamp, data))
    if expect is None:
        yield Query("learned_trim", (tenant, LEARNED_MODELS))
    return True


def _read_learned(tenant: str, model: str) -> Steps[bytes | None]:
    rows = yield Query("learned_get", (tenant, model))
    return rows[0][0] if rows else None


# -- API keys --------------------------------------------------------------------


def _add_key(tenant: str, key: ApiKey) -> Steps[None]:
    if (yield Query("key_get", (tenant, key.id))):
        raise InvalidRequest(f"an API key with the id {key.id!r} exists already", param="id")
    yield Query("key_insert", encode_key(tenant, key))


def _get_key(tenant: str, key_id: str) -> Steps[ApiKey | None]:
    rows = yield Query("key_get", (tenant, key_id))
    return decode_key(rows[0]) if rows else None


def _list_keys(tenant: str, after: str, limit: int, opens: str | None) -> Steps[Sequence[ApiKey]]:
    if opens is None:
        rows = yield Query("keys_after", (tenant, after, limit))
    else:
        rows = yield Query("keys_of_tenant_after", (tenant, after, opens, limit))
    return tuple(decode_key(row) for row in rows)


def _revoke_key(tenant: str, key_id: str, timestamp: int) -> Steps[ApiKey]:
    yield Query("key_revoke", (tenant, key_id, timestamp))
    rows = yield Query("key_get", (tenant, key_id))
    if not rows:
        raise KeyNotFound(key_id)
    return decode_key(rows[0])


def _use_key(tenant: str, key_id: str, timestamp: int) -> Steps[None]:
    yield Query("key_use", (tenant, key_id, timestamp))


class DeletionMethods(Handle):
    """Implements the methods of `DeletionStore` on a SQL database. `LogicStore` inherits from this class."""

    async def add_deletion(self, deletion: Deletion, *, keep: int | None = None) -> None:
        checks.check_deletion(deletion, keep)
        await self._write(partial(_add_deletion, self.tenant, deletion, keep))

    async def deletions(
        self,
        *,
        before: tuple[int, str] | None = None,
        limit: int = 20,
        hash: bytes | None = None,  # noqa: A002 - its name in the API
    ) -> Sequence[Deletion]:
        checks.check_limit(limit)
        place = (ENDLESS, "") if before is None else before
        return await self._read(partial(_list_deletions, self.tenant, place, limit, hash), single=True)


def _add_deletion(tenant: str, deletion: Deletion, keep: int | None) -> Steps[None]:
    if keep is not None:
        surplus = yield Query("deletions_surplus", (tenant, deletion.kind, keep, PAGE))
        if surplus:
            yield Many("deletion_delete", [(tenant, at, decode_text(id_)) for at, id_ in surplus])
    yield Query("deletion_insert", _encode_deletion(tenant, deletion))


def _list_deletions(tenant: str, before: tuple[int, str], limit: int, hash_: bytes | None) -> Steps[Sequence[Deletion]]:
    if hash_ is None:
        rows = yield Query("deletions_before", (tenant, *before, limit))
    else:
        rows = yield Query("deletions_of_hash_before", (tenant, *before, hash_, limit))
    return tuple(map(_decode_deletion, rows))


def _decode_deletion(row: Row) -> Deletion:
    id_, deleted_at, kind, user_hash, session_hash, key_id, counts = row
    return Deletion(
        id=decode_text(id_),
        deleted_at=deleted_at,
        kind=cast(DeletionKind, decode_text(kind)),
        user_hash=user_hash,
        session_hash=session_hash,
        key_id=decode_text(key_id) or None,
        counts=msgspec.json.decode(counts),
    )


def _encode_deletion(tenant: str, deletion: Deletion) -> Row:
    place = (tenant, deletion.deleted_at, deletion.id, deletion.kind)
    return (
        *place,
        deletion.user_hash,
        deletion.session_hash,
        deletion.key_id or "",
        msgspec.json.encode(deletion.counts),
    )

"""Store leases, calibration data of models, API keys and the journal of deletions of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.limits import LEARNED_BYTES, LEARNED_MODELS, PAGE
from holdfast.stores import checks
from holdfast.stores.deletions import Deletion, DeletionKind, Job
from holdfast.stores.keys import ApiKey
from holdfast.stores.logic.handle import Handle, get_first
from holdfast.stores.logic.rows import ENDLESS, decode_key, decode_text, encode_key
from holdfast.stores.logic.steps import Many, Query, Row, Steps

_STALE: Final = 3_600_000
"""Milliseconds after its expiry at which a lease is deleted. The delay keeps a caller whose clock is fast from deleting leases in use."""


class TenantStore(Handle):
    """Store data of a tenant that belongs to no session, and open and close handles.

    `holdfast.stores.tenants` describes what all methods promise.
    """

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Return at most `limit` tenants that have sessions, memories or records. The names come after `after`, in order.

        This is the only method that sees other tenants. It is for jobs that run once for a whole database.
        """

        def steps() -> Steps[Sequence[str]]:
            found: list[str] = []
            while len(found) < limit and (rows := (yield Query("tenant_after", (found[-1] if found else after,)))):
                found.append(decode_text(rows[0][0]))
            return tuple(found)

        return await self._read(steps)

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        """Acquire or renew a lease of the tenant; return True if `holder` has it now.

        A lease of another holder that has expired at `now` is taken over. A holder must renew its lease in time, and must stop
        working if that fails.

        Args:
            name: the lease's name, an identifier.
            holder: an identifier of the caller that no other caller uses.
            now: the caller's time, in milliseconds since the epoch.
            until: the time when the lease expires, after `now`.
        """

        def steps() -> Steps[bool]:
            yield Query("lease_put", (self.tenant, name, holder, until, now))  # has no effect if another holder has it
            rows = yield Query("lease_get", (self.tenant, name))
            yield Query("leases_clean", (self.tenant, now - _STALE))
            return decode_text(rows[0][0]) == holder

        return await self._write(steps)

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """Return the holder of a lease of the tenant; None if nobody holds it, or if it has expired at `now`."""
        row = await self._select_one(tuple, "lease_get", name)
        return decode_text(row[0]) if row is not None and row[1] > now else None

    async def release(self, name: str, holder: str) -> None:
        """Release a lease; do nothing if `holder` does not have it."""
        await self._execute("lease_delete", name, holder)

    async def learned(self, model: str) -> bytes | None:
        """Return the calibration data that the tenant has stored for a model; None if there are none."""
        return await self._select_one(get_first, "learned_get", model)

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        """Store calibration data of a model if the stored data are still `expect`; return False, and write nothing, if they are not.

        Only the `LEARNED_MODELS` models with the latest timestamps are kept; see `FOREVER`.

        Args:
            model: an identifier of the model.
            data: opaque to the store; at most `LEARNED_BYTES`, else `TooLarge`.
            timestamp: milliseconds since the epoch.
            expect: the data that `learned` returned; None: nothing is stored.
        """
        checks.check_id(model, "model")
        checks.check_size(len(data), "data", LEARNED_BYTES)

        def steps() -> Steps[bool]:
            rows = yield Query("learned_get", (self.tenant, model))
            if (rows[0][0] if rows else None) != expect:
                return False
            yield Query("learned_new" if expect is None else "learned_put", (self.tenant, model, timestamp, data))
            if expect is None:
                yield Query("learned_trim", (self.tenant, LEARNED_MODELS))
            return True

        return await self._write(steps)


class KeyStore(Handle):
    """Store API keys. `holdfast.stores.keys` describes what all methods promise."""

    async def add_key(self, key: ApiKey) -> None:
        """Store a key. Raises `InvalidRequest` if a key with that id exists."""
        checks.check_key(key)

        def steps() -> Steps[None]:
            if (yield Query("key_get", (self.tenant, key.id))):
                raise InvalidRequest(f"an API key with the id {key.id!r} exists already", param="id")
            yield Query("key_insert", encode_key(self.tenant, key))

        await self._write(steps)

    async def get_key(self, key_id: str) -> ApiKey | None:
        """Return the key with that id, even if it is revoked or expired; None if there is none."""
        checks.check_id(key_id, "key_id")
        return await self._select_one(decode_key, "key_get", key_id)

    async def keys(self, *, after: str = "", limit: int = 100, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return at most `limit` keys with ids after `after`, in order of id. Revoked keys are included.

        Args:
            after: an id; empty: begin with the first key.
            limit: maximum number of keys.
            tenant: return only keys that give access to this tenant; None: to any.
        """
        return await self._select(decode_key, "keys_after", after, limit, tenant)

    async def revoke_key(self, key_id: str, *, timestamp: int) -> ApiKey:
        """Revoke a key permanently, and return it. A key that is already revoked stays unchanged.

        Raises:
            KeyNotFound: there is no key with this id.
        """
        checks.check_id(key_id, "key_id")

        def steps() -> Steps[ApiKey]:
            yield Query("key_revoke", (self.tenant, key_id, timestamp))
            rows = yield Query("key_get", (self.tenant, key_id))
            if not rows:
                raise KeyNotFound(key_id)
            return decode_key(rows[0])

        return await self._write(steps)

    async def use_key(self, key_id: str, *, timestamp: int) -> None:
        """Record the time when a key was used. Does nothing if a later time is stored, or if the key does not exist."""
        checks.check_id(key_id, "key_id")
        await self._execute("key_use", key_id, timestamp)


class DeletionStore(Handle):
    """Store the journal of deletions. `holdfast.stores.deletions` describes what all methods promise."""

    async def add_deletion(self, deletion: Deletion, *, keep: int | None = None, job: Job | None = None) -> None:
        """Store a deletion, unless one with the same time and id is stored already.

        Args:
            deletion: the deletion.
            keep: number of earlier deletions of the same kind that are kept. The oldest others are dropped, up to `PAGE`; None: none
                are dropped.
            job: the job that has deleted the data, and is finished with this write; None: no job.
        """

        def steps() -> Steps[None]:
            if job is not None and not (yield Query("due_get", (self.tenant, job.id))):
                return  # another process has finished the same job
            if keep is not None:
                surplus = yield Query("deletions_surplus", (self.tenant, deletion.kind, keep, PAGE))
                if surplus:
                    yield Many("deletion_delete", [(self.tenant, at, decode_text(id_)) for at, id_ in surplus])
            yield Query("deletion_insert", (self.tenant, *_encode_deletion(deletion)))
            if job is not None:
                yield Query("due_delete", (self.tenant, job.id))

        await self._write(steps, scrub=job is not None)

    async def deletions(
        self,
        *,
        before: tuple[int, str] | None = None,
        limit: int = 20,
        hash: bytes | None = None,  # noqa: A002 - its name in the API
    ) -> Sequence[Deletion]:
        """Return deletions, the newest first.

        Args:
            before: time and id of a deletion; only older ones are returned. None: begin with the newest.
            limit: maximum number of deletions.
            hash: return only deletions with this hash of a user or session; None: all.
        """
        checks.check_limit(limit)
        place = (ENDLESS, "") if before is None else before
        return await self._select(_decode_deletion, "deletions_before", *place, limit, hash)


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


def _encode_deletion(deletion: Deletion) -> Row:
    place = (deletion.deleted_at, deletion.id, deletion.kind)
    hashes = (deletion.user_hash, deletion.session_hash)
    return (*place, *hashes, deletion.key_id or "", msgspec.json.encode(deletion.counts))

"""Store leases, calibration data of models, API keys and the journal of deletions of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace as evolve

from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.limits import LEARNED_BYTES, LEARNED_MODELS, PAGE
from holdfast.stores import checks
from holdfast.stores.deletions import Deletion, Job
from holdfast.stores.keys import ApiKey
from holdfast.stores.logic.handle import Handle, get_first, reads, writes
from holdfast.stores.logic.items import Items, trim_items
from holdfast.stores.logic.rows import decode_text
from holdfast.stores.logic.steps import Query, Steps

_STALE: Final = 3_600_000
"""Milliseconds after its expiry at which a lease is deleted. The delay keeps a caller whose clock is fast from deleting leases in use."""
_KEYS: Final = Items("key", ApiKey, at="created_at", about="tenant")
_DELETIONS: Final = Items("deletion", Deletion, at="deleted_at", about="kind")


class TenantStore(Handle):
    """Store data of a tenant that belongs to no session, and open and close handles.

    `holdfast.stores.tenants` describes what all methods promise.
    """

    @reads()
    def tenants(self, *, after: str = "", limit: int = 100) -> Steps[Sequence[str]]:
        """Return at most `limit` tenants that have sessions, memories or records. The names come after `after`, in order.

        This is the only method that sees other tenants. It is for jobs that run once for a whole database.
        """
        found: list[str] = []
        while len(found) < limit and (rows := (yield Query("tenant_after", (found[-1] if found else after,)))):
            found.append(decode_text(rows[0][0]))
        return tuple(found)

    @writes()
    def lease(self, name: str, holder: str, *, now: int, until: int) -> Steps[bool]:
        """Acquire or renew a lease of the tenant; return True if `holder` has it now.

        A lease of another holder that has expired at `now` is taken over. A holder must renew its lease in time, and must stop
        working if that fails.

        Args:
            name: the lease's name, an identifier.
            holder: an identifier of the caller that no other caller uses.
            now: the caller's time, in milliseconds since the epoch.
            until: the time when the lease expires, after `now`.
        """
        rows = yield Query("item_get", (self.tenant, "lease", name))
        if rows and rows[0][0] != holder.encode() and rows[0][1] > now:
            return False
        place = (self.tenant, "lease", name, until, "", holder.encode())
        yield Query(
            "item_put" if rows else "item_new", place
        )  # if another holder has just inserted it, this is run again
        yield Query("items_expire", (self.tenant, "lease", now - _STALE))
        return True

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """Return the holder of a lease of the tenant; None if nobody holds it, or if it has expired at `now`."""
        row = await self._select_one(tuple, "item_get", "lease", name)
        return decode_text(row[0]) if row is not None and row[1] > now else None

    @writes()
    def release(self, name: str, holder: str) -> Steps[None]:
        """Release a lease; do nothing if `holder` does not have it."""
        rows = yield Query("item_get", (self.tenant, "lease", name))
        if rows and rows[0][0] == holder.encode():
            yield Query("item_delete", (self.tenant, "lease", name))

    async def learned(self, model: str) -> bytes | None:
        """Return the calibration data that the tenant has stored for a model; None if there are none."""
        return await self._select_one(get_first, "item_get", "learned", model)

    @writes()
    def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> Steps[bool]:
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
        rows = yield Query("item_get", (self.tenant, "learned", model))
        if (rows[0][0] if rows else None) != expect:
            return False
        place = (self.tenant, "learned", model, timestamp, "", data)
        yield Query("item_new" if expect is None else "item_put", place)
        if expect is None:
            yield from trim_items(self.tenant, "learned", LEARNED_MODELS, PAGE)
        return True


class KeyStore(Handle):
    """Store API keys. `holdfast.stores.keys` describes what all methods promise."""

    @writes()
    def add_key(self, key: ApiKey) -> Steps[None]:
        """Store a key. Raises `InvalidRequest` if a key with that id exists."""
        checks.check_key(key)
        if (yield Query("item_get", (self.tenant, _KEYS.kind, key.id))):
            raise InvalidRequest(f"an API key with the id {key.id!r} exists already", param="id")
        yield from _KEYS.put(self.tenant, key, statement="item_new")

    @reads(single=True)
    def get_key(self, key_id: str) -> Steps[ApiKey | None]:
        """Return the key with that id, even if it is revoked or expired; None if there is none."""
        checks.check_id(key_id, "key_id")
        return (yield from _KEYS.get(self.tenant, key_id))

    @reads(single=True)
    def keys(self, *, after: str = "", limit: int = 100, tenant: str | None = None) -> Steps[Sequence[ApiKey]]:
        """Return at most `limit` keys with ids after `after`, in order of id. Revoked keys are included.

        Args:
            after: an id; empty: begin with the first key.
            limit: maximum number of keys.
            tenant: return only keys that give access to this tenant; None: to any.
        """
        return (yield from _KEYS.list_after(self.tenant, after, limit, tenant))

    @writes()
    def revoke_key(self, key_id: str, *, timestamp: int) -> Steps[ApiKey]:
        """Revoke a key permanently, and return it. A key that is already revoked stays unchanged.

        Raises:
            KeyNotFound: there is no key with this id.
        """
        checks.check_id(key_id, "key_id")
        key = yield from _KEYS.get(self.tenant, key_id)
        if key is None:
            raise KeyNotFound(key_id)
        if key.revoked_at is None:
            key = evolve(key, revoked_at=timestamp)
            yield from _KEYS.put(self.tenant, key)
        return key

    @writes()
    def use_key(self, key_id: str, *, timestamp: int) -> Steps[None]:
        """Record the time when a key was used. Does nothing if a later time is stored, or if the key does not exist."""
        checks.check_id(key_id, "key_id")
        key = yield from _KEYS.get(self.tenant, key_id)
        if key is not None and (key.used_at is None or key.used_at < timestamp):
            yield from _KEYS.put(self.tenant, evolve(key, used_at=timestamp))


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
                yield from trim_items(self.tenant, _DELETIONS.kind, keep, PAGE, deletion.kind)
            yield from _DELETIONS.put(self.tenant, deletion, statement="item_add")
            if job is not None:
                yield Query("due_delete", (self.tenant, job.id))

        await self._write(steps, scrub=job is not None)

    @reads()
    def deletions(
        self,
        *,
        before: tuple[int, str] | None = None,
        limit: int = 20,
        hash: bytes | None = None,  # noqa: A002 - its name in the API
    ) -> Steps[Sequence[Deletion]]:
        """Return deletions, the newest first.

        Args:
            before: time and id of a deletion; only older ones are returned. None: begin with the newest.
            limit: maximum number of deletions.
            hash: return only deletions with this hash of a user or session; None: all.
        """
        checks.check_limit(limit)
        found: list[Deletion] = []
        while len(found) < limit:
            page = yield from _DELETIONS.list_before(self.tenant, before, PAGE if hash else limit)
            found += [one for one in page if hash is None or hash in (one.user_hash, one.session_hash)]
            if hash is None or len(page) < PAGE:
                break
            before = page[-1].deleted_at, page[-1].id
        return found[:limit]

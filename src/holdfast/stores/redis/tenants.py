"""Data of a tenant that belong to no session, in Redis: leases, model calibration, API keys, sign-ins, contents of artifacts, deletions.

There are no locks. Instead, each write checks that the values on which it depends have not changed since they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace as evolve

from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.limits import BLOB_PART_BYTES, LEARNED_BYTES, LEARNED_MODELS, PAGE, SIGN_INS, SIGN_INS_OF_HOLDER
from holdfast.stores import checks
from holdfast.stores.deletions import Deletion
from holdfast.stores.keys import ApiKey
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, write_transaction
from holdfast.stores.redis.keys import TenantKeys, decode_number, encode_name, encode_number
from holdfast.stores.redis.records import check_int64, pack, pack_fields, unpack_fields, unpack_list
from holdfast.stores.sign_ins import EXPIRED_PER_WRITE, SignIn

_STALE: Final = 3_600_000
"""Milliseconds between the expiry of a lease and its deletion. The delay prevents a caller whose clock is fast from deleting a lease that is
still in use."""


class TenantMethods(Handle):
    """The methods of `holdfast.stores.tenants.TenantStore` and `KeyStore`, and the methods of `ArtifactStore` for the contents of artifacts."""

    durable = True

    @read_transaction()
    async def tenants(self, tx: Transaction, *, after: str = "", limit: int = 100) -> Sequence[str]:
        checks.check_limit(limit)
        keys = self.database.keys
        found: list[str] = []
        place = after.encode()
        while len(found) < limit:
            begin = b"(" + place if place else b"-"
            (names,) = await tx.read((b"ZRANGEBYLEX", keys.tenants, begin, b"+", b"LIMIT", 0, limit))
            for name in names:
                of = keys.tenant(name.decode())
                if any(
                    await tx.read(
                        *((b"ZCARD", key) for key in (of.named, of.withdrawn, of.memory_owners, of.record_owners))
                    )
                ):
                    found.append(name.decode())
            if len(names) < limit:
                break
            place = names[-1]
        return tuple(found[:limit])

    # -- leases --------------------------------------------------------------------

    @write_transaction()
    async def lease(self, tx: Transaction, name: str, holder: str, *, now: int, until: int) -> bool:
        checks.check_lease(name, holder, now, until)
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.holders, name))
        current = None if stored is None else unpack_list(stored)
        if current is not None and current[0] != holder and current[1] > now:
            return False
        tx.check(keys.holders, name, stored)
        tx.queue("HSET", keys.holders, name, pack((holder, until)))
        tx.queue("ZADD", keys.leases, until, name)
        tx.queue("clean", keys.leases, Key(keys.holders), now - _STALE)
        return True

    @read_transaction()
    async def leased_by(self, tx: Transaction, name: str, *, now: int) -> str | None:
        checks.check_id(name, "name")
        (stored,) = await tx.read((b"HGET", self._tenant_keys.holders, name))
        holder, until = ("", now) if stored is None else unpack_list(stored)
        return holder if until > now else None

    @write_transaction()
    async def release(self, tx: Transaction, name: str, holder: str) -> None:
        checks.check_id(name, "name")
        checks.check_id(holder, "holder")
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.holders, name))
        if stored is not None and unpack_list(stored)[0] == holder:
            tx.check(keys.holders, name, stored)
            tx.queue("HDEL", keys.holders, name)
            tx.queue("ZREM", keys.leases, name)

    # -- calibration of models -------------------------------------------------------

    @read_transaction()
    async def learned(self, tx: Transaction, model: str) -> bytes | None:
        checks.check_id(model, "model")
        (stored,) = await tx.read((b"HGET", self._tenant_keys.learned, model))
        return None if stored is None else bytes(stored[8:])

    @write_transaction()
    async def learn(self, tx: Transaction, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        checks.check_id(model, "model")
        checks.check_size(len(data), "data", LEARNED_BYTES)
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.learned, model))
        if (None if stored is None else stored[8:]) != expect:
            return False
        tx.check(keys.learned, model, stored)
        tx.queue("HSET", keys.learned, model, encode_number(timestamp) + data)
        if stored is not None:
            tx.queue("ZREM", keys.learned_at, stored[:8] + model.encode())
        tx.queue("ZADD", keys.learned_at, 0, encode_number(timestamp) + model.encode())
        if stored is None:
            tx.queue("trim", keys.learned_at, Key(keys.learned), LEARNED_MODELS)
        return True

    # -- API keys ----------------------------------------------------------------------

    @write_transaction()
    async def add_key(self, tx: Transaction, key: ApiKey) -> None:
        checks.check_key(key)
        keys = self._tenant_keys
        if any(await tx.read((b"HGET", keys.api_keys, key.id), (b"HGET", keys.api_hashes, key.hash))):
            raise InvalidRequest(f"an API key with the id {key.id!r} or the same hash exists already", param="id")
        tx.check(keys.api_keys, key.id, None)
        tx.check(keys.api_hashes, key.hash, None)
        tx.queue("HSET", keys.api_keys, key.id, pack_fields(key))
        tx.queue("HSET", keys.api_hashes, key.hash, key.id)
        tx.queue("ZADD", keys.api_ids, 0, key.id)

    @read_transaction()
    async def key_of(self, tx: Transaction, hash: bytes) -> ApiKey | None:  # noqa: A002 - its name
        checks.check_hash(hash, "hash")
        keys = self._tenant_keys
        (id_,) = await tx.read((b"HGET", keys.api_hashes, hash))
        stored = None if id_ is None else (await tx.read((b"HGET", keys.api_keys, id_)))[0]
        return None if stored is None else unpack_fields(ApiKey, stored)

    @read_transaction()
    async def get_key(self, tx: Transaction, key_id: str) -> ApiKey | None:
        checks.check_id(key_id, "key_id")
        (stored,) = await tx.read((b"HGET", self._tenant_keys.api_keys, key_id))
        return None if stored is None else unpack_fields(ApiKey, stored)

    @read_transaction()
    async def keys(
        self, tx: Transaction, *, after: str = "", limit: int = 100, tenant: str | None = None
    ) -> Sequence[ApiKey]:
        checks.check_limit(limit)
        keys, found = self._tenant_keys, list[ApiKey]()
        place, size = after.encode(), limit if tenant is None else PAGE
        while len(found) < limit:
            begin = b"(" + place if place else b"-"
            (ids,) = await tx.read((b"ZRANGEBYLEX", keys.api_ids, begin, b"+", b"LIMIT", 0, size))
            some = (unpack_fields(ApiKey, one) for one in (await tx.read_fields(keys.api_keys, ids)).values())
            found += (key for key in some if tenant in {None, key.tenant})
            if len(ids) < size:
                break
            place = ids[-1]
        return tuple(found[:limit])

    @write_transaction()
    async def revoke_key(self, tx: Transaction, key_id: str, *, timestamp: int) -> ApiKey:
        checks.check_id(key_id, "key_id")
        key = await self._change_key(tx, key_id, "revoked_at", check_int64(timestamp), lambda before: before is None)
        if key is None:
            raise KeyNotFound(key_id)
        await queue_removal_of_key(tx, self._tenant_keys, key_id)
        return key

    @write_transaction()
    async def use_key(self, tx: Transaction, key_id: str, *, timestamp: int) -> None:
        checks.check_id(key_id, "key_id")
        await self._change_key(
            tx, key_id, "used_at", check_int64(timestamp), lambda before: before is None or before < timestamp
        )

    async def _change_key(self, tx: Transaction, key_id: str, name: str, timestamp: int, applies: Any) -> ApiKey | None:
        """Set the field `name` of an API key to `timestamp`, if `applies` returns True for the field's stored value.

        Returns:
            The key after the commit; None if it does not exist.
        """
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.api_keys, key_id))
        if stored is None:
            return None
        key = unpack_fields(ApiKey, stored)
        if applies(getattr(key, name)):
            key = evolve(key, **{name: timestamp})
            tx.check(keys.api_keys, key_id, stored)
            tx.queue("HSET", keys.api_keys, key_id, pack_fields(key))
        return key

    # -- contents --------------------------------------------------------------------

    @write_transaction()
    async def put_blob(self, tx: Transaction, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        checks.check_blobs((blob,))
        checks.check_size(len(data), "data", BLOB_PART_BYTES)
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.written, blob))
        # The time of the last write to any of the parts.
        newest = timestamp if stored is None else max(timestamp, decode_number(stored))
        tx.queue("HSET", keys.parts(blob), part, data)
        tx.queue("HSET", keys.written, blob, encode_number(newest))
        tx.queue("ZADD", keys.blobs, 0, blob)

    @read_transaction()
    async def blob(self, tx: Transaction, blob: str, part: int) -> bytes | None:
        checks.check_blobs((blob,))
        found: bytes | None = (await tx.read((b"HGET", self._tenant_keys.parts(blob), part)))[0]
        return found

    @write_transaction()
    async def delete_blobs(self, tx: Transaction, blobs: Sequence[str]) -> None:
        checks.check_blobs(blobs)
        keys = self._tenant_keys
        for blob in blobs:
            tx.queue("UNLINK", keys.parts(blob))
            tx.queue("HDEL", keys.written, blob)
            tx.queue("ZREM", keys.blobs, blob)

    @read_transaction()
    async def blobs(self, tx: Transaction, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        checks.check_limit(limit)
        keys = self._tenant_keys
        found: list[str] = []
        place = after.encode()
        while len(found) < limit:
            begin = b"(" + place if place else b"-"
            (blobs,) = await tx.read((b"ZRANGEBYLEX", keys.blobs, begin, b"+", b"LIMIT", 0, limit))
            written = await tx.read_fields(keys.written, blobs)
            found += (blob.decode() for blob, time in written.items() if decode_number(time) < before)
            if len(blobs) < limit:
                break
            place = blobs[-1]
        return tuple(found[:limit])


_HASH: Final = 32


class SignInMethods(Handle):
    """The methods of `holdfast.stores.sign_ins.SignInStore`."""

    @write_transaction()
    async def add_sign_in(self, tx: Transaction, sign_in: SignIn) -> None:
        checks.check_sign_in(sign_in)
        keys, now = self._tenant_keys, check_int64(sign_in.created_at)
        holder = _encode_holder(sign_in)
        bounds = (b"(" + holder + b"\xff", b"[" + holder)
        stored, expired, surplus, oldest = await tx.read(
            (b"HGET", keys.sign_ins, sign_in.hash),
            (b"ZRANGEBYSCORE", keys.sign_in_expiries, b"-inf", now, b"LIMIT", 0, EXPIRED_PER_WRITE),
            (b"ZREVRANGEBYLEX", keys.sign_in_holders, *bounds, b"LIMIT", SIGN_INS_OF_HOLDER - 1, PAGE),
            (b"ZREVRANGE", keys.sign_in_times, SIGN_INS - 1, SIGN_INS - 1 + PAGE),
        )
        if stored is not None:
            raise InvalidRequest("a sign-in with the same hash exists already", param="hash")
        tx.check(keys.sign_ins, sign_in.hash, None)
        await _queue_removal(tx, keys, {*expired, *(member[-_HASH:] for member in (*surplus, *oldest))})
        tx.queue("HSET", keys.sign_ins, sign_in.hash, pack_fields(sign_in))
        tx.queue("ZADD", keys.sign_in_expiries, check_int64(sign_in.expires_at), sign_in.hash)
        tx.queue("ZADD", keys.sign_in_times, 0, encode_number(now) + sign_in.hash)
        tx.queue("ZADD", keys.sign_in_holders, 0, _encode_member(sign_in))

    @read_transaction()
    async def find_sign_in(self, tx: Transaction, hash: bytes) -> SignIn | None:  # noqa: A002 - its name
        checks.check_hash(hash, "hash")
        (stored,) = await tx.read((b"HGET", self._tenant_keys.sign_ins, hash))
        return None if stored is None else unpack_fields(SignIn, stored)

    @write_transaction()
    async def use_sign_in(self, tx: Transaction, hash: bytes, *, timestamp: int) -> None:  # noqa: A002
        checks.check_hash(hash, "hash")
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.sign_ins, hash))
        if stored is None:
            return
        sign_in = unpack_fields(SignIn, stored)
        if sign_in.used_at is None or sign_in.used_at < timestamp:
            tx.check(keys.sign_ins, hash, stored)
            tx.queue("HSET", keys.sign_ins, hash, pack_fields(evolve(sign_in, used_at=check_int64(timestamp))))

    @write_transaction()
    async def remove_sign_in(self, tx: Transaction, hash: bytes) -> None:  # noqa: A002
        checks.check_hash(hash, "hash")
        await _queue_removal(tx, self._tenant_keys, (hash,))


async def queue_removal_of_key(tx: Transaction, keys: TenantKeys, key_id: str) -> None:
    """Delete the sign-ins of a key when the transaction is committed."""
    begin = encode_name(key_id)
    (members,) = await tx.read((b"ZRANGEBYLEX", keys.sign_in_holders, b"[" + begin, b"(" + begin + b"\xff"))
    await _queue_removal(tx, keys, [member[-_HASH:] for member in members])


async def _queue_removal(tx: Transaction, keys: TenantKeys, hashes: Iterable[bytes]) -> None:
    for hash_, stored in (await tx.read_fields(keys.sign_ins, sorted(hashes))).items():
        sign_in = unpack_fields(SignIn, stored)
        tx.queue("HDEL", keys.sign_ins, hash_)
        tx.queue("ZREM", keys.sign_in_expiries, hash_)
        tx.queue("ZREM", keys.sign_in_times, encode_number(sign_in.created_at) + hash_)
        tx.queue("ZREM", keys.sign_in_holders, _encode_member(sign_in))


def _encode_holder(sign_in: SignIn) -> bytes:
    """Return the beginning of the members of a holder: the key, the tenant and the user."""
    return b"".join(map(encode_name, (sign_in.key_id or "", sign_in.tenant, sign_in.user_id or "")))


def _encode_member(sign_in: SignIn) -> bytes:
    """Return a sign-in's member in the index of holders, in which the sign-ins of a holder are in order of time."""
    return _encode_holder(sign_in) + encode_number(sign_in.created_at) + sign_in.hash


class DeletionMethods(Handle):
    """The methods of `holdfast.stores.deletions.DeletionStore`."""

    @write_transaction()
    async def add_deletion(self, tx: Transaction, deletion: Deletion, *, keep: int | None = None) -> None:
        checks.check_deletion(deletion, keep)
        keys, kind = self._tenant_keys, encode_name(deletion.kind)
        place = encode_number(check_int64(deletion.deleted_at)) + deletion.id.encode()
        (stored,) = await tx.read((b"HGET", keys.deletions, place))
        surplus: Sequence[bytes] = ()
        if keep is not None:
            bounds = (b"(" + kind + b"\xff", b"[" + kind)
            (surplus,) = await tx.read((b"ZREVRANGEBYLEX", keys.deletion_kinds, *bounds, b"LIMIT", keep, PAGE))
        for member in surplus:
            tx.queue("ZREM", keys.deletion_kinds, member)
            tx.queue("ZREM", keys.deletion_times, member[len(kind) :])
            tx.queue("HDEL", keys.deletions, member[len(kind) :])
        if stored is None or kind + place in surplus:
            tx.queue("HSET", keys.deletions, place, pack_fields(deletion))
            tx.queue("ZADD", keys.deletion_times, 0, place)
            tx.queue("ZADD", keys.deletion_kinds, 0, kind + place)

    @read_transaction()
    async def deletions(
        self,
        tx: Transaction,
        *,
        before: tuple[int, str] | None = None,
        limit: int = 20,
        hash: bytes | None = None,  # noqa: A002 - its name in the API
    ) -> Sequence[Deletion]:
        checks.check_limit(limit)
        keys, found = self._tenant_keys, list[Deletion]()
        end = b"+" if before is None else b"(" + encode_number(before[0]) + before[1].encode()
        size = limit if hash is None else PAGE
        while len(found) < limit:
            page: Command = (b"ZREVRANGEBYLEX", keys.deletion_times, end, b"-", b"LIMIT", 0, size)
            (places,) = await tx.read(page)
            some = (unpack_fields(Deletion, one) for one in (await tx.read_fields(keys.deletions, places)).values())
            found += (one for one in some if hash in {None, one.user_hash, one.session_hash})
            if len(places) < size:
                break
            end = b"(" + places[-1]
        return tuple(found[:limit])

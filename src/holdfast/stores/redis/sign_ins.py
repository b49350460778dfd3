"""Sign-ins to the inspector, in Redis. They do not use the server's own expiry, because a store never reads a clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace as evolve

from holdfast.errors import InvalidRequest
from holdfast.limits import PAGE, SIGN_INS, SIGN_INS_OF_HOLDER
from holdfast.stores import checks
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, write_transaction
from holdfast.stores.redis.keys import TenantKeys, encode_name, encode_number
from holdfast.stores.redis.records import check_int64, pack_fields, unpack_fields
from holdfast.stores.sign_ins import EXPIRED_PER_WRITE, SignIn

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

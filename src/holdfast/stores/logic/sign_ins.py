"""Sign-ins to the inspector. The functions are generators of statements."""

from __future__ import annotations

from functools import partial
from typing import cast

from holdfast.errors import InvalidRequest
from holdfast.limits import PAGE, SIGN_INS, SIGN_INS_OF_HOLDER
from holdfast.stores import checks
from holdfast.stores.keys import Role
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.rows import decode_text
from holdfast.stores.logic.steps import Many, Query, Row, Steps
from holdfast.stores.sign_ins import EXPIRED_PER_WRITE, SignIn


class SignInMethods(Handle):
    """Implements the methods of `SignInStore` on a SQL database. `LogicStore` inherits from this class."""

    async def add_sign_in(self, sign_in: SignIn) -> None:
        checks.check_sign_in(sign_in)
        await self._write(partial(_add, self.tenant, sign_in))

    async def find_sign_in(self, hash: bytes) -> SignIn | None:  # noqa: A002 - its name in the API
        checks.check_hash(hash, "hash")
        return await self._read(partial(_find, self.tenant, hash), single=True)

    async def use_sign_in(self, hash: bytes, *, timestamp: int) -> None:  # noqa: A002
        checks.check_hash(hash, "hash")
        await self._write(partial(_run, Query("sign_in_use", (self.tenant, hash, timestamp))))

    async def remove_sign_in(self, hash: bytes) -> None:  # noqa: A002
        checks.check_hash(hash, "hash")
        await self._write(partial(_run, Query("sign_in_delete", (self.tenant, hash))))


def _run(query: Query) -> Steps[None]:
    yield query


def _add(tenant: str, sign_in: SignIn) -> Steps[None]:
    if (yield from _find(tenant, sign_in.hash)) is not None:
        raise InvalidRequest("a sign-in with the same hash exists already", param="hash")
    holder = (tenant, sign_in.key_id or "", sign_in.tenant, sign_in.user_id or "")
    expired = yield Query("sign_ins_expired", (tenant, sign_in.created_at, EXPIRED_PER_WRITE))
    surplus = yield Query("sign_ins_of_holder", (*holder, SIGN_INS_OF_HOLDER - 1, PAGE))
    oldest = yield Query("sign_ins_oldest", (tenant, SIGN_INS - 1, PAGE))
    if gone := {row[0] for row in (*expired, *surplus, *oldest)}:
        yield Many("sign_in_delete", [(tenant, hash_) for hash_ in sorted(gone)])
    yield Query("sign_in_insert", _encode(tenant, sign_in))


def _find(tenant: str, hash_: bytes) -> Steps[SignIn | None]:
    rows = yield Query("sign_in_get", (tenant, hash_))
    return _decode(rows[0]) if rows else None


def _decode(row: Row) -> SignIn:
    hash_, opens, user_id, role, key_id, created_at, expires_at, used_at = row
    return SignIn(
        hash=hash_,
        tenant=decode_text(opens),
        user_id=decode_text(user_id) or None,
        role=cast(Role, decode_text(role)),
        key_id=decode_text(key_id) or None,
        created_at=created_at,
        expires_at=expires_at,
        used_at=used_at,
    )


def _encode(tenant: str, sign_in: SignIn) -> Row:
    holder = (sign_in.tenant, sign_in.user_id or "", sign_in.role, sign_in.key_id or "")
    return (tenant, sign_in.hash, *holder, sign_in.created_at, sign_in.expires_at, sign_in.used_at)

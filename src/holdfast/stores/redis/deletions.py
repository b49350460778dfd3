"""The journal of deletions, in Redis."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.limits import PAGE
from holdfast.stores import checks
from holdfast.stores.deletions import Deletion
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, write_transaction
from holdfast.stores.redis.keys import encode_name, encode_number
from holdfast.stores.redis.records import check_int64, pack_fields, unpack_fields


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

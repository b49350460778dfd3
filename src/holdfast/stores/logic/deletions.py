"""The journal of deletions. The functions are generators of statements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec

from holdfast.limits import PAGE
from holdfast.stores import checks
from holdfast.stores.deletions import Deletion, DeletionKind
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.rows import ENDLESS, decode_text
from holdfast.stores.logic.steps import Many, Query, Row, Steps


class DeletionMethods(Handle):
    """Implements the methods of `DeletionStore` on a SQL database. `LogicStore` inherits from this class."""

    async def add_deletion(self, deletion: Deletion, *, keep: int | None = None) -> None:
        checks.check_deletion(deletion, keep)
        await self._write(partial(_add, self.tenant, deletion, keep))

    async def deletions(
        self,
        *,
        before: tuple[int, str] | None = None,
        limit: int = 20,
        hash: bytes | None = None,  # noqa: A002 - its name in the API
    ) -> Sequence[Deletion]:
        checks.check_limit(limit)
        place = (ENDLESS, "") if before is None else before
        return await self._read(partial(_list, self.tenant, place, limit, hash), single=True)


def _add(tenant: str, deletion: Deletion, keep: int | None) -> Steps[None]:
    if keep is not None:
        surplus = yield Query("deletions_surplus", (tenant, deletion.kind, keep, PAGE))
        if surplus:
            yield Many("deletion_delete", [(tenant, at, decode_text(id_)) for at, id_ in surplus])
    yield Query("deletion_insert", _encode(tenant, deletion))


def _list(tenant: str, before: tuple[int, str], limit: int, hash_: bytes | None) -> Steps[Sequence[Deletion]]:
    if hash_ is None:
        rows = yield Query("deletions_before", (tenant, *before, limit))
    else:
        rows = yield Query("deletions_of_hash_before", (tenant, *before, hash_, limit))
    return tuple(map(_decode, rows))


def _decode(row: Row) -> Deletion:
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


def _encode(tenant: str, deletion: Deletion) -> Row:
    place = (tenant, deletion.deleted_at, deletion.id, deletion.kind)
    return (
        *place,
        deletion.user_hash,
        deletion.session_hash,
        deletion.key_id or "",
        msgspec.json.encode(deletion.counts),
    )

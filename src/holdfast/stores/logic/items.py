"""Small things of a tenant, each a row with its data: keys, leases, ends of sessions, deletions and so on.

An item is found by its kind and id, or among those of its kind in the order of `at`, a time or a number. `about` is what lists of a kind
are filtered by.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.stores.logic.rows import ENDLESS, decode_text
from holdfast.stores.logic.steps import Query, Row, Rows, Steps

S = TypeVar("S", bound=msgspec.Struct)
_encode: Final = msgspec.json.Encoder().encode


class Items(Generic[S]):
    """The items of a kind whose data are structs with an `id`, as JSON.

    Args:
        kind: name of the kind.
        struct: type of the data.
        at: the field that is stored as `at`.
        about: the field that is stored as `about`.
    """

    def __init__(self, kind: str, struct: type[S], *, at: str, about: str) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(struct)
        self._at = at
        self._about = about

    def get(self, tenant: str, id_: str) -> Steps[S | None]:
        """Return an item, or None if there is none. In a write, it is locked until the transaction ends."""
        rows = yield Query("item_get", (tenant, self.kind, id_))
        return self._decode(rows[0]) if rows else None

    def put(self, tenant: str, one: S, *, statement: str = "item_put") -> Steps[None]:
        """Write an item. The statement `item_new` fails if it exists, so that the write is run again, and `item_add` keeps the stored one."""
        place = (tenant, self.kind, getattr(one, "id"), getattr(one, self._at))  # noqa: B009  # each of these structs has an id
        yield Query(statement, (*place, getattr(one, self._about), _encode(one)))

    def delete(self, tenant: str, id_: str) -> Steps[None]:
        """Delete an item, if it exists."""
        yield Query("item_delete", (tenant, self.kind, id_))

    def list_after(self, tenant: str, id_: str, limit: int, about: str | None = None) -> Steps[tuple[S, ...]]:
        """Return items in the order of their ids, after a given one: all, or those with this `about`."""
        rows = yield Query("items_after", (tenant, self.kind, id_, limit, about))
        return self._decode_all(rows)

    def list_until(self, tenant: str, at: int, limit: int) -> Steps[tuple[S, ...]]:
        """Return items up to a time, the oldest first."""
        rows = yield Query("items_until", (tenant, self.kind, at, limit))
        return self._decode_all(rows)

    def list_before(self, tenant: str, before: tuple[int, str] | None, limit: int) -> Steps[tuple[S, ...]]:
        """Return items before a time and id, the newest first."""
        rows = yield Query("items_before", (tenant, self.kind, *(before or (ENDLESS, "")), limit, None, 0))
        return self._decode_all(rows)

    def _decode_all(self, rows: Rows) -> tuple[S, ...]:
        """Decode items of a list. Damaged ones are left out."""
        found = []
        for row in rows:
            with suppress(StoreCorrupt):
                found.append(self._decode(row))
        return tuple(found)

    def _decode(self, row: Row) -> S:
        try:
            return self._decoder.decode(row[0])
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise StoreCorrupt(
                f"the {self.kind} {decode_text(row[2])!r} is damaged and cannot be decoded ({exc})"
            ) from exc


def trim_items(tenant: str, kind: str, kept: int, limit: int, about: str | None = None) -> Steps[None]:
    """Delete all but the newest items of a kind, or of those with this `about`; at most `limit` at once."""
    for _, _, id_ in (yield Query("items_before", (tenant, kind, ENDLESS, "", limit, about, kept))):
        yield Query("item_delete", (tenant, kind, id_))

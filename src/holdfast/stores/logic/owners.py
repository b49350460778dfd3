"""Owners of state, records, memories and artifacts. What an owner has is stored in items.

A write locks the owner's row until its transaction ends. So of all writers of one owner only one at a time reads and changes items, the
version and the totals. An owner without a row has nothing. The first write creates the row.

Versions and numbers are never reused: if an owner is deleted, the floor of its kind is raised to the highest one that it had, and a new
owner of the same name continues above the floor.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.stores.logic.steps import Query, Steps


class OwnerKey(NamedTuple):
    """The name of an owner."""

    tenant: str
    kind: str
    """`state`, `records`, `artifacts`, or `memories.` with the kind of an owner of memories."""
    id: str
    """The user or agent; empty for the tenant."""
    session: int = 0
    """Primary key of the session that is the owner; 0: the owner is no session."""


class OwnerRow(NamedTuple):
    """The stored fields of an owner, in the order of the columns that the statement `owner_get` returns."""

    pk: int
    version: int
    """Grows with each write that changes an item; 0 before the first one."""
    items: int
    """Number of keys or memories."""
    bytes: int
    """Bytes of all keys with their values."""
    numbers: int
    """Number of memories and searchable records that the owner has numbered."""
    signals: int
    """Number of signals that were written."""
    entries: int
    """Number of diary entries that were written."""
    updated_at: int
    floor: int
    """The highest version or number that a deleted owner of this kind had."""

    @property
    def next_version(self) -> int:
        """The version after the next write that changes an item."""
        return (self.version or self.floor) + 1


def read_owner(key: OwnerKey) -> Steps[OwnerRow | None]:
    """Return an owner's row, or None if it has none. In a write, the row is locked until the transaction ends."""
    rows = yield Query("owner_get", key)
    return OwnerRow(*rows[0]) if rows else None


def lock_owner(key: OwnerKey) -> Steps[OwnerRow]:
    """Lock an owner's row until the transaction ends, and return it. A missing row is created."""
    owner = OwnerRow._make((*(yield Query("owner_take", key))[0], 0))
    if owner.version:
        return owner
    # This is read after the lock, because an owner of this name may have been deleted while the lock was waited for.
    floor = yield Query("owner_floor", (key.tenant, key.kind, "", -1))
    return owner._replace(floor=floor[0][0]) if floor else owner


def save_owner(owner: OwnerRow) -> Steps[None]:
    """Write the changed fields of an owner."""
    yield Query("owner_put", owner[:-1])


def delete_owner(key: OwnerKey, owner: OwnerRow) -> Steps[None]:
    """Delete an owner with its name. Its items must be deleted already."""
    used = owner.version + (1 if owner.items else 0)  # the deletion of items is a change as well
    yield from raise_floor(key, max(used, owner.numbers))
    yield Query("owner_delete", (owner.pk,))


def raise_floor(key: OwnerKey, version: int) -> Steps[None]:
    """Let new owners of a kind continue above a version or number."""
    yield Query("owner_floor_raise", (key.tenant, key.kind, version))

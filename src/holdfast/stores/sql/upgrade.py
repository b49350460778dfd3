"""Which migrations a database still needs, and which databases are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.errors import StoreUnavailable
from holdfast.stores.sql import Migration

TABLE: Final = "holdfast_migrations"
"""Where a database says what was applied to it: number, name and checksum."""


def list_pending(place: str, known: Sequence[Migration], applied: Mapping[int, str]) -> tuple[Migration, ...]:
    """Those of `known` that are missing.

    Args:
        place: which database, for the message.
        known: all there are, in order.
        applied: checksums by number.

    Raises:
        StoreUnavailable: the schema is newer than this program, or not the one it knows.
    """
    newest = known[-1].number
    if applied and max(applied) > newest:
        raise StoreUnavailable(
            f"{place} has schema {max(applied)}, made by a newer release; this one knows schemas up to {newest}"
        )
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise StoreUnavailable(f"{place} has another schema {migration.number} than this release knows")
    return tuple(migration for migration in known if migration.number not in applied)


def make_foreign_error(place: str) -> StoreUnavailable:
    """The error for a database that is not ours."""
    return StoreUnavailable(f"{place} is a database of another program: it has tables, and none of Holdfast's")

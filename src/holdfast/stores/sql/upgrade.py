"""Find the pending migrations of a database, and refuse databases that this release cannot use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.errors import StoreUnavailable
from holdfast.stores.sql import Migration

TABLE: Final = "holdfast_migrations"
"""Name of the table of applied migrations, with the columns number, name and checksum."""


def list_pending(place: str, known: Sequence[Migration], applied: Mapping[int, str]) -> tuple[Migration, ...]:
    """Return the migrations that have not been applied yet, in order.

    Args:
        place: name of the database, for messages.
        known: all migrations of this release, in order.
        applied: checksums of the applied migrations, by number.

    Raises:
        StoreUnavailable: the database has migrations of a later release, or a migration that differs from this release's.
    """
    newest = known[-1].number
    if applied and max(applied) > newest:
        raise StoreUnavailable(
            f"{place} has schema {max(applied)}, made by a newer release; this one knows schemas up to {newest}"
        )
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise StoreUnavailable(
                f"{place} has a migration {migration.number} that differs from the one of this release"
            )
    return tuple(migration for migration in known if migration.number not in applied)


def make_foreign_error(place: str) -> StoreUnavailable:
    """Return the error for a database that contains tables of another program, but no tables of Holdfast."""
    return StoreUnavailable(f"{place} belongs to another program: it has tables, but none of Holdfast's")

"""Numbered migrations of the SQL stores. Opening a database applies the pending ones.

The first migration creates all tables. A later change of the schema is a new file with the next number in each dialect's folder
`migrations/`. A file that was released never changes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import StoreUnavailable

TABLE: Final = "holdfast_schema"
"""Name of the table of applied migrations, with the columns number, name and checksum."""
OLD_TABLE: Final = "holdfast_migrations"
"""The same table in databases of Holdfast 0.1 and 0.2, whose tables differ."""


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of the schema."""

    number: int
    name: str
    sql: str
    checksum: str
    """SHA-256 of the SQL text. A database that was migrated with a different text is refused."""


@functools.cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """Return the dialect's migrations, in order."""
    files = sorted((Path(__file__).parent / dialect / "migrations").glob("[0-9]*.sql"))
    return tuple(_read_migration(file) for file in files)


def _read_migration(file: Path) -> Migration:
    sql = file.read_text("utf-8")
    number, _, name = file.stem.partition("_")
    return Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest())


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


def refuse_other_tables(place: str, tables: Collection[str]) -> None:
    """Raise `StoreUnavailable` if a database without the table `TABLE` has other tables: those of an older release or another program."""
    if OLD_TABLE in tables:
        raise StoreUnavailable(
            f"{place} was made by Holdfast 0.1 or 0.2. Export its sessions with that release (`holdfast sessions export --all`), then"
            " import them into a new database. A search index needs no export: use a new file or database, and it is built again"
        )
    if tables:
        raise StoreUnavailable(f"{place} belongs to another program: it has tables, but none of Holdfast's")

"""Named statements (see `statements`) and numbered migrations of the SQL stores.

Each dialect has a folder with `overrides.sql` and `migrations/`. The operations in `holdfast.stores.logic` refer to statements
by name. A store provides the driver, and runs the statements of an operation in a transaction.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import msgspec


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

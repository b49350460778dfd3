"""What the SQL stores share: named statements (`statements`) and numbered migrations of each dialect.

A dialect is a folder with `overrides.sql` and `migrations/`. `holdfast.stores.logic` says what happens in terms of statement
names; a store brings the driver and runs the steps in a transaction.
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
    """Of the text that was applied: an edited migration is refused instead of being taken for the old one."""


@functools.cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """The dialect's migrations, in order."""
    files = sorted((Path(__file__).parent / dialect / "migrations").glob("[0-9]*.sql"))
    return tuple(_read_migration(file) for file in files)


def _read_migration(file: Path) -> Migration:
    sql = file.read_text("utf-8")
    number, _, name = file.stem.partition("_")
    return Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest())

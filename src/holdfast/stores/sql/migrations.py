"""Numbered migrations of the SQL stores. Opening a database applies the pending ones.

The first migration creates all tables. A later change of the schema is a new file with the next number in the folder `migrations`.
After a migration was released, what it does never changes. The files have the syntax of the statements for lines and words of a dialect.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.stores.sql.statements import select_lines

TABLE: Final = "holdfast_schema"
"""Name of the table of applied migrations, with the columns number, name and checksum."""
OLD_TABLE: Final = "holdfast_migrations"
"""The same table in databases of Holdfast 0.1 and 0.2, whose tables differ."""


_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "SERIAL": "INTEGER PRIMARY KEY",
        "INT": "INTEGER",
        "FLAG": "INTEGER",
        "FLOAT": "REAL",
        "WORD": "TEXT",
        "ID": "TEXT",
        **dict.fromkeys(("VARBINARY", "LONGBLOB", "MEDIUMBLOB"), "BLOB"),
        "{table}": "STRICT",
        "{clustered}": "STRICT, WITHOUT ROWID",
        "{view}": "VIEW",
    },
    "postgres": {
        "SERIAL": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "INT": "bigint",
        "FLAG": "smallint",
        "FLOAT": "double precision",
        "WORD": "text",
        **dict.fromkeys(("ID", "VARBINARY", "LONGBLOB", "MEDIUMBLOB", "BLOB"), "bytea"),
        "{table}": "",
        "{clustered}": "",
        "{view}": "VIEW",
    },
    "mysql": {
        "SERIAL": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        "INT": "BIGINT",
        "FLAG": "SMALLINT",
        "FLOAT": "DOUBLE",
        "WORD": "VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin",
        "ID": "VARBINARY(512)",
        **dict.fromkeys(("{table}", "{clustered}"), "ENGINE = InnoDB ROW_FORMAT = DYNAMIC"),
        "{view}": "OR REPLACE VIEW",
        '"key"': "`key`",
    },
}
"""Text of each dialect for the types and words of a migration. A type may be followed by its maximum bytes, which only MySQL needs."""
_TYPE: Final = re.compile(r'("key"|\{\w+\}|\b[A-Z]+\b)(?:\((\d+)\))?')


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
    files = sorted((Path(__file__).parent / "migrations").glob("[0-9]*.sql"))
    return tuple(_read_migration(file, dialect) for file in files)


def _read_migration(file: Path, dialect: str) -> Migration:
    number, _, name = file.stem.partition("_")
    sql = _TYPE.sub(partial(_write_type, dialect), select_lines(file.read_text("utf-8"), dialect))
    return Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest())


def _write_type(dialect: str, found: re.Match[str]) -> str:
    text = _TYPES[dialect].get(found[1])
    if text is None:
        return found[0]
    size = found[2] if dialect == "mysql" else None
    return f"VARBINARY({size})" if size else text


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

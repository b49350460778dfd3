"""What the SQL stores share: named statements and numbered migrations of each dialect.

A dialect is a folder with `queries.sql` and `migrations/`. `holdfast.stores.logic` says what happens in terms of statement
names; a store brings the driver and runs the steps in a transaction.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import msgspec

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of the schema."""

    number: int
    name: str
    sql: str
    checksum: str
    """Of the text that was applied: an edited migration is refused instead of being taken for the old one."""


@functools.cache
def statements(dialect: str) -> dict[str, str]:
    """The dialect's statements by name."""
    text = (Path(__file__).parent / dialect / "queries.sql").read_text("utf-8")
    parts = _NAME.split(text)[1:]
    return {name: _COMMENT.sub("", body).strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


@functools.cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The dialect's migrations, in order."""
    files = sorted((Path(__file__).parent / dialect / "migrations").glob("[0-9]*.sql"))
    return tuple(_migration(file) for file in files)


def _migration(file: Path) -> Migration:
    sql = file.read_text("utf-8")
    number, _, name = file.stem.partition("_")
    return Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest())

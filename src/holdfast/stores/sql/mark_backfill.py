"""Backfill the marks of entries from before marks existed, in batches, when a database is upgraded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.stores.logic.rows import decode_text
from holdfast.stores.logic.steps import Many, Query, Steps
from holdfast.stores.matching import make_key, make_scope

BATCH: Final = 2000
"""Entries per batch."""
Position = tuple[str, int, int]
"""Progress of the backfill: "live" or "retired" entries, then session and `seq` of the last entry that was marked."""
START: Final[Position] = ("live", 0, 0)


def mark_batch(position: Position) -> Steps[Position | None]:
    """Mark the next entries after `position` and return where to continue, or None if all are marked.

    Entries that already have a mark do not change.
    """
    which, session, seq = position
    rows = yield Query(f"unmarked_{which}", (session, seq, BATCH))
    if not rows:
        return ("retired", 0, 0) if which == "live" else None
    marks = [
        (row[0], row[1], make_key(make_scope(decode_text(row[2]), decode_text(row[3])), bytes(row[4]))) for row in rows
    ]
    yield Many(f"entry_mark_{which}", marks)
    return which, marks[-1][0], marks[-1][1]


BACKFILLS: Final[Mapping[int, tuple[Callable[[Position], Steps[Position | None]], Position]]] = {5: (mark_batch, START)}
"""The backfill that follows a migration, and where it starts, by number of the migration. An interrupted one can be run again."""

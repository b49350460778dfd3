"""Add marks to entries that were written before marks existed, when a database is upgraded. A mark is the key of a digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.stores.logic.rows import decode_text
from holdfast.stores.logic.steps import Many, Query, Steps
from holdfast.stores.matching import make_key, make_scope

BATCH: Final = 2000
"""Number of entries per batch."""
Position = tuple[str, int, int]
"""Progress of the backfill: the kind of entries that it is working on, "live" or "retired"; then session and `seq` of the last
marked entry.
"""
START: Final[Position] = ("live", 0, 0)


def mark_batch(position: Position) -> Steps[Position | None]:
    """Add marks to one batch of entries after `position`. Return the position for the next call, or None if all entries have marks.

    An entry that already has a mark is left unchanged.
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
"""For a migration, by its number: the function that fills in data afterwards, and the position where the function starts. The
function can be run again after an interruption.
"""

"""Marks of entries that were written before there were any: filled in, some at a time, when a database is brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.stores.logic.rows import decode_text
from holdfast.stores.logic.steps import Many, Query, Steps
from holdfast.stores.matching import make_key, make_scope

BATCH: Final = 2000
"""Entries at a time."""
Position = tuple[str, int, int]
"""How far it is: whether at live entries or retired ones, and behind which."""
START: Final[Position] = ("live", 0, 0)


def mark_batch(place: Position) -> Steps[Position | None]:
    """Mark the next entries behind `place`; where to go on, None when all are done. Entries that have a mark stay as they are."""
    which, session, seq = place
    rows = yield Query(f"unmarked_{which}", (session, seq, BATCH))
    if not rows:
        return ("retired", 0, 0) if which == "live" else None
    marks = [
        (row[0], row[1], make_key(make_scope(decode_text(row[2]), decode_text(row[3])), bytes(row[4]))) for row in rows
    ]
    yield Many(f"entry_mark_{which}", marks)
    return which, marks[-1][0], marks[-1][1]


BACKFILLS: Final[Mapping[int, tuple[Callable[[Position], Steps[Position | None]], Position]]] = {5: (mark_batch, START)}
"""What has to be worked out behind a migration, by its number, and where it begins. Run again, it does what is left."""

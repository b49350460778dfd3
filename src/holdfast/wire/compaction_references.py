"""References to compactions: what a client of OpenAI's or Anthropic's API carries in place of the messages that a compaction stands for.

A reference names a note in the log of the session that was compacted, and has a random part that the note has too. So it is found by every
server of the database, only for the session's user, and not any more once the session is deleted.

    hfcmp_SESSION_PLACE         as in `holdfast.wire.response_ids`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.wire.response_ids import Place, parse_place

_PREFIX: Final = "hfcmp"
_KEY: Final = "compaction"
SECRET_BYTES: Final = 16
"""Random bytes of a reference."""


class CompactionNote(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a compaction item that the log does not contain otherwise."""

    secret: str
    """Random part of the reference, in hex."""
    through: int
    """`seq` of the last message that the item stands for; -1 if there is none."""
    summary: int | None = None
    """Id of the session's summary that the item begins with; None: there was none."""
    summarized: int = -1
    """`seq` of the last message that this summary covers; -1 without a summary."""

    def to_origin(self) -> dict[str, Any]:
        """Return the note as the origin of an entry."""
        return {_KEY: msgspec.to_builtins(self)}


class Reference(NamedTuple):
    """A parsed reference."""

    session_id: str
    seq: int
    """`seq` of the note."""
    secret: str


def make_reference(session_id: str, seq: int, note: CompactionNote) -> str:
    """Return the reference to a note of a session's log."""
    return Place(session_id, seq, note.secret).make_id(_PREFIX)


def is_reference(value: object) -> bool:
    """Return True if a value looks like a reference that Holdfast made. Whether anything has it is not checked."""
    return isinstance(value, str) and value.startswith(f"{_PREFIX}_")


def parse_reference(value: str) -> Reference | None:
    """Return the place that a reference names; None if it is not complete."""
    place = parse_place(value)
    if place is None or len(place.secret) != 2 * SECRET_BYTES or place.make_id(_PREFIX) != value:
        return None
    return Reference(place.session_id, place.seq, place.secret)


def parse_compaction_note(origin: Any) -> CompactionNote | None:
    """Return the compaction whose note has this origin; None if it is another note."""
    data = origin.get(_KEY) if isinstance(origin, Mapping) else None
    try:
        return msgspec.convert(data, CompactionNote)
    except msgspec.ValidationError:
        return None

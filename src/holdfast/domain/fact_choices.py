"""Choices about standing facts: sentences of a message that a caller pinned or dropped, stored in the metadata of its entry.

The choices belong to the message: they are exported, forked, retired and erased with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

Choice = Literal["pinned", "dropped"]
"""A pinned statement comes before all others in the block of standing facts; a dropped one never appears in it."""
STANDING_FACTS: Final = "standing_facts"
"""Key of an entry's metadata: choices by sentence number."""
_PLACE_CHARS: Final = 3


def read_choices(metadata: Mapping[str, Any] | None) -> dict[int, Choice]:
    """Return the choices by sentence number; malformed ones are ignored."""
    given = metadata.get(STANDING_FACTS) if metadata else None
    if not isinstance(given, Mapping):
        return {}
    return {
        int(place): choice
        for place, choice in given.items()
        if isinstance(place, str) and place.isdecimal() and len(place) <= _PLACE_CHARS and choice in get_args(Choice)
    }


def with_choices(metadata: Mapping[str, Any] | None, choices: Mapping[int, Choice]) -> dict[str, Any] | None:
    """Return the metadata with its choices replaced by these; None if the metadata is empty then."""
    rest = {key: value for key, value in (metadata or {}).items() if key != STANDING_FACTS}
    return {**rest, STANDING_FACTS: {str(place): one for place, one in choices.items()}} if choices else rest or None

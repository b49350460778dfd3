"""Choices about standing facts: sentences of a message that a caller pinned or dropped.

The choices are stored in the metadata of the message's entry. So they are exported, copied to forks, retired and erased
together with the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

Choice = Literal["pinned", "dropped"]
"""A pinned sentence comes before all others in the block of standing facts. A dropped one never appears in the block."""
STANDING_FACTS: Final = "standing_facts"
"""Key in an entry's metadata. Its value maps the numbers of sentences to choices."""
_PLACE_CHARS: Final = 3


def read_choices(metadata: Mapping[str, Any] | None) -> dict[int, Choice]:
    """Return the choices by sentence number. Malformed choices are ignored."""
    given = metadata.get(STANDING_FACTS) if metadata else None
    if not isinstance(given, Mapping):
        return {}
    return {
        int(place): choice
        for place, choice in given.items()
        if isinstance(place, str) and place.isdecimal() and len(place) <= _PLACE_CHARS and choice in get_args(Choice)
    }


def with_choices(metadata: Mapping[str, Any] | None, choices: Mapping[int, Choice]) -> dict[str, Any] | None:
    """Return the metadata with `choices` in place of the previous choices; None if nothing is left in the metadata."""
    rest = {key: value for key, value in (metadata or {}).items() if key != STANDING_FACTS}
    return {**rest, STANDING_FACTS: {str(place): one for place, one in choices.items()}} if choices else rest or None

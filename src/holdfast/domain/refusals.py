"""Upstreams that refused a message, stored in the metadata of its entry.

A refused message stays in the log. Prompts for that upstream contain a note instead; prompts for others contain the
message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidMessage

REFUSED_BY: Final = "refused_by"
"""Key of an entry's metadata: reasons by name of the upstream."""
BY_HAND: Final = "set by hand"
NAME_CHARS, MOST_UPSTREAMS = 200, 20
"""Limits for refusals that a caller sets."""


def read_refusals(metadata: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the reasons by upstream; empty if no upstream refused the message."""
    given = metadata.get(REFUSED_BY) if metadata else None
    return {str(name): str(why) for name, why in given.items()} if isinstance(given, Mapping) else {}


def choose_refusals(metadata: Mapping[str, Any] | None, upstreams: object) -> dict[str, str]:
    """Return the refusals for the upstreams that a caller names, with the known reasons.

    Raises:
        InvalidMessage: `upstreams` is not a list of names.
    """
    names = list(upstreams) if isinstance(upstreams, list | tuple | set | frozenset) else [None]
    if not all(isinstance(name, str) and 0 < len(name) <= NAME_CHARS for name in names) or len(names) > MOST_UPSTREAMS:
        message = f"refused_by must be a list of at most {MOST_UPSTREAMS} names of upstreams, not {upstreams!r}"
        raise InvalidMessage(message[:300], param="refused_by")
    known = read_refusals(metadata)
    return {str(name): known.get(str(name), BY_HAND) for name in names}


def with_refusals(metadata: Mapping[str, Any] | None, refused_by: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the metadata with its refusals replaced by these; None if the metadata is empty then."""
    rest = {key: value for key, value in (metadata or {}).items() if key != REFUSED_BY}
    return {**rest, REFUSED_BY: dict(refused_by)} if refused_by else rest or None

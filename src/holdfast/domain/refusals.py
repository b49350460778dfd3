"""Refusals: which upstreams refused a message, kept in the metadata of its entry.

A refused message stays in the log. Prompts for that upstream have a note in its place; prompts for any other have the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidMessage

REFUSED_BY: Final = "refused_by"
"""Key of an entry's metadata: reasons by the name of the upstream."""
BY_HAND: Final = "set by hand"
NAME_CHARS, MOST_UPSTREAMS = 200, 20
"""Limits of what a caller may set."""


def read_refusals(metadata: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the reasons by upstream; empty if nobody refused the message."""
    given = metadata.get(REFUSED_BY) if metadata else None
    return {str(name): str(why) for name, why in given.items()} if isinstance(given, Mapping) else {}


def choose_refusals(metadata: Mapping[str, Any] | None, upstreams: object) -> dict[str, str]:
    """Return the refusals that a caller sets: those of the named upstreams, with the reason that is known.

    Raises:
        InvalidMessage: `upstreams` is no list of names.
    """
    names = list(upstreams) if isinstance(upstreams, list | tuple | set | frozenset) else [None]
    if not all(isinstance(name, str) and 0 < len(name) <= NAME_CHARS for name in names) or len(names) > MOST_UPSTREAMS:
        told = f"refused_by must be a list of at most {MOST_UPSTREAMS} names of upstreams, not {upstreams!r}"
        raise InvalidMessage(told[:300], param="refused_by")
    known = read_refusals(metadata)
    return {str(name): known.get(str(name), BY_HAND) for name in names}


def with_refusals(metadata: Mapping[str, Any] | None, refused_by: Mapping[str, str]) -> dict[str, Any] | None:
    """Return `metadata` with these refusals in place of its own; None if nothing is left."""
    rest = {key: value for key, value in (metadata or {}).items() if key != REFUSED_BY}
    return {**rest, REFUSED_BY: dict(refused_by)} if refused_by else rest or None

"""Record which upstreams refused a message, in the metadata of its entry. An upstream is a provider's API that runs models.

A refused message stays in the log. Prompts for an upstream that refused it contain a note instead; prompts for other
upstreams contain the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidMessage

REFUSED_BY: Final = "refused_by"
"""Key in an entry's metadata. Its value maps the name of each upstream that refused the message to the reason."""
BY_HAND: Final = "set by hand"
NAME_CHARS, MOST_UPSTREAMS = 200, 20
"""Maximum length of an upstream's name in characters, and maximum number of upstreams, for refusals that a caller sets."""


def read_refusals(metadata: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the reason by name of the upstream; empty if no upstream refused the message."""
    given = metadata.get(REFUSED_BY) if metadata else None
    return {str(name): str(why) for name, why in given.items()} if isinstance(given, Mapping) else {}


def choose_refusals(metadata: Mapping[str, Any] | None, upstreams: object) -> dict[str, str]:
    """Return the refusals by the upstreams that a caller names. Reasons that are already in the metadata are kept.

    Raises:
        InvalidMessage: `upstreams` is not a list of names, or it is too long.
    """
    names = list(upstreams) if isinstance(upstreams, list | tuple | set | frozenset) else [None]
    if not all(isinstance(name, str) and 0 < len(name) <= NAME_CHARS for name in names) or len(names) > MOST_UPSTREAMS:
        message = f"refused_by must be a list of at most {MOST_UPSTREAMS} names of upstreams, not {upstreams!r}"
        raise InvalidMessage(message[:300], param="refused_by")
    known = read_refusals(metadata)
    return {str(name): known.get(str(name), BY_HAND) for name in names}


def with_refusals(metadata: Mapping[str, Any] | None, refused_by: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the metadata with `refused_by` in place of the previous refusals; None if nothing is left in the metadata."""
    rest = {key: value for key, value in (metadata or {}).items() if key != REFUSED_BY}
    return {**rest, REFUSED_BY: dict(refused_by)} if refused_by else rest or None

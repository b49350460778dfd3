"""Record which upstreams refused a message, in the metadata of its entry. An upstream is a provider's API that runs models.

A refused message stays in the log. Prompts for an upstream that refused it, or a part of it, contain a note instead;
prompts for other upstreams contain the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidMessage

REFUSED_BY: Final = "refused_by"
"""Key in an entry's metadata. Its value maps the name of each upstream that refused the message to the reason, or to a `Refusal`."""
BY_HAND: Final = "set by hand"
NAME_CHARS, MOST_UPSTREAMS = 200, 20
"""Maximum length of an upstream's name in characters, and maximum number of upstreams, for refusals that a caller sets."""


class Refusal(msgspec.Struct, frozen=True):
    """Why an upstream refused a message, or parts of it."""

    reason: str
    parts: tuple[int, ...] = ()
    """Indexes of the refused parts in the content of the message. Empty: the whole message."""

    def to_metadata(self) -> Any:
        """Return the value for an entry's metadata."""
        return {"reason": self.reason, "parts": list(self.parts)} if self.parts else self.reason


def read_refusals(metadata: Mapping[str, Any] | None) -> Mapping[str, Refusal]:
    """Return the refusals by name of the upstream; empty if no upstream refused the message or a part of it."""
    given = metadata.get(REFUSED_BY) if metadata else None
    return {str(name): _read(why) for name, why in given.items()} if isinstance(given, Mapping) else {}


def _read(why: Any) -> Refusal:
    if not isinstance(why, Mapping):
        return Refusal(str(why))
    parts = why.get("parts")
    numbers = (part for part in parts if type(part) is int) if isinstance(parts, list | tuple) else ()
    return Refusal(str(why.get("reason")), tuple(numbers))


def is_refused(metadata: Mapping[str, Any] | None) -> bool:
    """Return True if an upstream refused the whole message."""
    return any(not refusal.parts for refusal in read_refusals(metadata).values())


def choose_refusals(metadata: Mapping[str, Any] | None, upstreams: object) -> dict[str, Any]:
    """Return the refusals by the upstreams that a caller names. Reasons that are already in the metadata are kept.

    Raises:
        InvalidMessage: `upstreams` is not a list of names, or it is too long.
    """
    names = list(upstreams) if isinstance(upstreams, list | tuple | set | frozenset) else [None]
    if not all(isinstance(name, str) and 0 < len(name) <= NAME_CHARS for name in names) or len(names) > MOST_UPSTREAMS:
        message = f"refused_by must be a list of at most {MOST_UPSTREAMS} names of upstreams, not {upstreams!r}"
        raise InvalidMessage(message[:300], param="refused_by")
    known = (metadata or {}).get(REFUSED_BY)
    known = known if isinstance(known, Mapping) else {}
    return {str(name): known.get(str(name), BY_HAND) for name in names}


def with_refusals(metadata: Mapping[str, Any] | None, refused_by: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metadata with `refused_by` in place of the previous refusals; None if nothing is left in the metadata."""
    rest = {key: value for key, value in (metadata or {}).items() if key != REFUSED_BY}
    return {**rest, REFUSED_BY: dict(refused_by)} if refused_by else rest or None

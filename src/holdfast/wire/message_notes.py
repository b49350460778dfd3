"""The note in a log that gives a message of Anthropic's API an id that contains its place.

The note is written with the request's messages, before the model is called. Requests that need such an id have one: those with `thread`
and those with `diagnostics`. Everything else of the message is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_KEY: Final = "message"


class ThreadSetup(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a thread that its later requests do not repeat, in Anthropic's format."""

    system: Any = None
    tools: list[Any] | None = None
    removed: list[Any] = []
    """Tools that a message removed. A later message can add them again by their names."""


class MessageNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a message that the log does not contain."""

    secret: str
    """Random part of the id."""
    is_thread: bool = False
    """True if a later request may continue after this message."""
    setup: ThreadSetup | None = None
    """Fields of the thread; None: those in the note at `setup_at`."""
    setup_at: int | None = None
    """`seq` of an earlier note of the log, with the fields of the thread; None: this note has them."""

    def to_origin(self) -> dict[str, Any]:
        """Return the note as the origin of an entry."""
        return {_KEY: msgspec.to_builtins(self)}


def parse_message_note(origin: Any) -> MessageNote | None:
    """Return the message whose note has this origin, or None if it is another note."""
    data = origin.get(_KEY) if isinstance(origin, Mapping) else None
    try:
        return msgspec.convert(data, MessageNote)
    except msgspec.ValidationError:
        return None

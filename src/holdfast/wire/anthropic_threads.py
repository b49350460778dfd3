"""Anthropic's message threads: the field `thread` of a request, and the notes that are stored for the messages of a thread.

Follows the API reference, "Create a Message", beta `message-threads-2026-08-12`. Holdfast serves threads for every model: a thread is a
session, and its requests become requests with the whole conversation.

The note gives a message an id that contains its place. It is written with the request's messages, before the model is called. Requests
that need such an id have one: those with `thread` and those with `diagnostics`. Everything else of the message is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.errors import InvalidRequest

THREAD: Final = "thread"
CREATE_ONLY: Final = ("system", "tools")
"""Fields that only the request that creates a thread has. Later requests get them from the thread."""
_ALLOWED: Final = "must be {type: create}, or {type: continue, previous_message_id: …}"
_KEYS: Final = {
    "create": frozenset({"type"}),
    "continue": frozenset({"type", "previous_message_id", "fork"}),
}


class ThreadRequest(NamedTuple):
    """The field `thread` of a request."""

    previous: str | None
    """Id of the message after which the request continues; None: the request creates a thread."""
    fork: bool = False
    """True: continue in a copy of the thread, so that the message may be continued any number of times."""


def parse_thread(given: Any) -> ThreadRequest | None:
    """Parse the field `thread`; None if the request has none.

    Raises:
        InvalidRequest: The field is not valid. The error names the place.
    """
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in _KEYS:
        raise InvalidRequest(f"{THREAD} {_ALLOWED}", param=THREAD)
    if unknown := sorted(map(str, given.keys() - _KEYS[kind])):
        raise InvalidRequest(f"{THREAD} has the unknown key {unknown[0]!r:.80}: it {_ALLOWED}", param=THREAD)
    if kind == "create":
        return ThreadRequest(None)
    previous, fork = given.get("previous_message_id"), given.get("fork")
    if not isinstance(previous, str) or not previous:
        where = f"{THREAD}.previous_message_id"
        raise InvalidRequest(f"{where} must be the id of the message to continue after", param=where)
    if not isinstance(fork, bool | None):
        raise InvalidRequest(f"{THREAD}.fork must be true or false", param=f"{THREAD}.fork")
    return ThreadRequest(previous, fork is True)


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

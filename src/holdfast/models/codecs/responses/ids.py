"""Ids of responses, conversations and items in OpenAI's Responses API, and references to compactions.

An id contains its place: the session, and the position in the session's log. So an id needs no table. It is found by every server as
soon as the log contains it, and a recreated session with the same name does not have it.

    conv_SESSION                a session
    resp_SESSION_PLACE          a response; PLACE is the position of its note in the log, and a random part
    msg_SESSION_PLACE           an item; PLACE is the place of its response, or the position of its message in the log, and a number
    hfcmp_SESSION_PLACE         a reference to a compaction, which clients of OpenAI's and Anthropic's APIs carry in place of the messages that
                                the compaction stands for; PLACE is the position of its note in the log, and a random part

SESSION is the session's id: the hexadecimal part of an id that Holdfast made, `c` and that part if the session was made as a conversation, or
else `x` and the id in URL-safe base64.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

_MADE: Final = re.compile(r"(sess|conv)_([0-9a-f]{32})")
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_PLACE: Final = re.compile(r"([0-9a-f]{1,13})([ze])([0-9a-f]{0,32})(?:n([0-9]{1,9}))?")
"""A position has at most 13 digits, so every database has a type for it."""
_ID_CHARS: Final = 1_024
"""Maximum length of an id that is parsed."""
_REFERENCE: Final = "hfcmp"
SECRET_BYTES: Final = 16
"""Random bytes of a reference to a compaction."""


class Place(NamedTuple):
    """The place of a response or an item."""

    session_id: str
    seq: int
    """Position in the log: of the response's note, or of the item's message."""
    secret: str
    """Random part of a response's place; empty for the place of a message."""
    number: int = 0
    """Number of the item in its response or message."""

    @property
    def is_response(self) -> bool:
        """True for the place of a response, and of items of its output."""
        return bool(self.secret)

    def make_id(self, prefix: str) -> str:
        """Return the id of this place, for example `resp_…`."""
        place = f"{self.seq:x}z{self.secret}" if self.secret else f"{self.seq:x}e"
        number = f"n{self.number}" if self.number or not self.secret else ""
        return f"{prefix}_{encode_session(self.session_id)}_{place}{number}"


NOWHERE: Final = Place("", 0, "")
"""Place for what is in no log."""


def encode_session(session_id: str) -> str:
    """Return a session id as a part of other ids."""
    found = _MADE.fullmatch(session_id)
    if found:
        return found[2] if found[1] == "sess" else f"c{found[2]}"
    return "x" + base64.urlsafe_b64encode(session_id.encode()).decode().rstrip("=")


def decode_session(text: str) -> str | None:
    """Return the session id that `encode_session` encoded, or None if the text is not such an encoding."""
    if _HEX.fullmatch(text):
        return f"sess_{text}"
    if text.startswith("c") and _HEX.fullmatch(text[1:]):
        return f"conv_{text[1:]}"
    if not text.startswith("x"):
        return None
    try:
        return base64.b64decode(text[1:] + "=" * (-len(text[1:]) % 4), altchars=b"-_", validate=True).decode() or None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def make_conversation_id(session_id: str) -> str:
    """Return the id of a session as a conversation."""
    return f"conv_{encode_session(session_id)}"


def parse_conversation_id(text: str) -> str | None:
    """Return the session id of a conversation, or None if the text is not a conversation's id."""
    if not text.startswith("conv_") or len(text) > _ID_CHARS:
        return None
    return decode_session(text.removeprefix("conv_"))


def parse_place(text: str) -> Place | None:
    """Return the place in the id of a response or an item, or None if the text is not such an id."""
    if len(text) > _ID_CHARS:
        return None
    head, _, place = text.rpartition("_")
    _, _, session = head.partition("_")
    session_id, found = decode_session(session), _PLACE.fullmatch(place)
    if session_id is None or found is None or (found[2] == "z") != bool(found[3]):
        return None
    return Place(session_id, int(found[1], 16), found[3], int(found[4] or 0))


def make_reference(session_id: str, seq: int, secret: str) -> str:
    """Return the reference to the compaction whose note is at `seq` of a session's log, and has this random part."""
    return Place(session_id, seq, secret).make_id(_REFERENCE)


def is_reference(value: object) -> bool:
    """Return True if a value looks like a reference to a compaction. Whether anything has it is not checked."""
    return isinstance(value, str) and value.startswith(f"{_REFERENCE}_")


def parse_reference(value: str) -> Place | None:
    """Return the place of the note that a reference names; None if the reference is not complete."""
    place = parse_place(value)
    is_complete = place is not None and len(place.secret) == 2 * SECRET_BYTES and place.make_id(_REFERENCE) == value
    return place if is_complete else None

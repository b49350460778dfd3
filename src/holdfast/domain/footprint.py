"""How many bytes things take in memory, estimated; checked by `make bench ARGS="footprint"`."""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final

from holdfast.domain.messages import Message
from holdfast.domain.session import Session

MESSAGE_BYTES: Final = 210
"""A message without its text, with its digest and its place in an index."""
PART_BYTES: Final = 200
CALL_BYTES: Final = 350
ITEM_BYTES: Final = 100
"""A key of an object, or its place in a list, and a small value."""
SESSION_BYTES: Final = 2_000


def text_bytes(text: str) -> int:
    """Return the bytes of a text. One that is not ASCII is held a second time as UTF-8, as soon as it was written as JSON."""
    if text.isascii():
        return 50 + len(text)
    return getsizeof(text[1:]) + len(text.encode(errors="surrogatepass"))


def value_bytes(value: Any) -> int:
    """Return the bytes of a JSON value."""
    if isinstance(value, str):
        return text_bytes(value)
    if isinstance(value, dict):
        return ITEM_BYTES + sum(ITEM_BYTES + len(key) + value_bytes(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return ITEM_BYTES + sum(8 + value_bytes(one) for one in value)
    return 32


def message_bytes(message: Message) -> int:
    """Return the bytes of a message."""
    size, content = MESSAGE_BYTES, message.content
    if isinstance(content, str):
        size += 50 + len(content) if content.isascii() else text_bytes(content)
    elif isinstance(content, tuple):
        for part in content:
            size += PART_BYTES + text_bytes(part.text or "") + (value_bytes(part.extra) if part.extra else 0)
    for call in message.tool_calls:
        size += CALL_BYTES + text_bytes(call.arguments) + len(call.id) + len(call.name)
    if message.extra:
        size += value_bytes(message.extra)
    return size


def session_bytes(session: Session) -> int:
    """Return the bytes of a session without its log."""
    size = SESSION_BYTES + sum(message_bytes(one) for one in session.system_messages)
    for fields in (session.state, session.state_turns, session.metadata):
        if fields:
            size += value_bytes(fields)
    return size

"""Messages on their way into a log: counted, with Holdfast's own fields beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry
from holdfast.off_loop import off_loop
from holdfast.tokens import STORED

_THREAD_CHARS: Final = 64_000
"""Characters of a message from which counting its tokens leaves the event loop."""


async def counted(messages: Sequence[Message]) -> list[int]:
    """Stored (o200k) token counts; long messages are counted off the event loop."""
    return [await off_loop(STORED.message, one, long=len(one.text) > _THREAD_CHARS) for one in messages]


async def new_entries(
    messages: Sequence[Message], fields: Sequence[Mapping[str, Any]], *, timestamp: int
) -> list[NewEntry]:
    """Messages as entries about to be appended.

    Args:
        messages: what is written.
        fields: of each, what somebody says of it; see `holdfast.wire.exports.own_fields`.
        timestamp: of those that have none of their own, milliseconds since the epoch.
    """
    counts = await counted(messages)
    return [
        NewEntry(message=message, tokens=tokens, **{"timestamp": timestamp, **own})
        for message, tokens, own in zip(messages, counts, fields, strict=True)
    ]

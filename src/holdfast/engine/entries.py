"""Messages on their way into a log: counted, with Holdfast's own fields beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry
from holdfast.tokens import STORED

_MESSAGE_CHARS: Final = 100
"""Characters whose counting costs as much as a message without any."""
_THREAD_CHARS: Final = 64_000
"""Characters of messages, all together, from which counting their tokens leaves the event loop."""


async def counted(messages: Sequence[Message]) -> list[int]:
    """Return the stored (o200k) token counts; many or long messages are counted in a thread."""
    return await run_cpu(_count, messages, long=is_long(messages))


def _count(messages: Sequence[Message]) -> list[int]:
    return [STORED.message(one) for one in messages]


def is_long(messages: Sequence[Message]) -> bool:
    """Return True if counting or searching the texts of messages takes so long that it leaves the event loop."""
    most = _THREAD_CHARS // _MESSAGE_CHARS
    return len(messages) > most or _chars_in(messages) > _THREAD_CHARS


def _chars_in(messages: Sequence[Message]) -> int:
    return _MESSAGE_CHARS * len(messages) + sum(
        len(one.text) + sum(len(call.arguments) for call in one.tool_calls) for one in messages
    )


async def new_entries(
    messages: Sequence[Message], fields: Iterable[Mapping[str, Any]], *, timestamp: int
) -> list[NewEntry]:
    """Make entries of messages that are about to be appended; many or long ones in a thread.

    Args:
        messages: what is written.
        fields: of each, what somebody says of it; see `holdfast.wire.exports.own_fields`.
        timestamp: of those that have none of their own, milliseconds since the epoch.
    """

    def make() -> list[NewEntry]:
        return [
            NewEntry(message=message, tokens=STORED.message(message), **{"timestamp": timestamp, **own})
            for message, own in zip(messages, fields, strict=True)
        ]

    return await run_cpu(make, long=is_long(messages))

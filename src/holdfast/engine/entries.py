"""Prepare messages for a log: count their tokens, and add the fields that Holdfast stores with each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.domain.media.parts import count_chars
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin, get_ranges, repeat_origins
from holdfast.domain.session import NewEntry, Session
from holdfast.stores.base import Store
from holdfast.tokens import STORED

_MESSAGE_CHARS: Final = 100
"""The cost of counting a message without its text, as a number of characters whose counting takes the same time."""
_THREAD_CHARS: Final = 64_000
"""Maximum number of characters of messages whose tokens are counted on the event loop. Longer messages are counted in a thread."""


async def count_tokens(messages: Sequence[Message]) -> list[int]:
    """Return the token count (o200k) that is stored with each message. Many or long messages are counted in a thread."""
    return await run_cpu(_count, messages, long=is_long(messages))


def _count(messages: Sequence[Message]) -> list[int]:
    return [STORED.message(one) for one in messages]


def is_long(messages: Sequence[Message]) -> bool:
    """Return True if counting or searching these messages takes so long that it must be done in a thread."""
    chars = _MESSAGE_CHARS * len(messages)
    for one in messages:
        chars += len(one.content) if type(one.content) is str else len(one.text)
        for call in one.tool_calls:
            chars += len(call.arguments)
        if one.origin is not None:
            chars += count_chars((one,))
    return chars > _THREAD_CHARS


async def make_entries(
    messages: Sequence[Message], fields: Iterable[Mapping[str, Any]], *, timestamp: int
) -> list[NewEntry]:
    """Return the log entries for messages that are about to be appended. Many or long messages are processed in a thread.

    Args:
        messages: the messages.
        fields: the fields that Holdfast stores with each message; see `holdfast.wire.exports`.
        timestamp: time of messages whose fields contain no timestamp, in milliseconds since the epoch.
    """
    if is_long(messages):
        return await run_cpu(_build_entries, messages, fields, timestamp, long=True)
    return _build_entries(messages, fields, timestamp)


def _build_entries(messages: Sequence[Message], fields: Iterable[Mapping[str, Any]], timestamp: int) -> list[NewEntry]:
    entries = []
    for message, own in zip(messages, fields, strict=True):
        entries.append(NewEntry(message=message, tokens=STORED.message(message), **{"timestamp": timestamp, **own}))
    return entries


async def link_repeated(store: Store, session: Session, seqs: Sequence[int | None]) -> tuple[Origin, ...]:
    """Return the ranges that a session gets when it appends entries again, so that erasing one of them erases its copies too.

    The ranges are valid only for a write that expects the version of `session`.

    Args:
        store: the store.
        session: the session as last read.
        seqs: the `seq` of each entry that is appended again, in order; None for an entry that is no copy.
    """
    known = (await store.origins(session.user_id, [session.id])).get(session.id, ())
    return repeat_origins(get_ranges(known, session.identity), seqs, session.identity, session.tail.next_seq)

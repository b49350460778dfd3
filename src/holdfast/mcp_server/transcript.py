"""Read a session's messages within a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.context.escaping import to_json_line
from holdfast.context.recalled import format_time
from holdfast.domain.session import ERASED, Entry, SessionRef
from holdfast.engine.entries import is_long
from holdfast.holdfast import Holdfast
from holdfast.mcp_server.results import Transcript, TranscriptMessage
from holdfast.tokens import STORED

NOTE_AUTHOR: Final = "assistant over MCP"
"""Author in the payload of notes that assistants append."""
_PAGE: Final = 20
"""Messages that are read from the store at a time."""
_SHARE: Final = 3
"""If several messages are read, each may take at most one third of the budget, so that one large result does not hide all others."""
_CHARS_A_TOKEN: Final = 8
"""For each allowed token, this many characters of a text are read. Ordinary text has about four characters per token."""
_ARGUMENT_CHARS: Final = 500
"""Maximum characters of a tool call's arguments that are shown."""


async def read_transcript(
    hf: Holdfast,
    ref: SessionRef,
    max_tokens: int,
    *,
    seq: int | None = None,
    before: int | None = None,
    after: int | None = None,
) -> Transcript:
    """Return messages and notes of a session in order, as many as fit into `max_tokens`.

    Nothing is created, and the time of the session's last use does not change.

    Args:
        hf: the `Holdfast` of the tenant.
        ref: the session.
        max_tokens: maximum tokens of the messages as JSON lines.
        seq: only this message.
        before: the newest messages with a smaller `seq`.
        after: the oldest messages with a larger `seq`. Without `seq`, `before` and `after`: the newest messages.

    Raises:
        SessionNotFound: there is no such session.
    """
    session = await hf.store.get(ref)
    forward = after is not None or seq is not None
    start, stop = (seq, seq + 1) if seq is not None else (0 if after is None else after + 1, before)
    budget = _Budget(max_tokens, max_tokens if seq is not None else max_tokens // _SHARE)
    has_more = True
    while has_more and not budget.is_full:
        page = await hf.store.entries(ref, start=start, stop=stop, limit=_PAGE, descending=not forward, notes=True)
        await run_cpu(budget.take, page, long=is_long([entry.message for entry in page]))
        has_more = len(page) == _PAGE
        if page:
            start, stop = (page[-1].seq + 1, stop) if forward else (start, page[-1].seq)
    has_more = has_more or budget.is_full
    messages = tuple(budget.messages if forward else reversed(budget.messages))
    first, last = (messages[0].seq, messages[-1].seq) if messages else (0, 0)
    return Transcript(
        session_id=ref.id,
        total=session.messages,
        tokens=budget.used,
        messages=messages,
        before=first if messages and first > 0 and (forward or has_more) else None,
        after=last
        if messages and last < session.tail.next_seq - 1 and (has_more or not forward or seq is not None)
        else None,
    )


class _Budget:
    """Collects messages until a number of tokens is used.

    Args:
        most: maximum tokens of all messages together.
        each: maximum tokens of one message. A longer message is cut.
    """

    def __init__(self, most: int, each: int) -> None:
        self.messages: list[TranscriptMessage] = []
        self.used = 0
        self.is_full = False
        self._most = most
        self._each = each

    def take(self, entries: Sequence[Entry]) -> None:
        """Add the messages of log entries until a message does not fit. The first message is always added, cut if necessary."""
        for entry in entries:
            made, size = _fit(_convert(entry, self._each * _CHARS_A_TOKEN), self._each)
            if self.messages and self.used + size > self._most:
                self.is_full = True
                return
            self.messages.append(made)
            self.used += size


def _fit(one: TranscriptMessage, most: int) -> tuple[TranscriptMessage, int]:
    """Return a message, cut to about `most` tokens, and the tokens of the cut message."""
    size = _count(one)
    while size > most and (one.text or one.calls):
        kept = min(len(one.text) * most // size, len(one.text) - 1)
        if kept > 0:
            one = msgspec.structs.replace(one, text=one.text[:kept], cut=True)
        else:
            one = msgspec.structs.replace(one, text="", calls=(), cut=True)
        size = _count(one)
    return one, size


def _count(one: TranscriptMessage) -> int:
    return STORED.text(to_json_line(msgspec.to_builtins(one)))


def _convert(entry: Entry, chars: int) -> TranscriptMessage:
    """Return the message of an entry with at most `chars` characters of its text."""
    message = entry.message
    text = ERASED if entry.erased else _get_note_text(message.origin) if entry.is_note else message.text
    parts = "".join(f"[{part.type}]" for part in message.media)
    calls = tuple(f"{call.name} {call.arguments[:_ARGUMENT_CHARS]}" for call in message.tool_calls)
    return TranscriptMessage(
        seq=entry.seq,
        time=format_time(entry.timestamp),
        role=message.role,
        by=message.name or entry.agent or "",
        text=text[:chars] + parts[: chars // 2],
        calls=calls,
        cut=len(text) > chars or any(len(call.arguments) > _ARGUMENT_CHARS for call in message.tool_calls),
    )


def _get_note_text(payload: Any) -> str:
    """Return the text of a note that an assistant appended, or the payload of any other note as JSON."""
    if isinstance(payload, dict) and payload.keys() == {"text", "by"} and payload["by"] == NOTE_AUTHOR:
        return str(payload["text"])
    return msgspec.json.encode(payload).decode()

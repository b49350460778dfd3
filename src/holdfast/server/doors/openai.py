"""`POST /v1/chat/completions`: OpenAI's Chat Completions, the form that there is inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.server.doors.base import Said
from holdfast.server.replies import Reply
from holdfast.turns.model_call import PROGRESS
from holdfast.turns.reply_assembler import Progress
from holdfast.wire.exports import record_fields
from holdfast.wire.openai import messages_from
from holdfast.wire.voice import find_records

_encoder = msgspec.json.Encoder()


class ChatCompletions:
    """See `Door`."""

    path = "/v1/chat/completions"

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """See `Door.read`."""
        given, name = find_records(body)
        messages = messages_from(given, name) if given else []
        fields = {key: value for key, value in body.items() if key not in ("messages", "contents")}
        return Said(fields, messages, record_fields(given or (), name))

    def reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        """See `Door.reply`."""
        return {**completion, **session}

    def telling(self, body: Mapping[str, Any]) -> ChunkEvents:
        """See `Door.telling`."""
        return ChunkEvents(body)

    def failed(self, reply: Reply) -> Reply:
        """See `Door.failed`."""
        return reply


class ChunkEvents:
    """See `Telling`: a chunk is an event, and `[DONE]` the last one."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))
        self._progress = bool(options.get(PROGRESS))
        self._choices: int = body.get("n") or 1
        self._last: Mapping[str, Any] = {}

    def chunk(self, chunk: Mapping[str, Any], session: Mapping[str, Any] | None) -> bytes:
        """See `Telling.chunk`."""
        if not self._usage and not chunk.get("choices") and "usage" in chunk:
            return b""
        self._last = chunk
        return _event(chunk if session is None else {**chunk, **session})

    def progress(self, progress: Progress) -> bytes:
        """See `Telling.progress`: a comment for people; as an event for whoever asked for them."""
        return _comment(progress.comment) + (_event(progress) if self._progress else b"")

    def waiting(self) -> bytes:
        """See `Telling.waiting`."""
        return _comment("waiting")

    def cut_short(self, session: Mapping[str, Any]) -> bytes:
        """See `Telling.cut_short`."""
        head = {name: self._last[name] for name in ("id", "created", "model") if name in self._last}
        ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(self._choices)]
        return _event({**head, "object": "chat.completion.chunk", "choices": ends, **session})

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """See `Telling.failed`."""
        return _event(error)

    def end(self) -> bytes:
        """See `Telling.end`."""
        return b"data: [DONE]\n\n"


def _event(data: Any) -> bytes:
    return b"data: " + _encoder.encode(data) + b"\n\n"


def _comment(text: str) -> bytes:
    """A line that clients pass over."""
    return b": " + text.encode() + b"\n\n"

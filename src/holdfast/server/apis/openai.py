"""`POST /v1/chat/completions`: OpenAI's Chat Completions, which is also the internal format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.server.apis.api_format import ParsedRequest
from holdfast.server.replies import Reply
from holdfast.turns.model_call import PROGRESS
from holdfast.turns.reply_assembler import Progress
from holdfast.turns.turn import Turn
from holdfast.wire.exports import parse_record_fields
from holdfast.wire.openai import parse_messages
from holdfast.wire.voice import find_records

_encoder = msgspec.json.Encoder()


class ChatCompletions:
    """The API format of OpenAI's Chat Completions."""

    path = "/v1/chat/completions"

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        given, name = find_records(body)
        messages = parse_messages(given, name) if given else []
        fields = {key: value for key, value in body.items() if key not in ("messages", "contents")}
        return ParsedRequest(fields, messages, parse_record_fields(given or (), name), given=given)

    def create_encoder(self, parsed: ParsedRequest, turn: Turn) -> ChunkEvents:
        return ChunkEvents(parsed.body)

    def to_error(self, reply: Reply) -> Reply:
        return reply


class ChunkEvents:
    """Encodes each chunk of a reply as a server-sent event. The last event is `[DONE]`."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))
        self._progress = bool(options.get(PROGRESS))
        self._choices: int = body.get("n") or 1
        self._last: Mapping[str, Any] = {}

    def convert_reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        return {**completion, **session}

    def encode_chunk(self, chunk: Mapping[str, Any], session: Mapping[str, Any] | None) -> bytes:
        if not self._usage and not chunk.get("choices") and "usage" in chunk:
            return b""
        self._last = chunk
        return _encode_event(chunk if session is None else {**chunk, **session})

    def encode_progress(self, progress: Progress) -> bytes:
        """Encode progress as a comment. Add an event if the client asked for progress events."""
        return _encode_comment(progress.comment) + (_encode_event(progress) if self._progress else b"")

    def encode_keep_alive(self) -> bytes:
        return _encode_comment("waiting")

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        head = {name: self._last[name] for name in ("id", "created", "model") if name in self._last}
        ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(self._choices)]
        return _encode_event({**head, "object": "chat.completion.chunk", "choices": ends, **session})

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        return _encode_event(error)

    def encode_end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def close(self) -> None:
        """Do nothing: the encoder holds nothing."""


def _encode_event(data: Any) -> bytes:
    return b"data: " + _encoder.encode(data) + b"\n\n"


def _encode_comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"

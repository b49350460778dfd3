"""`POST /v1/chat/completions`: OpenAI's Chat Completions, whose request fields are also the internal format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.log.items import Delta, Finish, Progress, Text, Usage
from holdfast.models.codecs.chat import ChatEncoder
from holdfast.models.collect import Collector
from holdfast.server.apis.api_format import EventEncoder, ParsedRequest
from holdfast.server.replies import Reply
from holdfast.turns.model_call import PROGRESS
from holdfast.turns.turn import Turn, TurnWarning
from holdfast.wire.exports import parse_record_fields
from holdfast.wire.openai import parse_messages
from holdfast.wire.voice import find_records

_encoder = msgspec.json.Encoder()
_TEXT_EVENT: Final = b'data: %b,"choices":[{"index":%d,"delta":{"content":%b},"finish_reason":null}]}\n\n'


class ChatCompletions:
    """The API format of OpenAI's Chat Completions."""

    path = "/v1/chat/completions"

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        given, name = find_records(body)
        messages = parse_messages(given, name) if given else []
        fields = {key: value for key, value in body.items() if key not in ("messages", "contents")}
        has_functions = isinstance(fields.get("functions"), list) and not fields.get("tools")
        if has_functions:
            fields = _convert_functions(fields)
        warned = has_functions or any(
            one.get("role") == "function" or one.get("function_call") for one in given or () if isinstance(one, Mapping)
        )
        return ParsedRequest(
            fields,
            messages,
            parse_record_fields(given or (), name),
            given=given,
            context=has_functions,
            warnings=(_CONVERTED,) if warned else (),
        )

    def create_encoder(self, parsed: ParsedRequest, turn: Turn) -> ChunkEvents:
        return ChunkEvents(parsed.body, has_functions=parsed.context)

    def to_error(self, reply: Reply) -> Reply:
        return reply


_CONVERTED: Final = TurnWarning(
    "functions_converted",
    "functions, function_call and the role function are deprecated: they were converted to tools, tool_choice, tool_calls and the role tool",
)


def _convert_functions(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request with `tools` and `tool_choice` in place of `functions` and `function_call`."""
    made = {name: value for name, value in fields.items() if name not in ("functions", "function_call")}
    made["tools"] = [{"type": "function", "function": one} for one in fields["functions"]]
    if (choice := fields.get("function_call")) is not None:
        made["tool_choice"] = {"type": "function", "function": choice} if isinstance(choice, Mapping) else choice
    return {"parallel_tool_calls": False, **made}


def _to_function_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice for a client that sent `functions`. It can receive only one call, so further ones are left out."""
    made = {
        name: "function_call" if value == "tool_calls" else value
        for name, value in choice.items()
        if name not in ("delta", "message")
    }
    for key in ("delta", "message"):
        if isinstance(choice.get(key), Mapping):
            first = [
                call["function"]
                for call in choice[key].get("tool_calls") or ()
                if not call.get("index") and "function" in call
            ][:1]
            rest = {name: value for name, value in choice[key].items() if name != "tool_calls"}
            made[key] = {**rest, "function_call": first[0]} if first else rest
    return made


class ChunkEvents(EventEncoder):
    """Encodes each chunk of a reply as a server-sent event. The last event is `[DONE]`.

    Args:
        body: the fields of the request.
        has_functions: True if the request had the deprecated field `functions`, so that the reply has `function_call`.
    """

    def __init__(self, body: Mapping[str, Any], *, has_functions: bool = False) -> None:
        self._has_functions = has_functions
        options = body.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))
        self._progress = bool(options.get(PROGRESS))
        self._choices: int = body.get("n") or 1
        self._chunks = ChatEncoder()
        self._beginning: tuple[Mapping[str, Any], bytes] = ({}, b"")
        """The head of the reply, and the beginning of a text event with this head."""

    def convert_reply(self, reply: Collector, session: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._convert(reply.build_completion()), **session}

    def _convert(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._has_functions:
            return data
        return {**data, "choices": [_to_function_choice(choice) for choice in data.get("choices") or ()]}

    def encode(self, deltas: list[Delta], session: Mapping[str, Any] | None) -> bytes:
        text = deltas[0] if len(deltas) == 1 and session is None else None
        if isinstance(text, Text) and text.choice in self._chunks.begun:
            if self._beginning[0] is not (head := self._chunks.head):
                self._beginning = (head, _encoder.encode({**head, "object": "chat.completion.chunk"})[:-1])
            return _TEXT_EVENT % (self._beginning[1], text.choice, _encoder.encode(text.text))
        chunk = self._chunks.encode(one for one in deltas if self._usage or not isinstance(one, Usage))
        return b"" if chunk is None else _encode_event({**self._convert(chunk), **(session or {})})

    def encode_progress(self, progress: Progress) -> bytes:
        """Encode progress as a comment. Add an event if the client asked for progress events."""
        event = _encode_event(self._chunks.encode([progress])) if self._progress else b""
        return super().encode_progress(progress) + event

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        return self.encode([Finish("stop", index) for index in range(self._choices)], session)

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        return _encode_event(error)

    def encode_end(self) -> bytes:
        return b"data: [DONE]\n\n"


def _encode_event(data: Any) -> bytes:
    return b"data: " + _encoder.encode(data) + b"\n\n"

"""Decode replies of Anthropic's Messages API from bytes to deltas. This module does no I/O.

Reasoning becomes `reasoning_content`, which clients display, and also
`thinking_blocks`, which later requests send back with its signature, unchanged. Blocks that Chat Completions cannot express become
`content_blocks`, together with the texts and the reasoning around them, as described at `holdfast.wire.anthropic.BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.context.dialects import THINKING
from holdfast.errors import ModelProtocolError
from holdfast.limits import MODEL_EVENT_BYTES
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Reasoning, Text, Usage
from holdfast.models.answer import AnswerReader
from holdfast.models.failures import find_error_object, is_error, make_upstream_error, scrub
from holdfast.numbers import is_whole
from holdfast.wire.anthropic import BLOCKS

if TYPE_CHECKING:
    from holdfast.models.sse import Event

Json = dict[str, Any]
REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "stop",
    "refusal": "content_filter",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}
"""`finish_reason` for each `stop_reason` of Anthropic. An unknown reason becomes `stop`. `native_finish_reason` has the original."""
STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP status for each type of error. Errors in the middle of a stream have no status. Source: Anthropic API documentation, "Errors"."""
_INPUT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CALL: Final = ("caller", "toolset_name")
"""Fields of a tool call that later requests must send back with it."""


_PLAIN: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Types of blocks that Chat Completions can express."""


class MessageReader(AnswerReader):
    """Parse the body of a successful response: Anthropic's event stream, or one complete message from an upstream that ignored `stream`.

    Args:
        where: Address of the upstream, for error messages.
        reply: Decodes the events. For a continued reply, it is the decoder of the previous response.
        secrets: Credentials to remove from error messages.
        limit: Maximum size in bytes of one event, or of a JSON answer.
    """

    def __init__(
        self, where: str, reply: ReplyDecoder, secrets: Iterable[str] = (), limit: int = MODEL_EVENT_BYTES
    ) -> None:
        super().__init__(where, secrets, limit)
        self.reply = reply
        reply.begin_part()

    def _read_events(self, events: Iterable[Event]) -> Iterator[list[Delta]]:
        for event in events:
            data = self._decode(event.data)
            if event.name == "error" or (isinstance(data, dict) and is_error(data)):
                raise self._make_error(data)
            if deltas := self._convert_event(data):
                yield deltas
            if self.done:
                return

    def _convert_event(self, event: Any) -> list[Delta]:
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise ModelProtocolError(f"{self._where} sent an event that is not part of Anthropic's Messages API")
        try:
            deltas = list(self.reply.convert(event))
        except (AttributeError, KeyError, TypeError, msgspec.MsgspecError, ValueError) as exc:
            raise ModelProtocolError(f"{self._where} sent a malformed {kind}") from exc
        self._finished[0] = self.reply.finished
        if kind == "message_stop":
            if not self.reply.finished:
                raise ModelProtocolError(f"{self._where} ended its stream in the middle of the answer")
            self.done = True
        return deltas

    def _read_json(self, data: bytes) -> Iterator[list[Delta]]:
        message = self._decode(data)
        if not isinstance(message, dict) or is_error(message):
            raise self._make_error(message)
        content = message.get("content")
        if message.get("type") != "message" or not isinstance(content, list):
            raise ModelProtocolError(f"{self._where} answered with JSON that is not an Anthropic message")
        for event in _split_message(message, content):
            if deltas := self._convert_event(event):
                yield deltas

    def _make_error(self, data: Any) -> Exception:
        error = find_error_object(scrub(data, self._secrets))
        kind = (error or {}).get("type")
        return make_upstream_error(STATUSES.get(kind) if isinstance(kind, str) else None, error, where=self._where)


class ReplyDecoder:
    """Decodes the events of one reply. The reply may consist of several responses, because a model may pause it.

    Args:
        created: Unix seconds, which become `created` of the reply.
        pauses: Maximum number of pauses after which the reply is continued. The next pause ends the reply.
    """

    def __init__(self, created: int = 0, pauses: int = 0) -> None:
        self._created = created
        self._pauses = pauses
        self._parts: list[_Usage] = []
        self._block: Json = {}
        self._pieces: list[str] = []
        self._calls = 0
        self._spoke = False
        self._native = False
        self.blocks: list[Json] = []
        """The completed blocks, as Anthropic sent them."""
        self.finished = False
        """True once the current response has given its `stop_reason`."""
        self.paused = False
        """True if the model has paused the reply and another call must continue it."""

    def begin_part(self) -> None:
        """Prepare for the first response, or for a response that continues the reply."""
        self._parts.append(_Usage())
        self.finished = self.paused = False

    def convert(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of an event. An event of an unknown type yields none.

        Raises:
            KeyError, TypeError, ValueError: The event does not match the API.
        """
        match event["type"]:
            case "message_start":
                yield from self._start_message(event["message"])
            case "content_block_start":
                yield from self._start_block(event["content_block"])
            case "content_block_delta":
                yield from self._extend_block(event["delta"])
            case "content_block_stop":
                yield from self._finish_block()
            case "message_delta":
                yield from self._handle_message_delta(event["delta"], event.get("usage"))
            case "message_stop" if self.finished and not self.paused:
                yield Usage(_format_usage(self._parts))

    def _start_message(self, message: Json) -> Iterator[Delta]:
        self._parts[-1].add(message.get("usage"))
        if len(self._parts) == 1:
            about = {"id": str(message.get("id") or ""), "created": self._created}
            yield Head({**about, "model": str(message.get("model") or "")})

    def _start_block(self, given: Json) -> Iterator[Delta]:
        block = dict(given)
        self._block, self._pieces = block, []
        kind, index = block["type"], len(self.blocks)
        if kind == "text" and block.get("text"):
            yield self._add_text(block["text"])
        elif kind == "thinking":
            self._pieces.append(text := str(block.get("thinking") or ""))
            if text:
                yield Reasoning(text)
            yield Opaque("thinking_blocks", [{**block, "thinking": text, "index": index}])
        elif kind == "redacted_thinking":
            yield Opaque("thinking_blocks", [{**block, "index": index}])
        elif kind == "tool_use":
            extra = {name: block[name] for name in _CALL if block.get(name)}
            yield CallStart(self._calls, block["id"], block["name"], extra=extra)

    def _extend_block(self, delta: Json) -> Iterator[Delta]:
        kind, index = delta["type"], len(self.blocks)
        if kind == "text_delta":
            yield self._add_text(delta["text"])
        elif kind == "thinking_delta":
            text = _require_string(delta["thinking"])
            self._pieces.append(text)
            yield Reasoning(text)
            yield Opaque("thinking_blocks", [{"type": "thinking", "thinking": text, "index": index}])
        elif kind == "signature_delta":
            self._block["signature"] = str(self._block.get("signature") or "") + delta["signature"]
            block = {"type": "thinking", "signature": delta["signature"], "index": index}
            yield Opaque("thinking_blocks", [block])
        elif kind == "input_json_delta":
            self._pieces.append(_require_string(delta["partial_json"]))
            if self._block["type"] == "tool_use" and delta["partial_json"]:
                yield CallArguments(self._calls, delta["partial_json"])
        elif kind == "citations_delta":
            citations = self._block.get("citations")
            if not isinstance(citations, list):
                citations = self._block["citations"] = []
            citations.append(delta["citation"])
        elif kind == "compaction_delta":
            self._block |= {name: value for name, value in delta.items() if name != "type"}

    def _finish_block(self) -> Iterator[Delta]:
        block = {name: value for name, value in self._block.items() if value is not None}
        text = "".join(self._pieces)
        kind = block["type"]
        if kind in ("text", "thinking"):
            block[kind] = text
        elif kind == "tool_use":
            if not text:
                yield CallArguments(self._calls, msgspec.json.encode(block.get("input") or {}).decode())
            self._calls += 1
        elif text:
            block["input"] = msgspec.json.decode(text)
        self.blocks.append(block)
        self._block = {}
        yield from self._emit_native_block()

    def _emit_native_block(self) -> Iterator[Delta]:
        """Yield the field `content_blocks` with the block just completed, if the reply needs this field.

        A reply needs `content_blocks` as soon as it contains a block that later requests must send back unchanged and that Chat Completions cannot
        express. The first such block is yielded together with all blocks before it.
        """
        block, kind = self.blocks[-1], self.blocks[-1]["type"]
        # Reasoning after a text also needs the field, because it must be sent back in its original position.
        later = kind in THINKING and any(one["type"] == "text" for one in self.blocks)
        first = not self._native and (kind not in _PLAIN or later or bool(block.get("citations")))
        self._native = self._native or first
        if not self._native:
            return
        indexed = list(enumerate(self.blocks))[0 if first else -1 :]
        sent = [{**one, "index": at} for at, one in indexed if one["type"] != "tool_use"]
        if sent:
            yield Opaque(BLOCKS, sent)

    def _handle_message_delta(self, delta: Json, usage: Any) -> Iterator[Delta]:
        self._parts[-1].add(usage)
        reason = delta.get("stop_reason")
        if reason is None:
            return
        self.finished = True
        self.paused = reason == "pause_turn" and len(self._parts) <= self._pauses
        if not self.paused:
            yield from self._finish(reason, delta)

    def _finish(self, reason: str, about: Mapping[str, Any]) -> Iterator[Delta]:
        """Yield the end of the reply, with Anthropic's `stop_reason` and its details."""
        if not self._spoke and not self._calls:
            yield Text("")  # an empty reply; no text means that there are tool calls
        if about.get("container"):
            yield Opaque("container", about["container"], None)
        extra = {name: about[name] for name in ("stop_sequence", "stop_details") if about.get(name) is not None}
        yield Finish(REASONS.get(reason, "stop"), extra={"native_finish_reason": reason, **extra})

    def _add_text(self, text: Any) -> Text:
        self._pieces.append(_require_string(text))
        self._spoke = True
        return Text(text)


def _split_message(message: Json, content: list[Any]) -> Iterator[Json]:
    """Convert a complete message to the events that a stream would contain."""
    yield {"type": "message_start", "message": message}
    for block in content:
        yield {"type": "content_block_start", "content_block": block}
        yield {"type": "content_block_stop"}
    yield {"type": "message_delta", "delta": message, "usage": message.get("usage")}
    yield {"type": "message_stop"}


# -- usage -----------------------------------------------------------------------


class _Usage:
    """Token usage that one response has reported. Each reported number is a total, which replaces the number before it."""

    def __init__(self) -> None:
        self.numbers: Json = {}
        self.prompt = 0
        """Tokens of the prompt in the first report. Later reports have higher numbers if server tools made the model read the prompt
        again."""

    def add(self, usage: Any) -> None:
        """Record a report. Numbers that the report does not contain keep their values."""
        if isinstance(usage, Mapping):
            self.numbers |= {name: value for name, value in usage.items() if value is not None}
            self.prompt = self.prompt or sum(_to_number(self.numbers.get(name)) for name in _INPUT)


def _format_usage(parts: list[_Usage]) -> Json:
    """Return the usage of a reply in OpenAI's format, together with Anthropic's own numbers.

    Anthropic's numbers and the tokens of the reply are sums over all responses of the reply. The tokens of the prompt are those of the
    first response.

    Args:
        parts: Usage of each response of the reply, in order.
    """
    own = parts[0].numbers
    for part in parts[1:]:
        own = _add_numbers(own, part.numbers)
    prompt, completion = parts[0].prompt, _to_number(own.get("output_tokens"))
    cached = min(prompt, _to_number(parts[0].numbers.get("cache_read_input_tokens")))
    details = own.get("output_tokens_details")
    reasoning = _to_number(details.get("thinking_tokens")) if isinstance(details, Mapping) else 0
    usage: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    usage |= {"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}
    return {**usage, **own}


def _require_string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _to_number(value: Any) -> int:
    return value if is_whole(value) else 0


def _add_numbers(first: Json, second: Json) -> Json:
    """Return an object with the sums of the integers in two objects, nested objects included.

    For other values, `second` takes precedence.
    """
    total = dict(first)
    for name, value in second.items():
        before = first.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            total[name] = _add_numbers(before, value)
        elif type(value) is int and type(before) is int:
            total[name] = before + value
        else:
            total[name] = value
    return total

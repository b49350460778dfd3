"""A reply of Anthropic's Messages API, from bytes to `chat.completion.chunk`s. Decisions only; no I/O.

Text becomes `content`, `tool_use` a tool call, reasoning both `reasoning_content`, which clients show, and `thinking_blocks`,
which goes back signed and unchanged. What Chat Completions have no place for goes into `content_blocks`, with the texts and
the reasoning around it; see `holdfast.wire.anthropic.BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.context.dialects import THINKING
from holdfast.errors import ModelProtocolError
from holdfast.limits import MODEL_EVENT_BYTES
from holdfast.models.answer import AnswerReader
from holdfast.models.failures import error_object, is_error, make_upstream_error, scrub
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
"""`stop_reason` as a `finish_reason`; one that is new ends as `stop`, and stands in `native_finish_reason`."""
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
"""The HTTP status that an error in mid-stream would have had before it, from the page "Errors"."""
_INPUT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CALL: Final = ("caller", "toolset_name")
"""Fields of a call that go back with it."""


_PLAIN: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Blocks that Chat Completions have a place for."""


class MessageReader(AnswerReader):
    """Reads the body of a good response: Anthropic's event stream, or one message where streaming was asked in vain.

    Args:
        where: who answers, for errors.
        reply: what makes chunks of the events; it goes on where a part before this one ended.
        secrets: credentials to blot out of errors.
        limit: longest event, or longest JSON answer, in bytes.
    """

    def __init__(
        self, where: str, reply: ReplyChunks, secrets: Iterable[str] = (), limit: int = MODEL_EVENT_BYTES
    ) -> None:
        super().__init__(where, secrets, limit)
        self.reply = reply
        reply.begin_part()

    def _chunks(self, events: Iterable[Event]) -> Iterator[Json]:
        for event in events:
            data = self._decoded(event.data)
            if event.name == "error" or (isinstance(data, dict) and is_error(data)):
                raise self._reported(data)
            yield from self._told(data)
            if self.done:
                return

    def _told(self, event: Any) -> list[Json]:
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise ModelProtocolError(f"{self._where} sent an event that is none of Anthropic's Messages")
        try:
            chunks = list(self.reply.chunks(event))
        except (AttributeError, KeyError, TypeError, msgspec.MsgspecError, ValueError) as exc:
            raise ModelProtocolError(f"{self._where} sent a {kind} that is not as the API has it") from exc
        self._finished[0] = self.reply.finished
        if kind == "message_stop":
            if not self.reply.finished:
                raise ModelProtocolError(f"{self._where} ended its stream in the middle of the answer")
            self.done = True
        return chunks

    def _whole(self, data: bytes) -> Iterator[Json]:
        message = self._decoded(data)
        if not isinstance(message, dict) or is_error(message):
            raise self._reported(message)
        content = message.get("content")
        if message.get("type") != "message" or not isinstance(content, list):
            raise ModelProtocolError(f"{self._where} answered with JSON that is no message of Anthropic's")
        for event in _events(message, content):
            yield from self._told(event)

    def _reported(self, data: Any) -> Exception:
        error = error_object(scrub(data, self._secrets))
        kind = (error or {}).get("type")
        return make_upstream_error(STATUSES.get(kind) if isinstance(kind, str) else None, error, where=self._where)


class ReplyChunks:
    """Makes chunks of the events of one reply, also over several responses where its model paused on the way.

    Args:
        created: Unix seconds, of the chunks.
        pauses: how often it may pause and be asked to go on; one more is the end.
    """

    def __init__(self, created: int = 0, pauses: int = 0) -> None:
        self._head: Json = {"id": "", "object": "chat.completion.chunk", "created": created}
        self._pauses = pauses
        self._parts: list[_Usage] = []
        self._block: Json = {}
        self._pieces: list[str] = []
        self._calls = 0
        self._spoke = False
        self._native = False
        self.blocks: list[Json] = []
        """Those that are whole, as they came."""
        self.finished = False
        """It was said why this part ended."""
        self.paused = False
        """The model stopped in the middle of its turn, to be asked to go on."""

    def begin_part(self) -> None:
        """Another response begins, the first or one that goes on."""
        self._parts.append(_Usage())
        self.finished = self.paused = False

    def chunks(self, event: Json) -> Iterator[Json]:
        """The chunks that an event makes; kinds that are new make none.

        Raises:
            KeyError, TypeError, ValueError: the event is not as the API has it.
        """
        match event["type"]:
            case "message_start":
                yield from self._begun(event["message"])
            case "content_block_start":
                yield from self._block_begun(event["content_block"])
            case "content_block_delta":
                yield from self._block_grown(event["delta"])
            case "content_block_stop":
                yield from self._block_ended()
            case "message_delta":
                yield from self._ending(event["delta"], event.get("usage"))
            case "message_stop" if self.finished and not self.paused:
                yield {**self._head, "choices": [], "usage": _told(self._parts)}

    def _begun(self, message: Json) -> Iterator[Json]:
        self._parts[-1].add(message.get("usage"))
        if len(self._parts) == 1:
            self._head |= {"id": str(message.get("id") or ""), "model": str(message.get("model") or "")}
            yield self._chunk({"role": "assistant"})

    def _block_begun(self, given: Json) -> Iterator[Json]:
        block = dict(given)
        self._block, self._pieces = block, []
        kind, index = block["type"], len(self.blocks)
        if kind == "text" and block.get("text"):
            yield from self._text(block["text"])
        elif kind == "thinking":
            self._pieces.append(text := str(block.get("thinking") or ""))
            shown = {"reasoning_content": text} if text else {}
            yield self._chunk({**shown, "thinking_blocks": [{**block, "thinking": text, "index": index}]})
        elif kind == "redacted_thinking":
            yield self._chunk({"thinking_blocks": [{**block, "index": index}]})
        elif kind == "tool_use":
            extra = {name: block[name] for name in _CALL if block.get(name)}
            function = {"name": block["name"], "arguments": ""}
            yield self._call({"id": block["id"], "type": "function", "function": function, **extra})

    def _block_grown(self, delta: Json) -> Iterator[Json]:
        kind, index = delta["type"], len(self.blocks)
        if kind == "text_delta":
            yield from self._text(delta["text"])
        elif kind == "thinking_delta":
            text = _string(delta["thinking"])
            self._pieces.append(text)
            block = {"type": "thinking", "thinking": text, "index": index}
            yield self._chunk({"reasoning_content": text, "thinking_blocks": [block]})
        elif kind == "signature_delta":
            self._block["signature"] = str(self._block.get("signature") or "") + delta["signature"]
            block = {"type": "thinking", "signature": delta["signature"], "index": index}
            yield self._chunk({"thinking_blocks": [block]})
        elif kind == "input_json_delta":
            self._pieces.append(_string(delta["partial_json"]))
            if self._block["type"] == "tool_use" and delta["partial_json"]:
                yield self._call({"function": {"arguments": delta["partial_json"]}})
        elif kind == "citations_delta":
            citations = self._block.get("citations")
            if not isinstance(citations, list):
                citations = self._block["citations"] = []
            citations.append(delta["citation"])
        elif kind == "compaction_delta":
            self._block |= {name: value for name, value in delta.items() if name != "type"}

    def _block_ended(self) -> Iterator[Json]:
        block = {name: value for name, value in self._block.items() if value is not None}
        text = "".join(self._pieces)
        kind = block["type"]
        if kind in ("text", "thinking"):
            block[kind] = text
        elif kind == "tool_use":
            if not text:
                yield self._call({"function": {"arguments": msgspec.json.encode(block.get("input") or {}).decode()}})
            self._calls += 1
        elif text:
            block["input"] = msgspec.json.decode(text)
        self.blocks.append(block)
        self._block = {}
        yield from self._kept()

    def _kept(self) -> Iterator[Json]:
        """The block that has just ended, where the reply has blocks that go back as they came; those before it with the first."""
        block, kind = self.blocks[-1], self.blocks[-1]["type"]
        # Reasoning behind a text, too: it goes back where it stood.
        later = kind in THINKING and any(one["type"] == "text" for one in self.blocks)
        first = not self._native and (kind not in _PLAIN or later or bool(block.get("citations")))
        self._native = self._native or first
        if not self._native:
            return
        whole = list(enumerate(self.blocks))[0 if first else -1 :]
        told = [{**one, "index": at} for at, one in whole if one["type"] != "tool_use"]
        if told:
            yield self._chunk({BLOCKS: told})

    def _ending(self, delta: Json, usage: Any) -> Iterator[Json]:
        self._parts[-1].add(usage)
        reason = delta.get("stop_reason")
        if reason is None:
            return
        self.finished = True
        self.paused = reason == "pause_turn" and len(self._parts) <= self._pauses
        if not self.paused:
            yield self._finish(reason, delta)

    def _finish(self, reason: str, about: Mapping[str, Any]) -> Json:
        """The chunk that says why the reply ended: in OpenAI's word, in Anthropic's own, and with what it says beside."""
        # A reply without a word is told as one, because null stands for calls.
        delta = {} if self._spoke or self._calls else {"content": ""}
        extra = {name: about[name] for name in ("stop_sequence", "stop_details") if about.get(name) is not None}
        finish = REASONS.get(reason, "stop")
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": reason, **extra}
        container = {"container": about["container"]} if about.get("container") else {}
        return {**self._head, **container, "choices": [choice]}

    def _chunk(self, delta: Json) -> Json:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    def _text(self, text: Any) -> Iterator[Json]:
        self._pieces.append(_string(text))
        self._spoke = True
        yield self._chunk({"content": text})

    def _call(self, fields: Json) -> Json:
        return self._chunk({"tool_calls": [{"index": self._calls, **fields}]})


def _events(message: Json, content: list[Any]) -> Iterator[Json]:
    """A whole message as the events of a stream."""
    yield {"type": "message_start", "message": message}
    for block in content:
        yield {"type": "content_block_start", "content_block": block}
        yield {"type": "content_block_stop"}
    yield {"type": "message_delta", "delta": message, "usage": message.get("usage")}
    yield {"type": "message_stop"}


# -- usage -----------------------------------------------------------------------


class _Usage:
    """What one response tells of usage: each number is that of all of it so far."""

    def __init__(self) -> None:
        self.told: Json = {}
        self.prompt = 0
        """Tokens of the prompt. A server tool makes the model read it again, so the number that is told first."""

    def add(self, usage: Any) -> None:
        """Take in the newest numbers; those that are not told stay."""
        if isinstance(usage, Mapping):
            self.told |= {name: value for name, value in usage.items() if value is not None}
            self.prompt = self.prompt or sum(_number(self.told.get(name)) for name in _INPUT)


def _told(parts: list[_Usage]) -> Json:
    """Usage as OpenAI tells it, and Anthropic's own numbers under their names, all parts added up."""
    own = parts[0].told
    for part in parts[1:]:
        own = _add_numbers(own, part.told)
    prompt, written = parts[0].prompt, _number(own.get("output_tokens"))
    cached = min(prompt, _number(parts[0].told.get("cache_read_input_tokens")))
    details = own.get("output_tokens_details")
    thought = _number(details.get("thinking_tokens")) if isinstance(details, Mapping) else 0
    told: Json = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    told["prompt_tokens_details"] = {"cached_tokens": cached}
    told |= {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    return {**told, **own}


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no string")
    return value


def _number(value: Any) -> int:
    return value if is_whole(value) else 0


def _add_numbers(one: Json, other: Json) -> Json:
    """Numbers added up, also in objects; of all else the later one."""
    made = dict(one)
    for name, value in other.items():
        before = one.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            made[name] = _add_numbers(before, value)
        elif type(value) is int and type(before) is int:
            made[name] = before + value
        else:
            made[name] = value
    return made

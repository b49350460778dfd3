"""Decode replies of Anthropic's Messages API to deltas.

Reasoning becomes `reasoning_content`, which clients display, and also `thinking_blocks`, which later requests send back
with its signature, unchanged. Blocks that Chat Completions cannot express become `content_blocks`, together with the
texts and the reasoning around them, as described at `holdfast.models.codecs.messages.blocks.BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Reasoning, Text, Usage
from holdfast.models.codecs.messages.blocks import BLOCKS, CALL_FIELDS, NATIVE_FIELDS
from holdfast.models.codecs.messages.events import OpenBlock
from holdfast.numbers import add_numbers, is_whole

Json = dict[str, Any]
_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "stop",
    "refusal": "content_filter",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}
"""`finish_reason` for each `stop_reason` of Anthropic. An unknown reason becomes `stop`. `native_finish_reason` has the original."""
_OF_MESSAGE: Final = frozenset(
    {"id", "type", "role", "model", "content", "usage", "stop_reason", "stop_sequence", "stop_details", "container"}
)
"""Fields of a message that have deltas of their own. All others are passed on."""
_OF_TEXT: Final = frozenset({"type", "text", "citations"})
_OF_DELTA_EVENT: Final = frozenset({"type", "delta", "usage"})
_PLAIN: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Types of blocks that Chat Completions can express."""
_INPUT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class ReplyDecoder:
    """Decodes the events of one reply. The reply may consist of several responses, because a model may pause it.

    Args:
        created: Unix seconds, which become `created` of the reply.
        pauses: Maximum number of pauses after which the reply is continued. The next pause ends the reply.
    """

    def __init__(self, created: int = 0, pauses: int = 0) -> None:
        self._created = created
        self._pauses = pauses
        self._parts: list[Json] = []
        """Token usage that each response has reported. Each reported number is a total, which replaces the number before it."""
        self._prompt = 0
        """Tokens of the prompt in the first report. Later reports have higher numbers if server tools made the model read the prompt
        again."""
        self._open = OpenBlock({})
        self._calls = 0
        self._spoke = False
        self._others: Json = {}
        """Fields of the whole reply that are passed on unchanged."""
        self._native = False
        """True once the reply has the field `content_blocks`."""
        self.blocks: list[Json] = []
        """The completed blocks, as Anthropic sent them."""
        self.finished = False
        """True once the current response has given its `stop_reason`."""
        self.paused = False
        """True if the model has paused the reply and another call must continue it."""

    def begin_part(self) -> None:
        """Prepare for the first response, or for a response that continues the reply."""
        self._parts.append({})
        self.finished = self.paused = False

    def decode(self, event: Json) -> Iterable[Delta]:
        """Return the deltas of an event. An event of an unknown type has none.

        Raises:
            KeyError, TypeError, ValueError: The event does not match the API. Raised also while the result is iterated.
        """
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":  # nearly all events
            return (self._add_text(event["delta"]),)
        return self._decode_other(event)

    def _decode_other(self, event: Json) -> Iterator[Delta]:
        match event["type"]:
            case "message_start":
                message = event["message"]
                self._add_usage(message.get("usage"))
                if len(self._parts) == 1:
                    about = {"id": str(message.get("id") or ""), "created": self._created}
                    yield Head({**about, "model": str(message.get("model") or "")})
                    yield from self._pass_on(message, _OF_MESSAGE)
            case "content_block_start":
                yield from self._start_block(event["content_block"])
            case "content_block_delta":
                yield from self._extend_block(event["delta"])
            case "content_block_stop":
                yield from self._finish_block()
            case "message_delta":
                yield from self._finish(event)
            case "message_stop" if self.finished and not self.paused:
                yield Usage(self._sum_usage())

    def _start_block(self, start: Json) -> Iterator[Delta]:
        self._open = OpenBlock(start)
        kind, index = start["type"], len(self.blocks)
        if kind == "text":
            if own := {name for name, value in start.items() if name not in _OF_TEXT and value is not None}:
                yield from self._add_native({"type": "text", **{name: start[name] for name in own}})
            if start.get("text"):
                self._open.fields["text"] = ""
                yield self._add_text({"type": "text_delta", "text": start["text"]})
        elif kind in THINKING:
            if kind == "thinking" and (text := str(start.get("thinking") or "")):
                yield Reasoning(text)
            yield Opaque("thinking_blocks", [{**start, "index": index}])
        elif kind == "tool_use":
            extra = {name: start[name] for name in CALL_FIELDS if start.get(name)}
            yield CallStart(self._calls, start["id"], start["name"], extra=extra)

    def _add_text(self, delta: Json) -> Text:
        self._open.add(delta)
        self._spoke = True
        return Text(delta["text"])

    def _extend_block(self, delta: Json) -> Iterator[Delta]:
        self._open.add(delta)
        kind, index = delta["type"], len(self.blocks)
        if kind == "thinking_delta":
            yield Reasoning(delta["thinking"])
            yield Opaque("thinking_blocks", [{"type": "thinking", "thinking": delta["thinking"], "index": index}])
        elif kind == "signature_delta":
            yield Opaque("thinking_blocks", [{"type": "thinking", "signature": delta["signature"], "index": index}])
        elif kind == "input_json_delta" and self._open.fields["type"] == "tool_use" and delta["partial_json"]:
            yield CallArguments(self._calls, delta["partial_json"])

    def _finish_block(self) -> Iterator[Delta]:
        block = {name: value for name, value in self._open.build().items() if value is not None}
        kind = block["type"]
        if kind == "tool_use":
            if not any(self._open.pieces):
                yield CallArguments(self._calls, msgspec.json.encode(block.get("input") or {}).decode())
            self._calls += 1
        elif self._native or self._needs_native(block):
            sent = (
                block.keys() & _OF_TEXT if kind == "text" else block.keys()
            )  # other fields came with the start of the text
            yield from self._add_native({name: block[name] for name in block if name in sent})
        self.blocks.append(block)

    def _needs_native(self, block: Json) -> bool:
        """Return True if later requests must send a block back unchanged, and Chat Completions cannot express it."""
        # Reasoning after a text must be sent back in its original position.
        later = block["type"] in THINKING and any(one["type"] == "text" for one in self.blocks)
        return block["type"] not in _PLAIN or later or bool(block.get("citations"))

    def _add_native(self, block: Json) -> Iterator[Delta]:
        """Yield the field `content_blocks` with a block. The first one is yielded together with all blocks before it."""
        before = () if self._native else self.blocks
        self._native = True
        sent = [{**one, "index": at} for at, one in enumerate(before) if one["type"] != "tool_use"]
        yield Opaque(BLOCKS, [*sent, {**block, "index": len(self.blocks)}])

    def _finish(self, event: Json) -> Iterator[Delta]:
        """Yield the end of the reply, with Anthropic's `stop_reason` and its details."""
        self._add_usage(event.get("usage"))
        about = event["delta"]
        reason = about.get("stop_reason")
        if reason is None:
            return
        self.finished = True
        self.paused = reason == "pause_turn" and len(self._parts) <= self._pauses
        if self.paused:
            return
        if not self._spoke and not self._calls:
            yield Text("")  # an empty reply; no text means that there are tool calls
        if about.get("container"):
            yield Opaque("container", about["container"], None)
        yield from self._pass_on(event, _OF_DELTA_EVENT)
        extra = {name: about[name] for name in ("stop_sequence", "stop_details") if about.get(name) is not None}
        yield Finish(_REASONS.get(reason, "stop"), extra={"native_finish_reason": reason, **extra})

    def _add_usage(self, usage: Any) -> None:
        """Record a report. Numbers that the report does not contain keep their values."""
        if isinstance(usage, Mapping):
            own = self._parts[-1]
            own |= {name: value for name, value in usage.items() if value is not None}
            self._prompt = self._prompt or sum(_to_number(own.get(name)) for name in _INPUT)

    def _sum_usage(self) -> Json:
        """Return the usage of the reply in OpenAI's format, together with Anthropic's own numbers.

        Anthropic's numbers and the tokens of the reply are sums over all responses of the reply. The tokens of the prompt are those of
        the first response.
        """
        own: Json = reduce(add_numbers, self._parts)
        prompt, completion = self._prompt, _to_number(own.get("output_tokens"))
        cached = min(prompt, _to_number(self._parts[0].get("cache_read_input_tokens")))
        details = own.get("output_tokens_details")
        reasoning = _to_number(details.get("thinking_tokens")) if isinstance(details, Mapping) else 0
        usage: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        usage |= {"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}
        return {**usage, **own}

    def _pass_on(self, fields: Json, known: frozenset[str]) -> Iterator[Delta]:
        """Yield the field `native_fields` if the reply has fields that are not known."""
        if own := {name: value for name, value in fields.items() if name not in known and value is not None}:
            self._others |= own
            yield Opaque(NATIVE_FIELDS, dict(self._others), None)


def _to_number(value: Any) -> int:
    return value if is_whole(value) else 0

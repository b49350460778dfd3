"""Encode replies in the format of Anthropic's Messages API: the events of a stream.

Follows the API reference, "Create a Message" and "Streaming Messages". The deltas of an Anthropic model's reply contain
the fields that `holdfast.models.codecs.messages.reply_decoder` sets: `thinking_blocks`, `content_blocks`,
`native_finish_reason`, and Anthropic's own numbers in the usage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING
from holdfast.domain.messages import UNSPOKEN_PARTS
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Reasoning, Text, Usage, get_text
from holdfast.models.codecs.messages.blocks import BLOCKS, CALL_FIELDS, NATIVE_FIELDS
from holdfast.models.codecs.messages.events import Block, Event, split_block
from holdfast.numbers import is_whole

_REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    "stop": ("end_turn", "stop_sequence", "pause_turn"),
    "length": ("max_tokens", "model_context_window_exceeded"),
    "tool_calls": ("tool_use",),
    "content_filter": ("refusal",),
}
"""Anthropic's stop reasons for each `finish_reason`. If the model has reported none of them, it is the first one."""
_CHAT_USAGE: Final = frozenset(
    {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
)
"""Fields of `usage` in Chat Completions format. All others are a provider's own."""
_ID: Final = re.compile(r"[^A-Za-z0-9_-]")
_TEXT: Final = ("text", 0)
_THOUGHT: Final = {"type": "thinking", "thinking": "", "signature": ""}
_IN_DELTAS: Final = THINKING | {"text", "tool_use"}
"""Types of blocks that have deltas of their own."""
_encode = msgspec.json.Encoder().encode
_TEXT_EVENT: Final = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)


def encode_events(events: Iterable[Event]) -> bytes:
    """Return events as they are sent to a client."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event)) for event in events)


def format_usage(usage: Any) -> Block:
    """Return usage in Anthropic's format. Its input tokens do not include tokens that were read from or written to a cache."""
    if not isinstance(usage, Mapping):
        return {"input_tokens": 0, "output_tokens": 0}
    if {"input_tokens", "output_tokens"} <= usage.keys():
        return {name: value for name, value in usage.items() if name not in _CHAT_USAGE}
    details = usage.get("prompt_tokens_details")
    cached = _to_number(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    converted = {"input_tokens": max(0, _to_number(usage.get("prompt_tokens")) - cached)}
    converted |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
    return {**converted, "output_tokens": _to_number(usage.get("completion_tokens"))}


def _to_number(value: Any) -> int:
    return value if is_whole(value) else 0


class ReplyEncoder:
    """Converter from the deltas of a reply to Anthropic's events.

    Call `add` or `encode` for each list of deltas, and `end` once after the last one. One block is open at a time, as in
    Anthropic's API. The cost of a delta depends on its size only.

    Args:
        make_first: Returns the block that the reply begins with, or None. It is called when the reply begins.
    """

    def __init__(self, make_first: Callable[[], Block | None] = lambda: None) -> None:
        self._make_first = make_first
        self._begun = False
        self._index = -1
        self._open: tuple[Any, ...] | None = None
        self._arguments: list[str] = []
        """Arguments of the open tool call, in pieces."""
        self._started_calls: set[int] = set()
        """Numbers of the calls whose block was started."""
        self._queued: list[tuple[int | None, list[Delta]]] = []
        """Deltas that wait until the arguments of the open call are complete, each with the number of its call;
        None for deltas that belong to no call."""
        self._cut = False
        self._head: dict[str, Any] = {}
        self._choice: Mapping[str, Any] = {}
        self._usage: Any = None
        self._container: Any = None
        self._others: dict[str, Any] = {}
        """Unknown fields of an Anthropic model's whole reply."""
        self._sent: frozenset[str] = frozenset()
        """Those that were sent with the beginning."""

    def encode(self, deltas: Sequence[Delta]) -> bytes:
        """Return the events for a list of deltas, as they are sent to a client."""
        only = deltas[0] if len(deltas) == 1 and self._open is _TEXT else None
        if isinstance(only, Text) and only.text and not only.choice:  # the fast path for nearly all deltas
            return _TEXT_EVENT % (self._index, _encode(only.text))
        return encode_events(self.add(deltas))

    def add(self, deltas: Sequence[Delta]) -> list[Event]:
        """Return the events for a list of deltas."""
        parts: list[Delta] = []
        calls: list[CallStart | CallArguments] = []
        for delta in deltas:
            if isinstance(delta, CallStart | CallArguments):
                calls += [delta] if delta.choice == 0 else []
            elif isinstance(delta, Text | Reasoning):
                parts += [delta] if delta.choice == 0 and delta.text else []
            elif isinstance(delta, Opaque) and delta.choice == 0:
                parts += [delta] if delta.in_message and delta.value else []
            else:
                self._note(delta)
        events = self._begin()
        if parts:
            self._emit_or_queue(None, parts, events)
        for call in calls:
            self._emit_or_queue(call.at, [call], events)
        return events

    def _note(self, delta: Delta) -> None:
        """Record what a delta says about the whole reply."""
        if isinstance(delta, Head):
            self._head |= delta.fields
        elif isinstance(delta, Usage):
            self._usage = delta.numbers
        elif isinstance(delta, Finish) and delta.choice == 0:
            self._choice = {**delta.extra, "finish_reason": delta.reason}
        elif isinstance(delta, Opaque) and delta.choice is None:
            if delta.name == "container":
                self._container = delta.value
            elif delta.name == NATIVE_FIELDS and isinstance(delta.value, dict):
                self._others = delta.value

    def end(
        self,
        more: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        add_usage: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
    ) -> list[Event]:
        """Return the last events of the stream.

        Args:
            more: Additional fields of the `message_delta` event.
            stop: Fields of its `delta` that differ from those of the reply.
            add_usage: Returns additional fields of `usage`, for the usage of the reply.
        """
        events = self._begin()
        while self._queued:
            self._release_queued(events)
        self._close_block(events)
        delta = {**self._make_stop(), **(stop or {})}
        if self._container:
            delta["container"] = self._container
        usage = format_usage(self._usage)
        last = {"type": "message_delta", "delta": delta, "usage": {**usage, **add_usage(usage)}}
        others = {name: value for name, value in self._others.items() if name not in self._sent}
        return [*events, {**others, **last, **(more or {})}, {"type": "message_stop"}]

    def cut(self) -> None:
        """End the reply at this point. A finish reason that the model sent before is ignored."""
        self._choice, self._cut = {"finish_reason": "stop"}, True

    def _begin(self) -> list[Event]:
        """Return the first events of the stream; empty if they were returned before."""
        if self._begun:
            return []
        self._begun = True
        given = str(self._head.get("id") or "")
        own = given if given.startswith("msg_") else "msg_" + _ID.sub("_", given.removeprefix("chatcmpl-"))
        self._sent = frozenset(self._others)
        message = {**self._others, "id": own, "type": "message", "role": "assistant"}
        message["model"] = str(self._head.get("model") or "")
        message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": format_usage(self._usage)}
        events: list[Event] = [{"type": "message_start", "message": message}]
        if (first := self._make_first()) is not None:
            self._emit_block(first, events)
        return events

    def _make_stop(self) -> Block:
        """Return the fields `stop_reason`, `stop_sequence` and, if known, `stop_details` of the reply.

        Some upstreams report `stop` along with tool calls. The reason is then `tool_use`, because clients would not run the calls
        otherwise.
        """
        choice = self._choice
        finish = choice.get("finish_reason")
        if finish == "function_call" or (self._started_calls and not self._cut and finish in (None, "stop")):
            finish = "tool_calls"
        known = _REASONS.get(str(finish), ("end_turn",))
        native, sequence, details = (
            choice.get(name) for name in ("native_finish_reason", "stop_sequence", "stop_details")
        )
        return {
            "stop_reason": native if native in known else known[0],
            "stop_sequence": sequence if isinstance(sequence, str) else None,
            **({"stop_details": details} if isinstance(details, Mapping) else {}),
        }

    # -- what comes between the pieces of a call ------------------------------------

    def _emit_or_queue(self, at: int | None, deltas: list[Delta], events: list[Event]) -> None:
        """Emit deltas, or queue them until the open call is complete.

        Only one block is open at a time, and no block is reopened.

        Args:
            at: Number of the call that the delta belongs to; None for other deltas.
            deltas: One delta of a call, or other deltas of one event.
            events: Receives the events.
        """
        if self._open is not None and self._open[0] == "call" and self._open != ("call", at):
            if not self._is_call_complete():
                self._queued.append((at, deltas))
                return
            self._close_block(events)
        if self._queued and self._open is None:
            self._queued.append((at, deltas))
            self._release_queued(events)
        else:
            self._emit(deltas, events)

    def _release_queued(self, events: list[Event]) -> None:
        """Emit the queued deltas. Some of them may be queued again."""
        queued, self._queued = self._queued, []
        self._close_block(events)
        first = queued[0][0]
        # Emit the pieces of one call together, so that the next call does not wait for them.
        for at, deltas in queued if first is None else sorted(queued, key=lambda one: one[0] != first):
            self._emit_or_queue(at, deltas, events)

    def _is_call_complete(self) -> bool:
        """Return True if the arguments of the open call are complete."""
        if not self._arguments or not self._arguments[-1].rstrip().endswith("}"):
            return False
        self._arguments = ["".join(self._arguments)]
        try:
            msgspec.json.decode(self._arguments[0])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        return True

    def _emit(self, deltas: list[Delta], events: list[Event]) -> None:
        first = deltas[0]
        if isinstance(first, CallStart | CallArguments):
            self._emit_call(first, events)
            return
        fields = {delta.name: delta.value for delta in deltas if isinstance(delta, Opaque)}
        text = get_text(deltas)
        blocks = _list_native_blocks(fields.get(BLOCKS))
        # The start of a text has its other fields. Its text follows.
        start = blocks.pop() if blocks and blocks[-1]["type"] == "text" and "text" not in blocks[-1] else None
        said = "".join(str(one.get("text") or "") for one in blocks if one["type"] == "text")
        if blocks and start is None and len(deltas) > 1 and text == said:
            # a complete reply: the answer to a repeated request
            self._emit_blocks(blocks, events)
            text, blocks = "", []
        elif not self._emit_thinking(fields.get("thinking_blocks"), events):
            self._emit_reasoning("".join(delta.text for delta in deltas if isinstance(delta, Reasoning)), events)
        if start is not None:
            self._close_block(events)
            self._open_block(_TEXT, {**start, "text": ""}, events)
        self._emit_text(text, events)
        if isinstance(refusal := fields.get("refusal"), str):
            self._emit_text(refusal, events)
        if isinstance(content := fields.get("content"), list):
            self._emit_blocks([part for part in map(_convert_part, content) if part is not None], events)
        if blocks:
            self._emit_finished(blocks, events)

    # -- blocks ------------------------------------------------------------------

    def _emit_text(self, text: str, events: list[Event]) -> None:
        if text:
            self._open_block(_TEXT, {"type": "text", "text": ""}, events)
            events.append(self._make_delta({"type": "text_delta", "text": text}))

    def _emit_thinking(self, blocks: Any, events: list[Event]) -> bool:
        """Emit the reasoning blocks of a reply. Return True if there are any."""
        for block in blocks if isinstance(blocks, list) else ():
            if not isinstance(block, Mapping):
                continue
            block, index = {name: value for name, value in block.items() if name != "index"}, block.get("index")  # noqa: PLW2901
            if block.get("type") == "redacted_thinking":
                self._emit_block(block, events)
                continue
            self._open_block(("thinking", index), _THOUGHT, events)
            events += map(self._make_delta, split_block({**block, "type": "thinking"})[1])
        return bool(blocks)

    def _emit_reasoning(self, text: str, events: list[Event]) -> None:
        """Emit unsigned reasoning, which is plain text."""
        if text:
            self._open_block(("thinking", None), _THOUGHT, events)
            events.append(self._make_delta({"type": "thinking_delta", "thinking": text}))

    def _emit_finished(self, blocks: Sequence[Block], events: list[Event]) -> None:
        """Emit the parts of completed blocks that are not emitted yet. Their text and reasoning already are."""
        self._emit_blocks([block for block in blocks if block["type"] not in _IN_DELTAS], events)
        if blocks[-1]["type"] == "text" and self._open == _TEXT:
            cited = split_block({**blocks[-1], "text": ""})[1]
            events += map(self._make_delta, cited)
        self._close_block(events)

    def _emit_call(self, delta: CallStart | CallArguments, events: list[Event]) -> None:
        what = ("call", delta.at)
        if isinstance(delta, CallStart):
            if delta.at in self._started_calls:
                return
            self._started_calls.add(delta.at)
            more = {name: delta.extra[name] for name in CALL_FIELDS if delta.extra.get(name)}
            block = {"type": "tool_use", "id": str(delta.id or f"call_{delta.at}"), "name": str(delta.name or "")}
            self._open_block(what, {**block, "input": {}, **more}, events)
            self._arguments = []
        elif delta.text and self._open == what:  # else its arguments were complete, so its block is closed
            self._arguments.append(delta.text)
            events.append(self._make_delta({"type": "input_json_delta", "partial_json": delta.text}))

    def _emit_blocks(self, blocks: Iterable[Block], events: list[Event]) -> None:
        for block in blocks:
            self._emit_block(block, events)

    def _emit_block(self, block: Block, events: list[Event]) -> None:
        """Emit a complete block. Its text or reasoning is emitted as deltas, because clients assemble blocks from deltas."""
        start, deltas = split_block(block)
        if block["type"] == "text" and not deltas:
            return
        self._close_block(events)
        self._open_block(("whole", self._index), start, events)
        events += map(self._make_delta, deltas)
        self._close_block(events)

    # -- one at a time -------------------------------------------------------------

    def _open_block(self, what: tuple[Any, ...], start: Mapping[str, Any], events: list[Event]) -> None:
        """Close the open block, and open the block that `what` identifies, unless that one is already open."""
        if self._open == what:
            return
        self._close_block(events)
        self._index, self._open = self._index + 1, what
        events.append({"type": "content_block_start", "index": self._index, "content_block": start})

    def _close_block(self, events: list[Event]) -> None:
        if self._open is not None:
            events.append({"type": "content_block_stop", "index": self._index})
            self._open = None

    def _make_delta(self, delta: Mapping[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _list_native_blocks(given: Any) -> list[Block]:
    blocks = [block for block in given if isinstance(block, Mapping)] if isinstance(given, Sequence) else []
    found = [block for block in blocks if isinstance(block.get("type"), str)]
    return [{name: value for name, value in block.items() if name != "index"} for block in found]


def _convert_part(part: Any) -> Block | None:
    """Return the block for a part of the content; None if replies have no such block."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in UNSPOKEN_PARTS:
        return dict(part)
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    cited = {"citations": part["citations"]} if text and part.get("citations") else {}
    return {"type": "text", "text": text, **cited} if isinstance(text, str) and text else None

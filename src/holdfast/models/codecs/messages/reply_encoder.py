"""Encode replies in the format of Anthropic's Messages API: the events of a stream.

Follows the API reference, "Create a Message" and "Streaming Messages". The deltas of an Anthropic model's reply contain
the fields that `holdfast.models.codecs.messages.reply_decoder` sets: `thinking_blocks`, `content_blocks`,
`native_finish_reason`, and Anthropic's own numbers in the usage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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


class _Piece(NamedTuple):
    """A part of one block."""

    what: tuple[str, Any]
    """Identifies the block."""
    start: Block | None
    """The block as the stream starts it. None: the piece is left out unless the block is open."""
    deltas: Sequence[Block] = ()
    opens: bool = False
    """True: the piece begins a new block, even if one with the same identity is open."""
    closes: bool = False
    """True: the piece ends its block."""


class ReplyEncoder:
    """Converter from the deltas of a reply to Anthropic's events.

    Call `add` or `encode` for each list of deltas, and `end` once after the last one. One block is open at a time, as in
    Anthropic's API, and no block is reopened. The cost of a delta depends on its size only.

    Args:
        make_first: Returns the block that the reply begins with, or None. It is called when the reply begins.
    """

    def __init__(self, make_first: Callable[[], Block | None] = lambda: None) -> None:
        self._make_first = make_first
        self._begun = False
        self._events: list[Event] = []
        """Events that were not returned yet."""
        self._index = -1
        self._open: tuple[str, Any] | None = None
        self._arguments: list[str] = []
        """Arguments of the open tool call, in pieces."""
        self._calls: set[int] = set()
        """Numbers of the calls that have started."""
        self._queued: list[_Piece] = []
        """Pieces that wait until the arguments of the open call are complete."""
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
        self._begin()
        for piece in (*_list_pieces(parts), *self._list_call_pieces(calls)):
            self._put(piece)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
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

    def _list_call_pieces(self, deltas: Iterable[CallStart | CallArguments]) -> Iterator[_Piece]:
        for delta in deltas:
            what = ("call", delta.at)
            if isinstance(delta, CallArguments):
                if delta.text:
                    yield _Piece(what, None, [{"type": "input_json_delta", "partial_json": delta.text}])
            elif delta.at not in self._calls:
                self._calls.add(delta.at)
                more = {name: delta.extra[name] for name in CALL_FIELDS if delta.extra.get(name)}
                block = {"type": "tool_use", "id": str(delta.id or f"call_{delta.at}"), "name": str(delta.name or "")}
                yield _Piece(what, {**block, "input": {}, **more})

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
        self._begin()
        while self._queued:
            self._release_queued()
        self._close_block()
        delta = {**self._make_stop(), **(stop or {})}
        if self._container:
            delta["container"] = self._container
        usage = format_usage(self._usage)
        last = {"type": "message_delta", "delta": delta, "usage": {**usage, **add_usage(usage)}}
        others = {name: value for name, value in self._others.items() if name not in self._sent}
        self._events += [{**others, **last, **(more or {})}, {"type": "message_stop"}]
        return self._take_events()

    def cut(self) -> None:
        """End the reply at this point. A finish reason that the model sent before is ignored."""
        self._choice, self._cut = {"finish_reason": "stop"}, True

    def _begin(self) -> None:
        """Emit the first events of the stream, if they were not emitted before."""
        if self._begun:
            return
        self._begun = True
        given = str(self._head.get("id") or "")
        own = given if given.startswith("msg_") else "msg_" + _ID.sub("_", given.removeprefix("chatcmpl-"))
        self._sent = frozenset(self._others)
        message = {**self._others, "id": own, "type": "message", "role": "assistant"}
        message["model"] = str(self._head.get("model") or "")
        message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": format_usage(self._usage)}
        self._events.append({"type": "message_start", "message": message})
        if (first := self._make_first()) is not None:
            self._emit(_make_whole(first))

    def _make_stop(self) -> Block:
        """Return the fields `stop_reason`, `stop_sequence` and, if known, `stop_details` of the reply.

        Some upstreams report `stop` along with tool calls. The reason is then `tool_use`, because clients would not run the calls
        otherwise.
        """
        choice = self._choice
        finish = choice.get("finish_reason")
        if finish == "function_call" or (self._calls and not self._cut and finish in (None, "stop")):
            finish = "tool_calls"
        known, native = _REASONS.get(str(finish), ("end_turn",)), choice.get("native_finish_reason")
        sequence, details = choice.get("stop_sequence"), choice.get("stop_details")
        return {
            "stop_reason": native if native in known else known[0],
            "stop_sequence": sequence if isinstance(sequence, str) else None,
            **({"stop_details": details} if isinstance(details, Mapping) else {}),
        }

    # -- one block at a time -------------------------------------------------------

    def _put(self, piece: _Piece) -> None:
        """Emit a piece, or queue it until the arguments of the open call are complete."""
        if self._open is not None and self._open[0] == "call" and self._open != piece.what:
            if not self._is_call_complete():
                self._queued.append(piece)
                return
            self._close_block()
        if self._queued and self._open is None:
            self._queued.append(piece)
            self._release_queued()
        else:
            self._emit(piece)

    def _release_queued(self) -> None:
        """Emit the queued pieces. Some of them may be queued again."""
        queued, self._queued = self._queued, []
        self._close_block()
        first = queued[0].what
        if first[0] == "call":  # emit its pieces together, so that the next call does not wait for them
            queued.sort(key=lambda piece: piece.what != first)
        for piece in queued:
            self._put(piece)

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

    def _emit(self, piece: _Piece) -> None:
        if piece.opens or self._open != piece.what:
            if piece.start is None:
                return
            self._close_block()
            self._index, self._open, self._arguments = self._index + 1, piece.what, []
            self._events.append({"type": "content_block_start", "index": self._index, "content_block": piece.start})
        for delta in piece.deltas:
            self._events.append({"type": "content_block_delta", "index": self._index, "delta": delta})
        if piece.what[0] == "call":
            self._arguments += [delta["partial_json"] for delta in piece.deltas]
        if piece.closes:
            self._close_block()

    def _close_block(self) -> None:
        if self._open is not None:
            self._events.append({"type": "content_block_stop", "index": self._index})
            self._open = None


def _list_pieces(deltas: Sequence[Delta]) -> Iterator[_Piece]:
    """Yield the pieces of blocks that are no calls, for the deltas of one event."""
    fields = {delta.name: delta.value for delta in deltas if isinstance(delta, Opaque)}
    text, blocks = get_text(deltas), _list_native_blocks(fields.get(BLOCKS))
    # The start of a text has its other fields. Its text follows.
    start = blocks.pop() if blocks and blocks[-1]["type"] == "text" and "text" not in blocks[-1] else None
    said = "".join(str(one.get("text") or "") for one in blocks if one["type"] == "text")
    if blocks and start is None and len(deltas) > 1 and text == said:
        # a complete reply: the answer to a repeated request
        yield from map(_make_whole, filter(_has_content, blocks))
        text, blocks = "", []
    elif thoughts := fields.get("thinking_blocks"):
        listed = thoughts if isinstance(thoughts, list) else ()
        yield from (_make_thought(one) for one in listed if isinstance(one, Mapping))
    elif thought := "".join(delta.text for delta in deltas if isinstance(delta, Reasoning)):
        yield _Piece(("thinking", None), _THOUGHT, [{"type": "thinking_delta", "thinking": thought}])
    if start is not None:
        yield _Piece(_TEXT, {**start, "text": ""}, opens=True)
    for words in (text, fields.get("refusal")):
        if words and isinstance(words, str):
            yield _Piece(_TEXT, {"type": "text", "text": ""}, [{"type": "text_delta", "text": words}])
    if isinstance(content := fields.get("content"), list):
        yield from map(_make_whole, filter(None, map(_convert_part, content)))
    # Of finished blocks, text and reasoning were emitted before.
    yield from (_make_whole(block) for block in blocks if block["type"] not in _IN_DELTAS)
    if blocks and blocks[-1]["type"] == "text":
        yield _Piece(_TEXT, None, split_block({**blocks[-1], "text": ""})[1], closes=True)


def _make_whole(block: Block) -> _Piece:
    """Return a complete block. Its text or reasoning is in deltas, because clients assemble blocks from deltas."""
    return _Piece(("whole", None), *split_block(block), opens=True, closes=True)


def _make_thought(block: Mapping[str, Any]) -> _Piece:
    """Return a piece of a block with reasoning. Encrypted reasoning comes at once."""
    rest = {name: value for name, value in block.items() if name != "index"}
    if block.get("type") == "redacted_thinking":
        return _make_whole(rest)
    return _Piece(("thinking", block.get("index")), _THOUGHT, split_block({**rest, "type": "thinking"})[1])


def _has_content(block: Block) -> bool:
    return block["type"] != "text" or bool(block.get("text"))


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

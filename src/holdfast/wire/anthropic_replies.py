"""Replies in the format of Anthropic's Messages API: a complete `message`, or the events of a stream.

Follows the API reference, "Create a Message" and "Streaming Messages". The input is in Chat Completions format. A reply
of an Anthropic model has additional fields in it, which `holdfast.models.anthropic_stream` sets: `thinking_blocks`,
`content_blocks`, `native_finish_reason`, and Anthropic's own numbers in `usage`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING, Thought, parse_arguments, parse_field_thoughts
from holdfast.domain.messages import UNSPOKEN_PARTS
from holdfast.numbers import is_whole
from holdfast.wire.anthropic import BLOCKS
from holdfast.wire.openai import parse_message

Block = dict[str, Any]
Event = dict[str, Any]
REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""Anthropic's `stop_reason` for each `finish_reason`."""
_NATIVE: Final[Mapping[str, frozenset[str]]] = {
    "stop": frozenset({"end_turn", "stop_sequence", "pause_turn"}),
    "length": frozenset({"max_tokens", "model_context_window_exceeded"}),
    "tool_calls": frozenset({"tool_use"}),
    "content_filter": frozenset({"refusal"}),
}
"""Anthropic's stop reasons that are compatible with each `finish_reason`."""
_USAGE: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "cache_creation",
    "output_tokens_details",
    "server_tool_use",
    "service_tier",
)
_ID: Final = re.compile(r"[^A-Za-z0-9_-]")
_TEXT: Final = ("text", 0)
_NO_USAGE: Final[Block] = {"input_tokens": 0, "output_tokens": 0}


def make_message(completion: Mapping[str, Any]) -> Block:
    """Convert a `chat.completion` to a message. If it has several choices, only the first is used."""
    choice: Mapping[str, Any] = next(iter(completion.get("choices") or ()), {})
    content = make_blocks(choice.get("message") or {})
    container = completion.get("container")
    return {
        **_make_head(completion),
        "content": content,
        **_make_stop(choice, called=any(block["type"] == "tool_use" for block in content)),
        **({"container": container} if container else {}),
        "usage": format_usage(completion.get("usage")),
    }


def make_blocks(message: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of an assistant's message: reasoning, server tools, text and calls, in their original order if known."""
    blocks = _get_native_blocks(message)
    if not blocks:
        spoken = {name: value for name, value in message.items() if name != "tool_calls"}  # calls may have no id yet
        blocks = [
            *map(_convert_thought, parse_field_thoughts(parse_message({**spoken, "role": "assistant"}))),
            *_convert_content(message),
        ]
    return [*blocks, *(_convert_call(call, at) for at, call in enumerate(message.get("tool_calls") or ()))]


def _get_native_blocks(message: Mapping[str, Any]) -> list[Block]:
    """Return Anthropic's own blocks of a message; an empty list if they do not contain all of its text.

    The text may come from several model calls.
    """
    blocks = _list_native_blocks(message)
    text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    return blocks if text == (message.get("content") or "") else []


def _convert_content(message: Mapping[str, Any]) -> list[Block]:
    content, server_blocks = (
        message.get("content"),
        [block for block in _list_native_blocks(message) if block["type"] in _SERVERS],
    )
    if isinstance(content, list):
        return [*server_blocks, *(part for part in map(_convert_part, content) if part is not None)]
    texts = [text for text in (content, message.get("refusal")) if isinstance(text, str) and text]
    return [*server_blocks, *({"type": "text", "text": text} for text in texts)]


def _list_native_blocks(message: Mapping[str, Any]) -> list[Block]:
    given = message.get(BLOCKS)
    blocks = [block for block in given if isinstance(block, Mapping)] if isinstance(given, Sequence) else []
    found = [block for block in blocks if isinstance(block.get("type"), str)]
    return [{name: value for name, value in block.items() if name != "index"} for block in found]


_SERVERS: Final = UNSPOKEN_PARTS - THINKING


def _convert_part(part: Any) -> Block | None:
    """Return the block for a part of the content; None if replies have no such block."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in UNSPOKEN_PARTS:
        return dict(part)
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    cited = {"citations": part["citations"]} if text and part.get("citations") else {}
    return {"type": "text", "text": text, **cited} if isinstance(text, str) and text else None


def _convert_thought(thought: Thought) -> Block:
    if thought.sealed and thought.is_signed_by("anthropic"):
        return {"type": "redacted_thinking", "data": thought.sealed}
    signature = thought.signature if thought.is_signed_by("anthropic") else None
    return {"type": "thinking", "thinking": thought.text, "signature": signature or ""}


def _convert_call(call: Mapping[str, Any], at: int) -> Block:
    function = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments", function.get("input"))
    given = parse_arguments(arguments if isinstance(arguments, str) else "")
    return {
        **_make_tool_use(call, at),
        "name": str(function.get("name") or ""),
        "input": given,
        **_pick_call_fields(call),
    }


def _make_tool_use(call: Mapping[str, Any], at: int) -> Block:
    return {"type": "tool_use", "id": str(call.get("id") or f"call_{at}")}


def _pick_call_fields(call: Mapping[str, Any]) -> Block:
    return {name: call[name] for name in ("caller", "toolset_name") if call.get(name)}


def _make_head(chunk: Mapping[str, Any]) -> Block:
    given = str(chunk.get("id") or "")
    name = given if given.startswith("msg_") else "msg_" + _ID.sub("_", given.removeprefix("chatcmpl-"))
    return {"id": name, "type": "message", "role": "assistant", "model": str(chunk.get("model") or "")}


def _make_stop(choice: Mapping[str, Any], *, called: bool) -> Block:
    """Return the fields `stop_reason`, `stop_sequence` and, if known, `stop_details` of a reply.

    Some upstreams report `stop` along with tool calls. The reason is then `tool_use`, because clients would not run the calls otherwise.
    """
    finish = choice.get("finish_reason")
    finish = "tool_calls" if called and finish in (None, "stop") else finish
    native, sequence = choice.get("native_finish_reason"), choice.get("stop_sequence")
    reason = REASONS.get(finish, "end_turn") if isinstance(finish, str) else "end_turn"
    if isinstance(native, str) and native in _NATIVE.get(str(finish), ()):
        reason = native
    details = choice.get("stop_details")
    return {
        "stop_reason": reason,
        "stop_sequence": sequence if isinstance(sequence, str) else None,
        **({"stop_details": details} if isinstance(details, Mapping) else {}),
    }


def format_usage(usage: Any) -> Block:
    """Return usage in Anthropic's format. Its input tokens do not include tokens that were read from or written to a cache."""
    if not isinstance(usage, Mapping):
        return dict(_NO_USAGE)
    if {"input_tokens", "output_tokens"} <= usage.keys():
        return {name: usage[name] for name in _USAGE if name in usage}
    details = usage.get("prompt_tokens_details")
    cached = _to_number(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    converted = {"input_tokens": max(0, _to_number(usage.get("prompt_tokens")) - cached)}
    converted |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
    return {**converted, "output_tokens": _to_number(usage.get("completion_tokens"))}


def _to_number(value: Any) -> int:
    return value if is_whole(value) else 0


# -- as a stream ---------------------------------------------------------------


class ReplyEvents:
    """Converter from a stream of Chat Completions chunks to a stream of Anthropic's events.

    Call `add` for each chunk, and `end` once after the last one. One block is open at a time, as in Anthropic's API.
    The cost of a chunk depends on its size only.
    """

    def __init__(self) -> None:
        self._begun = False
        self._index = -1
        self._open: tuple[Any, ...] | None = None
        self._arguments: list[str] = []
        """Arguments of the open tool call, in pieces."""
        self._started_calls: set[int] = set()
        """Numbers of the calls whose block was started."""
        self._queued: list[tuple[int | None, Mapping[str, Any]]] = []
        """Deltas that wait until the arguments of the open call are complete, each with the number of its call;
        None for deltas that belong to no call."""
        self._cut = False
        self._choice: Mapping[str, Any] = {}
        self._usage: Any = None
        self._container: Any = None

    @property
    def has_begun(self) -> bool:
        """True if the first event was returned."""
        return self._begun

    def add(self, chunk: Mapping[str, Any], compaction: Block | None = None) -> list[Event]:
        """Return the events for a chunk.

        Args:
            chunk: The chunk.
            compaction: With the first chunk: the compaction block that the reply begins with, or None.
        """
        events: list[Event] = [] if self._begun else [self._make_start(chunk)]
        if compaction is not None:
            events += self._make_compaction(compaction)
        if (usage := chunk.get("usage")) is not None:
            self._usage = usage
        self._container = chunk.get("container") or self._container
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, Mapping) or choice.get("index"):
                continue
            delta = choice.get("delta", choice.get("message"))
            if delta and isinstance(delta, Mapping):
                self._add_delta(delta, events)
            if choice.get("finish_reason") is not None:
                self._choice = choice
        return events

    def _make_compaction(self, block: Block) -> list[Event]:
        """Return the events of a compaction block. Its text is sent in one piece, as in Anthropic's API."""
        self._index += 1
        delta = {
            "type": "compaction_delta",
            "content": block["content"],
            "encrypted_content": block["encrypted_content"],
        }
        return [
            {"type": "content_block_start", "index": self._index, "content_block": {**block, "content": None}},
            {"type": "content_block_delta", "index": self._index, "delta": delta},
            {"type": "content_block_stop", "index": self._index},
        ]

    def get_appended_text(self, chunk: Mapping[str, Any]) -> str | None:
        """Return the text that a chunk appends to the open text block; None if the chunk does anything else.

        If a text is returned, `add` need not be called for the chunk. This is the fast path for nearly all chunks.
        """
        choices = chunk.get("choices")
        if self._open is not _TEXT or not choices or len(choices) != 1 or chunk.get("usage") is not None:
            return None
        choice = choices[0]
        delta = choice.get("delta")
        if not delta or len(delta) != 1 or choice.get("finish_reason") is not None or choice.get("index"):
            return None
        text = delta.get("content")
        return text if text and isinstance(text, str) else None

    @property
    def index(self) -> int:
        """Index of the last block that was started; -1 if there is none."""
        return self._index

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
        events = [] if self._begun else [self._make_start({})]
        while self._queued:
            self._release_queued(events)
        self._close_block(events)
        delta = {**_make_stop(self._choice, called=bool(self._started_calls) and not self._cut), **(stop or {})}
        if self._container:
            delta["container"] = self._container
        usage = format_usage(self._usage)
        usage |= add_usage(usage)
        events.append({"type": "message_delta", "delta": delta, "usage": usage, **(more or {})})
        events.append({"type": "message_stop"})
        return events

    def cut(self) -> None:
        """End the reply at this point. A finish reason that the model sent before is ignored."""
        self._choice, self._cut = {"finish_reason": "stop"}, True

    def _make_start(self, chunk: Mapping[str, Any]) -> Event:
        self._begun = True
        unknown: Block = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": format_usage(chunk.get("usage")),
        }
        return {"type": "message_start", "message": {**_make_head(chunk), **unknown}}

    def _add_delta(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        """Add a delta: first its text and other fields, then its calls."""
        calls = delta.get("tool_calls")
        if any(value for name, value in delta.items() if name not in ("tool_calls", "role")):
            self._emit_or_queue(None, delta, events)
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                self._emit_or_queue(call.get("index", 0), call, events)

    # -- what comes between the pieces of a call ------------------------------------

    def _emit_or_queue(self, at: int | None, delta: Mapping[str, Any], events: list[Event]) -> None:
        """Emit a delta, or queue it until the open call is complete.

        Only one block is open at a time, and no block is reopened.

        Args:
            at: Number of the call that the delta belongs to; None for other deltas.
            delta: The delta.
            events: Receives the events.
        """
        if self._open is not None and self._open[0] == "call" and self._open != ("call", at):
            if not self._is_call_complete():
                self._queued.append((at, delta))
                return
            self._close_block(events)
        if self._queued and self._open is None:
            self._queued.append((at, delta))
            self._release_queued(events)
        else:
            self._emit(at, delta, events)

    def _release_queued(self, events: list[Event]) -> None:
        """Emit the queued deltas. Some of them may be queued again."""
        queued, self._queued = self._queued, []
        self._close_block(events)
        first = queued[0][0]
        # Emit the pieces of one call together, so that the next call does not wait for them.
        for at, delta in queued if first is None else sorted(queued, key=lambda one: one[0] != first):
            self._emit_or_queue(at, delta, events)

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

    def _emit(self, at: int | None, delta: Mapping[str, Any], events: list[Event]) -> None:
        if at is not None:
            self._emit_call(at, delta, events)
            return
        content = delta.get("content")
        if len(delta) == 1 and isinstance(content, str):
            self._emit_text(content, events)
            return
        came = _get_native_blocks(delta) if BLOCKS in delta and len(delta) > 1 else []
        if came:  # a complete reply in one chunk: the answer to a repeated request
            self._emit_blocks(came, events)
            content = None
        elif not self._emit_thinking(delta, events):
            self._emit_reasoning(delta, events)
        for text in (content, delta.get("refusal")):
            if isinstance(text, str):
                self._emit_text(text, events)
        if isinstance(content, list):
            self._emit_blocks([part for part in map(_convert_part, content) if part is not None], events)
        if BLOCKS in delta and not came:
            self._emit_finished(_list_native_blocks(delta), events)

    # -- blocks ------------------------------------------------------------------

    def _emit_text(self, text: str, events: list[Event]) -> None:
        if text:
            self._open_block(_TEXT, {"type": "text", "text": ""}, events)
            events.append(self._make_delta({"type": "text_delta", "text": text}))

    def _emit_thinking(self, delta: Mapping[str, Any], events: list[Event]) -> bool:
        """Emit the reasoning blocks of a delta. Return True if there are any."""
        blocks = delta.get("thinking_blocks")
        for block in blocks if isinstance(blocks, list) else ():
            if not isinstance(block, Mapping):
                continue
            if block.get("type") == "redacted_thinking":
                self._emit_block({name: value for name, value in block.items() if name != "index"}, events)
                continue
            self._open_block(("thinking", block.get("index")), _EMPTY_THOUGHT, events)
            if block.get("thinking"):
                events.append(self._make_delta({"type": "thinking_delta", "thinking": block["thinking"]}))
            if block.get("signature"):
                events.append(self._make_delta({"type": "signature_delta", "signature": block["signature"]}))
        return bool(blocks)

    def _emit_reasoning(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        """Emit the unsigned reasoning of a delta, which is plain text."""
        text = next((delta[name] for name in ("reasoning_content", "reasoning") if delta.get(name)), None)
        if isinstance(text, str):
            self._open_block(("thinking", None), _EMPTY_THOUGHT, events)
            events.append(self._make_delta({"type": "thinking_delta", "thinking": text}))

    def _emit_finished(self, blocks: Sequence[Block], events: list[Event]) -> None:
        """Emit the parts of completed blocks that are not emitted yet. Their text and reasoning already are."""
        for block in blocks:
            if block.get("type") in _SERVERS:
                self._emit_block(block, events)
        if blocks and blocks[-1].get("type") == "text" and self._open == _TEXT:
            self._emit_citations(blocks[-1], events)
        self._close_block(events)

    def _emit_call(self, at: int, call: Mapping[str, Any], events: list[Event]) -> None:
        function = call.get("function") or call.get("custom")
        function = function if isinstance(function, Mapping) else {}
        if self._open != ("call", at):
            if at in self._started_calls:
                return  # Its arguments were complete, so its block is closed.
            self._started_calls.add(at)
            name = str(function.get("name") or "")
            self._open_block(
                ("call", at), {**_make_tool_use(call, at), "name": name, "input": {}, **_pick_call_fields(call)}, events
            )
            self._arguments = []
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, str) and arguments:
            self._arguments.append(arguments)
            events.append(self._make_delta({"type": "input_json_delta", "partial_json": arguments}))

    def _emit_blocks(self, blocks: Iterable[Block], events: list[Event]) -> None:
        for block in blocks:
            self._emit_block(block, events)

    def _emit_block(self, block: Block, events: list[Event]) -> None:
        """Emit a complete block. Its text or reasoning is emitted as deltas, because clients assemble blocks from deltas."""
        kind = block.get("type")
        self._close_block(events)
        if kind == "text":
            self._emit_text(str(block.get("text") or ""), events)
            self._emit_citations(block, events)
        elif kind == "thinking":
            self._emit_thinking({"thinking_blocks": [block]}, events)
        else:
            self._open_block(("whole", self._index), block, events)
        self._close_block(events)

    def _emit_citations(self, block: Block, events: list[Event]) -> None:
        """Emit the citations of the open text block."""
        citations = block.get("citations") or ()
        events.extend(self._make_delta({"type": "citations_delta", "citation": citation}) for citation in citations)

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


_EMPTY_THOUGHT: Final = {"type": "thinking", "thinking": "", "signature": ""}

"""A reply as Anthropic's Messages API gives it: a `message` in one piece, or the events of a stream.

Follows the API reference, "Create a Message" and "Streaming Messages". What comes in are Chat Completions, in which a reply of
Anthropic's own model carries what they have no place for as `holdfast.models.anthropic_stream` puts it there: `thinking_blocks`,
`content_blocks`, `native_finish_reason`, its own numbers in `usage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING, Thought, arguments_of, beside
from holdfast.domain.messages import UNSPOKEN_PARTS
from holdfast.numbers import is_whole
from holdfast.wire.anthropic import BLOCKS
from holdfast.wire.openai import call_continued, message_from

Block = dict[str, Any]
Event = dict[str, Any]
REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""`finish_reason` as a `stop_reason`."""
_NATIVE: Final[Mapping[str, frozenset[str]]] = {
    "stop": frozenset({"end_turn", "stop_sequence", "pause_turn"}),
    "length": frozenset({"max_tokens", "model_context_window_exceeded"}),
    "tool_calls": frozenset({"tool_use"}),
    "content_filter": frozenset({"refusal"}),
}
"""What Anthropic may have said where a `finish_reason` stands."""
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


def message_of(completion: Mapping[str, Any]) -> Block:
    """A whole `chat.completion` as a message; of several choices the first."""
    choice: Mapping[str, Any] = next(iter(completion.get("choices") or ()), {})
    content = blocks_of(choice.get("message") or {})
    container = completion.get("container")
    return {
        **_head(completion),
        "content": content,
        **_stop(choice, called=any(block["type"] == "tool_use" for block in content)),
        **({"container": container} if container else {}),
        "usage": usage_of(completion.get("usage")),
    }


def blocks_of(message: Mapping[str, Any]) -> list[Block]:
    """The content of an assistant's message: reasoning, what server tools did, text, and calls, in the order that is known."""
    said = _as_they_came(message)
    if not said:
        said = [*map(_thought, beside(message_from({**message, "role": "assistant"}))), *_said(message)]
    return [*said, *(_call(call, at) for at, call in enumerate(message.get("tool_calls") or ()))]


def _as_they_came(message: Mapping[str, Any]) -> list[Block]:
    """The blocks that Anthropic gave, where they are all that the content says: it may be of several calls of the model."""
    blocks = _blocks(message)
    text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    return blocks if text == (message.get("content") or "") else []


def _said(message: Mapping[str, Any]) -> list[Block]:
    """What stands in a message's content."""
    content, told = message.get("content"), [block for block in _blocks(message) if block["type"] in _SERVERS]
    if isinstance(content, list):
        return [*told, *(part for part in map(_part, content) if part is not None)]
    texts = [text for text in (content, message.get("refusal")) if isinstance(text, str) and text]
    return [*told, *({"type": "text", "text": text} for text in texts)]


def _blocks(message: Mapping[str, Any]) -> list[Block]:
    given = message.get(BLOCKS)
    blocks = [block for block in given if isinstance(block, Mapping)] if isinstance(given, Sequence) else []
    found = [block for block in blocks if isinstance(block.get("type"), str)]
    return [{name: value for name, value in block.items() if name != "index"} for block in found]


_SERVERS: Final = UNSPOKEN_PARTS - THINKING


def _part(part: Any) -> Block | None:
    """A part of a content as a block; None where a reply has no such block."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in UNSPOKEN_PARTS:
        return dict(part)
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    cited = {"citations": part["citations"]} if text and part.get("citations") else {}
    return {"type": "text", "text": text, **cited} if isinstance(text, str) and text else None


def _thought(thought: Thought) -> Block:
    if thought.sealed and thought.signed_by("anthropic"):
        return {"type": "redacted_thinking", "data": thought.sealed}
    signature = thought.signature if thought.signed_by("anthropic") else None
    return {"type": "thinking", "thinking": thought.text, "signature": signature or ""}


def _call(call: Mapping[str, Any], at: int) -> Block:
    function = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments", function.get("input"))
    given = arguments_of(arguments if isinstance(arguments, str) else "")
    return {**_use(call, at), "name": str(function.get("name") or ""), "input": given, **_more(call)}


def _use(call: Mapping[str, Any], at: int) -> Block:
    return {"type": "tool_use", "id": str(call.get("id") or f"call_{at}")}


def _more(call: Mapping[str, Any]) -> Block:
    return {name: call[name] for name in ("caller", "toolset_name") if call.get(name)}


def _head(chunk: Mapping[str, Any]) -> Block:
    given = str(chunk.get("id") or "")
    name = given if given.startswith("msg_") else "msg_" + _ID.sub("_", given.removeprefix("chatcmpl-"))
    return {"id": name, "type": "message", "role": "assistant", "model": str(chunk.get("model") or "")}


def _stop(choice: Mapping[str, Any], *, called: bool) -> Block:
    """Why it ended. Upstreams that call tools and say `stop` are known: a client would not run them."""
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


def usage_of(usage: Any) -> Block:
    """Usage as Anthropic tells it: what was read from a cache, or written to one, is not among the input's tokens."""
    if not isinstance(usage, Mapping):
        return dict(_NO_USAGE)
    if {"input_tokens", "output_tokens"} <= usage.keys():
        return {name: usage[name] for name in _USAGE if name in usage}
    details = usage.get("prompt_tokens_details")
    cached = _number(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    told = {"input_tokens": max(0, _number(usage.get("prompt_tokens")) - cached)}
    told |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
    return {**told, "output_tokens": _number(usage.get("completion_tokens"))}


def _number(value: Any) -> int:
    return value if is_whole(value) else 0


# -- as a stream ---------------------------------------------------------------


class ReplyEvents:
    """A stream of chunks as a stream of Anthropic's events; `end` is called once, behind the last chunk.

    One block is open at a time, as Anthropic has it. Costs what a chunk has.
    """

    def __init__(self) -> None:
        self._begun = False
        self._index = -1
        self._open: tuple[Any, ...] | None = None
        self._calls: list[tuple[Any, Any]] = []
        """Position and id of each call, as they were given."""
        self._arguments: list[str] = []
        """Of the call that is open."""
        self._told_calls: set[int] = set()
        """Those whose block was opened."""
        self._held: list[tuple[int | None, Mapping[str, Any]]] = []
        """Calls, by their place in `_calls`, and other deltas that wait until the arguments of the open one are whole."""
        self._cut = False
        self._choice: Mapping[str, Any] = {}
        self._usage: Any = None
        self._container: Any = None

    def add(self, chunk: Mapping[str, Any]) -> list[Event]:
        """The events that a chunk makes."""
        events: list[Event] = [] if self._begun else [self._start(chunk)]
        if (usage := chunk.get("usage")) is not None:
            self._usage = usage
        self._container = chunk.get("container") or self._container
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, Mapping) or choice.get("index"):
                continue
            delta = choice.get("delta", choice.get("message"))
            if delta and isinstance(delta, Mapping):
                self._add(delta, events)
            if choice.get("finish_reason") is not None:
                self._choice = choice
        return events

    def words(self, chunk: Mapping[str, Any]) -> str | None:
        """What a chunk adds to the text that is open, where it does nothing else; then `add` need not be asked. Nearly all do."""
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
        """Of the block that came last."""
        return self._index

    def end(self, more: Mapping[str, Any] | None = None) -> list[Event]:
        """The last events.

        Args:
            more: further fields of the `message_delta`.
        """
        events = [] if self._begun else [self._start({})]
        while self._held:
            self._released(events)
        self._close(events)
        delta = _stop(self._choice, called=bool(self._calls) and not self._cut)
        if self._container:
            delta["container"] = self._container
        events.append({"type": "message_delta", "delta": delta, "usage": usage_of(self._usage), **(more or {})})
        events.append({"type": "message_stop"})
        return events

    def cut(self) -> None:
        """The reply ended where it is, whatever its model would have said."""
        self._choice, self._cut = {"finish_reason": "stop"}, True

    def _start(self, chunk: Mapping[str, Any]) -> Event:
        self._begun = True
        unknown: Block = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(chunk.get("usage")),
        }
        return {"type": "message_start", "message": {**_head(chunk), **unknown}}

    def _add(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        """A delta, its calls behind the rest of it."""
        calls = delta.get("tool_calls")
        if any(value for name, value in delta.items() if name not in ("tool_calls", "role")):
            self._place(None, delta, events)
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, Mapping):
                continue
            at = call_continued(call, self._calls)
            if at is None:
                at = len(self._calls)
                self._calls.append((call.get("index"), call.get("id")))
            self._place(at, call, events)

    # -- what comes between the pieces of a call ------------------------------------

    def _place(self, at: int | None, delta: Mapping[str, Any], events: list[Event]) -> None:
        """Tell a delta, of the call `at` or of none, or hold it: one block is open at a time, and none is opened again."""
        if self._open is not None and self._open[0] == "call" and self._open != ("call", at):
            if not self._whole_call():
                self._held.append((at, delta))
                return
            self._close(events)
        if self._held and self._open is None:
            self._held.append((at, delta))
            self._released(events)
        else:
            self._now(at, delta, events)

    def _released(self, events: list[Event]) -> None:
        """Tell what was held, as far as it need not wait again."""
        held, self._held = self._held, []
        self._close(events)
        first = held[0][0]
        # A call's pieces together, for the next one not to wait for them.
        for at, delta in held if first is None else sorted(held, key=lambda one: one[0] != first):
            self._place(at, delta, events)

    def _whole_call(self) -> bool:
        """Whether the arguments of the open call are all there."""
        if not self._arguments or not self._arguments[-1].rstrip().endswith("}"):
            return False
        self._arguments = ["".join(self._arguments)]
        try:
            msgspec.json.decode(self._arguments[0])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        return True

    def _now(self, at: int | None, delta: Mapping[str, Any], events: list[Event]) -> None:
        if at is not None:
            self._call(at, delta, events)
            return
        content = delta.get("content")
        if len(delta) == 1 and isinstance(content, str):
            self._text(content, events)
            return
        came = _as_they_came(delta) if BLOCKS in delta and len(delta) > 1 else []
        if came:  # a whole reply in one piece: one that is told again
            self._all(came, events)
            content = None
        elif not self._thinking(delta, events):
            self._reasoning(delta, events)
        for text in (content, delta.get("refusal")):
            if isinstance(text, str):
                self._text(text, events)
        if isinstance(content, list):
            self._all([part for part in map(_part, content) if part is not None], events)
        if BLOCKS in delta and not came:
            self._came(_blocks(delta), events)

    # -- blocks ------------------------------------------------------------------

    def _text(self, text: str, events: list[Event]) -> None:
        if text:
            self._into(_TEXT, {"type": "text", "text": ""}, events)
            events.append(self._delta({"type": "text_delta", "text": text}))

    def _thinking(self, delta: Mapping[str, Any], events: list[Event]) -> bool:
        """Reasoning in blocks; whether there is any."""
        blocks = delta.get("thinking_blocks")
        for block in blocks if isinstance(blocks, list) else ():
            if not isinstance(block, Mapping):
                continue
            if block.get("type") == "redacted_thinking":
                self._whole({name: value for name, value in block.items() if name != "index"}, events)
                continue
            self._into(("thinking", block.get("index")), _EMPTY_THOUGHT, events)
            if block.get("thinking"):
                events.append(self._delta({"type": "thinking_delta", "thinking": block["thinking"]}))
            if block.get("signature"):
                events.append(self._delta({"type": "signature_delta", "signature": block["signature"]}))
        return bool(blocks)

    def _reasoning(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        """Reasoning in words, which nobody signed."""
        text = next((delta[name] for name in ("reasoning_content", "reasoning") if delta.get(name)), None)
        if isinstance(text, str):
            self._into(("thinking", None), _EMPTY_THOUGHT, events)
            events.append(self._delta({"type": "thinking_delta", "thinking": text}))

    def _came(self, blocks: Sequence[Block], events: list[Event]) -> None:
        """Blocks that have ended, of which text and reasoning were told as they came."""
        for block in blocks:
            if block.get("type") in _SERVERS:
                self._whole(block, events)
        if blocks and blocks[-1].get("type") == "text" and self._open == _TEXT:
            self._cited(blocks[-1], events)
        self._close(events)

    def _call(self, at: int, call: Mapping[str, Any], events: list[Event]) -> None:
        function = call.get("function") or call.get("custom")
        function = function if isinstance(function, Mapping) else {}
        if self._open != ("call", at):
            if at in self._told_calls:
                return  # Its arguments were whole, and its block was closed.
            self._told_calls.add(at)
            name = str(function.get("name") or "")
            self._into(("call", at), {**_use(call, at), "name": name, "input": {}, **_more(call)}, events)
            self._arguments = []
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, str) and arguments:
            self._arguments.append(arguments)
            events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))

    def _all(self, blocks: Iterable[Block], events: list[Event]) -> None:
        for block in blocks:
            self._whole(block, events)

    def _whole(self, block: Block, events: list[Event]) -> None:
        """A block in one piece: with its text, or its reasoning, as deltas, because clients build those from them."""
        kind = block.get("type")
        self._close(events)
        if kind == "text":
            self._text(str(block.get("text") or ""), events)
            self._cited(block, events)
        elif kind == "thinking":
            self._thinking({"thinking_blocks": [block]}, events)
        else:
            self._into(("whole", self._index), block, events)
        self._close(events)

    def _cited(self, block: Block, events: list[Event]) -> None:
        """The citations of the text that is open."""
        citations = block.get("citations") or ()
        events.extend(self._delta({"type": "citations_delta", "citation": citation}) for citation in citations)

    # -- one at a time -------------------------------------------------------------

    def _into(self, what: tuple[Any, ...], start: Mapping[str, Any], events: list[Event]) -> None:
        """Have `what` be the open block."""
        if self._open == what:
            return
        self._close(events)
        self._index, self._open = self._index + 1, what
        events.append({"type": "content_block_start", "index": self._index, "content_block": start})

    def _close(self, events: list[Event]) -> None:
        if self._open is not None:
            events.append({"type": "content_block_stop", "index": self._index})
            self._open = None

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


_EMPTY_THOUGHT: Final = {"type": "thinking", "thinking": "", "signature": ""}

"""Events of a stream: those of a whole message, and the message that events describe.

Follows the API reference, "Streaming Messages".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.context.dialects import parse_arguments

Block = dict[str, Any]
Event = dict[str, Any]
_PIECES: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Types of the deltas that are pieces of a text, with the field that has the piece."""
_TOOLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


class OpenBlock:
    """A block of a stream, which grows with each delta.

    Args:
        start: The block as the stream starts it.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.fields = dict(start)
        self.pieces: list[str] = []
        """Pieces of its text, of its reasoning, or of the JSON of its input."""

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta. Deltas of unknown types are left out.

        Raises:
            KeyError, TypeError: The delta does not match the API.
        """
        kind = delta["type"]
        if kind in _PIECES:
            if not isinstance(piece := delta[_PIECES[kind]], str):
                raise TypeError("not a string")
            self.pieces.append(piece)
        elif kind == "signature_delta":
            self.fields["signature"] = str(self.fields.get("signature") or "") + delta["signature"]
        elif kind == "citations_delta":
            if not isinstance(self.fields.get("citations"), list):
                self.fields["citations"] = []
            self.fields["citations"].append(delta["citation"])
        elif kind == "compaction_delta":
            self.fields |= {name: value for name, value in delta.items() if name != "type"}

    def build(self) -> Block:
        """Return the block as far as it has arrived."""
        kind, text = self.fields["type"], "".join(self.pieces)
        if kind in ("text", "thinking"):
            return {**self.fields, kind: str(self.fields.get(kind) or "") + text}
        return {**self.fields, "input": parse_arguments(text)} if text else dict(self.fields)


def fold_events(events: Iterable[Event]) -> dict[str, Any]:
    """Return the message that the events of a whole stream describe."""
    message: dict[str, Any] = {}
    blocks: list[OpenBlock] = []
    for event in events:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks.append(OpenBlock(event["content_block"]))
            case "content_block_delta":
                blocks[-1].add(event["delta"])
            case "message_delta":
                message |= {**event["delta"], **event}
    del message["delta"]
    return {**message, "type": "message", "content": [block.build() for block in blocks]}


def split_message(message: Mapping[str, Any], split: Callable[[str], Sequence[str]] | None = None) -> Iterator[Event]:
    """Yield the events of a stream for a whole message.

    Args:
        message: The message.
        split: Function that divides texts and inputs of tools into pieces. None: each block comes at once.
    """
    usage = message.get("usage")
    begun = {**usage, "output_tokens": 1} if isinstance(usage, Mapping) and "output_tokens" in usage else usage
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": begun}}
    for index, block in enumerate(message["content"]):
        start, deltas = (block, []) if split is None else split_block(block, split)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    last = ("stop_reason", "stop_sequence", "stop_details", "container")
    delta = {name: message[name] for name in last if name in message}
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}


def split_block(
    block: Mapping[str, Any], split: Callable[[str], Sequence[str]] | None = None
) -> tuple[Block, list[Block]]:
    """Return a block as a stream starts it, and the deltas that complete it.

    Args:
        block: The block.
        split: Function that divides texts and inputs of tools into pieces. None: a text is one piece, and a tool starts with its input.
    """
    kind, cut = block.get("type"), split or (lambda text: [text] if text else [])
    if kind == "text":
        start = {"type": "text", "text": "", **_leave_out(block, "text", "citations")}
        texts = [{"type": "text_delta", "text": piece} for piece in cut(str(block.get("text") or ""))]
        cited = [{"type": "citations_delta", "citation": one} for one in block.get("citations") or ()]
        return start, [*texts, *cited]
    if kind == "thinking":
        start = {"type": "thinking", "thinking": "", "signature": "", **_leave_out(block, "thinking", "signature")}
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in cut(str(block.get("thinking") or ""))]
        signature = block.get("signature")
        return start, [*thoughts, *([{"type": "signature_delta", "signature": signature}] if signature else [])]
    if kind in _TOOLS and split is not None:
        written = json.dumps(block["input"]) if block["input"] else ""
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in ("", *cut(written))
        ]
    if kind == "compaction":
        fields = {name: block[name] for name in ("content", "encrypted_content") if name in block}
        return {**block, "content": None}, [{"type": "compaction_delta", **fields}]
    return dict(block), []


def _leave_out(block: Mapping[str, Any], *names: str) -> Block:
    return {name: value for name, value in block.items() if name not in names and name != "type"}

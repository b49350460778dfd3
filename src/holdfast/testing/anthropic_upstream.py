"""A scripted upstream that speaks Anthropic's Messages API, and is as strict as it: a request it would refuse gets a 400.

```
async with AnthropicUpstream(["Hello.", Reply(tool_calls=[("find", {"order": 7})])]) as upstream:
    model = AnthropicModel(upstream.url, "any-key")
    …
    assert upstream.violations == []
```

A `Reply` is that of `holdfast.testing.upstream`. Its `message` may have `content`, a list of blocks that are sent as they are,
in place of text and calls, and `thinking_blocks` before them; `finish_reason` is a `stop_reason` here; `chunks` are events.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from holdfast.models.collect import WORDS
from holdfast.testing.anthropic_rules import request as violations_of
from holdfast.testing.upstream import Received, Reply, ScriptedUpstream
from holdfast.wire.anthropic import parse_messages, parse_system
from holdfast.wire.openai import message_to

Json = dict[str, Any]
LOOK_BACK: Final = 20
"""Blocks that are looked at from a mark backwards, the marked one included: "Prompt caching"."""
_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicUpstream(ScriptedUpstream):
    """Answers `POST /v1/messages`, streamed or not, from a script; see `ScriptedUpstream`.

    Args:
        script: see `ScriptedUpstream`.
        cache: reports what of each prompt it has read from a cache before; see `PromptCache`.
        options: see `ScriptedUpstream`.
    """

    PATH: ClassVar[str] = "/messages"

    def __init__(self, script: Any = (), *, cache: PromptCache | None = None, **options: Any) -> None:
        super().__init__(script, **options)
        self.cache = cache
        self.violations: list[str] = []
        """What Anthropic would have refused requests for."""

    def refusal(self, received: Received) -> Reply | None:
        """See `ScriptedUpstream.refusal`."""
        if not {"x-api-key", "authorization"} & received.headers.keys():
            return Reply(status=401, error="x-api-key header is required")
        if "anthropic-version" not in received.headers:
            return Reply(status=400, error="anthropic-version: header is required")
        found = violations_of(received.body)
        self.violations += found
        return Reply(status=400, error=found[0]) if found else None

    def as_chat(self, body: Json) -> Mapping[str, Any]:
        """See `ScriptedUpstream.as_chat`."""
        messages = [*parse_system(body.get("system")), *parse_messages(body["messages"])]
        return {**body, "messages": [message_to(message) for message in messages]}

    def failure(self, reply: Reply) -> bytes:
        """See `ScriptedUpstream.failure`."""
        if isinstance(reply.error, Mapping) and "type" in reply.error:
            return json.dumps(reply.error).encode()
        kind = _TYPES.get(reply.status, "invalid_request_error" if reply.status < 500 else "api_error")
        given = reply.error.get("error") if isinstance(reply.error, Mapping) else {"message": reply.error or "scripted"}
        error = {"type": "error", "error": {"type": kind, **(given or {})}, "request_id": "req_scripted"}
        return json.dumps(error).encode()

    def whole(self, reply: Reply, body: Json, number: int) -> bytes:
        """See `ScriptedUpstream.whole`."""
        return json.dumps(self._message(reply, body, number)).encode()

    def events(self, reply: Reply, body: Json, number: int) -> list[bytes]:
        """See `ScriptedUpstream.events`."""
        told = _told(self._message(reply, body, number)) if reply.chunks is None else reply.chunks
        pieces = [_event(event) for event in told]
        if reply.error is None:
            return pieces
        return [*pieces[: reply.cut_after], b"event: error\ndata: " + self.failure(reply) + b"\n\n"]

    def _message(self, reply: Reply, body: Json, number: int) -> Json:
        content = _content(reply, number)
        called = any(block["type"] == "tool_use" for block in content)
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "scripted"),
            "content": content,
            "stop_reason": reply.finish_reason or ("tool_use" if called else "end_turn"),
            "stop_sequence": None,
            "usage": self._usage(reply, body),
        }

    def _usage(self, reply: Reply, body: Json) -> Json:
        usage = reply.usage or {}
        written = {"output_tokens": usage.get("completion_tokens", usage.get("output_tokens", 5))}
        if self.cache is not None:
            return {**self.cache.call(body)._asdict(), **written}
        told = {name: value for name, value in usage.items() if not name.endswith(("prompt_tokens", "total_tokens"))}
        told.pop("completion_tokens", None)
        return {"input_tokens": usage.get("prompt_tokens", 10), **told, **written}


def _content(reply: Reply, number: int) -> list[Json]:
    message = reply.message
    thoughts = list(message.get("thinking_blocks") or ())
    if isinstance(message.get("content"), list):
        return [*thoughts, *message["content"]]
    said = message.get("content") if reply.text is None else reply.text
    texts = [{"type": "text", "text": said}] if said else []
    given = [*reply.tool_calls, *(message.get("tool_calls") or ())]
    return [*thoughts, *texts, *(_call(call, f"toolu_{number}_{at}") for at, call in enumerate(given))]


def _call(call: tuple[str, Any] | Json, call_id: str) -> Json:
    """A call as Anthropic has it, of a name and arguments, a block, or one as OpenAI has it."""
    if isinstance(call, dict):
        if "function" not in call:
            return call
        call_id, call = call.get("id") or call_id, (call["function"]["name"], call["function"]["arguments"])
    name, arguments = call
    given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


# -- the stream ------------------------------------------------------------------------


def _event(event: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event, ensure_ascii=False).encode())


def _told(message: Json) -> Iterator[Json]:
    """A message as the events of a stream, as "Streaming messages" has them: words for text, pieces of JSON for calls."""
    last = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        start, deltas = _grown(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    usage = {"output_tokens": message["usage"]["output_tokens"]}
    yield {"type": "message_delta", "delta": last, "usage": usage}
    yield {"type": "message_stop"}


def _grown(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and what it grows by."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": word} for word in WORDS.findall(block["text"])]
            cited = [{"type": "citations_delta", "citation": one} for one in block.get("citations") or ()]
            return {"type": "text", "text": ""}, [*deltas, *cited]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": word} for word in WORDS.findall(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            written = json.dumps(block["input"]) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *WORDS.findall(written))]
            return {**block, "input": {}}, deltas
    return block, []


# -- the cache ---------------------------------------------------------------------------


class CacheUse(NamedTuple):
    """The tokens of one prompt, as `usage` tells them."""

    input_tokens: int
    """Neither read nor written."""
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class PromptCache:
    """The prompt cache as "Prompt caching" documents it, without a least length and for ever.

    A prefix is written at each mark and nowhere else. It is read by a later prompt that begins with the same blocks and has a
    mark on its last block or less than 20 blocks behind it. A block has a token for each four characters of its JSON.
    """

    def __init__(self) -> None:
        self._written: set[bytes] = set()

    def call(self, body: Mapping[str, Any]) -> CacheUse:
        """Take a prompt in: what it reads, what it writes."""
        blocks = _blocks(body)
        prefixes, sizes = _prefixes([block for block, _ in blocks])
        marks = [at for at, (_, marked) in enumerate(blocks) if marked]
        near = {at for mark in marks for at in range(mark, max(-1, mark - LOOK_BACK), -1)}
        read = max((sizes[at] for at in near if prefixes[at] in self._written), default=0)
        written = max([sizes[at] for at in marks], default=0)
        self._written.update(prefixes[at] for at in marks)
        until = max(read, written)
        return CacheUse((sizes[-1] if sizes else 0) - until, read, until - read)


def _blocks(body: Mapping[str, Any]) -> list[tuple[bytes, bool]]:
    """Tools, system prompt and messages as blocks without their marks, and whether they have one."""
    system = body.get("system") or []
    found: list[tuple[str, Mapping[str, Any]]] = [("tools", tool) for tool in body.get("tools") or ()]
    found += [
        ("system", block) for block in ([{"type": "text", "text": system}] if isinstance(system, str) else system)
    ]
    for message in body["messages"]:
        content = message["content"]
        found += [(message["role"], block) for block in ([{"text": content}] if isinstance(content, str) else content)]
    return [(json.dumps([place, _bare(block)]).encode(), "cache_control" in block) for place, block in found]


def _bare(block: Mapping[str, Any]) -> Json:
    content = block.get("content")
    inner = {"content": [_bare(one) for one in content]} if isinstance(content, list) else {}
    return {name: value for name, value in {**block, **inner}.items() if name != "cache_control"}


def _prefixes(blocks: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """For each block the hash of the prompt up to it, and its size in tokens."""
    hashed, size = hashlib.blake2b(digest_size=16), 0
    prefixes, sizes = [], []
    for block in blocks:
        hashed.update(len(block).to_bytes(8, "big") + block)
        size += max(1, len(block) // 4)
        prefixes.append(hashed.digest())
        sizes.append(size)
    return prefixes, sizes

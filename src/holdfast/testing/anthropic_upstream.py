"""Run a scripted server with Anthropic's Messages API.

    async with AnthropicUpstream(["Hello.", Reply(tool_calls=[("find", {"order": 7})])]) as upstream:
        model = AnthropicModel(upstream.url, "any-key")
        …

The replies are those of `holdfast.testing.upstream`, with these differences:

- `message` may have `content`, a list of blocks that is sent unchanged in place of text and tool calls. It may also have `thinking_blocks`,
  which are sent before the content.
- `finish_reason` is a `stop_reason` of Anthropic.
- `chunks` are events of Anthropic's streams.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from holdfast.models.codecs.messages.blocks import decode_messages, decode_system
from holdfast.models.codecs.messages.errors import make_error
from holdfast.models.codecs.messages.events import split_message
from holdfast.models.codecs.messages.reply_encoder import encode_events
from holdfast.models.collect import WORDS
from holdfast.testing.upstream import Received, Reply, ScriptedUpstream
from holdfast.wire.openai import to_chat_message

Json = dict[str, Any]
MAX_LOOK_BACK: Final = 20
"""Number of blocks, from a block with a cache mark backwards, at which a cached prefix may end. Source: Anthropic's page "Prompt caching"."""


class AnthropicUpstream(ScriptedUpstream):
    """A server that answers `POST /v1/messages` from a script, as a stream or as one message.

    It works like `ScriptedUpstream`, and `script` and `options` are the arguments of that class. A request without a key or a version of the
    API gets an error.

    Args:
        script: the replies.
        cache: simulation of the prompt cache, whose use the answers report. None: there is no cache.
        options: other arguments of `ScriptedUpstream`.
    """

    PATH: ClassVar[str] = "/messages"

    def __init__(self, script: Any = (), *, cache: PromptCache | None = None, **options: Any) -> None:
        super().__init__(script, **options)
        self.cache = cache

    def find_refusal(self, received: Received) -> Reply | None:
        if not {"x-api-key", "authorization"} & received.headers.keys():
            return Reply(status=401, error="x-api-key header is required")
        if "anthropic-version" not in received.headers:
            return Reply(status=400, error="anthropic-version: header is required")
        return None

    def to_chat(self, body: Json) -> Mapping[str, Any]:
        groups = [decode_system(body.get("system")), *decode_messages(body["messages"])]
        return {**body, "messages": [to_chat_message(message) for group in groups for message in group]}

    def format_failure(self, reply: Reply) -> bytes:
        if isinstance(reply.error, Mapping) and "type" in reply.error:
            return json.dumps(reply.error).encode()
        given = reply.error.get("error") if isinstance(reply.error, Mapping) else {"message": reply.error or "scripted"}
        return json.dumps(make_error(reply.status, given or {}, "req_scripted")).encode()

    def format_reply(self, reply: Reply, body: Json, number: int) -> bytes:
        return json.dumps(self._make_message(reply, body, number)).encode()

    def format_events(self, reply: Reply, body: Json, number: int) -> list[bytes]:
        events = reply.chunks
        if events is None:
            start, *rest = split_message(self._make_message(reply, body, number), WORDS.findall)
            events = [start, {"type": "ping"}, *rest]
        pieces = [encode_events([event]) for event in events]
        if reply.error is None:
            return pieces
        return [*pieces[: reply.cut_after], b"event: error\ndata: " + self.format_failure(reply) + b"\n\n"]

    def _make_message(self, reply: Reply, body: Json, number: int) -> Json:
        content = _make_content(reply, number)
        called = any(block["type"] == "tool_use" for block in content)
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "scripted"),
            "content": content,
            "stop_reason": reply.finish_reason or ("tool_use" if called else "end_turn"),
            "stop_sequence": None,
            "usage": self._make_usage(reply, body),
        }

    def _make_usage(self, reply: Reply, body: Json) -> Json:
        usage = reply.usage or {}
        written = {"output_tokens": usage.get("completion_tokens", usage.get("output_tokens", 5))}
        if self.cache is not None:
            return {**self.cache.process(body)._asdict(), **written}
        reported = {
            name: value for name, value in usage.items() if not name.endswith(("prompt_tokens", "total_tokens"))
        }
        reported.pop("completion_tokens", None)
        return {"input_tokens": usage.get("prompt_tokens", 10), **reported, **written}


def _make_content(reply: Reply, number: int) -> list[Json]:
    message = reply.message
    thoughts = list(message.get("thinking_blocks") or ())
    if isinstance(message.get("content"), list):
        return [*thoughts, *message["content"]]
    text = message.get("content") if reply.text is None else reply.text
    texts = [{"type": "text", "text": text}] if text else []
    given = [*reply.tool_calls, *(message.get("tool_calls") or ())]
    return [*thoughts, *texts, *(_make_call(call, f"toolu_{number}_{at}") for at, call in enumerate(given))]


def _make_call(call: tuple[str, Any] | Json, call_id: str) -> Json:
    """Return a tool call as a block of Anthropic's API.

    Args:
        call: name and arguments, a block, or a tool call in OpenAI's format.
        call_id: id for a call without one.
    """
    if isinstance(call, dict):
        if "function" not in call:
            return call
        call_id, call = call.get("id") or call_id, (call["function"]["name"], call["function"]["arguments"])
    name, arguments = call
    given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


# -- the cache ---------------------------------------------------------------------------


class CacheUse(NamedTuple):
    """Token counts of one prompt, as in Anthropic's `usage`."""

    input_tokens: int
    """Tokens that were neither read from the cache nor written to it."""
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class PromptCache:
    """A simulation of Anthropic's prompt cache, without minimum length and expiry. Source: Anthropic's page "Prompt caching".

    For each block with a cache mark (`cache_control`), the prompt up to this block is written to the cache. A later prompt reads such a prefix if
    it begins with the same blocks, and has a mark on the last block of the prefix or less than 20 blocks after it. Four characters of the
    JSON of a block are counted as one token.
    """

    def __init__(self) -> None:
        self._written: set[bytes] = set()

    def process(self, body: Mapping[str, Any]) -> CacheUse:
        """Apply the cache to the prompt of a request, and return the tokens that were read and written."""
        hashed, size, read, written = hashlib.blake2b(digest_size=16), 0, 0, 0
        prefixes: list[tuple[bytes, int]] = []
        marked: list[bytes] = []
        for block, is_marked in _list_blocks(body):
            hashed.update(len(block).to_bytes(8, "big") + block)
            size += max(1, len(block) // 4)
            prefixes.append((hashed.digest(), size))
            if is_marked:
                known = [tokens for prefix, tokens in prefixes[-MAX_LOOK_BACK:] if prefix in self._written]
                read, written = max([read, *known]), size
                marked.append(hashed.digest())
        self._written.update(marked)
        until = max(read, written)
        return CacheUse(size - until, read, until - read)


def _list_blocks(body: Mapping[str, Any]) -> Iterator[tuple[bytes, bool]]:
    """Yield tools, system prompt and messages of a request as blocks without cache marks. True means that the block had a mark."""
    system = {"role": "system", "content": body.get("system") or []}
    for message in ({"role": "tools", "content": body.get("tools") or ()}, system, *body["messages"]):
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield json.dumps([message["role"], _remove_marks(block)]).encode(), "cache_control" in block


def _remove_marks(block: Mapping[str, Any]) -> Json:
    content = block.get("content")
    inner = {"content": [_remove_marks(one) for one in content]} if isinstance(content, list) else {}
    return {name: value for name, value in {**block, **inner}.items() if name != "cache_control"}

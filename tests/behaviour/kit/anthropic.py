"""Check requests against the rules of Anthropic's Messages API, and run a scripted upstream that rejects the same requests.

This module is independent of the code that builds requests. Each rule cites its source, which is the title of a page of Anthropic's
documentation, or the text of the error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast import testing

Json = Mapping[str, Any]


class AnthropicUpstream(testing.AnthropicUpstream):
    """A scripted upstream as strict as Anthropic's API: a request that the API would reject gets the status 400."""

    def __init__(self, script: Any = (), **options: Any) -> None:
        super().__init__(script, **options)
        self.violations: list[str] = []
        """Reasons why Anthropic would have rejected requests that this server received."""

    def find_refusal(self, received: testing.Received) -> testing.Reply | None:
        if refusal := super().find_refusal(received):
            return refusal
        found = check_request(received.body)
        self.violations += found
        return testing.Reply(status=400, error=found[0]) if found else None


_TOOL_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
_TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
# API reference, "Create a Message": the blocks and their fields; others are "Extra inputs are not permitted".
_BLOCKS: dict[str, set[str]] = {
    "text": {"text", "cache_control", "citations"},
    "image": {"source", "cache_control", "transformations"},
    "document": {"source", "title", "context", "citations", "cache_control"},
    "search_result": {"source", "title", "content", "citations", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "cache_control", "caller", "toolset_name"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control", "toolset_name"},
    "tool_reference": {"tool_name", "cache_control"},
    "browser_state": {"tabs", "state_changes", "cache_control"},
    "server_tool_use": {"id", "name", "input", "cache_control", "caller"},
    "compaction": {"content", "encrypted_content", "signature", "tool_changes", "cache_control"},
    "web_search_tool_result": {"tool_use_id", "content", "cache_control", "caller"},
}
_ASSISTANT_ONLY = {
    "thinking",
    "redacted_thinking",
    "tool_use",
    "server_tool_use",
    "web_search_tool_result",
    "compaction",
}
_USER_ONLY = {"tool_result", "image", "document", "search_result"}
_PLAIN = {"text", "thinking", "redacted_thinking", "tool_use"}
_ONLY_IN_RESULTS = {"tool_reference", "browser_state"}
_IN_RESULTS = {"text", "image", "document", "search_result"} | _ONLY_IN_RESULTS


def check_prompt(request: Json) -> list[str]:
    """Return the reasons why the API would reject `system` and `messages` of a request. All contents must be lists of blocks."""
    return list(_check_prompt(request))


def _check_prompt(request: Json) -> Iterator[str]:
    messages = request["messages"]
    yield from _check_roles(messages)
    for at, message in enumerate(messages):
        content = message["content"]
        if set(message) != {"role", "content"}:
            yield f"{at}: fields {sorted(message)}"  # "Extra inputs are not permitted"
        if not content:
            # "all messages must have non-empty content except for the optional final assistant message"
            yield f"{at}: empty content"
        for block in content:
            yield from (f"{at}: {problem}" for problem in _check_block(block, message["role"]))
            if block.get("type") in _ONLY_IN_RESULTS:
                yield f"{at}: {block['type']} outside of a result"  # API reference: of the content of `tool_result` alone
        yield from _check_thinking_order(at, content)
    yield from _check_rounds(messages)
    yield from _check_server_tools(messages)
    for block in request.get("system", [{"type": "text", "text": "x"}]):
        if block["type"] != "text":
            yield "system: only text blocks"  # API reference, "system": string or array of text blocks
        yield from (f"system: {problem}" for problem in _check_block(block, "system"))
    everything = [
        *request.get("tools", ()),
        *request.get("system", ()),
        *(block for message in messages for block in message["content"]),
    ]
    yield from _check_cache_marks(everything)


def _check_roles(messages: Sequence[Json]) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if not roles:
        yield "no messages"  # "messages: at least one message is required"
        return
    # "Unexpected role "system". The Messages API accepts a top-level `system` parameter" (before Opus 4.8)
    if set(roles) - {"user", "assistant"}:
        yield f"roles {sorted(set(roles))}"
    if roles[0] != "user":
        yield "the first role is not user"  # "first message must use the "user" role"
    if any(a == b for a, b in pairwise(roles)):
        # "roles must alternate between "user" and "assistant", but found multiple "user" roles in a row"
        yield "two messages of one role in a row"
    # A reply that paused for server tools is sent back, so that its model continues.
    if roles[-1] != "user" and all(block.get("type") in _PLAIN for block in messages[-1]["content"]):
        # "This model does not support assistant message prefill. The conversation must end with a user message."
        yield "the last role is not user"


def _check_block(block: Json, role: str) -> Iterator[str]:
    kind = block.get("type")
    if kind not in _BLOCKS:
        yield f"block {kind!r}"  # "Input tag '…' found using 'type' does not match any of the expected tags"
        return
    if extra := set(block) - _BLOCKS[kind] - {"type"}:
        yield f"{kind}: extra {sorted(extra)}"  # "Extra inputs are not permitted"
    if (role == "user" and kind in _ASSISTANT_ONLY) or (role == "assistant" and kind in _USER_ONLY):
        # "`tool_use` blocks can only be in `assistant` messages", "`tool_result` blocks can only be in `user` messages"
        yield f"{kind} in a message of {role}"
    yield from _CHECKS.get(kind, _accept)(block)


def _accept(block: Json) -> Iterator[str]:
    del block
    yield from ()


def _check_text(block: Json) -> Iterator[str]:
    if not (isinstance(block.get("text"), str) and block["text"].strip()):
        # "text content blocks must be non-empty", "text content blocks must contain non-whitespace text"
        yield "text without a word"


def _check_reasoning(block: Json) -> Iterator[str]:
    if block["type"] == "thinking" and not (isinstance(block.get("thinking"), str) and block.get("signature")):
        yield "thinking without signature"  # "thinking.signature: Field required"
    if block["type"] == "redacted_thinking" and not block.get("data"):
        yield "redacted_thinking without data"


def _check_result(block: Json) -> Iterator[str]:
    for inner in block.get("content", ()):
        if inner.get("type") not in _IN_RESULTS:
            yield f"{inner.get('type')} in a result"  # "Handle tool calls": text, image, document, search_result
        yield from _check_block(inner, "user")


def _check_call(block: Json) -> Iterator[str]:
    if not _TOOL_ID.match(block.get("id", "")) or len(block["id"]) > 64:
        yield f"tool_use id {block.get('id')!r}"  # "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"; Bedrock: 64
    if not _TOOL_NAME.match(block.get("name", "")):
        yield f"tool_use name {block.get('name')!r}"  # "name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
    if not isinstance(block.get("input"), dict):
        yield "tool_use input is not an object"  # "tool_use.input: Input should be a valid dictionary"


def _check_source(block: Json) -> Iterator[str]:
    kind, source = block["type"], block.get("source") or {}
    # "Vision": jpeg, png, gif, webp, as base64 or URL; "PDF support": application/pdf; plain text documents
    types = {"image": {"image/jpeg", "image/png", "image/gif", "image/webp"}, "document": {"application/pdf"}}[kind]
    match source.get("type"):
        case "base64":
            legal = source.get("media_type") in types and bool(source.get("data"))
        case "url":
            legal = str(source.get("url")).startswith(("https://", "http://"))
        case "text":
            legal = kind == "document" and source.get("media_type") == "text/plain" and bool(source.get("data"))
        case "content":
            # "Citations", custom content documents: text, or blocks
            legal = kind == "document" and bool(source.get("content"))
        case "file":
            # "Files API": a file that was uploaded before
            legal = bool(source.get("file_id"))
        case _:
            legal = False
    if not legal:
        yield f"{kind} source {dict(source)}"


_CHECKS: Mapping[str, Callable[[Json], Iterator[str]]] = {
    "document": _check_source,
    "image": _check_source,
    "redacted_thinking": _check_reasoning,
    "text": _check_text,
    "thinking": _check_reasoning,
    "tool_result": _check_result,
    "tool_use": _check_call,
}


def _check_thinking_order(at: int, content: Sequence[Json]) -> Iterator[str]:
    kinds = [block["type"] for block in content]
    thinking = {"thinking", "redacted_thinking"}
    # "If an assistant message contains any thinking blocks, the first block must be `thinking` or `redacted_thinking`"
    if thinking & set(kinds) and kinds[0] not in thinking:
        yield f"{at}: thinking is not first"


def _check_rounds(messages: Sequence[Json]) -> Iterator[str]:
    called: list[str] = []
    for at, message in enumerate(messages):
        uses = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        kinds = [block["type"] == "tool_result" for block in message["content"]]
        answers = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        # "Handle tool calls": in the user message with results "the tool_result blocks must come first in the content array"
        if kinds != sorted(kinds, reverse=True):
            yield f"{at}: results are not first"
        before = messages[at - 1]["content"] if at else []
        asked = [block["id"] for block in before if block["type"] == "tool_use"]
        # "`tool_use` ids were found without `tool_result` blocks immediately after"
        if missing := set(asked) - set(answers):
            yield f"{at}: no results for {sorted(missing)}"
        # "unexpected `tool_use_id` found in `tool_result` blocks": each must have its tool_use in the previous message
        if unexpected := set(answers) - set(asked):
            yield f"{at}: results for {sorted(unexpected)}, which were not asked for"
        # "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
        if any(count > 1 for count in Counter(answers).values()):
            yield f"{at}: several results of one call"
        called += uses
    if messages and any(block["type"] == "tool_use" for block in messages[-1]["content"]):
        yield "the last calls have no results"
    if len(set(called)) < len(called):
        yield "tool_use ids must be unique"  # "`tool_use` ids must be unique"


def _check_server_tools(messages: Sequence[Json]) -> Iterator[str]:
    for at, message in enumerate(messages):
        blocks = [block for block in message["content"] if block["type"] not in ("tool_use", "tool_result")]
        asked = [block["id"] for block in blocks if block["type"].endswith("tool_use")]
        answered = [block["tool_use_id"] for block in blocks if "tool_use_id" in block]
        # "`web_search` tool use with id `…` was found without a corresponding `web_search_tool_result` block"; a reply that
        # paused may end with one
        if set(asked) - set(answered) and at < len(messages) - 1:
            yield f"{at}: a call of a server tool without its result"
        # "unexpected `tool_use_id` found in … blocks. Each … block must have a corresponding `server_tool_use` block before it."
        if set(answered) - set(asked):
            yield f"{at}: a result of a server tool without its call"


def _check_cache_marks(blocks: Sequence[Json]) -> Iterator[str]:
    inner = [deep for block in blocks if block.get("type") == "tool_result" for deep in block.get("content", ())]
    if sum("cache_control" in block for block in (*blocks, *inner)) > 4:
        yield "more than 4 cache marks"  # "A maximum of 4 blocks with cache_control may be provided. Found 5."
    marks = [block["cache_control"] for block in blocks if block.get("cache_control")]
    if any(mark.get("type") != "ephemeral" or mark.get("ttl", "5m") not in ("5m", "1h") for mark in marks):
        yield f"cache marks {marks}"
    lasting = [mark.get("ttl") == "1h" for mark in marks]
    if lasting != sorted(lasting, reverse=True):
        # "a ttl='1h' cache_control block must not come after one of ttl='5m'", in its words
        yield "cache marks for an hour after those for five minutes"
    if any("cache_control" in block for block in blocks if block.get("type") in ("thinking", "redacted_thinking")):
        yield "a cache mark on reasoning"  # "Prompt caching": thinking blocks cannot be marked
    if any("cache_control" in block for block in blocks if block.get("defer_loading")):
        yield "a cache mark on a tool that is loaded later"  # "Tools with defer_loading cannot use prompt caching"


# -- the rest of the request --------------------------------------------------------

# API reference, "Create a Message", and its beta: other fields are "Extra inputs are not permitted".
_FIELDS = {
    *("cache_control", "container", "context_management", "diagnostics", "inference_geo", "max_tokens"),
    *("mcp_servers", "messages", "metadata", "model", "output_config", "service_tier"),
    *("speed", "stop_sequences", "stream", "system", "temperature", "thinking"),
    *("tool_choice", "tools", "top_k", "top_p"),
}


def check_request(body: Json) -> list[str]:
    """Return the reasons why the API would reject a request. Contents may be texts or lists of blocks."""
    messages = [{**message, "content": _to_blocks(message.get("content"))} for message in body.get("messages") or ()]
    front = {"system": _to_blocks(body["system"])} if body.get("system") else {}
    normalized = {**{name: value for name, value in body.items() if name != "system"}, "messages": messages, **front}
    return [*_check_fields(normalized), *_check_prompt(normalized)]


def _to_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _check_fields(body: Json) -> Iterator[str]:
    if extra := set(body) - _FIELDS:
        yield f"extra {sorted(extra)}"  # "temperature2: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: field required"
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 1:
        yield "max_tokens: field required"
    for name in ("temperature", "top_p"):
        if name in body and not 0 <= body[name] <= 1:
            yield f"{name}: range: 0..1"
    if any(not text.strip() for text in body.get("stop_sequences", ())):
        yield "stop_sequences: each stop sequence must contain non-whitespace"
    if set(body.get("metadata", ())) - {"user_id"}:
        yield "metadata: Extra inputs are not permitted"
    if body.get("service_tier", "auto") not in ("auto", "standard_only"):
        yield "service_tier"
    yield from _check_tools(body)
    yield from _check_thinking(body)


def _check_tools(body: Json) -> Iterator[str]:
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    names = [tool.get("name") for tool in tools]
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."
    for tool in tools:
        if "input_schema" in tool and tool["input_schema"].get("type") != "object":
            yield "tools: input_schema.type: Field required"
        if "input_schema" not in tool and "type" not in tool:
            yield "tools: input_schema: Field required"
    used = any(block["type"] == "tool_use" for message in body["messages"] for block in message["content"])
    if used and not tools:
        # "Requests which have `tool_use` or `tool_result` blocks in `messages` must define tools."
        yield "tool blocks without tools"
    if choice is not None and not tools:
        yield "tool_choice may only be specified while providing tools"
    if choice is not None and choice.get("type") not in ("auto", "any", "none", "tool"):
        yield f"tool_choice {choice}"
    if choice is not None and choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"tool_choice: no tool {choice.get('name')!r}"


def _check_thinking(body: Json) -> Iterator[str]:
    thinking = body.get("thinking") or {"type": "disabled"}
    if thinking["type"] not in ("enabled", "disabled", "adaptive", "between_tools"):
        yield f"thinking {thinking}"
    if thinking["type"] != "enabled":
        return
    if not 1024 <= thinking.get("budget_tokens", 0) < body.get("max_tokens", 0):
        yield "thinking: `max_tokens` must be greater than `thinking.budget_tokens`, at least 1024"
    if body.get("temperature", 1) != 1 or "top_k" in body:
        yield "thinking: `temperature` may only be set to 1 when thinking is enabled"
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    messages = body["messages"]
    begun = len(messages) > 1 and messages[-1]["content"][0]["type"] == "tool_result"
    if begun and messages[-2]["content"][0]["type"] not in ("thinking", "redacted_thinking"):
        # "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final `assistant`
        # message must start with a thinking block"
        yield "a tool round without reasoning while thinking is enabled"

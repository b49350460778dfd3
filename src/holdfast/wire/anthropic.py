"""Anthropic's Messages API: conversion of messages and tools in both directions, and marks for the prompt cache.

Follows the API reference, "Create a Message", and the guides "Handle tool calls", "Extended thinking", "Prompt
caching", "Vision" and "PDF support". `holdfast.context.dialects.adapt_messages` decides the order of messages and adds
all necessary text; this module only converts the format of messages. Unknown fields are left out, because the API
rejects them.

A block with `cache_control` is called a mark here. According to the guide "Prompt caching", the provider caches the
prompt up to each mark, in the order tools, system, messages. There may be at most four marks. A later request reads the
longest cached prefix that it begins with, looking back from each of its own marks over at most 20 blocks. Marks are not
part of the cached content, so they may be placed differently in each request.

Two marks let every call read everything that the previous call cached, however many blocks were added. One is at the
end of the part of this prompt that the next prompt will begin with, the other is at the end of the previous prompt. Two
more marks stay valid when older messages leave the prompt. One is after system prompt and tools, the other is after the
first message, which is the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from holdfast.context.dialects import (
    CLOSING,
    NATIVE_PARTS,
    THINKING,
    Thought,
    parse_arguments,
    parse_field_thoughts,
    parse_thought,
)
from holdfast.context.recalled import is_recalled
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.openai import Media, describe_left_out, dump_model, parse_message, read_medium, split_system

Block = dict[str, Any]
T = TypeVar("T")
CACHE_MARKS: Final = 4
"""Maximum number of blocks with `cache_control` in a request."""
MARK: Final[Mapping[str, Any]] = {"type": "ephemeral"}
"""Value of `cache_control` that keeps the cached prefix for five minutes after it was last read."""
_LONG: Final = "1h"


def add_cache_marks(
    front: Sequence[Block],
    conversation: Sequence[Message],
    written: Sequence[list[Block]],
    cache: Mapping[str, Any] | None = MARK,
) -> None:
    """Put `cache_control` on the blocks of a request, in place.

    The API allows four marks. They are chosen in this order:

    1. the client's own marks in tools, system prompt and new messages;
    2. the two most important marks of Holdfast;
    3. the client's marks in earlier messages, which the log keeps from older requests;
    4. the other marks of Holdfast.

    Args:
        front: Tools, then the blocks of the system prompt.
        conversation: The messages.
        written: The blocks of each message.
        cache: Value of the marks. None: Holdfast adds no marks, and only the client's last four are kept.
    """
    newest = _find_end_of_reply(conversation)
    blocks = [[inner for block in group for inner in (*_list_nested(block), block)] for group in written]
    current = _list_marked([*front, *(block for group in blocks[newest:] for block in group)])
    older = _list_marked([block for group in blocks[:newest] for block in group])
    chosen = current[-CACHE_MARKS:]
    ours = [] if cache is None else list(_list_best_blocks(front, conversation, written, newest))
    for block in [*ours[:2], *reversed(older), *ours[2:]]:
        if len(chosen) < CACHE_MARKS and not any(block is other for other in chosen):
            chosen.append(block)
    kept = {id(block) for block in chosen}
    everything = [*front, *(block for group in blocks for block in group)]
    for block in everything:
        if id(block) not in kept:
            block.pop("cache_control", None)
        elif not block.get("cache_control"):
            block["cache_control"] = dict(cache or MARK)
    _extend_marks(everything)


def count_stable(conversation: Sequence[Message]) -> int:
    """Return the number of messages with which the next prompt will begin too, as long as no older messages leave the prompt.

    If the assistant spoke last, a dialect adds a user text at the end. This text is not counted, because the next
    prompt has the user's message instead. All other messages are counted.

    Recalled memories, which belong to one turn, are counted too. A call after a round of tools has them in the same place, but the next
    turn does not. So `_list_best_blocks` gives the message before them a mark of its own.
    """
    closed = bool(conversation) and conversation[-1].role == "user" and conversation[-1].content == CLOSING
    return len(conversation) - closed


def _list_best_blocks(
    front: Sequence[Block], conversation: Sequence[Message], written: Sequence[list[Block]], newest: int
) -> Iterator[Block]:
    """Yield the blocks on which a mark is useful, the most useful ones first."""
    yield from _find_last(block for group in written[: count_stable(conversation)] for block in group)
    yield from _find_last(block for group in written[: _find_recalled(conversation)] for block in group)
    yield from _find_last(block for group in written[: max(0, newest - 1)] for block in group)
    yield from _find_last(front)
    yield from _find_last(written[0] if written else ())


def _find_recalled(conversation: Sequence[Message]) -> int:
    """Return the index of the message with the memories recalled for this turn; 0 if there is no such message."""
    return next((at for at in range(len(conversation) - 1, -1, -1) if is_recalled(conversation[at])), 0)


def _find_end_of_reply(conversation: Sequence[Message]) -> int:
    """Return the index of the message after the last reply; 0 if there is no reply."""
    until = count_stable(conversation)
    return next((at + 1 for at in range(until - 1, -1, -1) if conversation[at].role == "assistant"), 0)


def _find_last(blocks: Iterator[Block] | Sequence[Block]) -> list[Block]:
    """Return a list with only the last block that may have a mark, or an empty list if no block may have a mark."""
    return [block for block in blocks if block.get("type") not in THINKING and not block.get("defer_loading")][-1:]


def _list_marked(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("cache_control")]


def _list_nested(block: Block) -> list[Block]:
    return block.get("content") or [] if block.get("type") == "tool_result" else []


def _extend_marks(blocks: Sequence[Block]) -> None:
    """Change marks of five minutes to one hour if a later mark has one hour, because the API requires the longer marks to be first."""
    long = False
    for block in reversed(_list_marked(blocks)):
        long = long or block["cache_control"].get("ttl") == _LONG
        if long:
            block["cache_control"] = {**block["cache_control"], "ttl": _LONG}


REASONING = "[reasoning] "
"""Prefix for reasoning that Anthropic did not sign. It is sent as text, because Anthropic accepts only its own
reasoning."""
BLOCKS = "content_blocks"
"""Name of a field of a reply: its blocks, unchanged and in order, except for tool calls. Each block has its `index`.

The field is present only if the reply has more than text preceded by reasoning: server tools and their results,
citations, or reasoning between texts.
"""
TOOL_FIELDS = ("cache_control", "strict", "defer_loading", "allowed_callers", "input_examples", "eager_input_streaming")
"""Fields of a tool that only Anthropic knows. They are next to `function`."""
_MEDIA_FIELDS = {"image": ("transformations",), "document": ("title", "context", "citations")}
"""Fields of an image or a document that are next to its `source`."""
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NAME_LENGTH = 128
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NO_SCHEMA = {"type": "object", "properties": {}}


# -- out ---------------------------------------------------------------------


def build_request(
    messages: Sequence[Message], *, tools: list[Block] | None = None, cache: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields `system` (if there is a system prompt), `messages` and `tools` (if given) of a request.

    Args:
        messages: System prompt first, then a conversation adapted to Anthropic's dialect.
        tools: Tools in Anthropic's format. They get cache marks like the messages.
        cache: Value of the cache marks. None: only the marks that the messages already have are sent.
    """
    front, conversation = split_system(messages)
    system = [block for message in front for block in _convert_system(message)]
    written = [_convert_message(message) for message in conversation]
    add_cache_marks([*(tools or ()), *system], conversation, written, cache)
    turns = [
        {"role": role, "content": [block for blocks in run for block in blocks]}
        for role, run in _group_turns(conversation, written)
    ]
    request: dict[str, Any] = {"tools": tools} if tools else {}
    return {**request, **({"system": system} if system else {}), "messages": turns}


def map_blocks(messages: Sequence[Message]) -> list[list[int]]:
    """Return the message from which each block of a request comes.

    Returns:
        For each message of the request, a list with one number per block: the index in `messages` of its source.
    """
    front, conversation = split_system(messages)
    sources = [[at] * len(_convert_message(message)) for at, message in enumerate(conversation, start=len(front))]
    return [[at for own in run for at in own] for _, run in _group_turns(conversation, sources)]


def _group_turns(conversation: Sequence[Message], contents: Sequence[list[T]]) -> Iterator[tuple[str, list[list[T]]]]:
    """Yield the role of each turn, and the contents of its messages. A message without content is in no turn."""
    roles = ["assistant" if message.role == "assistant" else "user" for message in conversation]
    spoken = [pair for pair in zip(roles, contents, strict=True) if pair[1]]
    for role, run in groupby(spoken, key=itemgetter(0)):
        yield role, [made for _, made in run]


def find_part(message: Message, block: int, inner: int | None = None) -> int | None:
    """Return the index of the part of a message's content from which one of its blocks comes; None if it comes from no single part.

    Args:
        message: The message.
        block: Number of the block among those of the message.
        inner: Number of the block in a tool result.
    """
    if message.role == "assistant" or not isinstance(message.content, tuple):
        return None
    named = len(_convert_message(message)) - len(_convert_content(message.content, user=True))
    number = inner if message.role == "tool" else block - named
    sources = [at for at, part in enumerate(message.content) for _ in _convert_part(part, user=True)]
    return sources[number] if number is not None and 0 <= number < len(sources) else None


def convert_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert OpenAI's function tools to Anthropic's format. Tools in Anthropic's format are returned unchanged.

    Raises:
        InvalidRequest: A tool is in neither format, or has a name that Anthropic does not accept.
    """
    return [_convert_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _convert_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        if isinstance(tool.get("name"), str) and ("input_schema" in tool or "type" in tool) and "custom" not in tool:
            return dict(tool)
        raise InvalidRequest(
            f"{where} must be a function tool, or a tool in Anthropic's format with name and input_schema", param=where
        )
    name = function.get("name")
    if not isinstance(name, str) or name != to_tool_name(name):
        raise InvalidRequest(
            f"{where}.function.name is {name!r}; Anthropic accepts 1 to {NAME_LENGTH} letters, digits, _ and -",
            param=f"{where}.function.name",
        )
    about = {"description": function["description"]} if function.get("description") else {}
    own = {field: tool[field] for field in TOOL_FIELDS if field in tool}
    schema = {"type": "object", **(function.get("parameters") or _NO_SCHEMA)}
    return {"name": name, **about, "input_schema": schema, **own}


def to_tool_name(name: str) -> str:
    """Convert the name of a tool to one that Anthropic accepts: invalid characters are replaced by `_`, and a long name is shortened."""
    return _NAME.sub("_", name)[:NAME_LENGTH] or "tool"


def _convert_system(message: Message) -> Iterator[Block]:
    content = message.content
    for part in content if isinstance(content, tuple) else (Part("text", message.text),):
        yield from _make_text_block(part) if part.text is not None else _make_placeholder(part)


def _convert_message(message: Message) -> list[Block]:
    if message.role == "tool":
        return [_convert_result(message)]
    if message.role == "assistant":
        return _convert_reply(message)
    named = [{"type": "text", "text": f"{message.name}:"}] if message.name and message.name.strip() else []
    return [*named, *_convert_content(message.content, user=True)]


def _convert_reply(message: Message) -> list[Block]:
    """Return the blocks of an assistant's message.

    Signed reasoning comes first, because the API requires it. Calls come last, as in the API's replies.
    """
    blocks = _get_native_blocks(message) if message.extra else []
    if not blocks:
        blocks = [block for thought in parse_field_thoughts(message) for block in _convert_thought(thought)]
        blocks += _convert_content(message.content, user=False)
        blocks += [{"type": "text", "text": text} for text in _list_other_texts(message) if text.strip()]
    blocks = _drop_unpaired(blocks)
    if any(block["type"] in THINKING for block in blocks) and blocks[0]["type"] not in THINKING:
        blocks.sort(key=lambda block: block["type"] not in THINKING)
    return [*blocks, *(_convert_call(call) for call in message.tool_calls)]


def _get_native_blocks(message: Message) -> list[Block]:
    """Return the original blocks of a reply from Anthropic; an empty list if they do not match the content any more.

    The content may have been shortened since the reply was stored.
    """
    given = message.extra.get(BLOCKS)
    blocks = [block for block in given if isinstance(block, Mapping)] if isinstance(given, Sequence) else []
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    # The field is not trusted, since any client may send it.
    if not blocks or isinstance(message.content, tuple) or not all(isinstance(text, str) for text in texts):
        return []
    if "".join(map(str, texts)) != message.text:
        return []
    return [made for block in blocks for made in _convert_native_block(block)]


def _drop_unpaired(blocks: list[Block]) -> list[Block]:
    """Drop calls of server tools that have no result, and results that have no call.

    Interrupted replies contain such blocks, and the API rejects them.
    """
    call_ids = {_get_pair_id(block) for block in blocks if block["type"].endswith("tool_use")}
    paired_ids = call_ids & {_get_pair_id(block) for block in blocks if not block["type"].endswith("tool_use")}
    return [block for block in blocks if _get_pair_id(block) in (None, *paired_ids)]


def _convert_native_block(block: Mapping[str, Any]) -> Iterator[Block]:
    kind = str(block.get("type"))
    rest = {name: value for name, value in block.items() if name not in ("index", "type")}
    if kind == "text":
        yield from _make_text_block(Part("text", str(rest.pop("text")), rest))
    elif kind in THINKING:
        yield from _convert_thought(parse_thought(Part(kind, extra=rest)))
    else:
        yield {"type": kind, **rest}


def _get_pair_id(block: Block) -> str | None:
    """Return the id that links the call of a server tool to its result; None for other blocks."""
    found = block.get("id") if block["type"].endswith("tool_use") else block.get("tool_use_id")
    return None if found is None else str(found)


def _list_other_texts(message: Message) -> list[str]:
    """Return the texts outside the content of a reply from OpenAI: a refusal, and the transcript of spoken output."""
    audio = message.extra.get("audio")
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    return [text for text in (message.extra.get("refusal"), transcript) if isinstance(text, str)]


def _convert_thought(thought: Thought) -> Iterator[Block]:
    if not thought.is_signed_by("anthropic"):
        if thought.text.strip():
            yield {"type": "text", "text": REASONING + thought.text}
    elif thought.sealed:
        yield {"type": "redacted_thinking", "data": thought.sealed}
    else:
        yield {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _convert_call(call: ToolCall) -> Block:
    name, arguments = to_tool_name(call.name), parse_arguments(call.arguments)
    block = {"type": "tool_use", "id": call.id, "name": name, "input": arguments}
    return {**block, **_pick_fields(call.extra, "cache_control", "caller", "toolset_name")}


def _convert_result(message: Message) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    if content := _convert_content(message.content, user=True):
        block["content"] = content
    if message.extra.get("is_error") is True:
        block["is_error"] = True
    return {**block, **_pick_fields(message.extra, "cache_control", "toolset_name")}


def _convert_content(content: Content, *, user: bool) -> list[Block]:
    if isinstance(content, str):
        return list(_make_text_block(Part("text", content)))
    return [block for part in content for block in _convert_part(part, user=user)] if isinstance(content, tuple) else []


def _convert_part(part: Part, *, user: bool) -> Iterator[Block]:
    if part.text is not None:
        yield from _make_text_block(part)
    elif part.type in THINKING:
        yield from _convert_thought(parse_thought(part))
    elif part.type in NATIVE_PARTS:
        yield {"type": part.type, **part.extra}
    elif user and (block := _convert_medium(part)):
        yield {**block, **_pick_fields(part.extra, "cache_control")}
    else:
        yield from _make_placeholder(part)


def _make_text_block(part: Part) -> Iterator[Block]:
    if part.text and part.text.strip():
        yield {"type": "text", "text": part.text, **_pick_fields(part.extra, "cache_control", "citations")}


def _make_placeholder(part: Part) -> Iterator[Block]:
    yield {"type": "text", "text": describe_left_out(part.type, part.extra)}


def _convert_medium(part: Part) -> Block | None:
    """Return an image or document block; None if Anthropic does not accept the medium."""
    source = part.extra.get("source")
    if part.type in ("image", "document") and isinstance(source, Mapping):
        return {"type": part.type, "source": source, **_pick_fields(part.extra, *_MEDIA_FIELDS[part.type])}
    media = read_medium(part)
    if media is None or media.kind not in ("image", "file"):
        return None
    image = media.kind == "image" or (media.mime or "") in IMAGE_TYPES
    made = _make_image_source(media) if image else _make_document_source(media)
    title = {"title": media.name} if media.name and not image else {}
    return {"type": "image" if image else "document", "source": made, **title} if made else None


def _make_image_source(media: Media) -> Block | None:
    if media.data is not None:
        known = media.mime in IMAGE_TYPES
        return {"type": "base64", "media_type": media.mime, "data": media.data} if known else None
    return _make_url_source(media)


def _make_document_source(media: Media) -> Block | None:
    if (words := media.words) is not None and words.strip():
        return {"type": "text", "media_type": "text/plain", "data": words}
    if media.data is not None:
        known = media.mime == "application/pdf"
        return {"type": "base64", "media_type": media.mime, "data": media.data} if known else None
    return _make_url_source(media)


def _make_url_source(media: Media) -> Block | None:
    usable = media.url is not None and media.url.lower().startswith(("https://", "http://"))
    return {"type": "url", "url": media.url} if usable else None


def _pick_fields(extra: Mapping[str, Any], *names: str) -> Block:
    """Return the fields among `names` that are in `extra` with a non-empty value."""
    return {name: extra[name] for name in names if extra.get(name)}


# -- in ----------------------------------------------------------------------


def parse_messages(data: Any, where: str = "messages") -> list[Message]:
    """Parse the messages of an Anthropic request. No block is lost.

    Blocks `tool_use` become tool calls, and blocks `tool_result` become tool messages. Reasoning stays in the content,
    in its position. Tool calls come after the other blocks of a message, and tool results before them, as the API requires.

    Raises:
        InvalidMessage: The data is not a valid list of messages. The error names the field and what is allowed.
    """
    return [message for group in parse_message_groups(data, where) for message in group]


def parse_message_groups(data: Any, where: str = "messages") -> list[list[Message]]:
    """Parse the messages of an Anthropic request into one list of log messages per message of the request."""
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InvalidMessage(f"{where} must be a list of messages", param=where)
    return [_parse_message(item, f"{where}[{at}]") for at, item in enumerate(data)]


def parse_system(data: Any, where: str = "system") -> list[Message]:
    """Parse the field `system` of an Anthropic request (text or text blocks) into at most one system message."""
    return [parse_message({"role": "system", "content": data}, where)] if data not in (None, "", []) else []


def _parse_message(data: Any, where: str) -> list[Message]:
    data = dump_model(data)
    if not isinstance(data, Mapping) or data.get("role") not in ("user", "assistant", "system"):
        raise InvalidMessage(f"{where} must be an object with a role, user or assistant, and content", param=where)
    role, content = data["role"], data.get("content")
    more = {name: value for name, value in data.items() if name not in ("role", "content")}
    if isinstance(content, str):
        return [parse_message(data, where)]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidMessage(f"{where}.content must be a string or a list of blocks", param=f"{where}.content")
    tools, rest = _separate_tools(role, content, f"{where}.content")
    if role == "assistant":
        calls = {"tool_calls": [_parse_call(block, place) for block, place in tools]} if tools else {}
        return [parse_message({"role": role, "content": rest or None, **calls, **more}, where)]
    results = [_parse_result(block, place) for block, place in tools]
    left = [parse_message({"role": role, "content": rest, **more}, where)] if rest or not tools else []
    if not left and more:
        results[-1] = results[-1].evolve(extra={**more, **results[-1].extra})
    return [*results, *left]


def _separate_tools(role: str, content: Sequence[Any], where: str) -> tuple[list[tuple[Any, str]], list[Any]]:
    """Separate the tool calls of a message, or its tool results, from its other blocks.

    Returns:
        The calls or results with their positions, and the other blocks.
    """
    own, other = ("tool_use", "tool_result") if role == "assistant" else ("tool_result", "tool_use")
    tools: list[tuple[Any, str]] = []
    rest: list[Any] = []
    for at, block in enumerate(map(dump_model, content)):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == other:
            allowed = "assistant" if other == "tool_use" else "user"
            raise InvalidMessage(f"{where}[{at}] is a {other}, which only {allowed} messages have", param=where)
        if kind == own:
            tools.append((block, f"{where}[{at}]"))
        else:
            rest.append(block)
    return tools, rest


def _parse_call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    # The input need not be an object: a model may write other arguments, and clients that streamed them send them back.
    if not isinstance(block.get("id"), str) or not isinstance(block.get("name"), str) or "input" not in block:
        raise InvalidMessage(f"{where} must have an id, a name and an input", param=where)
    try:
        arguments = msgspec.json.encode(given).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidMessage(f"{where}.input cannot be written as JSON: {exc}", param=f"{where}.input") from exc
    rest = {key: value for key, value in block.items() if key not in {"type", "id", "name", "input"}}
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function, **rest}


def _parse_result(block: Mapping[str, Any], where: str) -> Message:
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidMessage(
            f"{where}.tool_use_id is missing: a tool_result must name the call that it answers", param=where
        )
    rest = {key: value for key, value in block.items() if key not in {"type", "tool_use_id", "content"}}
    content = block.get("content")
    return parse_message({"role": "tool", "content": content, "tool_call_id": block["tool_use_id"], **rest}, where)

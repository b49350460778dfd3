"""Content of Anthropic's messages: conversion to and from Holdfast's messages.

Follows the API reference, "Create a Message", and the guides "Handle tool calls", "Extended thinking", "Vision" and "PDF
support". `holdfast.context.fitting.adapt_messages` decides the order of messages and adds all necessary text; this
module only converts the format of messages. Unknown fields of clients are left out, because the API rejects them. Those
of Anthropic's own replies are sent back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from holdfast.context.dialects import (
    THINKING,
    Thought,
    parse_arguments,
    parse_field_thoughts,
    parse_thought,
    to_tool_name,
)
from holdfast.context.fitting import NATIVE_PARTS
from holdfast.domain.messages import SYSTEM_ROLES, Message, Part, ToolCall
from holdfast.errors import InvalidMessage
from holdfast.models.codecs.messages.cache import add_cache_marks
from holdfast.wire.openai import Media, describe_left_out, dump_model, parse_message, read_medium, split_system

Block = dict[str, Any]
T = TypeVar("T")
REASONING: Final = "[reasoning] "
"""Prefix for reasoning that Anthropic did not sign. It is sent as text, because Anthropic accepts only its own
reasoning."""
BLOCKS: Final = "content_blocks"
"""Name of a field of a reply: its blocks, unchanged and in order, except for tool calls. Each block has its `index`.

The field is present only if the reply has more than text preceded by reasoning: server tools and their results,
citations, unknown fields, or reasoning between texts.
"""
NATIVE_FIELDS: Final = "native_fields"
"""Name of a field of a whole reply: an object with those fields of Anthropic's message that Chat Completions do not have."""
CALL_FIELDS: Final = ("caller", "toolset_name")
"""Fields of a tool call that later requests must send back with it."""
_MEDIA_FIELDS: Final = {"image": ("transformations",), "document": ("title", "context", "citations")}
"""Fields of an image or a document that are next to its `source`."""
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_DOCUMENTS: Final = frozenset({"application/pdf"})


# -- out ---------------------------------------------------------------------


def encode_messages(
    messages: Sequence[Message], *, tools: list[Block] | None = None, cache: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields `system` (if there is a system prompt), `messages` and `tools` (if given) of a request.

    Args:
        messages: System prompt first, then a conversation adapted to Anthropic's dialect.
        tools: Tools in Anthropic's format. They get cache marks like the messages.
        cache: Value of the cache marks. None: only the marks that the messages already have are sent.
    """
    front, conversation = split_system(messages)
    system = [block for message in front for block in _encode_content(message)]
    written = [_encode_message(message) for message in conversation]
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
    sources = [[at] * len(_encode_message(message)) for at, message in enumerate(conversation, start=len(front))]
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
    sources = [at for at, part in enumerate(message.content) for _ in _encode_part(part, message.role)]
    before = len(_encode_message(message)) - len(sources)  # blocks that name the speaker
    number = inner if message.role == "tool" else block - before
    return sources[number] if number is not None and 0 <= number < len(sources) else None


def _encode_message(message: Message) -> list[Block]:
    if message.role == "tool":
        result: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        if content := _encode_content(message):
            result["content"] = content
        if message.extra.get("is_error") is True:
            result["is_error"] = True
        return [{**result, **_pick_fields(message.extra, "cache_control", "toolset_name")}]
    if message.role == "assistant":
        return _encode_reply(message)
    named = [{"type": "text", "text": f"{message.name}:"}] if message.name and message.name.strip() else []
    return [*named, *_encode_content(message)]


def _encode_reply(message: Message) -> list[Block]:
    """Return the blocks of an assistant's message.

    Signed reasoning comes first, because the API requires it. Calls come last, as in the API's replies.
    """
    blocks = _get_native_blocks(message) if message.extra else []
    if not blocks:
        blocks = [block for thought in parse_field_thoughts(message) for block in _encode_thought(thought)]
        blocks += _encode_content(message)
        blocks += [{"type": "text", "text": text} for text in _list_other_texts(message) if text.strip()]
    blocks = _drop_unpaired(blocks)
    if any(block["type"] in THINKING for block in blocks) and blocks[0]["type"] not in THINKING:
        blocks.sort(key=lambda block: block["type"] not in THINKING)
    return [*blocks, *map(_encode_call, message.tool_calls)]


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
    return [made for block in blocks for made in _encode_native_block(block)]


def _encode_native_block(block: Mapping[str, Any]) -> Iterator[Block]:
    kind = str(block.get("type"))
    rest = {name: value for name, value in block.items() if name not in ("index", "type")}
    if kind in THINKING:
        yield from _encode_thought(parse_thought(Part(kind, extra=rest)))
    elif kind != "text" or str(rest["text"]).strip():
        yield {"type": kind, **rest}


def _drop_unpaired(blocks: list[Block]) -> list[Block]:
    """Drop calls of server tools that have no result, and results that have no call.

    Interrupted replies contain such blocks, and the API rejects them.
    """
    call_ids = {_get_pair_id(block) for block in blocks if block["type"].endswith("tool_use")}
    paired_ids = call_ids & {_get_pair_id(block) for block in blocks if not block["type"].endswith("tool_use")}
    return [block for block in blocks if _get_pair_id(block) in (None, *paired_ids)]


def _get_pair_id(block: Block) -> str | None:
    """Return the id that links the call of a server tool to its result; None for other blocks."""
    found = block.get("id") if block["type"].endswith("tool_use") else block.get("tool_use_id")
    return None if found is None else str(found)


def _list_other_texts(message: Message) -> list[str]:
    """Return the texts outside the content of a reply from OpenAI: a refusal, and the transcript of spoken output."""
    audio = message.extra.get("audio")
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    return [text for text in (message.extra.get("refusal"), transcript) if isinstance(text, str)]


def _encode_thought(thought: Thought) -> Iterator[Block]:
    if not thought.is_signed_by("anthropic"):
        if thought.text.strip():
            yield {"type": "text", "text": REASONING + thought.text}
    elif thought.sealed:
        yield {"type": "redacted_thinking", "data": thought.sealed}
    else:
        yield {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _encode_call(call: ToolCall) -> Block:
    name, arguments = to_tool_name(call.name), parse_arguments(call.arguments)
    block = {"type": "tool_use", "id": call.id, "name": name, "input": arguments}
    return {**block, **_pick_fields(call.extra, "cache_control", *CALL_FIELDS)}


def _encode_content(message: Message) -> list[Block]:
    content = message.content
    parts = (Part("text", content),) if isinstance(content, str) else content if isinstance(content, tuple) else ()
    return [block for part in parts for block in _encode_part(part, message.role)]


def _encode_part(part: Part, role: str) -> Iterator[Block]:
    if part.text is not None:
        if part.text.strip():
            yield {"type": "text", "text": part.text, **_pick_fields(part.extra, "cache_control", "citations")}
    elif part.type in THINKING and role not in SYSTEM_ROLES:
        yield from _encode_thought(parse_thought(part))
    elif part.type in NATIVE_PARTS and role not in SYSTEM_ROLES:
        yield {"type": part.type, **part.extra}
    elif role in ("user", "tool") and (block := _encode_medium(part)):
        yield {**block, **_pick_fields(part.extra, "cache_control")}
    else:
        yield {"type": "text", "text": describe_left_out(part.type, part.extra)}


def _encode_medium(part: Part) -> Block | None:
    """Return an image or document block; None if Anthropic does not accept the medium."""
    source = part.extra.get("source")
    if part.type in ("image", "document") and isinstance(source, Mapping):
        return {"type": part.type, "source": source, **_pick_fields(part.extra, *_MEDIA_FIELDS[part.type])}
    media = read_medium(part)
    if media is None or media.kind not in ("image", "file"):
        return None
    image = media.kind == "image" or (media.mime or "") in _IMAGES
    made = _make_source(media, _IMAGES if image else _DOCUMENTS)
    title = {"title": media.name} if media.name and not image else {}
    return {"type": "image" if image else "document", "source": made, **title} if made else None


def _make_source(media: Media, types: frozenset[str]) -> Block | None:
    """Return the source of an image or a document, which may have these media types."""
    if types is _DOCUMENTS and (words := media.words) is not None and words.strip():
        return {"type": "text", "media_type": "text/plain", "data": words}
    if media.data is not None:
        known = media.mime in types
        return {"type": "base64", "media_type": media.mime, "data": media.data} if known else None
    usable = media.url is not None and media.url.lower().startswith(("https://", "http://"))
    return {"type": "url", "url": media.url} if usable else None


def _pick_fields(extra: Mapping[str, Any], *names: str) -> Block:
    """Return the fields among `names` that are in `extra` with a non-empty value."""
    return {name: extra[name] for name in names if extra.get(name)}


# -- in ----------------------------------------------------------------------


def decode_messages(data: Any, where: str = "messages") -> list[list[Message]]:
    """Decode the messages of a request into one list of log messages per message of the request. No block is lost.

    Blocks `tool_use` become tool calls, and blocks `tool_result` become tool messages. Reasoning stays in the content,
    in its position. Tool calls come after the other blocks of a message, and tool results before them, as the API requires.

    Raises:
        InvalidMessage: The data is not a valid list of messages. The error names the field and what is allowed.
    """
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InvalidMessage(f"{where} must be a list of messages", param=where)
    return [_decode_message(item, f"{where}[{at}]") for at, item in enumerate(data)]


def decode_system(data: Any) -> list[Message]:
    """Decode the field `system` of a request (text or text blocks) into at most one system message."""
    return [parse_message({"role": "system", "content": data}, "system")] if data not in (None, "", []) else []


def _decode_message(data: Any, where: str) -> list[Message]:
    data = dump_model(data)
    if not isinstance(data, Mapping) or data.get("role") not in ("user", "assistant", "system"):
        raise InvalidMessage(f"{where} must be an object with a role, user or assistant, and content", param=where)
    role, content = data["role"], data.get("content")
    more = {name: value for name, value in data.items() if name not in ("role", "content")}
    if role == "user" and content in ("", []):
        reason = f"{where}.content is empty: a user message needs text, media or tool results"
        raise InvalidMessage(reason, param=f"{where}.content")
    if isinstance(content, str):
        return [parse_message(data, where)]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidMessage(f"{where}.content must be a string or a list of blocks", param=f"{where}.content")
    return _decode_blocks(role, content, more, where)


def _decode_blocks(role: str, content: Sequence[Any], more: Mapping[str, Any], where: str) -> list[Message]:
    """Return the messages for the blocks of one message. Its other fields, `more`, belong to the last one."""
    calls: list[dict[str, Any]] = []
    results: list[Message] = []
    rest: list[Any] = []
    for at, block in enumerate(map(dump_model, content)):
        place, kind = f"{where}.content[{at}]", block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use" and role == "assistant":
            calls.append(_decode_call(block, place))
        elif kind == "tool_result" and role != "assistant":
            results.append(_decode_result(block, place))
        elif kind in ("tool_use", "tool_result"):
            allowed = "assistant" if kind == "tool_use" else "user"
            raise InvalidMessage(f"{place} is a {kind}, which only {allowed} messages have", param=f"{where}.content")
        else:
            rest.append(block)
    if role == "assistant":
        own = {"tool_calls": calls} if calls else {}
        return [parse_message({"role": role, "content": rest or None, **own, **more}, where)]
    left = [parse_message({"role": role, "content": rest, **more}, where)] if rest or not results else []
    if not left and more:
        results[-1] = results[-1].evolve(extra={**more, **results[-1].extra})
    return [*results, *left]


def _decode_call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    # The input need not be an object: a model may write other arguments, and clients that streamed them send them back.
    if not isinstance(block.get("id"), str) or not isinstance(block.get("name"), str) or "input" not in block:
        raise InvalidMessage(f"{where} must have an id, a name and an input", param=where)
    try:
        arguments = msgspec.json.encode(block["input"]).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidMessage(f"{where}.input cannot be written as JSON: {exc}", param=f"{where}.input") from exc
    rest = {key: value for key, value in block.items() if key not in {"type", "id", "name", "input"}}
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function, **rest}


def _decode_result(block: Mapping[str, Any], where: str) -> Message:
    if not isinstance(block.get("tool_use_id"), str):
        reason = "is missing: a tool_result must name the call that it answers"
        raise InvalidMessage(f"{where}.tool_use_id {reason}", param=where)
    rest = {key: value for key, value in block.items() if key not in {"type", "tool_use_id"}}
    data = {"role": "tool", "content": None, "tool_call_id": block["tool_use_id"], **rest}
    return parse_message(data, where)

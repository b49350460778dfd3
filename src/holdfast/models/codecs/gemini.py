"""Google's Gemini API: conversion of messages and tools to a `generateContent` request.

Follows the API reference ("Content", "Part", "FunctionCall", "FunctionResponse", "FunctionDeclaration") and the guides
"Function calling" and "Thought signatures". The dialect (`holdfast.context.fitting.adapt_messages`) decides the order
of messages and adds all necessary text, as for Anthropic.

Roles must alternate, so consecutive turns of one role are merged. Function results have a turn of their own: the API
counts the results in it, and Gemini 3 ignores other parts next to them. So a short model turn separates function
results from a user turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.context.dialects import (
    FUNCTION_NAME_LENGTH,
    THINKING,
    Thought,
    find_call_signature,
    find_signature,
    parse_arguments,
    parse_thoughts,
    to_function_name,
)
from holdfast.context.fitting import NO_SIGNATURE, RECEIVED, is_added
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.errors import InvalidRequest
from holdfast.wire.openai import Media, describe_left_out, read_medium, split_system

Block = dict[str, Any]
RETURNED = "[returned by {name}]"
"""Text before the media of a function result. The media come after the result, because the result itself is JSON."""
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})


def encode_messages(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the fields `systemInstruction` (if there is a system prompt) and `contents` of a request.

    Args:
        messages: System prompt first, then a conversation adapted to Gemini's dialect.
    """
    front, conversation = split_system(messages)
    system = [part for message in front for part in _convert_content(message.content, media=False)]
    contents: list[Block] = []
    calls: tuple[ToolCall, ...] = ()
    results: list[Message] = []
    for message in conversation:
        if message.role == "tool":
            results.append(message)
            continue
        _add_results(contents, calls, results)
        calls, results = message.tool_calls, []
        if is_added(message) and message.content == RECEIVED and "functionResponse" not in contents[-1]["parts"][0]:
            continue  # media of the results separate them already
        if message.role == "assistant":
            _add_parts(contents, "model", _convert_reply(message))
        else:
            named = [{"text": f"{message.name}:"}] if message.name and message.name.strip() else []
            _add_parts(contents, "user", [*named, *_convert_content(message.content)])
    _add_results(contents, calls, results)
    return {"systemInstruction": {"parts": system}, "contents": contents} if system else {"contents": contents}


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert OpenAI's function tools to one Gemini tool that declares them. Tools in Gemini's format are returned unchanged.

    Raises:
        InvalidRequest: A tool is in neither format, or has a name that Gemini does not accept.
    """
    declared, own = [], []
    for at, tool in enumerate(tools):
        if "function" in tool or "type" in tool:
            declared.append(_make_declaration(tool.get("function"), f"tools[{at}].function"))
        else:
            own.append(dict(tool))
    return [*([{"functionDeclarations": declared}] if declared else []), *own]


def _make_declaration(function: Any, where: str) -> Block:
    if not isinstance(function, Mapping):
        raise InvalidRequest(
            f"{where} is missing: Gemini accepts function tools, or tools in its own format", param=where
        )
    name = function.get("name")
    if not isinstance(name, str) or name != to_function_name(name):
        raise InvalidRequest(
            f"{where}.name is {name!r}; Gemini accepts up to {FUNCTION_NAME_LENGTH} letters, digits, _ - . and :, beginning with a letter or _",
            param=f"{where}.name",
        )
    about = (("description", function.get("description")), ("parametersJsonSchema", function.get("parameters")))
    return {"name": name, **{key: value for key, value in about if value}}


# -- turns -------------------------------------------------------------------


def _add_parts(contents: list[Block], role: str, parts: list[Block]) -> None:
    """Append the parts to the last turn. Add a new turn if the last one has another role or contains function results."""
    last = contents[-1] if contents else None
    if last and parts and last["role"] == role and "functionResponse" not in last["parts"][0]:
        last["parts"] += parts
    elif parts:
        if last and last["role"] == role:  # results have a turn of their own, and turns alternate
            contents.append({"role": "model", "parts": [{"text": RECEIVED}]})
        contents.append({"role": role, "parts": parts})


def _add_results(contents: list[Block], calls: Sequence[ToolCall], results: Sequence[Message]) -> None:
    """Add a turn with the results of `calls`, in the order of the calls. Their media follow in another turn."""
    if not results:
        return
    by_id = {result.tool_call_id: result for result in results}
    pairs = [(to_function_name(call.name), call.id, by_id[call.id]) for call in calls if call.id in by_id]
    responses = [{"functionResponse": _make_response(*pair)} for pair in pairs]
    contents.append({"role": "user", "parts": responses})
    for name, _, result in pairs:
        if result.media:
            _add_parts(contents, "user", [{"text": RETURNED.format(name=name)}, *_convert_content(result.media)])


def _make_response(name: str, call_id: str, result: Message) -> Block:
    key = "error" if result.extra.get("is_error") is True else "output"
    return {"id": call_id, "name": name, "response": {key: result.text}}


def _convert_reply(message: Message) -> list[Block]:
    """Return the parts of a model's message: reasoning, text, media and calls, with their original signatures."""
    found = parse_thoughts(message)
    parts = [part for thought in found for part in _convert_thought(thought)]
    content = _convert_content(message.content)
    for text in (message.extra.get("refusal"), _get_transcript(message)):
        if isinstance(text, str) and text.strip():
            content.append({"text": text})
    if content and (signature := find_signature(message.extra)):
        content[-1]["thoughtSignature"] = signature
    return [*parts, *content, *_convert_calls(message.tool_calls, found)]


def _get_transcript(message: Message) -> Any:
    audio = message.extra.get("audio")
    return audio.get("transcript") if isinstance(audio, Mapping) else None


def _convert_thought(thought: Thought) -> Iterator[Block]:
    if thought.text.strip():
        signed = {"thoughtSignature": thought.signature} if thought.is_signed_by("gemini") and thought.signature else {}
        yield {"text": thought.text, "thought": True, **signed}


def _convert_calls(calls: Sequence[ToolCall], found: Sequence[Thought]) -> list[Block]:
    sealed = [thought for thought in found if thought.is_signed_by("gemini") and thought.sealed]
    signatures = {thought.call_id: thought.sealed for thought in sealed}
    parts = []
    for at, call in enumerate(calls):
        signature = find_call_signature(call) or signatures.get(call.id)
        if at == 0 and signature is None:
            signature = sealed[0].sealed if sealed else NO_SIGNATURE
        made = {"id": call.id, "name": to_function_name(call.name), "args": parse_arguments(call.arguments)}
        parts.append({"functionCall": made, **({"thoughtSignature": signature} if signature else {})})
    return parts


# -- parts -------------------------------------------------------------------


def _convert_content(content: Content, *, media: bool = True) -> list[Block]:
    """Return the parts for a content without its reasoning, which `_convert_reply` adds."""
    if isinstance(content, str):
        content = (Part("text", content),)
    given = content if isinstance(content, tuple) else ()
    return [made for part in given if part.type not in THINKING for made in _convert_part(part, media=media)]


def _convert_part(part: Part, *, media: bool) -> Iterator[Block]:
    if part.text is None:
        medium = read_medium(part) if media else None
        yield (_convert_medium(medium) if medium else None) or {"text": describe_left_out(part.type, part.extra)}
    elif part.text.strip():
        signature = find_signature(part.extra)
        yield {"text": part.text, **({"thoughtSignature": signature} if signature else {})}


def _convert_medium(media: Media) -> Block | None:
    if media.kind == "image" and media.mime is not None and media.mime not in IMAGE_TYPES:
        return None
    if media.data is not None:
        return {"inlineData": {"mimeType": media.mime, "data": media.data}} if media.mime else None
    about = {"mimeType": media.mime} if media.mime else {}
    return {"fileData": {**about, "fileUri": media.url}}

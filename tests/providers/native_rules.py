"""Checks of the three native APIs: Anthropic's Messages, OpenAI's Responses and Gemini's generateContent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.providers.chat_rules import (
    Faults,
    Json,
    Names,
    Picture,
    Provider,
    check_function,
    check_pictures,
    is_blank,
    is_own_signature,
    make_fault,
    parse_data_url,
    split_names,
    to_camel,
    to_items,
    to_object,
)

Block = tuple[tuple[str | int, ...], Json]  # path and content block
Turn = tuple[str, list[Block]]  # role and blocks; neighbours of one role are merged

# Anthropic Messages API, request body: fields of each content block.
_BLOCK_FIELDS = {
    "text": split_names("type text cache_control citations"),
    "image": split_names("type source cache_control"),
    "document": split_names("type source cache_control citations context title"),
    "search_result": split_names("type content source title cache_control citations"),
    "tool_result": split_names("type tool_use_id content is_error cache_control"),
    "tool_use": split_names("type id name input cache_control caller"),
    "thinking": split_names("type thinking signature"),
    "redacted_thinking": split_names("type data"),
}
_USER_BLOCKS = split_names("image document search_result tool_result")
_ASSISTANT_BLOCKS = split_names("tool_use thinking redacted_thinking")
_SERVER_BLOCKS = r"(server|mcp|web|code|bash|text_editor|advisor|tool_search)_\w+|compaction|container_upload"


def check_anthropic(provider: Provider, body: Json) -> Faults:
    """Check a request to Anthropic's Messages API."""
    if not isinstance(body.get("max_tokens"), int):
        yield make_fault("required", "max_tokens")
    for name in sorted(set(to_object(body.get("metadata"))) - {"user_id"}):
        yield make_fault("extra", "metadata", name)
    if len(str(to_object(body.get("metadata")).get("user_id"))) > 256:
        yield make_fault("user_id", "metadata", "user_id")
    stops = body.get("stop_sequences")
    for stop in stops if isinstance(stops, list) else []:
        if is_blank(stop):
            yield make_fault("stop_blank", "stop_sequences")
    if body.get("tool_choice") is not None and not body.get("tools"):
        yield make_fault("choice", "tool_choice", name="tool_choice")
    for k, block in enumerate(to_items(body.get("system"))):
        yield from _check_text_block(("system", k), block)
    if len([1 for node in _walk(body) if node.get("cache_control")]) > 4:
        yield make_fault("cache_count")
    messages = to_items(body.get("messages"))
    if not messages:
        yield make_fault("no_messages", "messages")
    for i, message in enumerate(messages):
        yield from _check_anthropic_message(i, message, i == len(messages) - 1)
    turns = _merge_turns(messages)
    yield from _check_results(turns)
    yield from _check_thinking(body, turns)
    yield from _check_prefill(str(body.get("model")), turns)
    yield from check_pictures(provider.images, list(_find_anthropic_pictures(messages)))


def _walk(value: object) -> Iterator[Json]:
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item)


def _check_anthropic_message(i: int, message: Json, is_last: bool) -> Faults:
    role, content = str(message.get("role")), message.get("content")
    if role not in ("user", "assistant"):
        yield make_fault("role", "messages", i, "role", role=role)
    if i == 0 and role != "user":
        yield make_fault("user_first", "messages", 0)
    for name in sorted(set(message) - {"role", "content"}):
        yield make_fault("extra", "messages", i, name)
    if content is None:
        yield make_fault("required", "messages", i, "content")
    if content in ("", []) and not (is_last and role == "assistant"):
        yield make_fault("message_empty", "messages", i)
    elif is_blank(content) and content:
        yield make_fault("content_blank", "messages")
    for k, block in enumerate(to_items(content)):
        path, kind = ("messages", i, "content", k), str(block.get("type"))
        if kind not in _BLOCK_FIELDS and not re.fullmatch(_SERVER_BLOCKS, kind):
            yield make_fault("tag", *path, name=kind)
        if kind in (_USER_BLOCKS if role == "assistant" else _ASSISTANT_BLOCKS):
            yield make_fault("block_role", *path, name=kind, role="user" if role == "assistant" else "assistant")
        for name in sorted(set(block) - _BLOCK_FIELDS.get(kind, Names(block))):
            yield make_fault("extra", *path, kind, name)
        yield from _check_text_block(path, block)
        yield from _check_tool_block(path, block)


def _check_text_block(path: tuple[str | int, ...], block: Json) -> Faults:
    if block.get("type") == "text" and is_blank(block.get("text")):
        yield make_fault("content_blank" if block.get("text") else "text_empty", path[0])


def _check_tool_block(path: tuple[str | int, ...], block: Json) -> Faults:
    kind = block.get("type")
    if kind == "tool_use":
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", str(block.get("id"))):
            yield make_fault("pattern", *path, "tool_use.id", pattern="[a-zA-Z0-9_-]+")
        if not re.fullmatch(r".{1,200}", str(block.get("name"))):
            yield make_fault("name_length", *path, "tool_use.name", limit=200)
        if not isinstance(block.get("input"), Mapping):
            yield make_fault("input_type", *path, "tool_use.input")
    if kind == "tool_result":
        for k, part in enumerate(to_items(block.get("content"))):
            if part.get("type") not in ("text", "image", "document", "search_result", "tool_reference"):
                yield make_fault("tag", *path, "tool_result.content", k, name=part.get("type"))
            yield from _check_text_block(path, part)
    if kind == "thinking" and "signature" not in block:
        yield make_fault("required", *path, "thinking.signature")
    for name, holder in (("signature", "thinking"), ("data", "redacted_thinking")):
        if kind == holder and name in block and not is_own_signature("anthropic", block[name]):
            yield make_fault("signature", *path, name=name, holder=holder)


def _merge_turns(messages: list[Json]) -> list[Turn]:
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        role, content = str(message.get("role")), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else to_items(content)
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        turns[-1][1].extend((("messages", i, "content", k), block) for k, block in enumerate(blocks))
    return turns


def _check_results(turns: list[Turn]) -> Faults:
    calls: dict[str, tuple[str | int, ...]] = {}
    seen: set[str] = set()
    for role, blocks in [*turns, ("end", [])]:
        if role == "assistant":
            uses = [(str(block.get("id")), path) for path, block in blocks if block.get("type") == "tool_use"]
            for call_id, path in uses:
                if call_id in seen:
                    yield make_fault("call_twice", *path)
                seen.add(call_id)
            calls = dict(uses)
            continue
        answered: list[str] = []
        is_leading = True  # Results after text are not counted (Handle tool calls: results come first).
        for path, block in blocks:
            is_leading = is_leading and block.get("type") == "tool_result"
            if block.get("type") != "tool_result":
                continue
            result_id = str(block.get("tool_use_id"))
            if result_id not in calls:
                yield make_fault("result_orphan", *path, value=result_id)
            elif result_id in answered:
                yield make_fault("result_twice", *path, value=result_id)
            answered += [result_id] if is_leading else []
        if missing := [call_id for call_id in calls if call_id not in answered]:
            yield make_fault("call_unanswered", *calls[missing[0]][:2], value=", ".join(missing))
        calls = {}


def _check_thinking(body: Json, turns: list[Turn]) -> Faults:
    thinking = to_object(body.get("thinking"))
    if thinking.get("type") not in ("enabled", "adaptive"):
        return
    if to_object(body.get("tool_choice")).get("type") in ("any", "tool"):
        yield make_fault("thinking_choice", "tool_choice")
    if thinking.get("type") == "adaptive":
        return  # Adaptive thinking: earlier assistant turns need not start with thinking blocks.
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < 1024:
        yield make_fault("thinking_budget", "thinking", "enabled", "budget_tokens")
    elif isinstance(body.get("max_tokens"), int) and body["max_tokens"] <= budget:
        yield make_fault("thinking_max_tokens", "max_tokens")
    if body.get("temperature") not in (None, 1):
        yield make_fault("thinking_temperature", "temperature")
    assistants = [blocks for role, blocks in turns if role == "assistant" and blocks]
    has_results = bool(turns) and any(block.get("type") == "tool_result" for _, block in turns[-1][1])
    if assistants and (has_results or turns[-1][0] == "assistant"):
        path, first = assistants[-1][0]
        if first.get("type") not in ("thinking", "redacted_thinking"):
            yield make_fault("thinking_first", *path, "type", name=first.get("type"))


# Claude 4.6, What's new: "Prefilling assistant messages is not supported"; later models likewise (public reports).
_NO_PREFILL = r"claude-(opus|sonnet|haiku)-(4-[6-9]|[5-9])|claude-(fable|mythos)"


def _check_prefill(model: str, turns: list[Turn]) -> Faults:
    if turns and turns[-1][0] == "assistant":
        if re.search(_NO_PREFILL, model):
            yield make_fault("prefill", "messages")
        text = turns[-1][1][-1][1].get("text") if turns[-1][1] else None
        if isinstance(text, str) and text != text.rstrip():
            yield make_fault("prefill_space", "messages")


def _find_anthropic_pictures(messages: list[Json]) -> Iterator[Picture]:
    for i, message in enumerate(messages):
        for k, block in enumerate(to_items(message.get("content"))):
            for part in [block, *to_items(block.get("content"))]:
                if part.get("type") == "image":
                    source = to_object(part.get("source"))
                    kind = str(source.get("media_type")).removeprefix("image/")
                    path = ("messages", i, "content", k, "image", "source", "base64")
                    yield (path, kind, str(source.get("data", "")))


# OpenAI Responses API, input items: fields of the items that this module knows; others are only checked for their type.
_ITEM_FIELDS = {
    "message": split_names("type role content id status phase"),
    "function_call": split_names("type call_id name arguments id status namespace"),
    "function_call_output": split_names("type call_id output id status"),
    "reasoning": split_names("type id summary content encrypted_content status"),
}
_OTHER_ITEMS = (
    r"item_reference|compaction|(local_)?shell_call(_output)?|apply_patch_call(_output)?"
    r"|(custom|file_search|web_search|computer|code_interpreter|image_generation|mcp|tool_search)_\w+"
)
_ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_MOVED = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}


def check_responses(provider: Provider, body: Json) -> Faults:
    """Check a request to OpenAI's Responses API."""
    for name, place in _MOVED.items():
        if body.get(name) is not None:
            yield make_fault("moved", name, name=name, place=place)
    choice = body.get("tool_choice")
    if not body.get("tools") and (choice == "required" or isinstance(choice, Mapping)):
        yield make_fault("choice", "tool_choice", name="tool_choice")
    if isinstance(body.get("max_output_tokens"), int) and body["max_output_tokens"] < 16:
        yield make_fault("output_tokens", "max_output_tokens", value=body["max_output_tokens"])
    items = to_items(body.get("input"))
    for i, item in enumerate(items):
        kind = str(item.get("type", "message"))
        yield from _check_item(provider, i, kind, item)
        if kind == "reasoning":
            following = items[i + 1] if i + 1 < len(items) else {"type": "end"}
            is_input = following.get("role") in ("user", "system", "developer")
            if is_input or following.get("type") in ("end", "function_call_output"):
                yield make_fault("reasoning_alone", "input", i, value=item.get("id"))
            if body.get("store") is False and not item.get("encrypted_content"):
                yield make_fault("item_missing", "input", i, value=item.get("id"))
    yield from _check_outputs(body, items)
    yield from check_pictures(provider.images, list(_find_response_pictures(items)))


def _check_item(provider: Provider, i: int, kind: str, item: Json) -> Faults:
    if kind not in _ITEM_FIELDS and not re.fullmatch(_OTHER_ITEMS, kind):
        yield make_fault("value", "input", i, "type", name=kind, allowed=", ".join(sorted(_ITEM_FIELDS)))
    for name in sorted(set(item) - _ITEM_FIELDS.get(kind, Names(item))):
        yield make_fault("field", "input", i, name, name=name)
    item_id, prefix = item.get("id"), _ID_PREFIXES.get(kind)
    if prefix and item_id is not None and not str(item_id).startswith(prefix):
        yield make_fault("id_prefix", "input", i, "id", value=item_id, prefix=prefix)
    for name in ("id", "call_id"):
        value = item.get(name)
        if name in item and len(str(value)) > 64:
            yield make_fault("string_length", "input", i, name, limit=64, length=len(str(value)))
        if name in item and not re.fullmatch(r"[\w-]*", str(value)):
            yield make_fault("id_characters", "input", i, name, value=value)
    if kind == "message":
        yield from _check_item_content(i, item)
    if kind == "function_call":
        if not re.fullmatch(provider.tool_name, str(item.get("name"))):
            yield make_fault("tool_name", "input", i, "name", name=item.get("name"), pattern="[a-zA-Z0-9_-]+")
        if not isinstance(item.get("arguments"), str):
            yield make_fault("type", "input", i, "arguments", kind=type(item.get("arguments")).__name__)
    if kind == "function_call_output" and not isinstance(item.get("output"), str | list):
        yield make_fault("type", "input", i, "output", kind=type(item.get("output")).__name__)
    for k, part in enumerate(to_items(item.get("output")) if kind == "function_call_output" else []):
        if part.get("type") not in ("input_text", "input_image", "input_file"):
            allowed = "'input_text', 'input_image', and 'input_file'"
            yield make_fault("value", "input", i, "output", k, "type", name=part.get("type"), allowed=allowed)
    secret = item.get("encrypted_content")
    if secret is not None and not is_own_signature("openai", secret):
        yield make_fault("encrypted", "input", i, "encrypted_content", value=f"{str(secret)[:4]}...{str(secret)[-4:]}")


def _check_item_content(i: int, item: Json) -> Faults:
    role, content = str(item.get("role")), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        allowed = "'assistant', 'system', 'developer', and 'user'"
        yield make_fault("value", "input", i, "role", name=role, allowed=allowed)
    if not isinstance(content, str | list):
        yield make_fault("type", "input", i, "content", kind=type(content).__name__)
    is_output = role == "assistant"
    kinds = ("output_text", "refusal") if is_output else ("input_text", "input_image", "input_file")
    for k, part in enumerate(to_items(content)):
        if part.get("type") not in kinds:
            allowed = "'" + "', '".join(kinds[:-1]) + f"' and '{kinds[-1]}'"
            yield make_fault("value", "input", i, "content", k, "type", name=part.get("type"), allowed=allowed)


def _check_outputs(body: Json, items: list[Json]) -> Faults:
    calls: list[str] = []
    outputs = [str(item.get("call_id")) for item in items if item.get("type") == "function_call_output"]
    for i, item in enumerate(items):
        call_id = str(item.get("call_id"))
        if item.get("type") == "function_call":
            calls.append(call_id)
            if call_id not in outputs:
                yield make_fault("call_unanswered", "input", value=call_id)
        is_continued = body.get("previous_response_id") or body.get("conversation")
        if item.get("type") == "function_call_output" and call_id not in calls and not is_continued:
            yield make_fault("result_orphan", "input", i, value=call_id)


def _find_response_pictures(items: list[Json]) -> Iterator[Picture]:
    for i, item in enumerate(items):
        for name in ("content", "output"):
            for k, part in enumerate(to_items(item.get(name))):
                if part.get("type") == "input_image":
                    yield parse_data_url(("input", i, name, k, "image_url"), part.get("image_url"))


# Gemini API, generateContent: fields of the request and data fields of a part.
_GENERATE_FIELDS = split_names(
    "model contents tools toolConfig safetySettings systemInstruction generationConfig cachedContent "
    "serviceTier store labels"
)
_PART_DATA = split_names(
    "text inlineData functionCall functionResponse fileData executableCode codeExecutionResult toolCall toolResponse"
)
_PART_FIELDS = _PART_DATA | split_names("thought thoughtSignature partMetadata videoMetadata mediaResolution")


def check_generate(provider: Provider, body: Json) -> Faults:
    """Check a request to Gemini's generateContent method."""
    for name in body:
        if to_camel(name) not in _GENERATE_FIELDS:
            yield make_fault("unknown", name=name)
    for k, tool in enumerate(to_items(body.get("tools"))):
        seen: set[str] = set()
        for n, function in enumerate(to_items(_read(tool, "functionDeclarations"))):
            yield from check_function(provider, ("tools", k, "function_declarations", n), function, seen)
    config = to_object(_read(body, "generationConfig"))
    stops = _read(config, "stopSequences")
    if isinstance(stops, list) and len(stops) > 5:
        yield make_fault("stops", limit=5)
    contents = to_items(body.get("contents"))
    if not contents:
        yield make_fault("contents")
    for i, content in enumerate(contents):
        yield from _check_parts(i, content)
    yield from _check_generate_order(provider, str(body.get("model")), contents)
    pictures = [picture for i, content in enumerate(contents) for picture in _find_inline_data(i, content)]
    yield from check_pictures(provider.images, pictures)


def _read(node: Json, name: str) -> Any:
    """Read a field by its camelCase name; the API takes snake_case as well."""
    snake = re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)
    return node.get(name, node.get(snake))


def _find_inline_data(i: int, content: Json) -> Iterator[Picture]:
    for k, part in enumerate(to_items(content.get("parts"))):
        data = to_object(_read(part, "inlineData"))
        kind = str(_read(data, "mimeType"))
        if kind.startswith("image/"):
            yield (("contents", i, "parts", k, "inline_data"), kind.removeprefix("image/"), str(data.get("data", "")))


def _check_parts(i: int, content: Json) -> Faults:
    if content.get("role") not in ("user", "model", "function", None):
        yield make_fault("role", "contents", i, "role", role=content.get("role"))
    for name in sorted(set(content) - {"role", "parts"}):
        yield make_fault("unknown_at", "contents", i, name=name)
    parts = to_items(content.get("parts"))
    if not parts:
        yield make_fault("parts_empty", "contents", i)
    for k, part in enumerate(parts):
        names, path = {to_camel(name) for name in part}, ("contents", i, "parts", k)
        for name in sorted(names - _PART_FIELDS):
            yield make_fault("unknown_at", *path, name=name)
        is_signed = "thoughtSignature" in names
        if len(names & _PART_DATA) != 1 or (part.get("text") == "" and not is_signed):
            yield make_fault("part_data", *path)
        if is_signed and not is_own_signature("google", _read(part, "thoughtSignature")):
            yield make_fault("signature", *path)
        for field, value_name in (("functionCall", "args"), ("functionResponse", "response")):
            node = _read(part, field)
            if isinstance(node, Mapping) and not node.get("name"):
                yield make_fault("name_empty", *path, field)
            if isinstance(node, Mapping) and not isinstance(node.get(value_name, {}), Mapping):
                yield make_fault("struct", *path, field, value_name)


def _list_names(content: Json, name: str) -> list[str]:
    nodes = [_read(part, name) for part in to_items(content.get("parts"))]
    return [str(node.get("name")) for node in nodes if isinstance(node, Mapping)]


def _check_generate_order(provider: Provider, model: str, contents: list[Json]) -> Faults:
    if contents and contents[0].get("role") == "model":
        yield make_fault("user_first", "contents", 0)
    if contents and contents[-1].get("role") == "model":
        yield make_fault("last_role", "contents", len(contents) - 1)
    expected: list[str] = []
    for i, content in enumerate([*contents, {"role": "end"}]):
        calls, results = _list_names(content, "functionCall"), _list_names(content, "functionResponse")
        if results and not expected:
            yield make_fault("result_orphan", "contents", i)
        elif sorted(results) != sorted(expected):
            yield make_fault("call_unanswered", "contents", i)
        if calls and i > 0 and contents[i - 1].get("role") == "model":
            yield make_fault("call_order", "contents", i)
        expected = calls
    starts = [i for i, c in enumerate(contents) if c.get("role") != "model" and not _list_names(c, "functionResponse")]
    for i in range(starts[-1] if starts else 0, len(contents)):
        for k, part in enumerate(to_items(contents[i].get("parts"))):
            call = _read(part, "functionCall")
            if isinstance(call, Mapping):
                if not _read(part, "thoughtSignature") and re.search(provider.signature_models or "$^", model):
                    yield make_fault("signature_missing", "contents", i, "parts", k, name=call.get("name"), place=i + 1)
                break  # Only the first call of a step carries a signature (Thought signatures, parallel calls).

"""Convert messages of Strands to Chat Completions messages and back, and to JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

Json = dict[str, Any]
PART: Final = "strands"
"""Key of an entry's metadata: the position of the entry among the entries of its message. The entry at position 0 has the message in its
`origin`."""
_ENCODED: Final = "__bytes_encoded__"
"""Key of an object that represents a value which JSON does not have. Strands uses the same key for bytes."""
_MEDIA_TYPES: Final = {
    "jpg": "image/jpeg",
    "csv": "text/csv",
    "html": "text/html",
    "md": "text/markdown",
    "txt": "text/plain",
}
_TEXT: Final = {"type": "text"}
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class MessagePart(NamedTuple):
    """A message in Chat Completions format, and the content blocks of Strands that it was made from."""

    chat: Json
    blocks: Sequence[Json]


# -- Strands -> Chat Completions ---------------------------------------------------


def split_message(message: Mapping[str, Any]) -> list[MessagePart]:
    """Convert a message: a reply is one message, and so is each tool result and the rest of a user message."""
    content = message["content"]
    if message["role"] == "assistant":
        return [MessagePart(_make_reply(content), content)]
    results = [block for block in content if "toolResult" in block]
    rest = [block for block in content if "toolResult" not in block]
    parts = [MessagePart(_make_result(block["toolResult"]), [block]) for block in results]
    said = [made for block in rest if (made := _to_part(block)) is not None]
    if said or not parts:
        single = len(said) == 1 and said[0].keys() == {"type", "text"}
        text: Any = said[0]["text"] if single else said or ""
        return [*parts, MessagePart({"role": "user", "content": text}, rest)]
    return [*parts[:-1], parts[-1]._replace(blocks=[*parts[-1].blocks, *rest])]  # such as a cache point


def make_entries(message: Mapping[str, Any]) -> list[Json]:
    """Return the messages to append to a log. The first one's `origin` is the whole message."""
    pinned = {"pinned": True} if is_pinned(message) else {}
    made: list[Json] = [
        {**part.chat, "metadata": {PART: at}, **pinned} for at, part in enumerate(split_message(message))
    ]
    made[0]["origin"] = encode_value(dict(message))
    return made


def make_key(message: Mapping[str, Any]) -> int:
    """Return a number that is equal for messages with equal role and content. It is valid in this process only."""
    return hash(_encode([message["role"], message["content"]]))


def is_pinned(message: Mapping[str, Any]) -> bool:
    """Return True if Strands' `pin_message` has marked a message as one that stays in prompts."""
    return ((message.get("metadata") or {}).get("custom") or {}).get("pinned") is True


def set_pinned(message: Json, *, pinned: bool) -> None:
    """Add or remove the mark of Strands' `pin_message`."""
    if is_pinned(message) == pinned:
        return
    metadata = message.get("metadata") or {}
    custom = {name: value for name, value in (metadata.get("custom") or {}).items() if name != "pinned"}
    message["metadata"] = {**metadata, "custom": {**custom, **({"pinned": True} if pinned else {})}}


def _make_reply(content: Sequence[Json]) -> Json:
    said = [made["text"] for block in content if (made := _to_part(block)) is not None and made["type"] == "text"]
    calls = [_make_call(block["toolUse"]) for block in content if "toolUse" in block]
    message: Json = {"role": "assistant", "content": "\n".join(said)}
    return {**message, "tool_calls": calls} if calls else message


def _make_call(use: Json) -> Json:
    arguments = json.dumps(use.get("input"), ensure_ascii=False, default=str)
    return {"id": use["toolUseId"], "type": "function", "function": {"name": use["name"], "arguments": arguments}}


def _make_result(result: Json) -> Json:
    said = [made for item in result.get("content") or () if (made := _to_part(item)) is not None]
    content: Any = said
    if all(one["type"] == "text" for one in said):
        content = "\n".join(one["text"] for one in said)
    return {"role": "tool", "tool_call_id": result["toolUseId"], "content": content}


def _to_part(block: Json) -> Json | None:
    """Convert a content block to a content part. Reasoning, cache points, calls and results have none."""
    for kind, value in block.items():
        match kind:
            case "text":
                return {**_TEXT, "text": value or ""}
            case "json":
                return {**_TEXT, "text": json.dumps(value, ensure_ascii=False, default=str)}
            case "guardContent":
                return {**_TEXT, "text": value.get("text", {}).get("text", "")}
            case "citationsContent":
                return {**_TEXT, "text": "".join(one.get("text", "") for one in value.get("content") or ())}
            case "image" | "document" | "audio" | "video":
                return _to_media(kind, value)
    return None


def _to_media(kind: str, value: Json) -> Json:
    data, suffix = (value.get("source") or {}).get("bytes"), value.get("format") or "bin"
    if data is None:  # stored elsewhere, or text
        return {**_TEXT, "text": f"[{kind}: {json.dumps(value.get('source'), ensure_ascii=False, default=str)}]"}
    encoded = base64.b64encode(data).decode()
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": suffix}}
    family = "application" if kind == "document" else kind
    url = f"data:{_MEDIA_TYPES.get(suffix, f'{family}/{suffix}')};base64,{encoded}"
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": f"{value.get('name') or kind}.{suffix}", "file_data": url}}


# -- Chat Completions -> Strands ---------------------------------------------------


def make_blocks(chat: Mapping[str, Any], own: Sequence[Json] = ()) -> list[Json]:
    """Convert a message that was shortened or generated for a prompt, or written by another program, to content blocks.

    Args:
        chat: the message.
        own: the blocks of the message from which it was shortened. Reasoning, and the status of a result, are taken from there.
    """
    content = chat.get("content") or ""
    items = [{"text": content}] if isinstance(content, str) else [_to_block(part) for part in content]
    said = [item for item in items if item.get("text") != ""]
    if chat["role"] == "tool":
        status = next((block["toolResult"].get("status") for block in own if "toolResult" in block), None)
        result = {
            "toolUseId": chat["tool_call_id"],
            "status": status or "success",
            "content": said or [{"text": "[empty]"}],
        }
        return [{"toolResult": result}]
    calls = [_to_tool_use(call, own) for call in chat.get("tool_calls") or ()]
    return [*(block for block in own if "reasoningContent" in block), *said, *calls]


def _to_block(part: Mapping[str, Any]) -> Json:
    if part.get("type") == "image_url":
        kind, _, data = part["image_url"]["url"].removeprefix("data:image/").partition(";base64,")
        if data:
            return {"image": {"format": kind, "source": {"bytes": base64.b64decode(data)}}}
    return {"text": part["text"] if part.get("type") == "text" else f"[{part.get('type')}]"}


def _to_tool_use(call: Mapping[str, Any], own: Sequence[Json]) -> Json:
    function = call["function"]
    known = next((block for block in own if block.get("toolUse", {}).get("toolUseId") == call["id"]), None)
    if known is not None and _make_call(known["toolUse"])["function"]["arguments"] == function["arguments"]:
        return known
    try:
        given = json.loads(function["arguments"] or "{}")
    except ValueError:  # shortened
        given = {"arguments": function["arguments"]}
    return {"toolUse": {"toolUseId": call["id"], "name": function["name"], "input": given}}


def load_messages(entries: Iterable[Any]) -> list[tuple[Json, list[int]]]:
    """Return the messages in the entries of a log, each with the `seq` (position) of its entries.

    Messages that another program wrote are converted. Its consecutive tool results become one message, as Strands expects.
    """
    loaded: list[tuple[Json, list[int]]] = []
    follows_result = False
    for entry in entries:
        message, part = entry.message, (entry.metadata or {}).get(PART)
        if entry.is_note:
            continue
        if loaded and (part or (follows_result and part is None and message.role == "tool")):
            loaded[-1][1].append(entry.seq)
            if part is None:
                loaded[-1][0]["content"] += make_blocks(_to_chat(message))
            continue
        follows_result = part is None and message.role == "tool"
        if part == 0 and isinstance(message.origin, dict):
            made = decode_value(message.origin)
        else:
            role = "assistant" if message.role == "assistant" else "user"
            made = {"role": role, "content": make_blocks(_to_chat(message)) or [{"text": "[empty]"}]}
        set_pinned(made, pinned=entry.pinned)
        loaded.append((made, [entry.seq]))
    return loaded


def _to_chat(message: Any) -> Json:
    """Return the fields of a stored message that `make_blocks` reads."""
    content = message.content
    if isinstance(content, tuple):
        content = [{"type": part.type, "text": part.text or "", **part.extra} for part in content]
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
    ]
    is_text = isinstance(content, str | list)
    return {
        "role": message.role,
        "content": content if is_text else "",
        "tool_call_id": message.tool_call_id,
        "tool_calls": calls,
    }


# -- values that JSON does not have --------------------------------------------------


def encode_value(value: Any) -> Any:
    """Return a JSON value from which `decode_value` restores the value, including bytes and numbers such as NaN."""
    if isinstance(value, bytes | bytearray):
        return {_ENCODED: True, "data": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {_ENCODED: "float", "value": repr(value)}
    if isinstance(value, Mapping):
        made = {key: encode_value(one) for key, one in value.items()}
        return {_ENCODED: False, "value": made} if _ENCODED in value else made
    return [encode_value(one) for one in value] if isinstance(value, list | tuple) else value


def decode_value(value: Any) -> Any:
    """Restore a value from the result of `encode_value`."""
    if isinstance(value, list):
        return [decode_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    match value.get(_ENCODED):
        case True:
            return base64.b64decode(value["data"])
        case "float":
            return float(value["value"])
        case False:
            value = value["value"]
    return {key: decode_value(one) for key, one in value.items()}

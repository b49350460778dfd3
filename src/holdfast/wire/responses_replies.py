"""Replies in the format of OpenAI's Responses API: the Response object and its items.

Follows the API reference, "The response object". The input is in Chat Completions format. `holdfast.wire.responses_events` makes the events
of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.context.dialects import parse_field_thoughts
from holdfast.domain.messages import Message
from holdfast.domain.provider_items import list_details
from holdfast.numbers import is_whole
from holdfast.wire.openai import convert_parts, parse_message, to_chat_message
from holdfast.wire.response_ids import Place
from holdfast.wire.responses_items import INPUT, ToolName, ToolNames, get_items

Item = dict[str, Any]
Status = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete response for each `finish_reason`."""
CUT: Final = "steered"
"""Reason of an incomplete response if another turn of the session interrupted it."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "auto",
    "user": None,
}
"""Values of fields that the Response object repeats, if the request does not set them."""


class ResponseHead(NamedTuple):
    """The fields of a response that do not change while it is made."""

    place: Place
    created_at: int
    """Seconds since the epoch."""
    echo: Mapping[str, Any]
    """Fields of the request that the Response object repeats."""
    names: ToolNames
    """The client's tools by the names of their functions."""
    conversation: str | None = None
    """Id of the conversation that the request named."""

    @property
    def id(self) -> str:
        """Id of the response."""
        return self.place.make_id("resp")


def make_response(
    head: ResponseHead,
    *,
    model: str,
    output: Sequence[Item] = (),
    status: Status = "completed",
    usage: Any = None,
    reason: str | None = None,
    error: Mapping[str, Any] | None = None,
    completed_at: int | None = None,
) -> dict[str, Any]:
    """Return a Response object.

    Args:
        head: The fields that are known from the beginning.
        model: Name of the model.
        output: Items of the reply.
        status: Status of the response.
        usage: Usage as Chat Completions report it, or None.
        reason: Reason of the status `incomplete`.
        error: Code and message of the status `failed`.
        completed_at: Seconds since the epoch, for the status `completed`.
    """
    done = status in ("completed", "incomplete")
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "completed_at": completed_at,
        "status": status,
        "error": error,
        "incomplete_details": None if reason is None else {"reason": reason},
        "model": model,
        "output": list(output),
        **_DEFAULTS,
        **head.echo,
        "conversation": None if head.conversation is None else {"id": head.conversation},
        "usage": format_usage(usage) if done else None,
    }


def format_usage(usage: Any) -> dict[str, Any] | None:
    """Return usage in the format of the Responses API; None if nothing is known."""
    if not isinstance(usage, Mapping):
        return None
    sent, made = _to_number(usage, "prompt_tokens"), _to_number(usage, "completion_tokens")
    details, reply = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = _to_number(details, "cached_tokens")
    written = _to_number(details, "cache_write_tokens") or _to_number(usage, "cache_creation_input_tokens")
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": _to_number(reply, "reasoning_tokens")},
        "total_tokens": _to_number(usage, "total_tokens") or sent + made,
    }


def _to_number(fields: Any, name: str) -> int:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return int(value) if is_whole(value) else 0


def find_status(finish_reason: Any) -> tuple[Status, str | None]:
    """Return the status of a reply with this `finish_reason`, and the reason if it is incomplete."""
    reason = _INCOMPLETE.get(finish_reason) if isinstance(finish_reason, str) else None
    return ("completed", None) if reason is None else ("incomplete", reason)


# -- items ----------------------------------------------------------------------


class ItemIds:
    """Makes the ids of the items of one reply. The same reply has the same ids, whether it is streamed or read from the log.

    Args:
        place: Place of the response, or of the message.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def make(self, prefix: str, number: int) -> str:
        """Return the id of an item.

        Args:
            prefix: Prefix for the kind of item, for example `msg`.
            number: 0 for reasoning, 1 for the text, and from 2 the calls in their order.
        """
        return self._place._replace(number=number).make_id(prefix)


REASONING: Final = 0
TEXT: Final = 1
FIRST_CALL: Final = 2
FIRST_HOSTED: Final = 100_000
"""Number of the first call of a tool that runs at the provider, or compaction of the provider."""


def make_output(message: Mapping[str, Any], place: Place, names: ToolNames) -> list[Item]:
    """Return the items of an assistant's message in Chat Completions format: reasoning, calls at the provider, text, then calls.

    Args:
        message: The message.
        place: Place of the response, or of the message in the log.
        names: The client's tools by the names of their functions.
    """
    ids, items = ItemIds(place), []
    thoughts = [thought.text for thought in parse_field_thoughts(parse_message({**message, "role": "assistant"}))]
    if text := "".join(thoughts):
        items.append(make_reasoning(ids.make("rs", REASONING), text))
    items += [make_hosted(ids, at, item) for at, item in enumerate(list_hosted(message))]
    if parts := _list_parts(message):
        items.append(make_message_item(ids.make("msg", TEXT), parts))
    for at, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        tool = find_tool(names, function.get("name"))
        call_id = str(call.get("id") or f"call_{at}")
        id_ = ids.make(CALL_PREFIXES[tool.is_custom], FIRST_CALL + at)
        items.append(make_call(id_, call_id, tool, str(function.get("arguments") or "")))
    return items


def list_hosted(message: Mapping[str, Any]) -> list[Item]:
    """Return the provider's own items, such as calls of its tools, in a message or a delta of Chat Completions format."""
    return [dict(one["item"]) for one in list_details(message) if isinstance(one["item"].get("type"), str)]


def make_hosted(ids: ItemIds, at: int, item: Item) -> Item:
    """Return an item of the provider with an id of Holdfast. `at` is its position among such items of the reply."""
    prefix = _PREFIXES.get(item["type"]) or item["type"].removesuffix("_call").replace("_", "")
    return {**item, "id": ids.make(prefix, FIRST_HOSTED + at)}


def make_compaction_item(place: Place, reference: str) -> Item:
    """Return the item that stands for the compacted part of a conversation.

    Args:
        place: Place of the response.
        reference: The reference that the client sends back.
    """
    return {"id": place.make_id("cmp"), "type": "compaction", "encrypted_content": reference}


CALL_PREFIXES: Final = {False: "fc", True: "ctc"}
"""Prefix of the ids of calls: of functions, and of custom tools."""


def _list_parts(message: Mapping[str, Any]) -> list[Item]:
    """Return the content of a message as parts; without text and refusal, an empty list."""
    content, refusal = message.get("content"), message.get("refusal")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    made = [_convert_part(part) for part in parts if isinstance(part, Mapping)]
    return [*made, *([{"type": "refusal", "refusal": refusal}] if refusal else [])]


def _convert_part(part: Mapping[str, Any]) -> Item:
    if part.get("type") == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal", "")}
    return make_text_part(str(part.get("text") or ""), part.get("annotations"))


def make_text_part(text: str, annotations: Any = None) -> Item:
    """Return a text part of a message item."""
    listed = list(annotations) if isinstance(annotations, list) else []
    return {"type": "output_text", "text": text, "annotations": listed, "logprobs": []}


def make_reasoning(id_: str, text: str, status: str = "completed") -> Item:
    """Return a reasoning item."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": id_, "type": "reasoning", "summary": [], "content": content, "status": status}


def make_message_item(id_: str, parts: Sequence[Item], status: str = "completed") -> Item:
    """Return a message item with these parts."""
    return {"id": id_, "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def find_tool(names: ToolNames, name: Any) -> ToolName:
    """Return the tool of a function. A function that the request does not declare is a tool with the same name."""
    return names.get(name) or ToolName(str(name or ""))


def make_call(id_: str, call_id: str, tool: ToolName, arguments: str, status: str = "completed") -> Item:
    """Return the item of a call of a tool, in the form that the client knows."""
    space = {} if tool.namespace is None else {"namespace": tool.namespace}
    about = {"id": id_, "call_id": call_id, "name": tool.name, **space, "status": status}
    if tool.is_custom:
        return {**about, "type": "custom_tool_call", "input": read_input(arguments)}
    return {**about, "type": "function_call", "arguments": arguments}


def read_input(arguments: str) -> str:
    """Return the free text in the arguments of a custom tool's function. Arguments of another form are returned unchanged."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


# -- items of a log ------------------------------------------------------------------


def make_items(message: Message, place: Place, names: ToolNames) -> list[Item]:
    """Return the items of a message in a log.

    Args:
        message: The message. Its media are restored.
        place: Place of the message, or of the response whose reply it is.
        names: The client's tools by the names of their functions.
    """
    if stored := get_items(message):
        return [
            {**item, **_list_content(item), "id": place._replace(number=at).make_id(_get_prefix(item))}
            for at, item in enumerate(stored)
        ]
    sent = to_chat_message(convert_parts(message))
    if message.role == "assistant":
        return make_output(sent, place, names)
    if message.role == "tool":
        about = {"call_id": message.tool_call_id, "output": _make_input_content(sent), "status": "completed"}
        return [{"id": place.make_id("fco"), "type": "function_call_output", **about}]
    content = _make_input_content(sent)
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    about = {"type": "message", "role": message.role, "status": "completed", "content": parts}
    return [{"id": place.make_id("msg"), **about}]


def _list_content(item: Mapping[str, Any]) -> Item:
    """Return the content of a message item that a client sent as a text, as parts; empty if it needs no change."""
    content = item.get("content")
    if not isinstance(content, str):
        return {}
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {"content": [{"type": kind, "text": content}]}


def _get_prefix(item: Mapping[str, Any]) -> str:
    return _PREFIXES.get(str(item["type"]), "item")


_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}


def _make_input_content(sent: Mapping[str, Any]) -> str | list[Item]:
    content = sent.get("content")
    if isinstance(content, list):
        return [convert_input_part(part) for part in content]
    return content if isinstance(content, str) else ""


def convert_input_part(part: Mapping[str, Any]) -> Item:
    """Convert a Chat Completions part to a part of an input message. Return parts without an equivalent unchanged."""
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": part.get("text", "")}
    if kind == "image_url" and isinstance(part.get("image_url"), Mapping):
        image = part["image_url"]
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
    if kind == "file" and isinstance(part.get("file"), Mapping):
        return {"type": "input_file", **part["file"]}
    return dict(part)

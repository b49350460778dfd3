"""Requests and replies of a provider's Responses API: conversion between Chat Completions and `POST /responses`.

Follows the API reference, "Create a model response" and "Streaming events". The provider stores nothing (`store: false`): each request has
the whole working set. Reasoning is sent back as the provider encrypted it, and only to the upstream that it came from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.messages import UNSPOKEN_PARTS
from holdfast.domain.provider_items import FORMAT, HOSTED, is_provider_compaction
from holdfast.errors import InvalidRequest
from holdfast.limits import HOSTED_ITEM_BYTES
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Reasoning, Text, Usage
from holdfast.wire.anthropic import to_tool_name
from holdfast.wire.openai import describe_left_out
from holdfast.wire.responses_replies import convert_input_part

Json = dict[str, Any]
ENCRYPTED: Final = "reasoning.encrypted_content"
_CONVERTED_ITEMS: Final = ("message", "reasoning", "function_call", "custom_tool_call")
"""Types of output items that have an equivalent in Chat Completions."""
_REFUSED: Final = ("audio", "functions", "function_call", "logit_bias", "prediction", "stop", "web_search_options")
"""Fields of Chat Completions that change the answer and that the Responses API does not have."""
_DROPPED: Final = frozenset(
    {"frequency_penalty", "modalities", "n", "presence_penalty", "seed", "stream", "stream_options", "store"}
)
"""Fields that the Responses API does not have, and that do not change the form of the answer."""
_CONVERTED: Final = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "tool_choice",
        "tools",
        "top_logprobs",
        "verbosity",
    }
)
_INPUTS: Final = ("input_text", "input_image", "input_file")
"""Types of parts of messages and outputs in a request."""
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


def build_body(body: Mapping[str, Any], upstream: str) -> Json:
    """Convert a Chat Completions body to a body of `POST /responses`.

    Args:
        body: The body, with `model` and `messages`.
        upstream: Address of the upstream. Only its own encrypted reasoning is sent.

    Raises:
        InvalidRequest: The body contains something that the Responses API does not have. The error names it.
    """
    for name in _REFUSED:
        if body.get(name):
            raise InvalidRequest(
                f"{name} is not supported by the Responses API of this model; leave it out", param=name
            )
    if body.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1: the Responses API returns one answer per request", param="n")
    made = {name: value for name, value in body.items() if name not in _DROPPED | _CONVERTED and value is not None}
    tools = [_convert_tool(tool) for tool in body.get("tools") or ()]
    declared = [tool.get("name") for tool in tools if isinstance(tool, Mapping)]
    items = list(_convert_messages(body.get("messages") or (), upstream, declared))
    made |= {"input": items, "store": False, "stream": True}
    include = [ENCRYPTED]
    if body.get("logprobs"):
        include.append("message.output_text.logprobs")
        made |= {"top_logprobs": body["top_logprobs"]} if body.get("top_logprobs") else {}
    made["include"] = include
    if limit := body.get("max_completion_tokens") or body.get("max_tokens"):
        made["max_output_tokens"] = limit
    made |= _convert_reasoning(body)
    made |= _convert_text(body)
    if tools:
        made["tools"] = tools
        if body.get("tool_choice") is not None:
            made["tool_choice"] = _convert_choice(body["tool_choice"])
    else:
        made.pop("parallel_tool_calls", None)
    return made


def _convert_reasoning(body: Mapping[str, Any]) -> Json:
    given = body.get("reasoning")
    reasoning = dict(given) if isinstance(given, Mapping) else {}
    if body.get("reasoning_effort"):
        reasoning["effort"] = body["reasoning_effort"]
    return {"reasoning": reasoning} if reasoning else {}


def _convert_text(body: Mapping[str, Any]) -> Json:
    text: Json = {"verbosity": body["verbosity"]} if body.get("verbosity") else {}
    form = body.get("response_format")
    if isinstance(form, Mapping):
        inner = form.get("json_schema") if form.get("type") == "json_schema" else None
        text["format"] = {"type": form.get("type"), **(inner if isinstance(inner, Mapping) else {})}
    return {"text": text} if text else {}


def _convert_tool(tool: Any) -> Any:
    """Convert a function or custom tool. A tool that runs at the provider is returned unchanged."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    inner = tool.get(kind) if kind in ("function", "custom") else None
    return {"type": kind, **inner} if isinstance(inner, Mapping) else tool


def _convert_choice(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    if kind == "allowed_tools" and isinstance(inner, Mapping):
        return {
            "type": kind,
            "mode": inner.get("mode"),
            "tools": [_convert_tool(tool) for tool in inner.get("tools", ())],
        }
    return {"type": kind, "name": inner.get("name")} if isinstance(inner, Mapping) else choice


def mark_upstream(address: str) -> str:
    """Return the hash of an upstream's address that is stored with its encrypted reasoning, because other models also see the message."""
    return hashlib.blake2b(address.encode(), digest_size=6).hexdigest()


# -- messages ----------------------------------------------------------------------


def _convert_messages(
    messages: Iterable[Mapping[str, Any]], upstream: str, declared: Collection[Any]
) -> Iterator[Json]:
    custom: set[Any] = set()
    """Ids of calls of custom tools, whose results have another type."""
    for message in messages:
        role = message["role"]
        if role == "assistant":
            yield from _convert_reply(message, upstream, declared, custom)
        elif role == "tool":
            call_id = message.get("tool_call_id")
            kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
            yield {"type": kind, "call_id": _fit_id(call_id), "output": _convert_content(message.get("content"))}
        else:
            content, name = _convert_content(message.get("content")), str(message.get("name") or "").strip()
            if role == "user" and name:  # the API has no field for the speaker
                texts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
                content = [{"type": "input_text", "text": f"{name}:"}, *texts]
            yield {"type": "message", "role": role, "content": content}


def map_items(messages: Iterable[Mapping[str, Any]], upstream: str) -> list[int]:
    """Return the index of the message from which each item of a request comes."""
    return [at for at, message in enumerate(messages) for _ in _convert_messages([message], upstream, ())]


def _convert_reply(
    message: Mapping[str, Any], upstream: str, declared: Collection[Any], custom: set[Any]
) -> Iterator[Json]:
    yield from _list_reasoning(message, upstream)
    content, refusal = message.get("content"), message.get("refusal")
    parts = [_convert_reply_part(part) for part in content] if isinstance(content, list) else []
    if isinstance(content, str) and content:
        parts = [{"type": "output_text", "text": content}]
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        yield {"type": "message", "role": "assistant", "content": parts}
    for call in message.get("tool_calls") or ():
        custom_call = call.get("type") == "custom"
        inner = call["custom" if custom_call else "function"]
        # A call by another model may have a name that only that model's provider accepts.
        name = inner["name"] if inner["name"] in declared else to_tool_name(inner["name"])[:64]
        if custom_call:
            custom.add(call["id"])
            yield {"type": "custom_tool_call", "call_id": _fit_id(call["id"]), **inner, "name": name}
        else:
            about = {"name": name, "arguments": inner.get("arguments") or "{}"}
            yield {"type": "function_call", "call_id": _fit_id(call["id"]), **about}


def _fit_id(call_id: Any) -> Any:
    """Return the id of a tool call with length and characters that the API accepts. A call and its result get the same id."""
    if not isinstance(call_id, str) or _CALL_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.blake2b(call_id.encode(errors='replace'), digest_size=16).hexdigest()}"


def _list_reasoning(message: Mapping[str, Any], upstream: str) -> Iterator[Json]:
    """Yield the reasoning items of a reply that this upstream encrypted, the calls of tools that it ran, and compactions.

    Compaction items that a client sent name no upstream.
    """
    details = message.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
        if not isinstance(detail, Mapping) or detail.get("format") != FORMAT:
            continue
        own, item = detail.get("upstream") == mark_upstream(upstream), detail.get("item")
        if detail.get("type") == HOSTED and isinstance(item, Mapping):
            is_compaction = item.get("type") == "compaction"
            if (own or detail.get("upstream") is None) if is_provider_compaction(item) else own and not is_compaction:
                # The provider stores nothing, so it would not find the item by its id.
                yield {name: value for name, value in item.items() if name != "id"}
        elif own and detail.get("type") == "reasoning.encrypted" and detail.get("data"):
            summary = [{"type": "summary_text", "text": text} for text in detail.get("summaries") or ()]
            about = {"id": detail["id"]} if detail.get("id") else {}
            yield {"type": "reasoning", **about, "summary": summary, "encrypted_content": detail["data"]}


def _convert_reply_part(part: Any) -> Json:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal", "")}
    if kind not in (None, *UNSPOKEN_PARTS) and part.get("text") is None:
        return {"type": "output_text", "text": describe_left_out(str(kind), part)}
    return {"type": "output_text", "text": str(part.get("text") or "") if isinstance(part, Mapping) else str(part)}


def _convert_content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    made = [convert_input_part(part) for part in content]
    return [
        part if part["type"] in _INPUTS else {"type": "input_text", "text": describe_left_out(part["type"], part)}
        for part in made
    ]


# -- replies -------------------------------------------------------------------------


class ResponseDecoder:
    """Decodes the events of one reply.

    Args:
        upstream: Address of the upstream, which is stored with its encrypted reasoning.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = mark_upstream(upstream)
        self._calls: dict[int, int] = {}
        """Number of each call, by the `output_index` of its item."""
        self._written: set[int] = set()
        """`output_index` of each call whose arguments were streamed."""
        self._thoughts = 0
        self._spoke = False
        self.finished = False
        """True once the response has ended."""

    def convert(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of an event. An event of an unknown type yields none.

        Raises:
            KeyError, TypeError, ValueError: The event does not match the API.
        """
        match event["type"]:
            case "response.created":
                response = event["response"]
                about = {"id": response["id"], "created": int(response.get("created_at") or 0)}
                yield Head({**about, "model": str(response.get("model") or "")})
            case "response.output_text.delta":
                self._spoke = True
                yield Text(_require_string(event["delta"]))
                listed = [event["logprobs"]] if event.get("logprobs") else []
                yield from (Opaque("logprobs", {"content": one}, in_message=False) for one in listed)
            case "response.refusal.delta":
                self._spoke = True
                yield Opaque("refusal", _require_string(event["delta"]))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield Reasoning(_require_string(event["delta"]))
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                yield Reasoning("\n\n")
            case "response.output_item.added":
                yield from self._start_item(event["output_index"], event["item"])
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._written.add(event["output_index"])
                kind = "custom" if event["type"].startswith("response.custom") else "function"
                yield CallArguments(self._calls[event["output_index"]], _require_string(event["delta"]), kind=kind)
            case "response.output_item.done":
                yield from self._finish_item(event["output_index"], event["item"])
            case "response.completed" | "response.incomplete":
                yield from self._finish(event["response"])

    def _start_item(self, index: int, item: Json) -> Iterator[Delta]:
        if item["type"] not in ("function_call", "custom_tool_call"):
            return
        self._calls[index] = len(self._calls)
        kind = "function" if item["type"] == "function_call" else "custom"
        yield CallStart(self._calls[index], _require_string(item["call_id"]), item["name"], kind=kind)

    def _finish_item(self, index: int, item: Json) -> Iterator[Delta]:
        kind = item["type"]
        if kind == "reasoning" and item.get("encrypted_content"):
            summaries = [part["text"] for part in item.get("summary") or ()]
            detail = {"type": "reasoning.encrypted", "format": FORMAT, "index": self._thoughts, "id": item.get("id")}
            detail |= {"data": item["encrypted_content"], "summaries": summaries, "upstream": self._upstream}
            self._thoughts += 1
            yield Opaque("reasoning_details", [detail])
        elif kind not in _CONVERTED_ITEMS:
            detail = {"type": HOSTED, "format": FORMAT, "index": self._thoughts, "upstream": self._upstream}
            self._thoughts += 1
            yield Opaque("reasoning_details", [{**detail, "item": _limit_item(item)}])
        elif kind in ("function_call", "custom_tool_call") and index not in self._written:
            called, name = ("function", "arguments") if kind == "function_call" else ("custom", "input")
            yield CallArguments(self._calls[index], _require_string(item[name]), kind=called)

    def _finish(self, response: Json) -> Iterator[Delta]:
        self.finished = True
        details = response.get("incomplete_details") or {}
        reason = _REASONS.get(str(details.get("reason")), "stop") if response["status"] == "incomplete" else "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        if not self._spoke and not self._calls:
            yield Text("")  # an empty reply; no text means that there are tool calls
        yield Finish(reason)
        if isinstance(response.get("usage"), Mapping):
            yield Usage(_convert_usage(response["usage"]))


def _limit_item(item: Json) -> Json:
    """Return an item of a tool that ran at the provider; of a large one, such as an image, only what identifies it."""
    if len(msgspec.json.encode(item)) <= HOSTED_ITEM_BYTES:
        return item
    return {name: item[name] for name in ("type", "id", "status") if name in item}


def _convert_usage(usage: Mapping[str, Any]) -> Json:
    sent, made = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "prompt_tokens": sent,
        "completion_tokens": made,
        "total_tokens": usage.get("total_tokens") or sent + made,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _require_string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value

"""Decode the events of an upstream with OpenAI's Responses API to deltas.

Follows the API reference, "Streaming events". What deltas have no types for travels in the reply's reasoning details, each with the mark of the
upstream: encrypted reasoning, calls of tools that the provider ran, and for other items the fields that only this API has. Such a detail
of a message item completes the item, and has the number of its characters in `chars`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.provider_items import CALLS, DETAILS, ENCRYPTED, FORMAT, HOSTED
from holdfast.limits import HOSTED_ITEM_BYTES
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Reasoning, Text, Usage
from holdfast.models.codecs.responses.encoder import OWN_FIELDS, RESPONSE_FIELDS
from holdfast.models.codecs.responses.items import mark_upstream

Json = dict[str, Any]
_REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
_READ: Final = {
    "message": ("type", "id", "role", "status", "content"),
    "reasoning": ("type", "id", "status", "summary", "content", ENCRYPTED),
    "function_call": ("type", "id", "status", "call_id", "name", "arguments"),
    "custom_tool_call": ("type", "id", "status", "call_id", "name", "input"),
    "output_text": ("type", "text", "logprobs"),
    "refusal": ("type", "refusal"),
}
"""Fields of items and parts that have an equivalent in deltas."""


class ResponseDecoder:
    """Decodes the events of one reply.

    Args:
        upstream: Address of the upstream.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = mark_upstream(upstream)
        self._calls: dict[int, int] = {}
        """Number of each call, by the `output_index` of its item."""
        self._streamed: set[int] = set()
        """`output_index` of each call or reasoning item whose text was streamed."""
        self._spoken: set[tuple[int, int]] = set()
        """`output_index` and `content_index` of each part of a message whose text was decoded."""
        self._open: tuple[int, int] | None = None
        """The part of a message item that was streamed last, if no detail has completed it."""
        self._chars = 0
        """Characters of the open part."""
        self._part: Json | None = None
        """The open part as its provider completed it; None: it is not complete yet."""
        self._is_split = False
        """True if a detail has completed a message item. Then there is one for each."""
        self._details = 0
        self._has_items = False
        self.finished = False
        """True once the response has ended."""

    def decode(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of an event. An event of an unknown type yields none.

        Raises:
            KeyError, TypeError, ValueError: The event does not match the API.
        """
        match event["type"]:
            case "response.created":
                response = event["response"]
                about = {"id": response["id"], "created": int(response.get("created_at") or 0)}
                yield Head({**about, "model": str(response.get("model") or "")})
            case "response.output_text.delta" | "response.refusal.delta" as kind:
                yield from self._speak((event["output_index"], event.get("content_index", 0)), kind, event["delta"])
                listed = [event["logprobs"]] if event.get("logprobs") else []
                yield from (Opaque("logprobs", {"content": one}, in_message=False) for one in listed)
            case "response.content_part.done" if self._open == (event["output_index"], event.get("content_index", 0)):
                self._part = event["part"]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._streamed.add(event["output_index"])
                yield Reasoning(_require_string(event["delta"]))
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                yield Reasoning("\n\n")
            case "response.output_item.added":
                yield from self._start_item(event["output_index"], event["item"])
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" as kind:
                self._streamed.add(event["output_index"])
                called = "custom" if kind.startswith("response.custom") else "function"
                yield CallArguments(self._calls[event["output_index"]], _require_string(event["delta"]), kind=called)
            case "response.output_item.done":
                yield from self._finish_item(event["output_index"], event["item"])
            case "response.completed" | "response.incomplete":
                yield from self._finish(event["response"])

    def decode_whole(self, response: Json) -> Iterator[Delta]:
        """Yield the deltas of a whole response.

        Raises:
            KeyError, TypeError, ValueError: The response does not match the API.
        """
        yield from self.decode({"type": "response.created", "response": response})
        yield from self._finish(response)

    def _speak(self, place: tuple[int, int], kind: str, text: Any) -> Iterator[Delta]:
        if self._open is not None and self._open != place:
            yield from self._complete_message({}, self._part)
        self._open = place
        self._spoken.add(place)
        if "refusal" in kind:
            yield Opaque("refusal", _require_string(text))
        else:
            self._chars += len(_require_string(text))
            yield Text(text)

    def _complete_message(self, own: Json, part: Json | None = None) -> Iterator[Delta]:
        more = {} if part is None else _list_own(part)
        content = {"content": [{"type": part["type"], **more}]} if part is not None and more else {}
        yield self._make_detail({"type": "message", **own, **content}, chars=self._chars)
        self._open, self._part, self._chars, self._is_split = None, None, 0, True

    def _make_detail(self, item: Json, **more: Any) -> Delta:
        about = {"type": HOSTED, "format": FORMAT, "index": self._details, "upstream": self._upstream}
        self._details += 1
        return Opaque(DETAILS, [{**about, **more, "item": _limit_item(item)}])

    def _start_item(self, index: int, item: Json) -> Iterator[Delta]:
        self._has_items = True
        if item["type"] in CALLS:
            self._calls[index] = len(self._calls)
            kind = "function" if item["type"] == "function_call" else "custom"
            yield CallStart(self._calls[index], _require_string(item["call_id"]), item["name"], kind=kind)

    def _finish_item(self, index: int, item: Json) -> Iterator[Delta]:
        """Yield the deltas of a complete item: what was not streamed, and its own fields."""
        kind = item["type"]
        if kind not in _READ:
            yield self._make_detail(item)
            return
        own = _list_own(item)
        if kind == "message":
            yield from self._finish_message(index, item, own)
            return
        if kind in CALLS and index not in self._streamed:
            called, name = ("function", "arguments") if kind == "function_call" else ("custom", "input")
            yield CallArguments(self._calls[index], _require_string(item[name]), kind=called)
        if kind == "reasoning":
            yield from self._finish_reasoning(index, item)
        if own:
            key = "call_id" if kind in CALLS else "id"
            yield self._make_detail({"type": kind, key: item.get(key), **own})

    def _finish_message(self, index: int, item: Json, own: Json) -> Iterator[Delta]:
        for at, part in enumerate(item.get("content") or ()):
            place, kind = (index, at), part["type"]
            text = part.get("refusal" if kind == "refusal" else "text")
            if place not in self._spoken and text:
                yield from self._speak(place, kind, text)
            if (own or _list_own(part)) and self._open == place:
                cut = {"status": "incomplete"} if item.get("status") == "incomplete" else {}
                yield from self._complete_message({**own, **cut}, part)

    def _finish_reasoning(self, index: int, item: Json) -> Iterator[Delta]:
        summaries = [part["text"] for part in item.get("summary") or ()]
        if index not in self._streamed:
            texts = summaries or [part["text"] for part in item.get("content") or ()]
            yield from [Reasoning("\n\n".join(texts))] if texts else []
        if item.get(ENCRYPTED):
            detail = {"type": "reasoning.encrypted", "format": FORMAT, "index": self._details, "id": item.get("id")}
            detail |= {"data": item[ENCRYPTED], "summaries": summaries, "upstream": self._upstream}
            self._details += 1
            yield Opaque(DETAILS, [detail])

    def _finish(self, response: Json) -> Iterator[Delta]:
        self.finished = True
        if not self._has_items:  # some upstreams send the items of a short reply at the end only
            for index, item in enumerate(response.get("output") or ()):
                yield from self._start_item(index, item)
                yield from self._finish_item(index, item)
        if self._is_split and self._open is not None:
            yield from self._complete_message({"status": response["status"]})
        details = response.get("incomplete_details") or {}
        reason = _REASONS.get(str(details.get("reason")), "length") if response["status"] == "incomplete" else "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        if not self._spoken and not self._calls:
            yield Text("")  # an empty reply; no text means that there are tool calls
        if own := {
            name: value for name, value in response.items() if name not in RESPONSE_FIELDS and value is not None
        }:
            yield Opaque(OWN_FIELDS, own, None)
        yield Finish(reason)
        if isinstance(response.get("usage"), Mapping):
            yield Usage(_convert_usage(response["usage"]))


def _list_own(fields: Json) -> Json:
    """Return the fields of an item, or of a part, that only this API has."""
    read = _READ.get(fields["type"], ("type", "text"))
    return {name: value for name, value in fields.items() if name not in read and value not in (None, [])}


def _limit_item(item: Json) -> Json:
    """Return an item of the provider; of a large one, such as an image, only what identifies it."""
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

"""Replies in the format of OpenAI's Responses API: the Response object, its items, and the events of a stream.

Follows the API reference, "The response object" and "Streaming events". Several items may be open at the same time, because each event names
its item. Reasoning and calls are completed at the end of the reply, and so is a message, unless the provider's own details complete it before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.domain.messages import Message
from holdfast.domain.provider_items import CALLS, DETAILS, list_details
from holdfast.log.items import (
    CallArguments,
    CallStart,
    Delta,
    Finish,
    Head,
    Opaque,
    Progress,
    Reasoning,
    Text,
    Usage,
    get_text,
)
from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.codecs.responses.ids import NOWHERE, Place
from holdfast.models.codecs.responses.items import PREFIXES, Item, get_items, make_input_items, split_reply
from holdfast.models.codecs.responses.notes import ECHO_DEFAULTS, ECHOED
from holdfast.models.codecs.responses.tools import ToolNames, find_tool, read_input
from holdfast.models.collect import Collector
from holdfast.numbers import is_whole
from holdfast.wire.openai import convert_parts, to_chat_message

Event = dict[str, Any]
Status = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete response for each `finish_reason`."""
CUT: Final = "steered"
"""Reason of an incomplete response if another turn of the session interrupted it."""
OWN_FIELDS: Final = "response"
"""Field of a reply with the fields of an upstream's Response object that are not in `RESPONSE_FIELDS`."""


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
        **ECHO_DEFAULTS,
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


RESPONSE_FIELDS: Final = frozenset(
    make_response(ResponseHead(NOWHERE, 0, {}, {}), model="").keys() | {*ECHOED, "output_text"}
)
"""Fields of the Response object that Holdfast sets."""


# -- events of items -------------------------------------------------------------------

_PARTS: Final = {
    "output_text": ("output_text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("reasoning_text", "text"),
}
"""The name in events, and the field with the text, of each type of part."""
_ARGUMENTS: Final = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
_EMPTY: Final[Mapping[str, Any]] = {"content": [], "arguments": "", "input": "", "status": "in_progress"}


def _list_parts(item: Item) -> Sequence[Item]:
    return item["content"] if item["type"] in ("message", "reasoning") else ()


def _list_done_events(item: Item, index: int) -> Iterator[Event]:
    """Yield the events that complete an item."""
    place = {"item_id": item["id"], "output_index": index}
    for at, part in enumerate(_list_parts(item)):
        name, field = _PARTS[part["type"]]
        logprobs = {"logprobs": part["logprobs"]} if name == "output_text" else {}
        yield {"type": f"response.{name}.done", **place, "content_index": at, field: part[field], **logprobs}
        if item["type"] == "message":
            yield {"type": "response.content_part.done", **place, "content_index": at, "part": part}
    if item["type"] in CALLS:
        name, field = _ARGUMENTS[item["type"]]
        called = {"name": item["name"]} if field == "arguments" else {}
        yield {"type": f"response.{name}.done", **place, **called, field: item[field]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _list_whole_events(item: Item, index: int) -> Iterator[Event]:
    """Yield the events of an item that is complete when it arrives, with each text as one delta."""
    kind, place = item["type"], {"item_id": item["id"], "output_index": index}
    begun = item
    if kind in ("message", "reasoning", *CALLS):
        begun = {**item, **{name: _EMPTY[name] for name in _EMPTY if name in item}}
    elif kind == "compaction":
        begun = {**item, "encrypted_content": ""}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    for at, part in enumerate(_list_parts(item)):
        name, field = _PARTS[part["type"]]
        if kind == "message":
            yield {"type": "response.content_part.added", **place, "content_index": at, "part": {**part, field: ""}}
        logprobs = {"logprobs": part["logprobs"]} if name == "output_text" else {}
        yield {"type": f"response.{name}.delta", **place, "content_index": at, "delta": part[field], **logprobs}
    if kind in CALLS:
        name, field = _ARGUMENTS[kind]
        yield {"type": f"response.{name}.delta", **place, "delta": item[field]}
    yield from _list_done_events(item, index)


def repeat_events(response: Mapping[str, Any], start: int = 0) -> list[Event]:
    """Return the events of a finished response.

    Args:
        response: The Response object.
        start: `sequence_number` of the first event to return. If it is not 0, the original events were numbered differently, so only the
            last one is returned.
    """
    events: list[Event] = []
    if not start:
        begun = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None, "error": None}
        events += [{"type": name, "response": begun} for name in _BEGIN]
        events += [event for at, item in enumerate(response["output"]) for event in _list_whole_events(item, at)]
    last = "failed" if response["status"] == "cancelled" else response["status"]
    events.append({"type": f"response.{last}", "response": dict(response)})
    return _number_events(events, start)


_BEGIN: Final = ("response.created", "response.in_progress")


_encoder = msgspec.json.Encoder()
_TEXT_EVENT: Final = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","sequence_number":%d,"item_id":"%b","output_index":%d,"content_index":%d,"delta":%b,'
    b'"logprobs":[]}\n\n'
)


def encode_events(events: Sequence[Event]) -> bytes:
    """Encode events as server-sent events."""
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n" for event in events
    )


def _number_events(events: Iterable[Event], start: int) -> list[Event]:
    return [{"type": event["type"], "sequence_number": number, **event} for number, event in enumerate(events, start)]


# -- items of a reply -----------------------------------------------------------------------

_REASONING: Final = 0
_TEXT: Final = 1
_FIRST_CALL: Final = 2
_FIRST_HOSTED: Final = 100_000
_FIRST_LATER_TEXT: Final = 200_000
FIRST_SYSTEM: Final = 300_000
"""Numbers of items in their response: reasoning, the first message, calls in their order, other items of the provider, later messages, and
system messages of the input.

So an item has the same id, whether it is streamed or read from the log.
"""


def make_compaction_item(place: Place, reference: str) -> Item:
    """Return the item that stands for the compacted part of a conversation.

    Args:
        place: Place of the response.
        reference: The reference that the client sends back.
    """
    return {"id": place.make_id("cmp"), "type": "compaction", "encrypted_content": reference}


class OpenText:
    """A text of an item that is not complete yet: a part of its content, or the arguments of a call."""

    def __init__(self, item: Item, index: int, kind: str, at: int | None = None) -> None:
        self.item = item
        """The item, without its text."""
        self.id: str = item["id"]
        self.index = index
        self.kind = kind
        """Type of the part, or of the call."""
        self.at = at
        """`content_index` of the part; None: the text is the arguments of a call."""
        self.pieces: list[str] = []
        self.more: Item = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        """Other fields of the part."""

    def make_event(self, action: str, **fields: Any) -> Event:
        """Return an event about the text."""
        name, _ = _ARGUMENTS[self.kind] if self.at is None else _PARTS[self.kind]
        at = {} if self.at is None else {"content_index": self.at}
        return {"type": f"response.{name}.{action}", "item_id": self.id, "output_index": self.index, **at, **fields}

    def to_part(self) -> Item:
        """Return the text so far as a part."""
        return {"type": self.kind, _PARTS[self.kind][1]: "".join(self.pieces), **self.more}


class OutputBuilder:
    """Makes the items of a reply from its deltas, and the events about them. The cost of a delta depends on its size only.

    Args:
        place: Place of the response, or of the message in the log.
        names: The client's tools by the names of their functions.
    """

    def __init__(self, place: Place, names: ToolNames) -> None:
        self._place = place
        self._names = names
        self._done: dict[int, Item] = {}
        """Complete items by their `output_index`."""
        self._count = self._hosted = self._messages = 0
        """Numbers of all items, of those of the provider, and of messages."""
        self._reasoning: OpenText | None = None
        self.parts: dict[str, OpenText] = {}
        """Parts of the open message by their types."""
        self._calls: dict[int, OpenText] = {}
        """Open calls by their numbers."""
        self._own: dict[Any, Item] = {}
        """Fields that only the provider's API has, by the ids of their calls."""

    @property
    def output(self) -> list[Item]:
        """The complete items, in order."""
        return [self._done[index] for index in sorted(self._done)]

    def add(self, deltas: Sequence[Delta]) -> list[Event]:
        """Return the events for a list of deltas."""
        fields: dict[str, Any] = {}
        for delta in deltas:
            fields |= {delta.name: delta.value} if isinstance(delta, Opaque) else {}
            fields |= delta.extra if isinstance(delta, Finish) else {}
        events: list[Event] = []
        if text := _read_reasoning(deltas, fields):
            self._think(text, events)
        self._add_texts(get_text(deltas), fields, events)
        for detail in list_details(fields):
            self._add_detail(dict(detail["item"]), events)
        for delta in deltas:
            if isinstance(delta, CallStart) and delta.at not in self._calls:
                self._start_call(delta, events)
            elif isinstance(delta, CallArguments) and delta.text and (call := self._calls.get(delta.at)) is not None:
                call.pieces.append(delta.text)
                if call.kind == "function_call":  # a custom tool's input is known when its arguments are complete
                    events.append(call.make_event("delta", delta=delta.text))
        return events

    def _make_item(self, item: Item, number: int) -> tuple[Item, int]:
        """Return an item with its id, and its `output_index`."""
        prefix = PREFIXES.get(item["type"]) or item["type"].removesuffix("_call").replace("_", "")
        index, self._count = self._count, self._count + 1
        return {"id": "", **item} | {"id": self._place._replace(number=number).make_id(prefix)}, index

    def _open(self, item: Item, number: int, events: list[Event]) -> tuple[Item, int]:
        made, index = self._make_item(item, number)
        events.append({"type": "response.output_item.added", "output_index": index, "item": made})
        return made, index

    def add_item(self, item: Item, number: int = 0) -> list[Event]:
        """Return the events of an item that is complete when it arrives.

        Args:
            item: The item.
            number: Number of the item in its id.
        """
        made, index = self._make_item(item, number)
        self._done[index] = made
        return [*_list_whole_events(made, index)]

    def _think(self, text: str, events: list[Event]) -> None:
        if self._reasoning is None:
            opened = self._open(
                {"type": "reasoning", "summary": [], "content": [], "status": "in_progress"}, _REASONING, events
            )
            self._reasoning = OpenText(*opened, "reasoning_text", 0)
        self._reasoning.pieces.append(text)
        events.append(self._reasoning.make_event("delta", delta=text))

    def _add_texts(self, text: str, fields: Mapping[str, Any], events: list[Event]) -> None:
        content, logprobs = fields.get("content"), _list_logprobs(fields.get("logprobs"))
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
        if not text and "output_text" in self.parts:  # the log probabilities came after their text
            self.parts["output_text"].more["logprobs"] += logprobs
        for part in ({"text": text}, *parts):
            if isinstance(words := part.get("text"), str) and words:
                opened = self._speak("output_text", words, events, logprobs=logprobs)
                opened.more["logprobs"] += logprobs
                opened.more["annotations"] += part.get("annotations") or []
                logprobs = []
        for part in (fields, *parts):
            if isinstance(refusal := part.get("refusal"), str) and refusal:
                self._speak("refusal", refusal, events)

    def _speak(self, kind: str, text: str, events: list[Event], **more: Any) -> OpenText:
        """Add a text to the part of a type, which is opened if it is not open yet, and return the part."""
        part = self.parts.get(kind)
        if part is None:
            other = next(iter(self.parts.values()), None)
            if other is None:
                number = _FIRST_LATER_TEXT + self._messages if self._messages else _TEXT
                self._messages += 1
                begun = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
                item, index = self._open(begun, number, events)
            else:
                item, index = other.item, other.index
            part = self.parts[kind] = OpenText(item, index, kind, len(self.parts))
            about = {"item_id": part.id, "output_index": index, "content_index": part.at}
            events.append({"type": "response.content_part.added", **about, "part": part.to_part()})
        part.pieces.append(text)
        events.append(part.make_event("delta", delta=text, **more))
        return part

    def _add_detail(self, item: Item, events: list[Event]) -> None:
        """Add an item of the provider: one that only the provider can make, or the own fields of another one."""
        kind, own = item.get("type"), {name: value for name, value in item.items() if name not in ("type", "id")}
        if kind == "message":
            self._finish_message("completed", own, events)
        elif kind == "reasoning":
            if self._reasoning is not None:
                self._reasoning.item |= own
        elif kind in CALLS:
            self._own[item.get("call_id")] = own
        elif isinstance(kind, str):
            events += self.add_item(item, _FIRST_HOSTED + self._hosted)
            self._hosted += 1

    def _start_call(self, delta: CallStart, events: list[Event]) -> None:
        at, tool = len(self._calls), find_tool(self._names, delta.name)
        kind = "custom_tool_call" if tool.is_custom else "function_call"
        space = {} if tool.namespace is None else {"namespace": tool.namespace}
        called = {"call_id": str(delta.id or f"call_{at}"), "name": tool.name, **space, "status": "in_progress"}
        opened = self._open({**called, "type": kind, _ARGUMENTS[kind][1]: ""}, _FIRST_CALL + at, events)
        self._calls[delta.at] = OpenText(*opened, kind)

    def finish(self, status: str) -> list[Event]:
        """Return the events that complete all open items. Messages get this status."""
        events: list[Event] = []
        if (part := self._reasoning) is not None:
            self._close(part, {"content": [part.to_part()], "status": "completed"}, events)
        self._finish_message(status, {}, events)
        for call in self._calls.values():
            text = "".join(call.pieces)
            if call.kind == "custom_tool_call":
                text = read_input(text)
                events.append(call.make_event("delta", delta=text))
            own = self._own.get(call.item["call_id"], {})
            self._close(call, {_ARGUMENTS[call.kind][1]: text, **own, "status": "completed"}, events)
        return events

    def _finish_message(self, status: str, own: Item, events: list[Event]) -> None:
        """Complete the open message, if there is one, with its own fields."""
        parts = [*self.parts.values()]
        for part in parts:
            about: Item = next((one for one in own.get("content") or () if one.get("type") == part.kind), {})
            part.more |= {name: value for name, value in about.items() if name != "type"}
        self.parts = {}
        if parts:
            content = [one.to_part() for one in parts]
            self._close(parts[0], {"status": status, **own, "content": content}, events)

    def _close(self, opened: OpenText, fields: Item, events: list[Event]) -> None:
        self._done[opened.index] = {**opened.item, **fields}
        events += _list_done_events(self._done[opened.index], opened.index)


def _read_reasoning(deltas: Iterable[Delta], fields: Mapping[str, Any]) -> str:
    """Return the text of reasoning; empty if there is none."""
    blocks = fields.get("thinking_blocks")
    if isinstance(blocks, list):
        texts = (block.get("thinking") for block in blocks if isinstance(block, Mapping))
        return "".join(text for text in texts if isinstance(text, str))
    return "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))


def _list_logprobs(logprobs: Any) -> list[Any]:
    """Return the log probabilities of a delta's tokens, which have the same form in both APIs."""
    listed = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return listed if isinstance(listed, list) else []


def decode_message(message: Message) -> Iterator[list[Delta]]:
    """Yield the deltas of an assistant's whole message, in the order in which its provider made them."""
    chat, decoder = to_chat_message(convert_parts(message)), ChatDecoder()
    late = {name: chat.pop(name) for name in ("tool_calls", "refusal") if name in chat}
    content = chat.pop("content", None)
    chat.pop(DETAILS, None)
    yield decoder.decode({"choices": [{"message": chat}]})
    for text, detail in split_reply(message):
        yield [Text(text)] if text else []
        yield [] if detail is None else [Opaque(DETAILS, [detail])]
    yield [Opaque("content", content)] if isinstance(content, list) else []
    yield decoder.decode({"choices": [{"message": late}]})


def make_items(message: Message, place: Place, names: ToolNames, status: Status = "completed") -> list[Item]:
    """Return the items of a message in a log.

    Args:
        message: The message. Its media are restored.
        place: Place of the message, or of the response whose reply it is.
        names: The client's tools by the names of their functions.
        status: Status of the message, if it is a reply.
    """
    if message.role != "assistant" or get_items(message):
        return make_input_items(message, place)
    builder = OutputBuilder(place, names)
    for deltas in decode_message(message):
        builder.add(deltas)
    builder.finish(status)
    return builder.output


# -- the events of a response -----------------------------------------------------------------


class ResponseEvents:
    """Converter from the deltas of a reply to events.

    Call `add` for each list of deltas, then `end` or `fail` once.

    Args:
        get_head: Returns the fields that do not change. It is called with the first deltas, when the request is in the log.
        clock: Returns the time in seconds since the epoch.
        model: Name of the model that was asked for. It is reported until the model's own name is known.
    """

    def __init__(self, get_head: Callable[[], ResponseHead], clock: Callable[[], int], model: str = "") -> None:
        self._get_head = get_head
        self._clock = clock
        self._head: ResponseHead | None = None
        self._output = OutputBuilder(NOWHERE, {})
        self.started: dict[str, Any] = {}
        """The response in progress, after `begin`."""
        self._number = 0
        self._model = model
        self._usage: Any = None
        self._finish: Any = None
        self._own: dict[str, Any] = {}
        """Fields of the upstream's Response object."""
        self._is_compacted = False

    def add(self, deltas: Sequence[Delta], compaction: str | None = None) -> list[Event]:
        """Return the events for a list of deltas.

        Args:
            deltas: The deltas.
            compaction: The reference of a compaction, for which the reply gets an item before the next one; None: there is none so far.
        """
        for delta in deltas:
            if isinstance(delta, Head):
                self._model = str(delta.fields.get("model") or "") or self._model
            elif isinstance(delta, Usage):
                self._usage = delta.numbers
            elif isinstance(delta, Finish) and not delta.choice:
                self._finish = delta.reason
            elif isinstance(delta, Opaque) and delta.choice is None and delta.name == OWN_FIELDS:
                self._own = delta.value if isinstance(delta.value, dict) else {}
        events = self.begin()
        made: list[Event] = []
        if compaction is not None and not self._is_compacted:
            self._is_compacted = True
            added, *rest = self._output.add_item({"type": "compaction", "encrypted_content": compaction})
            about = {"item_id": added["item"]["id"], "output_index": added["output_index"]}
            made += [added, {"type": "response.compaction.compacting", **about}, *rest]
        made += self._output.add(
            [one for one in deltas if not isinstance(one, Head | Usage | Progress) and one.choice == 0]
        )
        return events + self._count(made)

    def begin(self) -> list[Event]:
        """Return the first events, if they were not returned yet. The first one has the response in progress."""
        if self._head is not None:
            return []
        self._head = self._get_head()
        self._output = OutputBuilder(self._head.place, self._head.names)
        self.started = make_response(self._head, model=self._model, status="in_progress")
        return self._count([{"type": name, "response": self.started} for name in _BEGIN])

    def _count(self, events: Sequence[Event]) -> list[Event]:
        """Return events with their numbers."""
        numbered = _number_events(events, self._number)
        self._number += len(numbered)
        return numbered

    def encode_appended_text(self, deltas: Sequence[Delta]) -> bytes | None:
        """Return the server-sent event for deltas that only append to the open text; None if they do anything else.

        This is the fast path for nearly all deltas. Call `add` with the others.
        """
        part = self._output.parts.get("output_text")
        if (
            part is None
            or len(deltas) != 1
            or not isinstance(delta := deltas[0], Text)
            or delta.choice
            or not delta.text
        ):
            return None
        part.pieces.append(delta.text)
        number, self._number = self._number, self._number + 1
        return _TEXT_EVENT % (number, part.id.encode(), part.index, part.at or 0, _encoder.encode(delta.text))

    def end(self, more: Mapping[str, Any], *, is_cut: bool = False) -> list[Event]:
        """Return the last events of a reply.

        Args:
            more: Additional fields of the Response object.
            is_cut: True if another turn interrupted the reply.
        """
        status, reason = ("incomplete", CUT) if is_cut else find_status(self._finish)
        events = self.begin()
        made = self._output.finish(status)
        done_at = self._clock() if status == "completed" else None
        made.append(self._make_last(status, more, usage=self._usage, reason=reason, completed_at=done_at))
        return events + self._count(made)

    def fail(self, error: Mapping[str, Any]) -> list[Event]:
        """Return the last events of a failed response. `error` has its code and message. Items that are not complete are left out."""
        events = self.begin()
        return events + self._count([self._make_last("failed", {}, error=error)])

    def _make_last(self, status: Status, more: Mapping[str, Any], **fields: Any) -> Event:
        assert self._head is not None, "the stream has begun"
        response = make_response(self._head, model=self._model, output=self._output.output, status=status, **fields)
        return {"type": f"response.{status}", "response": {**self._own, **response, **more}}


def decode_reply(reply: Collector) -> Iterator[list[Delta]]:
    """Yield the deltas of the first choice of a whole reply, in the order in which its provider made them."""
    completion, message = reply.build_completion(), reply.build_message()
    if DETAILS in message.extra:
        yield from decode_message(message)
        completion["choices"] = [{**completion["choices"][0], "message": None}]
    yield ChatDecoder().decode(completion)

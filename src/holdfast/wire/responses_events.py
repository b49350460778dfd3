"""Events of OpenAI's Responses API for a streamed reply.

Follows the API reference, "Streaming events". Several items may be open at the same time, because
each event names its item. All of them are completed at the end of the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

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
from holdfast.wire.responses_items import ToolName
from holdfast.wire.responses_replies import (
    CALL_PREFIXES,
    CUT,
    FIRST_CALL,
    REASONING,
    TEXT,
    Item,
    ItemIds,
    ResponseHead,
    Status,
    find_status,
    find_tool,
    list_hosted,
    make_call,
    make_compaction_item,
    make_hosted,
    make_message_item,
    make_reasoning,
    make_response,
    make_text_part,
    read_input,
)

Event = dict[str, Any]


class _OpenItem:
    """An item of a stream that is not complete yet."""

    def __init__(self, index: int, id_: str) -> None:
        self.index = index
        self.id = id_
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class OpenPart(_OpenItem):
    """A part of a message item: its text, or a refusal."""

    def __init__(self, index: int, id_: str, at: int) -> None:
        super().__init__(index, id_)
        self.at = at
        """`content_index` of the part."""
        self.logprobs: list[Any] = []
        """Log probabilities of the text's tokens, if the client asked for them."""


class _OpenCall(_OpenItem):
    def __init__(self, index: int, id_: str, call_id: str, tool: ToolName) -> None:
        super().__init__(index, id_)
        self.call_id = call_id
        self.tool = tool


class ResponseEvents:
    """Converter from the deltas of a reply to events.

    Call `add` for each list of deltas, then one of `end`, `cut` and `fail` once. The cost of a delta depends on its size only.

    Args:
        get_head: Returns the fields that do not change. It is called with the first deltas, when the request is in the log.
        clock: Returns the time in seconds since the epoch.
        model: Name of the model that was asked for. It is reported until the model's own name is known.
        get_compaction: Returns the reference of a compaction that the reply begins with, or None. It is called with each list, until
            it returns an item.
    """

    def __init__(
        self,
        get_head: Callable[[], ResponseHead],
        clock: Callable[[], int],
        model: str = "",
        get_compaction: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._get_compaction: Callable[[], str | None] | None = get_compaction
        self._get_head = get_head
        self._clock = clock
        self._head: ResponseHead | None = None
        self.started: dict[str, Any] = {}
        """The response in progress, after `begin`."""
        self._number = 0
        self._model = model
        self._usage: Any = None
        self._finish: Any = None
        self._reasoning: _OpenItem | None = None
        self._text: OpenPart | None = None
        self._refusal: OpenPart | None = None
        self._calls: dict[Any, _OpenCall] = {}
        """Tool calls by their `index`."""
        self._hosted = 0
        """Number of calls that the provider ran."""
        self._done: dict[int, Item] = {}
        """Complete items by their `output_index`."""
        self._count = 0

    # -- in -----------------------------------------------------------------------

    def add(self, deltas: Sequence[Delta]) -> list[Event]:
        """Return the events for a list of deltas."""
        for delta in deltas:
            if isinstance(delta, Head):
                self._model = str(delta.fields.get("model") or "") or self._model
            elif isinstance(delta, Usage):
                self._usage = delta.numbers
        events = self.begin()
        self._add_compaction(events)
        parts = [one for one in deltas if not isinstance(one, Head | Usage | Progress) and one.choice == 0]
        fields = {one.name: one.value for one in parts if isinstance(one, Opaque)}
        fields |= next((one.extra for one in parts if isinstance(one, Finish)), {})
        if text := _read_reasoning(parts, fields):
            self._add_reasoning(text, events)
        for item in list_hosted(fields):
            self._add_hosted(item, events)
        self._add_texts(get_text(deltas), fields, events)
        for delta in parts:
            if isinstance(delta, CallStart):
                self._start_call(delta, events)
            elif isinstance(delta, CallArguments):
                self._extend_call(delta, events)
            elif isinstance(delta, Finish):
                self._finish = delta.reason
        return events

    def begin(self) -> list[Event]:
        """Return the first events, if they were not returned yet. The first one has the response in progress."""
        if self._head is not None:
            return []
        self._head = self._get_head()
        self.started = make_response(self._head, model=self._model, status="in_progress")
        return [self._make(name, response=self.started) for name in ("response.created", "response.in_progress")]

    def _add_compaction(self, events: list[Event]) -> None:
        """Add the events of the compaction item, once, as soon as the item is known."""
        token = None if self._get_compaction is None else self._get_compaction()
        if token is None:
            return
        assert self._head is not None, "the stream has begun"
        self._get_compaction = None
        item, index = make_compaction_item(self._head.place, token), self._count
        self._count += 1
        events.append(self._add_item(index, {**item, "encrypted_content": ""}))
        events.append(self._make("response.compaction.compacting", _OpenItem(index, item["id"])))
        self._finish_item(index, item, events)

    def _add_texts(self, text: str, fields: Mapping[str, Any], events: list[Event]) -> None:
        content, logprobs = fields.get("content"), fields.get("logprobs")
        parts = [part.get("text") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else ()
        if not text and self._text is not None:  # the log probabilities came after their text
            self._text.logprobs += _list_logprobs(logprobs)
        for words in (text, *parts):
            if isinstance(words, str) and words:
                self._add_text(words, logprobs, events)
                logprobs = None
        if isinstance(refusal := fields.get("refusal"), str) and refusal:
            self._add_refusal(refusal, events)

    def _add_reasoning(self, text: str, events: list[Event]) -> None:
        item = self._reasoning
        if item is None:
            item = self._reasoning = self._open("rs", REASONING)
            events.append(self._add_item(item.index, make_reasoning(item.id, "", "in_progress")))
        item.pieces.append(text)
        events.append(self._make("response.reasoning_text.delta", item, content_index=0, delta=text))

    def _add_hosted(self, item: Item, events: list[Event]) -> None:
        """Add the events of a call that the provider ran. It is complete when it arrives."""
        assert self._head is not None, "the stream has begun"
        made = make_hosted(ItemIds(self._head.place), self._hosted, item)
        index, self._count, self._hosted = self._count, self._count + 1, self._hosted + 1
        events.append(self._add_item(index, made))
        self._finish_item(index, made, events)

    def _add_text(self, text: str, logprobs: Any, events: list[Event]) -> None:
        part = self._text
        if part is None:
            part = self._text = self._open_part(self._refusal, make_text_part(""), events)
        part.pieces.append(text)
        listed = _list_logprobs(logprobs)
        part.logprobs += listed
        events.append(
            self._make("response.output_text.delta", part, content_index=part.at, delta=text, logprobs=listed)
        )

    def _add_refusal(self, text: str, events: list[Event]) -> None:
        part = self._refusal
        if part is None:
            part = self._refusal = self._open_part(self._text, {"type": "refusal", "refusal": ""}, events)
        part.pieces.append(text)
        events.append(self._make("response.refusal.delta", part, content_index=part.at, delta=text))

    def _open_part(self, before: OpenPart | None, part: Item, events: list[Event]) -> OpenPart:
        """Open a part of the message item. Open the item too, if it has no part yet."""
        if before is None:
            item = self._open("msg", TEXT)
            events.append(self._add_item(item.index, make_message_item(item.id, (), "in_progress")))
            opened = OpenPart(item.index, item.id, 0)
        else:
            opened = OpenPart(before.index, before.id, 1)
        events.append(self._make("response.content_part.added", opened, content_index=opened.at, part=part))
        return opened

    def _start_call(self, delta: CallStart, events: list[Event]) -> None:
        if delta.at in self._calls:
            return
        at = len(self._calls)
        assert self._head is not None, "the stream has begun"
        tool = find_tool(self._head.names, delta.name)
        opened = self._open(CALL_PREFIXES[tool.is_custom], FIRST_CALL + at)
        item = self._calls[delta.at] = _OpenCall(opened.index, opened.id, str(delta.id or f"call_{at}"), tool)
        events.append(self._add_item(item.index, make_call(item.id, item.call_id, item.tool, "", "in_progress")))

    def _extend_call(self, delta: CallArguments, events: list[Event]) -> None:
        item = self._calls.get(delta.at)
        if item is not None and delta.text:
            item.pieces.append(delta.text)
            if not item.tool.is_custom:  # a custom tool's input is known when its arguments are complete
                events.append(self._make("response.function_call_arguments.delta", item, delta=delta.text))

    def _open(self, prefix: str, number: int) -> _OpenItem:
        assert self._head is not None, "the stream has begun"
        item = _OpenItem(self._count, ItemIds(self._head.place).make(prefix, number))
        self._count += 1
        return item

    def get_appended_text(self, deltas: Sequence[Delta]) -> str | None:
        """Return the text that deltas append to the open text; None if they do anything else.

        If a text is returned, call `note_text` instead of `add`. This is the fast path for nearly all deltas.
        """
        if self._text is None or len(deltas) != 1 or not isinstance(delta := deltas[0], Text) or delta.choice:
            return None
        return delta.text or None

    def note_text(self, text: str) -> tuple[OpenPart, int]:
        """Record an appended text. Return the part that it belongs to, and the event's `sequence_number`."""
        assert self._text is not None, "a text is open"
        self._text.pieces.append(text)
        number, self._number = self._number, self._number + 1
        return self._text, number

    # -- end ------------------------------------------------------------------------

    def end(self, more: Mapping[str, Any]) -> list[Event]:
        """Return the last events of a reply.

        Args:
            more: Additional fields of the Response object.
        """
        status, reason = find_status(self._finish)
        return self._end(status, reason, more)

    def cut(self, more: Mapping[str, Any]) -> list[Event]:
        """Return the last events of a reply that another turn interrupted."""
        return self._end("incomplete", CUT, more)

    def fail(self, error: Mapping[str, Any]) -> list[Event]:
        """Return the last events of a failed response. `error` has its code and message. Items that are not complete are left out."""
        events = self.begin()
        assert self._head is not None, "the stream has begun"
        response = make_response(self._head, model=self._model, output=self._list_done(), status="failed", error=error)
        return [*events, self._make("response.failed", response=response)]

    def _end(self, status: Status, reason: str | None, more: Mapping[str, Any]) -> list[Event]:
        events = self.begin()
        assert self._head is not None, "the stream has begun"
        self._finish_items("incomplete" if reason else "completed", events)
        done_at = self._clock() if status == "completed" else None
        response = make_response(
            self._head,
            model=self._model,
            output=self._list_done(),
            status=status,
            usage=self._usage,
            reason=reason,
            completed_at=done_at,
        )
        return [*events, self._make(f"response.{status}", response={**response, **more})]

    def _finish_items(self, status: str, events: list[Event]) -> None:
        if (item := self._reasoning) is not None:
            text = item.text
            events.append(self._make("response.reasoning_text.done", item, content_index=0, text=text))
            self._finish_item(item.index, make_reasoning(item.id, text), events)
        if (item := self._text or self._refusal) is not None:
            self._finish_item(item.index, make_message_item(item.id, self._finish_parts(events), status), events)
        for call in self._calls.values():
            self._finish_call(call, events)

    def _finish_parts(self, events: list[Event]) -> list[Item]:
        """Complete the parts of the message item, and return them in order."""
        made: dict[int, Item] = {}
        if (part := self._text) is not None:
            made[part.at] = {**make_text_part(part.text), "logprobs": part.logprobs}
            done: dict[str, Any] = {"content_index": part.at, "text": part.text, "logprobs": part.logprobs}
            events.append(self._make("response.output_text.done", part, **done))
            events.append(self._make("response.content_part.done", part, content_index=part.at, part=made[part.at]))
        if (part := self._refusal) is not None:
            made[part.at] = {"type": "refusal", "refusal": part.text}
            events.append(self._make("response.refusal.done", part, content_index=part.at, refusal=part.text))
            events.append(self._make("response.content_part.done", part, content_index=part.at, part=made[part.at]))
        return [made[at] for at in sorted(made)]

    def _finish_call(self, call: _OpenCall, events: list[Event]) -> None:
        arguments = call.text
        if call.tool.is_custom:
            given = read_input(arguments)
            events.append(self._make("response.custom_tool_call_input.delta", call, delta=given))
            events.append(self._make("response.custom_tool_call_input.done", call, input=given))
        else:
            done: dict[str, Any] = {"name": call.tool.name, "arguments": arguments}
            events.append(self._make("response.function_call_arguments.done", call, **done))
        self._finish_item(call.index, make_call(call.id, call.call_id, call.tool, arguments), events)

    def _finish_item(self, index: int, item: Item, events: list[Event]) -> None:
        self._done[index] = item
        events.append(self._make("response.output_item.done", output_index=index, item=item))

    def _add_item(self, index: int, item: Item) -> Event:
        return self._make("response.output_item.added", output_index=index, item=item)

    def _list_done(self) -> list[Item]:
        return [self._done[index] for index in sorted(self._done)]

    def _make(self, kind: str, opened: _OpenItem | None = None, /, **fields: Any) -> Event:
        place = {} if opened is None else {"item_id": opened.id, "output_index": opened.index}
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **place, **fields}


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


# -- of a stored response --------------------------------------------------------------


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
        events += [{"type": name, "response": begun} for name in ("response.created", "response.in_progress")]
        for index, item in enumerate(response["output"]):
            events += _repeat_item(item, index)
    last = "failed" if response["status"] == "cancelled" else response["status"]
    events.append({"type": f"response.{last}", "response": dict(response)})
    return [{"type": event["type"], "sequence_number": start + at, **event} for at, event in enumerate(events)]


def _repeat_item(item: Item, index: int) -> list[Event]:
    """Return the events of one item, with each text as one delta."""
    place = {"item_id": item["id"], "output_index": index}
    status = {"status": "in_progress"} if "status" in item else {}
    empty = {**item, **status, **{name: _EMPTY[name] for name in _EMPTY if name in item}}
    events: list[Event] = [{"type": "response.output_item.added", "output_index": index, "item": empty}]
    for at, part in enumerate(item.get("content") or ()):
        events += _repeat_part(part, {**place, "content_index": at})
    for name, kind in (("arguments", "function_call_arguments"), ("input", "custom_tool_call_input")):
        if name in item:
            called = {"name": item["name"]} if name == "arguments" else {}
            events.append({"type": f"response.{kind}.delta", **place, "delta": item[name]})
            events.append({"type": f"response.{kind}.done", **place, **called, name: item[name]})
    return [*events, {"type": "response.output_item.done", "output_index": index, "item": item}]


_EMPTY: Final[Mapping[str, Any]] = {"content": [], "arguments": "", "input": "", "encrypted_content": ""}


def _repeat_part(part: Mapping[str, Any], place: Mapping[str, Any]) -> list[Event]:
    kind = part["type"]
    if kind == "reasoning_text":
        done = {"type": "response.reasoning_text.done", **place, "text": part["text"]}
        return [{"type": "response.reasoning_text.delta", **place, "delta": part["text"]}, done]
    field = "refusal" if kind == "refusal" else "text"
    name = "refusal" if kind == "refusal" else "output_text"
    more: dict[str, Any] = {} if kind == "refusal" else {"logprobs": []}
    return [
        {"type": "response.content_part.added", **place, "part": {**part, field: ""}},
        {"type": f"response.{name}.delta", **place, "delta": part[field], **more},
        {"type": f"response.{name}.done", **place, field: part[field], **more},
        {"type": "response.content_part.done", **place, "part": dict(part)},
    ]

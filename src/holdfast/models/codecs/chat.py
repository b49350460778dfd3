"""OpenAI's Chat Completions: conversion of requests, and of the chunks of replies to and from deltas.

Follows the API reference, "The chat completion chunk object", and what other providers make of it: `ChatDecoder` accepts a completion too,
calls without numbers or ids, the deprecated `function_call`, content in parts, and usage inside a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.context.fitting import fit_messages
from holdfast.context.prefix_diff import PrefixTracker
from holdfast.context.units import make_distinct_id
from holdfast.domain.messages import Message
from holdfast.domain.profiles import Profile
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Progress, Reasoning, Text, Usage
from holdfast.models.base import ModelRequest
from holdfast.wire.openai import format_arguments, make_function_id, parse_messages, to_chat_message, to_chat_messages

Json = dict[str, Any]
HEAD: Final = frozenset({"id", "created", "model", "system_fingerprint", "service_tier"})
"""Fields that each chunk of a reply repeats."""
_OBJECT: Final = "chat.completion.chunk"
_REASONING: Final = ("reasoning_content", "reasoning")
_OF_CHOICE: Final = frozenset({"index", "delta", "message", "finish_reason", "usage"})
ENDED: Final = "This tool was used earlier in the conversation. It is not available any more."
"""Description of a tool that is declared only because the history has calls of it."""


def encode_request(request: ModelRequest, profile: Profile | None = None, tracker: PrefixTracker | None = None) -> Json:
    """Return the body of a Chat Completions request.

    Args:
        request: The request.
        profile: What the upstream accepts. None: all that Chat Completions allow.
        tracker: Keeps what was encoded for the view's last prompt. With it, the value of `messages` may be JSON (`msgspec.Raw`).
    """
    declared = frozenset(_get_name(tool) for tool in request.fields.get("tools") or ())
    model = request.fields.get("model")
    called: dict[str, None] = {}

    def convert(messages: Sequence[Message], *, is_end: bool = True) -> list[Json]:
        rules = profile if is_end or profile is None else profile.before_the_end
        fitted = [message for message, _ in fit_messages(messages, rules, model, declared)]
        called.update((call.name, None) for one in fitted for call in one.tool_calls if call.type != "custom")
        return to_chat_messages(fitted)

    declares = profile is not None and profile.declares and not declared
    messages: Any = None
    if tracker is not None and not declares and not (profile is not None and profile.distinct_ids):
        # What is not JSON is explained when the whole body is encoded.
        with suppress(TypeError, ValueError, RecursionError):
            messages = tracker.encode(request.messages, (profile, model, declared), convert)
    body: Json = {**request.fields, "messages": convert(request.messages) if messages is None else messages}
    if declares:
        body["tools"] = [_declare(name) for name in called]
    return body


def decode_request(body: Mapping[str, Any]) -> ModelRequest:
    """Return the request in the body of a Chat Completions request.

    Raises:
        InvalidMessage: A message is invalid.
    """
    fields = {name: value for name, value in body.items() if name != "messages"}
    return ModelRequest(parse_messages(body.get("messages") or ()), fields)


def _get_name(tool: Any) -> Any:
    """Return the name in a declaration of a function; None if there is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _declare(name: str) -> Json:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": ENDED, "parameters": parameters}}


# -- replies -----------------------------------------------------------------


class ChatDecoder:
    """Decodes the chunks of one reply, or a whole completion."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._calls: dict[int, _CallDecoder] = {}
        """Decoders of tool calls, by the index of their choice."""

    def decode(self, chunk: Mapping[str, Any]) -> list[Delta]:
        """Return the deltas of a chunk. Fields without a value, and choices of an unexpected type, are left out."""
        deltas: list[Delta] = []
        head: Json = {}
        for name, value in chunk.items():
            if name in HEAD:
                if value is not None and self._head.get(name) != value:
                    head[name] = value
            elif name not in ("choices", "usage") and value not in (None, _OBJECT, "chat.completion"):
                deltas.append(Opaque(name, value, None))
        if head:
            self._head |= head
            deltas.insert(0, Head(head))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list | tuple) else ():
            if not isinstance(choice, Mapping):
                continue
            message: Any = choice.get("delta")
            index = choice.get("index")
            is_text = isinstance(message, dict) and len(message) == 1 and isinstance(message.get("content"), str)
            if is_text and isinstance(index, int) and len(choice) - list(choice.values()).count(None) == 2:
                deltas.append(Text(message["content"], index))  # nearly all choices have only these two fields
            else:
                self._decode_choice(choice, deltas)
        if isinstance(usage := chunk.get("usage"), dict):
            deltas.append(Usage(usage))
        return deltas

    def _decode_choice(self, choice: Mapping[str, Any], deltas: list[Delta]) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        # Some upstreams send the whole message so far along with each delta, others a message instead of the last delta.
        message = choice.get("delta", choice.get("message"))
        if message and isinstance(message, Mapping):
            if "delta" not in choice and isinstance(calls := message.get("tool_calls"), list):
                # Those of a whole message need no numbers, and some upstreams give each the same.
                numbered = [{**call, "index": at} for at, call in enumerate(calls) if isinstance(call, Mapping)]
                message = {**message, "tool_calls": numbered}
            self._decode_message(index, message, deltas)
        extra: Json = {}
        if not choice.keys() <= _OF_CHOICE:
            extra = {name: value for name, value in choice.items() if name not in _OF_CHOICE and value is not None}
        if (reason := choice.get("finish_reason")) is not None:
            deltas += self.finish(index, reason, extra)
        elif extra:
            deltas += [Opaque(name, value, index, in_message=False) for name, value in extra.items()]
        if isinstance(usage := choice.get("usage"), dict):  # Moonshot
            deltas.append(Usage(usage))

    def finish(self, index: int, reason: str = "stop", extra: Json | None = None) -> list[Delta]:
        """Return the deltas that end a choice. With calls, `stop` becomes `tool_calls`: agents run the calls of no other reply."""
        decoder = self._calls.get(index)
        calls = [] if decoder is None else list(decoder.start_nameless(index))
        if reason == "function_call" or (reason == "stop" and decoder is not None):
            reason = "tool_calls"
        return [*calls, Finish(reason, index, extra or {})]

    def _decode_message(self, index: int, message: Mapping[str, Any], deltas: list[Delta]) -> None:
        """Add the deltas of a message: reasoning first, then other fields, text and calls, in which order models make them."""
        calls = message.get("tool_calls")
        if isinstance(function := message.get("function_call"), Mapping) and not calls:  # deprecated
            calls = [_convert_function(function)]
            message = {name: value for name, value in message.items() if name != "function_call"}
        name = next((name for name in _REASONING if message.get(name)), None)
        if name is not None and (thought := _read_thought(message[name])):
            deltas.append(Reasoning(thought, index, name))
        others = message.keys() - {"role", "content", "tool_calls", name}
        deltas += [Opaque(key, message[key], index) for key in message if key in others and message[key] is not None]
        deltas += _decode_content(message.get("content"), index)
        if isinstance(calls, list) and calls:
            decoder = self._calls.setdefault(index, _CallDecoder())
            for call in calls:
                if isinstance(call, Mapping):
                    deltas += decoder.decode(call, index)


def split_message(message: Message) -> list[Delta]:
    """Return the deltas of a whole message of the assistant."""
    return ChatDecoder().decode({"choices": [{"index": 0, "message": to_chat_message(message)}]})


def _decode_content(content: Any, index: int) -> Iterable[Delta]:
    if isinstance(content, str):
        yield Text(content, index)
    elif isinstance(content, list) and all(map(_is_text, content)):
        if thought := "".join(_read_thought(part.get("thinking")) for part in content):
            yield Reasoning(thought, index)
        yield Text("".join(str(part.get("text") or "") for part in content), index)
    elif content is not None:
        yield Opaque("content", content, index)


class _OpenCall:
    __slots__ = ("call_id", "ending", "extra", "kind", "name", "number", "position", "started", "text")

    def __init__(self, number: int, position: Any) -> None:
        self.number = number
        self.position = position
        """The number that the upstream gave it; several calls may have the same."""
        self.call_id: Any = None
        self.name: Any = None
        self.kind = "function"
        self.ending = ""
        """The last character of its arguments so far."""
        self.started = False
        self.text = ""
        self.extra: Json = {}
        """Fields that arrived before its name. Clients expect the name in the first fragment of a call."""

    def start(self, choice: int, used: set[str]) -> Iterator[Delta]:
        self.started = True
        call_id = make_distinct_id(str(self.call_id), used)
        yield CallStart(self.number, call_id, self.name, choice, self.kind, self.extra)
        if self.text:
            yield CallArguments(self.number, self.text, choice, self.kind)


class _CallDecoder:
    """Decodes the tool calls of one choice, and numbers them as OpenAI does.

    Gemini numbers all parallel calls 0, and may leave their ids empty. Some gateways leave the number out. vLLM once
    gave each fragment an id of its own. Some upstreams repeat name and id in each fragment, or send arguments as an object. Some models
    give parallel calls the same id, but results refer to calls by id.
    """

    def __init__(self) -> None:
        self._calls: list[_OpenCall] = []
        self._ids: set[str] = set()

    def decode(self, item: Mapping[str, Any], choice: int) -> Iterator[Delta]:
        """Yield the deltas of an item of `tool_calls`. A call that has a name but no id gets one."""
        key = "custom" if "custom" in item and "function" not in item else "function"
        tool = item.get(key)
        tool = tool if isinstance(tool, Mapping) else {}
        extra = {name: value for name, value in item.items() if name not in ("index", "id", "type", key)}
        if rest := {name: value for name, value in tool.items() if name not in ("name", "arguments", "input")}:
            extra[key] = rest
        name, text = tool.get("name"), format_arguments(tool.get("arguments", tool.get("input")))
        call = self._find(item.get("index"), item.get("id"), name, text)
        if call is None:
            position, used = item.get("index"), {known.number for known in self._calls}
            free = isinstance(position, int) and position not in used
            call = _OpenCall(position if free else max(used, default=-1) + 1, position)  # type: ignore[arg-type]
            call.kind = item.get("type") or key
            self._calls.append(call)
        call.name, call.ending = call.name or name, text.rstrip()[-1:] or call.ending
        call.call_id = call.call_id or item.get("id") or (f"call_{call.number}" if name else None)
        if call.started:
            if text or extra:
                yield CallArguments(call.number, text, choice, call.kind, extra)
            return
        call.text, call.extra = call.text + text, {**call.extra, **extra}
        if name:
            yield from call.start(choice, self._ids)

    def start_nameless(self, choice: int) -> Iterator[Delta]:
        """Yield the deltas of the calls whose name never came. Their empty name lets an agent tell the model that no such tool exists."""
        for call in self._calls:
            if not call.started:
                call.name, call.call_id = "", call.call_id or f"call_{call.number}"
                yield from call.start(choice, self._ids)

    def _find(self, position: Any, call_id: Any, name: Any, text: str) -> _OpenCall | None:
        """Return the call that an item continues; None if it starts a new call."""
        latest = self._calls[::-1]
        if call_id:
            for call in latest:
                if call.call_id == call_id and position in (None, call.position):
                    return call
        if not isinstance(position, int):
            return None if name or not latest else latest[0]
        same = next((call for call in latest if call.position == position), None)
        if same is None or not name:
            return same
        if call_id:
            return None if same.call_id else same
        # Without an id, a repeated name may belong to the same call, but no JSON text has `{` after its last `}`.
        is_complete = same.ending == "}" and text.lstrip().startswith("{")
        return None if is_complete or same.name not in (None, name) else same


def _convert_function(function: Mapping[str, Any]) -> Json:
    name = function.get("name")
    return {"index": 0, **({"id": make_function_id(name)} if name else {}), "function": function}


def _is_text(part: Any) -> bool:
    """Return True for a part that a message of Chat Completions can have as text or as unsigned reasoning."""
    return (
        isinstance(part, dict) and part.get("type") in ("text", "output_text", "thinking") and "signature" not in part
    )


def _read_thought(given: Any) -> str:
    """Return reasoning as text. Mistral sends it as a list of texts."""
    pieces = given if isinstance(given, list) else [given]
    return "".join(str(piece.get("text") or "") if isinstance(piece, dict) else str(piece or "") for piece in pieces)


class ChatEncoder:
    """Encodes the deltas of one reply as chunks.

    Attributes:
        head: fields that each chunk repeats.
        begun: choices of which a chunk was made. The first one says whose message it is.
    """

    def __init__(self) -> None:
        self.head: Json = {}
        self.begun: set[int] = set()

    def encode(self, deltas: Iterable[Delta]) -> Json | None:
        """Return the chunk for a list of deltas, or None if it contains nothing that a chunk would say."""
        choices: dict[int, Json] = {}
        rest: Json = {}
        begins = False
        for delta in deltas:
            if isinstance(delta, Head):
                self.head = {**self.head, **delta.fields}
                begins = not self.begun
            elif isinstance(delta, Usage):
                rest["usage"] = delta.numbers
            elif isinstance(delta, Progress):
                rest |= {**delta.head, **self.head, "holdfast": delta.fields}
            elif delta.choice is None:
                rest[delta.name] = delta.value
            else:
                choice = choices.get(delta.choice)
                _add(choice or choices.setdefault(delta.choice, self._open(delta.choice)), delta)
        if begins and not choices and not rest:
            choices[0] = self._open(0)
        if not choices and not rest:
            return None
        return {**self.head, "object": _OBJECT, "choices": list(choices.values()), **rest}

    def _open(self, index: int) -> Json:
        first = index not in self.begun
        self.begun.add(index)
        return {"index": index, "delta": {"role": "assistant"} if first else {}, "finish_reason": None}


def _add(choice: Json, delta: Text | Reasoning | CallStart | CallArguments | Opaque | Finish) -> None:
    """Add a delta to a choice of a chunk."""
    message = choice["delta"]
    if isinstance(delta, Text):
        message["content"] = message.get("content", "") + delta.text
    elif isinstance(delta, Reasoning):
        message[delta.name] = message.get(delta.name, "") + delta.text
    elif isinstance(delta, CallStart | CallArguments):
        _add_call(message.setdefault("tool_calls", []), delta)
    elif isinstance(delta, Opaque):
        (message if delta.in_message else choice)[delta.name] = delta.value
    else:
        choice |= {**delta.extra, "finish_reason": delta.reason}


def _add_call(calls: list[Json], delta: CallStart | CallArguments) -> None:
    """Add a part of a call to the calls of a chunk. Arguments are appended to the call that the same chunk starts."""
    key, field = ("custom", "input") if delta.kind == "custom" else ("function", "arguments")
    about: Json = {"index": delta.at}
    tool: Json = dict(delta.extra.get(key, {}))
    if isinstance(delta, CallStart):
        about |= {"id": delta.id, "type": delta.kind} if delta.id is not None else {"type": delta.kind}
        tool |= {"name": delta.name, field: ""} if delta.name is not None else {field: ""}
    elif calls and calls[-1]["index"] == delta.at and not delta.extra:
        calls[-1][key][field] += delta.text
        return
    else:
        tool[field] = delta.text
    calls.append({**about, **delta.extra, key: tool})

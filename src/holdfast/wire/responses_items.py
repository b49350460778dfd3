"""Items of OpenAI's Responses API: conversion of a request's input to messages.

Follows the API reference, "Create a model response". A reply in a log is one message. In the Responses API it is several items: reasoning,
text, and each call. So consecutive items of the assistant become one message, in which calls come last. A compaction item of a provider
becomes part of the message that follows it, if that is the assistant's, or a message of its own. Any other item without an equivalent is
stored whole in the `origin` of the message next to it, and never sent to a model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.provider_items import ENCRYPTED, is_provider_compaction, with_compactions
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.compaction_references import is_reference
from holdfast.wire.openai import parse_message

Item = dict[str, Any]
ITEMS: Final = "response_items"
"""Key in the `origin` of a message: the items from which it was made, if the message does not contain all of them."""
INPUT: Final = "input"
"""Name of the only argument of a custom tool, whose input is free text."""
_NAME_CHARS: Final = 64
"""Maximum length of a function's name in Chat Completions."""
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
_SILENT: Final = frozenset({"id", "status", "type"})
"""Fields of an item that a message need not contain."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
INPUT_ROLES: Final = ("user", "assistant", "system", "developer")


class ToolName(NamedTuple):
    """A tool as the client knows it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    """True for a tool whose input is free text."""


ToolNames = Mapping[str, ToolName]
"""The client's tools by the names of the functions that the model calls."""


def make_function_name(name: str, namespace: str | None = None) -> str:
    """Return the name of the function for a client's tool. Equal tools always have the same name.

    Args:
        name: Name of the tool.
        namespace: Name of the namespace that contains the tool, or None.
    """
    whole = f"{namespace}__{name}" if namespace else name
    if _PLAIN_NAME.fullmatch(whole) or not namespace:
        return whole
    mark = hashlib.blake2b(msgspec.json.encode([namespace, name]), digest_size=4).hexdigest()
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", whole)
    return f"{plain[: _NAME_CHARS - len(mark) - 1]}_{mark}"


def parse_items(value: Any, where: str = "input") -> list[Message]:
    """Convert the input of a request to messages.

    Args:
        value: A text, or a list of items. References to stored items must have been replaced before.
        where: Name of the field, for errors.

    Raises:
        InvalidMessage: An item is not valid. The error names it and what is allowed.
    """
    if isinstance(value, str):
        return [Message(role="user", content=value)] if value else []
    if not isinstance(value, Sequence):
        raise InvalidMessage(f"{where} must be a string or a list of items", param=where)
    parser = _ItemParser()
    for at, item in enumerate(value):
        parser.add(item, f"{where}[{at}]")
    return parser.finish()


class _ItemParser:
    """Collects items, and makes one message of consecutive items of the assistant."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reply: list[tuple[Item, Message | ToolCall | None]] = []
        """Items of the reply that is being collected, each with its message or call; None: it has no equivalent."""
        self._unplaced: list[Item] = []
        """Items without an equivalent, before the first message."""

    def add(self, item: Any, where: str) -> None:
        if not isinstance(item, Mapping):
            raise InvalidMessage(f"{where} must be an object with a type", param=where)
        item = dict(item)
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            reason = "is missing" if kind is None else "must be a string"
            raise InvalidMessage(f"{where}.type {reason}: it names the kind of the item", param=f"{where}.type")
        if kind == "message":
            self._add_message(item, where)
        elif kind in _CALLS:
            self._reply.append((item, _parse_call(item, where)))
        elif kind in _OUTPUTS:
            self._finish_reply()
            self._messages.append(_parse_output(item, where))
        elif is_foreign_compaction(item):
            self._finish_reply()  # providers begin a reply with it
            self._reply.append((item, None))
        else:
            self._add_other(item)

    def _add_message(self, item: Item, where: str) -> None:
        message = _parse_message(item, where)
        if message.role == "assistant":
            self._reply.append((item, message))
            return
        self._finish_reply()
        self._messages.append(_with_items(message, self._take_unplaced()))

    def _add_other(self, item: Item) -> None:
        """Keep an item without an equivalent next to the reply that it belongs to."""
        if self._reply or item.get("type") == "reasoning" or not self._messages:
            self._reply.append((item, None))
        else:
            last = self._messages[-1]
            self._messages[-1] = _with_items(last, [item])

    def _take_unplaced(self) -> list[Item]:
        taken, self._unplaced = self._unplaced, []
        return taken

    def _finish_reply(self) -> None:
        """Make one message of the collected items of the assistant."""
        reply, self._reply = self._reply, []
        if not reply:
            return
        texts = [made for _, made in reply if isinstance(made, Message)]
        calls = tuple(made for _, made in reply if isinstance(made, ToolCall))
        compactions = [item for item, _ in reply if is_foreign_compaction(item)]
        if not texts and not calls and not compactions:
            self._keep_unplaced([item for item, _ in reply])
            return
        content = "".join(message.text for message in texts)
        message = Message(role="assistant", content=content if texts else None, tool_calls=calls)
        refused = [part for text in texts for part in text.media or () if part.type != "text"]
        if refused:
            message = message.evolve(content=tuple(part for text in texts for part in _list_parts(text)))
        message = with_compactions(message, compactions)
        items = [item for item, _ in reply]
        kept = items if any(_is_lossy(item, made) for item, made in reply if item not in compactions) else []
        self._messages.append(_with_items(message, [*self._take_unplaced(), *kept]))

    def _keep_unplaced(self, items: list[Item]) -> None:
        if self._messages:
            self._messages[-1] = _with_items(self._messages[-1], items)
        else:
            self._unplaced += items

    def finish(self) -> list[Message]:
        self._finish_reply()
        return self._messages


def is_foreign_compaction(item: Mapping[str, Any]) -> bool:
    """Return True for a compaction item that a provider made, and not Holdfast."""
    return is_provider_compaction(item) and not is_reference(item[ENCRYPTED])


def _with_items(message: Message, items: Sequence[Item]) -> Message:
    """Return the message with items added to its origin; unchanged if there are none."""
    if not items:
        return message
    return message.evolve(origin={ITEMS: [*get_items(message), *items]})


def get_items(message: Message) -> list[Item]:
    """Return the items that are stored with a message because the message does not contain all of them."""
    found = message.origin.get(ITEMS) if isinstance(message.origin, Mapping) else None
    return [dict(item) for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _is_lossy(item: Item, made: Message | ToolCall | None) -> bool:
    """Return True if an item contains more than the message or call that was made from it."""
    if made is None:
        return True
    if isinstance(made, ToolCall):
        return item["type"] == "custom_tool_call" or bool(
            item.keys() - _SILENT - {"call_id", "name", "arguments", "namespace"}
        )
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(item.keys() - _SILENT - {"role", "content"}) or any(
        value for part in parts for name, value in part.items() if name not in ("type", "text", "refusal")
    )


def _list_parts(message: Message) -> tuple[Part, ...]:
    return message.content if isinstance(message.content, tuple) else (Part("text", message.text),)


def _parse_message(item: Item, where: str) -> Message:
    role = item.get("role")
    if role not in INPUT_ROLES:
        allowed = ", ".join(INPUT_ROLES)
        raise InvalidMessage(f"{where}.role is {role!r:.80}; it must be one of {allowed}", param=f"{where}.role")
    message = parse_message({"role": role, "content": item.get("content")}, where)
    if message.content is None:
        raise InvalidMessage(f"{where}.content is missing", param=f"{where}.content")
    return _simplify(message)


def _simplify(message: Message) -> Message:
    """Return a message with plain text parts. If it has nothing else, its content is one text."""
    if not isinstance(message.content, tuple):
        return message
    parts = tuple(Part("text", part.text) if part.type in _TEXTS else part for part in message.content)
    if len(parts) == 1 and parts[0].type == "text":
        return message.evolve(content=parts[0].text)
    if message.role == "assistant" and all(part.type == "text" for part in parts):
        return message.evolve(content=message.text)
    return message.evolve(content=parts)


def _parse_call(item: Item, where: str) -> ToolCall:
    custom = item["type"] == "custom_tool_call"
    argument = INPUT if custom else "arguments"
    for name in ("call_id", "name", argument):
        if not isinstance(item.get(name), str):
            raise InvalidMessage(f"{where}.{name} must be a string", param=f"{where}.{name}")
    namespace = item.get("namespace")
    if not isinstance(namespace, str | None):
        raise InvalidMessage(f"{where}.namespace must be a string", param=f"{where}.namespace")
    arguments = msgspec.json.encode({INPUT: item[INPUT]}).decode() if custom else item["arguments"]
    return ToolCall(id=item["call_id"], name=make_function_name(item["name"], namespace), arguments=arguments)


def _parse_output(item: Item, where: str) -> Message:
    call_id, output = item.get("call_id"), item.get("output")
    if not isinstance(call_id, str) or not call_id:
        raise InvalidMessage(
            f"{where}.call_id must be the id of the call that this output answers", param=f"{where}.call_id"
        )
    if not isinstance(output, str | list):
        raise InvalidMessage(f"{where}.output must be a string or a list of parts", param=f"{where}.output")
    message = _simplify(parse_message({"role": "tool", "tool_call_id": call_id, "content": output}, where))
    return _with_items(message, [item] if item["type"] == "custom_tool_call_output" else [])


# -- tools -------------------------------------------------------------------------


class Tools(NamedTuple):
    """A request's tools, as functions of Chat Completions."""

    functions: list[dict[str, Any]]
    names: dict[str, ToolName]
    """The client's tools by the names of their functions."""
    hosted: list[dict[str, Any]]
    """Tools that run at the provider. Only providers with the Responses API have them."""


def parse_tools(tools: Any) -> Tools:
    """Convert the tools of a request to functions.

    A custom tool becomes a function with one text argument. The tools of a namespace become functions whose names begin with the
    namespace.

    Raises:
        InvalidRequest: A tool is not valid. The error names it.
    """
    parsed = Tools([], {}, [])
    if tools is None:
        return parsed
    if not isinstance(tools, list):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    for at, tool in enumerate(tools):
        _add_tool(parsed, tool, f"tools[{at}]", None)
    return parsed


def _add_tool(parsed: Tools, tool: Any, where: str, namespace: str | None) -> None:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"{where} must be an object with a type", param=where)
    if kind not in ("function", "custom", "namespace"):
        parsed.hosted.append(dict(tool))
        return
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where}.name must be a string that is not empty", param=f"{where}.name")
    if kind == "namespace":
        inner_tools = tool.get("tools") or []
        if not isinstance(inner_tools, list):
            raise InvalidRequest(f"{where}.tools must be a list of tools", param=f"{where}.tools")
        for at, inner in enumerate(inner_tools):
            _add_tool(parsed, inner, f"{where}.tools[{at}]", name)
        return
    function_name = make_function_name(name, namespace)
    about = {"description": tool["description"]} if tool.get("description") else {}
    parsed.names[function_name] = ToolName(name, namespace, kind == "custom")
    parsed.functions.append({"type": "function", "function": {"name": function_name, **about, **_make_schema(tool)}})


def _make_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool["type"] == "custom":
        about = _describe_format(tool.get("format"))
        text = {"type": "string", **({"description": about} if about else {})}
        return {"parameters": {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}}
    return {name: tool[name] for name in ("parameters", "strict") if tool.get(name) is not None}


def _describe_format(given: Any) -> str:
    """Return a custom tool's grammar as a text for the model, because functions have no grammars."""
    if not isinstance(given, Mapping) or given.get("type") != "grammar":
        return ""
    return f"Text that matches this {given.get('syntax', '')} grammar:\n{given.get('definition', '')}"


def parse_choice(choice: Any, names: Iterable[str]) -> Any:
    """Convert `tool_choice` to Chat Completions.

    Args:
        choice: The value in the request; None: the default.
        names: Names of the functions that the request has.

    Raises:
        InvalidRequest: The value is not valid, or names a tool that the request does not have.
    """
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind in ("function", "custom"):
        return {"type": "function", "function": {"name": _find_chosen(choice, names)}}
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        allowed = [{"type": "function", "function": {"name": _find_chosen(tool, names)}} for tool in choice["tools"]]
        return {"type": kind, kind: {"mode": choice.get("mode", "auto"), "tools": allowed}}
    message = "tool_choice must be auto, none, required, a function or custom tool by its name, or allowed_tools"
    raise InvalidRequest(message, param="tool_choice")


def _find_chosen(tool: Any, names: Iterable[str]) -> str:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    namespace = tool.get("namespace") if isinstance(tool, Mapping) else None
    function_name = make_function_name(name, namespace) if isinstance(name, str) else None
    if function_name is None or function_name not in names:
        raise InvalidRequest(f"tool_choice names {name!r:.80}, which is not in tools", param="tool_choice")
    return function_name

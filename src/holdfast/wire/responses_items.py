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
    groups: list[_Group] = []
    for at, given in enumerate(value):
        item, made = _parse_item(given, f"{where}[{at}]")
        _add_item(groups, item, made)
    return [_make_message(group) for group in _join_unplaced(groups)]


class _Group(NamedTuple):
    """Consecutive items that become one message."""

    is_reply: bool
    items: list[Item]
    made: list[Message | ToolCall]
    """The messages or calls that items became. Some items have no equivalent."""


def _parse_item(given: Any, where: str) -> tuple[Item, Message | ToolCall | None]:
    if not isinstance(given, Mapping):
        raise InvalidMessage(f"{where} must be an object with a type", param=where)
    item = dict(given)
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        reason = "is missing" if kind is None else "must be a string"
        raise InvalidMessage(f"{where}.type {reason}: it names the kind of the item", param=f"{where}.type")
    item = {"type": kind, **item}
    if kind == "message":
        return item, _parse_message(item, where)
    if kind in _CALLS:
        return item, _parse_call(item, where)
    return item, _parse_output(item, where) if kind in _OUTPUTS else None


def _add_item(groups: list[_Group], item: Item, made: Message | ToolCall | None) -> None:
    is_input = isinstance(made, Message) and made.role != "assistant"
    last = groups[-1] if groups else None
    if (
        is_input
        or is_foreign_compaction(item)
        or last is None
        or (not last.is_reply and (made is not None or item["type"] == "reasoning"))
    ):  # providers begin a reply with a compaction item
        last = None
    if last is None:
        last = _Group(not is_input, [], [])
        groups.append(last)
    last.items.append(item)
    if made is not None:
        last.made.append(made)


def _join_unplaced(groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups that become messages. Items of the others are added to the group before them, or to the first one."""
    joined: list[_Group] = []
    unplaced: list[Item] = []
    for group in groups:
        if group.made or any(map(is_foreign_compaction, group.items)):
            joined.append(group._replace(items=[*unplaced, *group.items]))
            unplaced = []
        else:
            (joined[-1].items if joined else unplaced).extend(group.items)
    return joined


def _make_message(group: _Group) -> Message:
    texts = [made for made in group.made if isinstance(made, Message)]
    compactions = [item for item in group.items if is_foreign_compaction(item)]
    if group.is_reply:
        content: Any = tuple(part for text in texts for part in _list_parts(text)) if len(texts) > 1 else None
        content = texts[0].content if len(texts) == 1 else content
        calls = tuple(made for made in group.made if isinstance(made, ToolCall))
        message = with_compactions(Message(role="assistant", content=content, tool_calls=calls), compactions)
    else:
        message = texts[0]
    rest = group.items[len(compactions) :]
    is_whole = all(map(_is_plain, rest)) and all(item["type"] == "function_call" for item in rest[1:])
    return message if is_whole else message.evolve(origin={ITEMS: group.items})


def is_foreign_compaction(item: Mapping[str, Any]) -> bool:
    """Return True for a compaction item that a provider made, and not Holdfast."""
    return is_provider_compaction(item) and not is_reference(item[ENCRYPTED])


def get_items(message: Message) -> list[Item]:
    """Return the items that are stored with a message because the message does not contain all of them."""
    found = message.origin.get(ITEMS) if isinstance(message.origin, Mapping) else None
    return [dict(item) for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _is_plain(item: Item) -> bool:
    """Return True for a call, or a text in its shortest form, which can be made again of the message that is made of it."""
    fields, kind = item.keys() - _SILENT, item["type"]
    if kind == "function_call":
        return fields == {"call_id", "name", "arguments"}
    name, others = ("output", {"call_id"}) if kind == "function_call_output" else ("content", {"role"})
    if fields != {name, *others}:
        return False
    parts, is_reply = item[name], item.get("role") == "assistant"
    if isinstance(parts, str):
        return True
    about = {"type": "output_text" if is_reply else "input_text"}
    texts = [{key: value for key, value in part.items() if value and key != "text"} for part in parts]
    return all(text == about for text in texts) and not (is_reply and len(parts) > 1)


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
    is_text = all(part.type == "text" for part in parts) and (len(parts) == 1 or message.role == "assistant")
    return message.evolve(content=message.text if is_text else parts)


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
    return _simplify(parse_message({"role": "tool", "tool_call_id": call_id, "content": output}, where))


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

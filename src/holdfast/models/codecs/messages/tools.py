"""Tools of Anthropic's API: conversion from and to functions, tools that its models know by their type, and changes of tools.

Follows the API reference, "Create a Message", "Memory tool" and "Text editor tool", and the betas `mid-conversation-tool-changes-2026-07-01`
and `inline-tools-2026-09-15`. The client runs the calls, or Holdfast does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.context.dialects import TOOL_NAME_LENGTH, to_tool_name
from holdfast.errors import InvalidRequest
from holdfast.wire.openai import dump_model

Tool = Mapping[str, Any]
_FUNCTION: Final = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Fields of a tool, with their names in a function of Chat Completions."""
_OWN: Final = ("cache_control", "strict", "defer_loading", "allowed_callers", "input_examples", "eager_input_streaming")
"""Fields of a tool that only Anthropic knows. They are next to `function`."""
_NO_SCHEMA: Final = {"type": "object", "properties": {}}


def encode_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Convert OpenAI's function tools to Anthropic's format. Tools in Anthropic's format are returned unchanged.

    Raises:
        InvalidRequest: A tool is in neither format, or has a name that Anthropic does not accept.
    """
    return [_encode_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _encode_tool(tool: Tool, where: str) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        if isinstance(tool.get("name"), str) and ("input_schema" in tool or "type" in tool) and "custom" not in tool:
            return dict(tool)
        reason = "must be a function tool, or a tool in Anthropic's format with name and input_schema"
        raise InvalidRequest(f"{where} {reason}", param=where)
    name, place = function.get("name"), f"{where}.function.name"
    if not isinstance(name, str) or name != to_tool_name(name):
        allowed = f"Anthropic accepts 1 to {TOOL_NAME_LENGTH} letters, digits, _ and -"
        raise InvalidRequest(f"{place} is {name!r}; {allowed}", param=place)
    about = {"description": function["description"]} if function.get("description") else {}
    own = {field: tool[field] for field in _OWN if field in tool}
    schema = {"type": "object", **(function.get("parameters") or _NO_SCHEMA)}
    return {"name": name, **about, "input_schema": schema, **own}


def declare_called_tools(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tool declarations for the calls in a request without tools, because Anthropic rejects calls without them."""
    blocks = [block for message in messages for block in message["content"]]
    names = dict.fromkeys(to_tool_name(block["name"]) for block in blocks if block["type"] == "tool_use")
    return [{"name": name, "input_schema": dict(_NO_SCHEMA)} for name in names]


def decode_tools(tools: Any) -> list[dict[str, Any]]:
    """Convert the client's own tools to function tools.

    Tools that Anthropic runs, or knows by their type, are returned unchanged.

    Raises:
        InvalidRequest: An item of the list is not a valid tool.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    return [_decode_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _decode_tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{where} must be an object with a name and an input_schema", param=where)
    kind = tool.get("type")
    if not isinstance(kind, str | None):
        raise InvalidRequest(f"{where}.type must be a string", param=f"{where}.type")
    if kind not in (None, "custom"):
        return dict(tool)
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise InvalidRequest(f"{where}.name is missing: a tool must have a name", param=f"{where}.name")
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidRequest(f"{where}.input_schema must be a JSON Schema, an object", param=f"{where}.input_schema")
    function = {theirs: tool[ours] for ours, theirs in _FUNCTION.items() if tool.get(ours) is not None}
    rest = {name: value for name, value in tool.items() if name not in _FUNCTION and name != "type"}
    return {"type": "function", "function": function, **rest}


# -- tools that models know by their type ------------------------------------------

MEMORY_TYPE: Final = "memory_20250818"
_MEMORY_BETA: Final = "context-management-2025-06-27"
EDITOR_TYPES: Final = frozenset({"text_editor_20250124", "text_editor_20250429", "text_editor_20250728"})
EDITOR_NATIVE: Final[Tool] = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
"""Definition of the newest text editor, for Anthropic's models."""
UNDOING_NAME: Final = "str_replace_editor"
"""Name of the text editor of the types in `UNDOING_TYPES`."""
UNDOING_TYPES: Final = frozenset({"text_editor_20250124"})
"""Types of the text editor with the command `undo_edit`."""
MEMORY_INSTRUCTION: Final = """\
IMPORTANT: ALWAYS VIEW YOUR MEMORY DIRECTORY BEFORE DOING ANYTHING ELSE. Call the tool `memory` with the command `view` and the path \
`/memories`, and read the files that may help with the task.
While you work, save in the directory what a later session needs: progress, decisions, and what you learnt. Your context may be cleared \
at any time, and only what is in the directory is kept.
Keep the directory in order: update files instead of adding new ones, and delete what is no longer true."""
"""System message for models that were not trained to use the memory tool. Anthropic adds a similar text for its own models."""
_MEMORY_DESCRIPTION: Final = """\
Files in the directory /memories, which stay after this conversation. Commands: view a directory or a file, create a file, str_replace \
or insert text in a file, delete or rename a file or a directory."""
_EDITOR_DESCRIPTION: Final = """\
View, create and edit text files. Commands: view a file, create a file, str_replace text in a file, insert text after a line of a file."""
_UNDO: Final = " undo_edit takes the last edit of a file back."


def make_memory_function() -> dict[str, Any]:
    """Return description and parameters of the memory tool, for models that get it as a function."""
    commands = ("view", "create", "str_replace", "insert", "delete", "rename")
    parameters = _make_parameters(commands, "the file or directory, like /memories/notes.md; not for rename")
    parameters["properties"] |= _describe_strings(old_path="rename: the present path", new_path="rename: the new path")
    return {"description": _MEMORY_DESCRIPTION, "parameters": {**parameters, "required": ["command"]}}


def make_editor_function(*, undoes: bool) -> dict[str, Any]:
    """Return description and parameters of the text editor, for models that get it as a function.

    Args:
        undoes: True if the editor has the command `undo_edit`.
    """
    commands = ("view", "create", "str_replace", "insert", *(["undo_edit"] if undoes else []))
    parameters = {**_make_parameters(commands, "the file"), "required": ["command", "path"]}
    return {"description": _EDITOR_DESCRIPTION + (_UNDO if undoes else ""), "parameters": parameters}


def _make_parameters(commands: Iterable[str], path: str) -> dict[str, Any]:
    """Return the JSON Schema of the arguments that both tools have."""
    lines = "view: first and last line, from 1; -1 as the last line means the end of the file"
    after = "insert: the line after which the text is inserted, 0 for the start"
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": [*commands]},
            **_describe_strings(path=path),
            "view_range": {"type": "array", "items": {"type": "integer"}, "description": lines},
            **_describe_strings(
                file_text="create: the content of the file",
                old_str="str_replace: the text to replace, which must occur exactly once",
                new_str="str_replace: the new text",
            ),
            "insert_line": {"type": "integer", "description": after},
            **_describe_strings(insert_text="insert: the text to insert"),
        },
    }


def _describe_strings(**descriptions: str) -> dict[str, Any]:
    return {name: {"type": "string", "description": text} for name, text in descriptions.items()}


def replace_typed_tools(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request with the memory tool and the text editor as functions, for a model that is not Anthropic's.

    The same object is returned if the request declares neither.
    """
    tools = fields.get("tools") or ()
    replaced = [_replace_typed(tool) for tool in tools]
    return (
        {**fields, "tools": replaced}
        if any(one is not tool for one, tool in zip(replaced, tools, strict=True))
        else fields
    )


def _replace_typed(tool: Tool) -> Tool:
    kind, name = tool.get("type"), tool.get("name")
    if not isinstance(name, str) or not (kind == MEMORY_TYPE or kind in EDITOR_TYPES):
        return tool
    made = make_memory_function() if kind == MEMORY_TYPE else make_editor_function(undoes=kind in UNDOING_TYPES)
    return {"type": "function", "function": {"name": name, **made}}


def add_betas(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request for Anthropic, with the beta feature that its memory tool belongs to."""
    if not any(tool.get("type") == MEMORY_TYPE for tool in fields.get("tools") or ()):
        return fields
    named = fields.get("betas")
    return {**fields, "betas": [*(named if isinstance(named, list) else ()), _MEMORY_BETA]}


def get_instruction(tool: Tool) -> str:
    """Return the system message that a declared tool needs for a model that is not Anthropic's; empty if it needs none."""
    return MEMORY_INSTRUCTION if tool.get("type") == MEMORY_TYPE else ""


# -- changes during a conversation ----------------------------------------------------

_CHANGES: Final = ("tool_addition", "tool_removal")
"""Types of the blocks of system messages that add and remove tools."""


def apply_tool_changes(given: list[Any], name: str, tools: Sequence[Any] | None) -> tuple[list[Any], Any]:
    """Return the messages of a request without blocks that change tools, and its tools after these changes.

    A message that consists of such blocks only is left out.

    Args:
        given: Messages of the request, which are not checked yet.
        name: Name of the list, for errors.
        tools: Tools of the request. They are returned unchanged if there are no changes.

    Raises:
        InvalidRequest: A change is not valid or names a tool that the request does not have, or a system message has a field that Holdfast
            does not serve.
    """
    messages: list[Any] = []
    known: dict[Any, Any] | None = None
    removed: dict[Any, Any] = {}
    for at, message in enumerate(map(dump_model, given)):
        if not isinstance(message, Mapping) or message.get("role") != "system":
            messages.append(message)
            continue
        where, content = f"{name}[{at}]", message.get("content")
        _check_system_message(message, where)
        blocks = [*map(dump_model, content)] if isinstance(content, list) else []
        rest = [block for block in blocks if not _is_change(block)]
        if rest or not blocks:
            messages.append(message if len(rest) == len(blocks) else {**message, "content": rest})
        for place, block in enumerate(blocks):
            if _is_change(block):
                if known is None:
                    known = {tool.get("name") if isinstance(tool, Mapping) else None: tool for tool in tools or ()}
                _apply_change(block, f"{where}.content[{place}]", known, removed)
    return messages, tools if known is None else list(known.values())


def _is_change(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in _CHANGES


def _check_system_message(message: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidRequest` if a system message within a conversation has a field that Holdfast neither serves nor passes on."""
    if message.get("clear_at") not in (None, "never"):
        reason = f"{where}.clear_at can only be never: Holdfast sends a system message with every later request"
        raise InvalidRequest(reason, param=f"{where}.clear_at")
    if message.get("output_config"):
        reason = f"{where}.output_config is not supported: set output_config of the request"
        raise InvalidRequest(reason, param=f"{where}.output_config")


def _apply_change(block: Mapping[str, Any], where: str, known: dict[Any, Any], removed: dict[Any, Any]) -> None:
    """Add a tool to `known`, or move it to `removed`, as a block says. The block defines the tool, or names one of the request."""
    tool, adds = block.get("tool"), block["type"] == "tool_addition"
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    definition = tool.get("definition") if isinstance(tool, Mapping) and kind == "tool_definition" and adds else None
    named = tool if kind == "tool_reference" else definition
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(name, str):
        allowed = "{type: tool_reference, name: …}" + (" or {type: tool_definition, definition: …}" if adds else "")
        reason = f"{where}.tool must be {allowed}; other references are not supported"
        raise InvalidRequest(reason, param=f"{where}.tool")
    found = definition or known.get(name) or removed.get(name)
    if found is None:
        raise InvalidRequest(f"{where} names the tool {name!r:.80}, which is not defined", param=where)
    if adds:
        removed.pop(name, None)
        known[name] = {key: value for key, value in found.items() if key != "defer_loading"}
    else:
        removed[name] = known.pop(name, found)

"""Tools that Anthropic's messages add and remove during a conversation, with blocks `tool_addition` and `tool_removal`.

Follows the API reference, betas `mid-conversation-tool-changes-2026-07-01` and `inline-tools-2026-09-15`. Holdfast applies the changes to the
list of tools, for every model. The blocks themselves are not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.errors import InvalidRequest
from holdfast.wire.openai import dump_model

ADDITION: Final = "tool_addition"
REMOVAL: Final = "tool_removal"


class ToolChange(NamedTuple):
    """One block that adds or removes a tool."""

    where: str
    """Place of the block in the request, for errors."""
    adds: bool
    name: str
    definition: Mapping[str, Any] | None
    """The tool, if the block defines it; None: the block names a tool of the request."""


def separate_tool_changes(given: list[Any], name: str) -> tuple[list[Any], list[ToolChange]]:
    """Return the messages of a request without blocks that change tools, and the changes in their order.

    A message that consists of such blocks only is left out.

    Args:
        given: Messages of the request, which are not checked yet.
        name: Name of the list, for errors.

    Raises:
        InvalidRequest: A change is not valid, or a system message has a field that Holdfast does not serve.
    """
    if not any(isinstance(one, Mapping) and one.get("role") == "system" for one in map(dump_model, given)):
        return given, []
    messages, changes = list[Any](), list[ToolChange]()
    for at, message in enumerate(map(dump_model, given)):
        if not isinstance(message, Mapping) or message.get("role") != "system":
            messages.append(message)
            continue
        _check_system_message(message, f"{name}[{at}]")
        content = message.get("content")
        blocks = [*map(dump_model, content)] if isinstance(content, list) else []
        found = [
            _parse_change(block, f"{name}[{at}].content[{place}]")
            for place, block in enumerate(blocks)
            if _is_change(block)
        ]
        if not found:
            messages.append(message)
            continue
        changes += found
        if rest := [block for block in blocks if not _is_change(block)]:
            messages.append({**message, "content": rest})
    return messages, changes


def _check_system_message(message: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidRequest` if a system message within a conversation has a field that Holdfast neither serves nor passes on."""
    if message.get("clear_at") not in (None, "never"):
        reason = f"{where}.clear_at can only be never: Holdfast sends a system message with every later request"
        raise InvalidRequest(reason, param=f"{where}.clear_at")
    if message.get("output_config"):
        reason = f"{where}.output_config is not supported: set output_config of the request"
        raise InvalidRequest(reason, param=f"{where}.output_config")


def _is_change(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in (ADDITION, REMOVAL)


def _parse_change(block: Mapping[str, Any], where: str) -> ToolChange:
    tool, adds = block.get("tool"), block["type"] == ADDITION
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind == "tool_reference" and isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
        return ToolChange(where, adds, tool["name"], None)
    definition = tool.get("definition") if isinstance(tool, Mapping) else None
    if (
        adds
        and kind == "tool_definition"
        and isinstance(definition, Mapping)
        and isinstance(definition.get("name"), str)
    ):
        return ToolChange(where, adds, definition["name"], definition)
    allowed = "{type: tool_reference, name: …}" + (" or {type: tool_definition, definition: …}" if adds else "")
    raise InvalidRequest(f"{where}.tool must be {allowed}; other references are not supported", param=f"{where}.tool")


def apply_tool_changes(given: Sequence[Any] | None, changes: Iterable[ToolChange]) -> list[Any]:
    """Return the tools of a request after the changes in its messages.

    Raises:
        InvalidRequest: A change names a tool that the request does not have.
    """
    tools = {tool.get("name") if isinstance(tool, Mapping) else None: tool for tool in given or ()}
    removed = dict[Any, Any]()
    for where, adds, name, definition in changes:
        tool = definition or tools.get(name) or removed.get(name)
        if tool is None:
            raise InvalidRequest(f"{where} names the tool {name!r:.80}, which is not defined", param=where)
        if adds:
            removed.pop(name, None)
            tools[name] = {key: value for key, value in tool.items() if key != "defer_loading"}
        else:
            removed[name] = tools.pop(name, tool)
    return list(tools.values())

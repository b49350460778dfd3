"""The fields of a request to Anthropic's Messages API as Chat Completions have them.

Follows the API reference, "Create a Message". Fields that Chat Completions have no name for keep their own, so that a request
comes to Anthropic as it was sent; what others are sent of it is told by `holdfast.wire.anthropic_others`. `system` and `messages`
are read by `holdfast.wire.anthropic`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.errors import InvalidRequest

_READ: Final = frozenset({"system", "messages", "contents", "stop_sequences", "tools", "tool_choice"})
"""Fields that are told otherwise, or elsewhere."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_FUNCTION: Final = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Fields of a tool, and of the function that it is in Chat Completions."""


def fields_from(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request in Chat Completions' terms, but for `system` and `messages`.

    Raises:
        InvalidRequest: one that has to be told otherwise is not what the API takes; names it.
    """
    fields = {name: value for name, value in body.items() if name not in _READ}
    if body.get("stop_sequences"):
        fields["stop"] = _stop(body["stop_sequences"])
    if body.get("tools") is not None:
        fields["tools"] = tools_from(body["tools"])
    if body.get("tool_choice") is not None:
        fields |= _choice(body["tool_choice"])
    if body.get("metadata") is not None:
        user = _user(body["metadata"])
        fields |= {} if body.get("user") else user
    return fields


def tools_from(tools: Any) -> list[dict[str, Any]]:
    """Tools of the client's own as function tools; those that Anthropic runs or knows by their type as they came.

    Raises:
        InvalidRequest: something in the list is no tool.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{where} must be an object with a name and an input_schema", param=where)
    kind = tool.get("type")
    if not isinstance(kind, str | None):
        raise InvalidRequest(f"{where}.type must be a string", param=f"{where}.type")
    if kind not in (None, "custom"):
        return dict(tool)
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise InvalidRequest(f"{where}.name is missing: a tool has a name", param=f"{where}.name")
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidRequest(f"{where}.input_schema must be a JSON Schema, an object", param=f"{where}.input_schema")
    function = {theirs: tool[ours] for ours, theirs in _FUNCTION.items() if tool.get(ours) is not None}
    rest = {name: value for name, value in tool.items() if name not in _FUNCTION and name != "type"}
    return {"type": "function", "function": function, **rest}


def _stop(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidRequest("stop_sequences must be a list of strings", param="stop_sequences")
    return given


def _choice(given: Any) -> dict[str, Any]:
    """`tool_choice`, and `parallel_tool_calls`, which stands in it."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "tool" and isinstance(given.get("name"), str):
        fields: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": given["name"]}}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields = {"tool_choice": _CHOICES[kind]}
    else:
        wanted = "an object whose type is auto, any, none, or tool with a name"
        raise InvalidRequest(f"tool_choice must be {wanted}", param="tool_choice")
    return {**fields, "parallel_tool_calls": False} if given.get("disable_parallel_tool_use") is True else fields


def _user(given: Any) -> dict[str, Any]:
    """`metadata.user_id` as the end user, where `user` does not say; it stays where it is as well."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("metadata must be an object", param="metadata")
    user = given.get("user_id")
    if not isinstance(user, str | None):
        raise InvalidRequest("metadata.user_id must be a string", param="metadata.user_id")
    return {"user": user} if user else {}

"""Tools and `tool_choice` of OpenAI's Responses API, as functions of Chat Completions and back.

A custom tool becomes a function with one text argument. The tools of a namespace become functions whose names begin with the namespace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.errors import InvalidRequest

INPUT: Final = "input"
"""Name of the only argument of a custom tool, whose input is free text."""
_NAME_CHARS: Final = 64
"""Maximum length of a function's name in Chat Completions."""
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolName(NamedTuple):
    """A tool as the client knows it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    """True for a tool whose input is free text."""


ToolNames = Mapping[str, ToolName]
"""The client's tools by the names of the functions that the model calls."""


class Tools(NamedTuple):
    """A request's tools, as functions of Chat Completions."""

    functions: list[dict[str, Any]]
    names: dict[str, ToolName]
    """The client's tools by the names of their functions."""
    hosted: list[dict[str, Any]]
    """Tools that run at the provider. Only providers with the Responses API have them."""


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
    return f"{fit_name(whole)[: _NAME_CHARS - len(mark) - 1]}_{mark}"


def fit_name(name: str) -> str:
    """Return the name of a function with only the characters that the API accepts, at most 64."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARS] or "tool"


def find_tool(names: ToolNames, name: Any) -> ToolName:
    """Return the tool of a function. A function that the request does not declare is a tool with the same name."""
    return names.get(name) or ToolName(str(name or ""))


def wrap_input(text: str) -> str:
    """Return the arguments of the function of a custom tool."""
    return msgspec.json.encode({INPUT: text}).decode()


def read_input(arguments: str) -> str:
    """Return the free text in the arguments of a custom tool's function. Arguments of another form are returned unchanged."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


# -- of clients ---------------------------------------------------------------------


def parse_tools(tools: Any) -> Tools:
    """Convert the tools of a request to functions.

    Raises:
        InvalidRequest: A tool is not valid. The error names it.
    """
    parsed = Tools([], {}, [])
    if not isinstance(tools, list | None):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    for at, tool in enumerate(tools or ()):
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
    function: dict[str, Any] = {"name": make_function_name(name, namespace)}
    function |= {"description": tool["description"]} if tool.get("description") else {}
    if kind == "custom":
        about = _describe_format(tool.get("format"))
        text = {"type": "string", **({"description": about} if about else {})}
        function["parameters"] = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    else:
        function |= {name: tool[name] for name in ("parameters", "strict") if tool.get(name) is not None}
    parsed.names[function["name"]] = ToolName(name, namespace, kind == "custom")
    parsed.functions.append({"type": "function", "function": function})


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
        return _choose(choice, names)
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        allowed = [_choose(tool, names) for tool in choice["tools"]]
        return {"type": kind, kind: {"mode": choice.get("mode", "auto"), "tools": allowed}}
    message = "tool_choice must be auto, none, required, a function or custom tool by its name, or allowed_tools"
    raise InvalidRequest(message, param="tool_choice")


def _choose(tool: Any, names: Iterable[str]) -> dict[str, Any]:
    name, namespace = (tool.get("name"), tool.get("namespace")) if isinstance(tool, Mapping) else (None, None)
    function_name = make_function_name(name, namespace) if isinstance(name, str) else None
    if function_name is None or function_name not in names:
        raise InvalidRequest(f"tool_choice names {name!r:.80}, which is not in tools", param="tool_choice")
    return {"type": "function", "function": {"name": function_name}}


# -- for upstreams ------------------------------------------------------------------


def encode_tool(tool: Any) -> Any:
    """Convert a function or custom tool of Chat Completions. A tool that runs at the provider is returned unchanged."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    inner = tool.get(kind) if kind in ("function", "custom") else None
    return {"type": kind, **inner} if isinstance(inner, Mapping) else tool


def encode_choice(choice: Any) -> Any:
    """Convert the field `tool_choice` of Chat Completions."""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    inner = choice.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, Mapping):
        return choice
    if kind == "allowed_tools":
        return {"type": kind, "mode": inner.get("mode"), "tools": [*map(encode_tool, inner.get("tools", ()))]}
    return {"type": kind, "name": inner.get("name")}

"""Tools that Anthropic's models know by their type, as functions for other models.

Follows the API reference, "Memory tool" and "Text editor tool". The client runs the calls, or Holdfast does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Tool = Mapping[str, Any]
MEMORY_TYPE: Final = "memory_20250818"
_MEMORY_BETA: Final = "context-management-2025-06-27"
_EDITORS: Final = ("text_editor_20250124", "text_editor_20250429", "text_editor_20250728")
EDITOR_TYPES: Final[frozenset[str]] = frozenset(_EDITORS)
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
_VIEW_RANGE: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "view: first and last line, from 1; -1 as the last line means the end of the file",
}
_OLD: Final = {"type": "string", "description": "str_replace: the text to replace, which must occur exactly once"}
_NEW: Final = {"type": "string", "description": "str_replace: the new text"}
_LINE: Final = {"type": "integer", "description": "insert: the line after which the text is inserted, 0 for the start"}
_TEXT: Final = {"type": "string", "description": "create: the content of the file"}
_INSERTED: Final = {"type": "string", "description": "insert: the text to insert"}
MEMORY_PARAMETERS: Final[Tool] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        "path": {"type": "string", "description": "the file or directory, like /memories/notes.md; not for rename"},
        "view_range": _VIEW_RANGE,
        "file_text": _TEXT,
        "old_str": _OLD,
        "new_str": _NEW,
        "insert_line": _LINE,
        "insert_text": _INSERTED,
        "old_path": {"type": "string", "description": "rename: the present path"},
        "new_path": {"type": "string", "description": "rename: the new path"},
    },
    "required": ["command"],
}
MEMORY_DESCRIPTION: Final = """\
Files in the directory /memories, which stay after this conversation. Commands: view a directory or a file, create a file, str_replace \
or insert text in a file, delete or rename a file or a directory."""
EDITOR_DESCRIPTION: Final = """\
View, create and edit text files. Commands: view a file, create a file, str_replace text in a file, insert text after a line of a file."""
_UNDO: Final = " undo_edit takes the last edit of a file back."


def make_editor_parameters(*, undoes: bool) -> dict[str, Any]:
    """Return the JSON Schema of the text editor's arguments. With `undoes`, the editor has the command `undo_edit`."""
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if undoes else [])]
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": commands},
            "path": {"type": "string", "description": "the file"},
            "view_range": _VIEW_RANGE,
            "file_text": _TEXT,
            "old_str": _OLD,
            "new_str": _NEW,
            "insert_line": _LINE,
            "insert_text": _INSERTED,
        },
        "required": ["command", "path"],
    }


def describe_editor(*, undoes: bool) -> str:
    """Return the description of the text editor for models that get it as a function."""
    return EDITOR_DESCRIPTION + (_UNDO if undoes else "")


def replace_typed_tools(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request with the memory tool and the text editor as functions, for a model that is not Anthropic's.

    The same object is returned if the request declares neither.
    """
    tools = fields.get("tools") or ()
    if not any(_is_known(tool) for tool in tools):
        return fields
    return {**fields, "tools": [_make_function(tool) if _is_known(tool) else tool for tool in tools]}


def add_betas(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request for Anthropic, with the beta feature that its memory tool belongs to."""
    if not any(tool.get("type") == MEMORY_TYPE for tool in fields.get("tools") or ()):
        return fields
    named = fields.get("betas")
    return {**fields, "betas": [*(named if isinstance(named, list) else ()), _MEMORY_BETA]}


def get_instruction(tool: Tool) -> str:
    """Return the system message that a declared tool needs for a model that is not Anthropic's; empty if it needs none."""
    return MEMORY_INSTRUCTION if tool.get("type") == MEMORY_TYPE else ""


def _is_known(tool: Tool) -> bool:
    kind = tool.get("type")
    return (kind == MEMORY_TYPE or kind in EDITOR_TYPES) and isinstance(tool.get("name"), str)


def _make_function(tool: Tool) -> dict[str, Any]:
    if tool["type"] == MEMORY_TYPE:
        function = {"description": MEMORY_DESCRIPTION, "parameters": MEMORY_PARAMETERS}
    else:
        undoes = tool["type"] in UNDOING_TYPES
        function = {
            "description": describe_editor(undoes=undoes),
            "parameters": make_editor_parameters(undoes=undoes),
        }
    return {"type": "function", "function": {"name": tool["name"], **function}}

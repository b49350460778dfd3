"""Commands of Anthropic's memory tool and text editor on the content of one file: arguments, changes and answers. No I/O.

The answers have the words of the SDK's own memory tool, because models are trained on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.errors import InvalidRequest

MISSING: Final = "The path {path} does not exist. Please provide a valid path."
_LINES: Final = 999_999
"""Maximum number of lines of a file that can be shown."""
_WIDTH: Final = 6
"""Width of line numbers."""
_FOLDER_SIZE: Final = 4096
"""Size in bytes that is reported for a folder, as on most disks."""
_AROUND: Final = 2
"""Number of lines that are shown before and after a change."""
_SHOWN_MATCHES: Final = 1_000
"""Maximum number of occurrences of a text whose lines an error names, so that a long file cannot make the error long."""
_TEXTS: Final[Mapping[str, type]] = {"path": str, "old_str": str, "new_str": str}
_COMMANDS: Final[Mapping[str, Mapping[str, type]]] = {
    "view": {"path": str},
    "create": {"path": str, "file_text": str},
    "str_replace": _TEXTS,
    "insert": {"path": str, "insert_line": int, "insert_text": str},
    "delete": {"path": str},
    "rename": {"old_path": str, "new_path": str},
    "undo_edit": {"path": str},
}
"""The commands of both tools, with the types of the arguments that they need."""
MEMORY_COMMANDS: Final = ("view", "create", "str_replace", "insert", "delete", "rename")
EDITOR_COMMANDS: Final = ("view", "create", "str_replace", "insert", "undo_edit")
_WORDS: Final = {str: "a string", int: "a whole number"}


def parse_command(command: Mapping[str, Any], allowed: Sequence[str] = MEMORY_COMMANDS) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a command. Arguments of other commands are left out.

    Raises:
        InvalidRequest: the command is unknown, or an argument is missing or has a wrong type.
    """
    name = command.get("command")
    if not isinstance(name, str) or name not in allowed:
        raise InvalidRequest(f"Unknown command: {name!r:.80}. The commands are {', '.join(allowed)}.")
    kinds = _COMMANDS[name]
    arguments = {argument: command[argument] for argument in kinds if command.get(argument) is not None}
    if name == "str_replace":
        arguments.setdefault("new_str", "")  # a deletion: the text editor's models leave it out
    for argument, kind in kinds.items():
        value = arguments.get(argument)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidRequest(f"The command {name} needs {argument}, {_WORDS[kind]}.", param=argument)
    view_range = command.get("view_range")
    if name == "view" and view_range is not None:
        if not isinstance(view_range, list) or not all(type(number) is int for number in view_range):
            raise InvalidRequest("view_range must be a list of two line numbers.", param="view_range")
        arguments["view_range"] = view_range
    return name, arguments


def show_file(path: str, content: str, view_range: Sequence[int] | None = None) -> str:
    """Return a file with line numbers.

    Args:
        path: the path as the model gave it.
        content: the content of the file.
        view_range: first and last line, from 1; -1 as the last line means the end. None, or not two numbers: the whole file.

    Raises:
        InvalidRequest: the file has too many lines.
    """
    lines = content.split("\n")
    if len(lines) > _LINES:
        raise InvalidRequest(f"File {path} exceeds maximum line limit of {_LINES:,} lines.")
    first = 1
    if view_range is not None and len(view_range) == 2:
        first = max(1, view_range[0])
        lines = lines[first - 1 : len(lines) if view_range[1] == -1 else view_range[1]]
    return f"Here's the content of {path} with line numbers:\n" + _number(lines, first)


def list_directory(path: str, sizes: Mapping[str, int]) -> str:
    """Return the list of a directory, two levels deep, without hidden items.

    Args:
        path: the path as the model gave it.
        sizes: size in bytes of each file, by its path below the directory.
    """
    items: dict[str, int] = {}
    for name, size in sizes.items():
        parts = name.split("/")
        if not any(part.startswith(".") for part in parts[:2]):
            for depth in range(1, min(len(parts), 3)):
                items["/".join(parts[:depth]) + "/"] = _FOLDER_SIZE
            if is_listed(name):
                items["/".join(parts)] = size
    ordered = sorted(items, key=lambda name: name.rstrip("/").split("/"))
    lines = [
        f"{_format_size(_FOLDER_SIZE)}\t{path}",
        *(f"{_format_size(items[one])}\t{path}/{one}" for one in ordered),
    ]
    head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
    return "\n".join([head, *lines])


def is_listed(name: str) -> bool:
    """Return True if `list_directory` shows the size of a file with this path below the directory."""
    parts = name.split("/")
    return len(parts) <= 2 and not any(part.startswith(".") for part in parts)


class Replaced(NamedTuple):
    """The result of replacing a text."""

    content: str
    snippet: str
    """The changed lines and those around them, with line numbers."""


def replace_once(path: str, content: str, old: str, new: str) -> Replaced:
    """Replace a text that occurs exactly once.

    Raises:
        InvalidRequest: the text does not occur, or more than once.
    """
    number = content.count(old) if old else 0
    if number == 0:
        raise InvalidRequest(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if number > 1:
        raise InvalidRequest(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines:"
            f" {', '.join(map(str, _find_lines(content, old)))}. Please ensure it is unique"
        )
    changed = content.replace(old, new)
    at = content[: content.find(old)].count("\n")
    lines, first = changed.split("\n"), max(0, at - _AROUND)
    return Replaced(changed, _number(lines[first : at + _AROUND + 1], first + 1))


def insert_lines(content: str, line: int, text: str) -> str:
    """Insert a text after a line; 0 inserts it at the beginning. The result ends with a newline.

    Raises:
        InvalidRequest: there is no such line.
    """
    lines = content.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not 0 <= line <= len(lines):
        raise InvalidRequest(
            f"Invalid `insert_line` parameter: {line}. It should be within the range [0, {len(lines)}]."
        )
    changed = "\n".join([*lines[:line], text.rstrip("\n"), *lines[line:]])
    return changed if changed.endswith("\n") else f"{changed}\n"


def _number(lines: Sequence[str], first: int) -> str:
    return "\n".join(f"{number:>{_WIDTH}}\t{line}" for number, line in enumerate(lines, start=first))


def _find_lines(content: str, text: str) -> list[int]:
    """Return the line numbers of the first occurrences of a text, at most `_SHOWN_MATCHES`, including overlapping ones."""
    found: list[int] = []
    line, before, at = 1, 0, content.find(text)
    while at >= 0 and len(found) < _SHOWN_MATCHES:
        line, before = line + content.count("\n", before, at), at
        found.append(line)
        at = content.find(text, at + 1)
    return found


def _format_size(size: int) -> str:
    """Format a number of bytes as the SDK does: `0B`, `812B`, `1.5K`, `4K`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    value = size / 1024**power
    return f"{value:.0f}{'BKMG'[power]}" if value == int(value) else f"{value:.1f}{'BKMG'[power]}"

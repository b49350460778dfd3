"""Shared by tests of memory files: Anthropic's own tool next to Holdfast's, and random commands."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool

Command = dict[str, Any]


def answer_of_sdk(tool: BetaLocalFilesystemMemoryTool, command: Command) -> tuple[str, str]:
    """Return the answer of the SDK's own tool, or its error. The SDK lets errors of the disk through."""
    try:
        return "ok", str(tool.call(command))
    except ToolError as exc:
        return "error", str(exc)
    except (OSError, ValueError) as exc:
        return "error", f"uncaught {type(exc).__name__}"


def remove_empty_folders(root: Path) -> None:
    """Remove folders without files: Holdfast has none."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def make_random_commands(random: Random, number: int) -> list[Command]:
    """Return random commands on a few files. Half of them create files, so that the others find some."""
    names = ["/memories/a.md", "/memories/b.md", "/memories/notes/a.md", "/memories/notes/deep/c.md"]
    texts = ["one\ntwo\nthree\n", "one two two", "", "\n\n", "x" * 1500]

    def make() -> Command:
        path = random.choice(names)
        return random.choice(
            [
                *[{"command": "create", "path": path, "file_text": random.choice(texts)}] * 5,
                {"command": "view", "path": random.choice([path, "/memories", "/memories/notes"])},
                {"command": "view", "path": path, "view_range": random.choice([[1, 2], [2, -1], [0, 9]])},
                {"command": "str_replace", "path": path, "old_str": random.choice(["one", "two"]), "new_str": "1\n2"},
                {"command": "insert", "path": path, "insert_line": random.randint(-1, 4), "insert_text": "new"},
                {"command": "delete", "path": path},
                {"command": "rename", "old_path": path, "new_path": random.choice(names)},
            ]
        )

    return [make() for _ in range(number)]

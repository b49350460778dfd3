"""The commands of Anthropic's memory tool over records: answers, paths, versions, held changes and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.errors import UsageError

Command = dict[str, Any]
MEMORY = "sqlite://:memory:"


def open_files(hf: holdfast.Holdfast, user_id: str = "ada") -> holdfast.MemoryFiles:
    """Return a user's memory files."""
    return holdfast.MemoryFiles(hf.records("memory_files", user_id=user_id))


async def answer(files: holdfast.MemoryFiles, command: Command) -> tuple[str, str]:
    """Return the answer of a command, or its error."""
    try:
        return "ok", await files.run(command)
    except (UsageError, holdfast.errors.Conflict) as exc:
        return "error", str(exc)


TRAVERSALS = [
    "/memories/../x", "/memories/a/../../x", "/memories/./../x", "/memories/..", "/memories/../", "/memories/../memories2/x",
    "/memories/a/b/../../../x", "/memories//../x", "/memories/././../../x", "/memories/../../../../../../etc/passwd",
    "/memories/a/../..", "/memories/..//x", "/memories/.//..//x", "/memories/a//b/../../..", "/memories/../.memories",
    "/memories/../memories/../x", "", "/", "x", ".", "..", "../memories/x", "./memories/x", "memories", "memories/x",
    "/memoriesx", "/memories2/x", "/Memories/x", "/MEMORIES/x", "/etc/passwd", "//memories/x", "\\memories\\x", "C:\\memories\\x",
    "~/memories/x", "file:///memories/x", "/memories\\..\\x", "\u2044memories/x", "/tmp/../memories/x", " /memories/x", "/memor\u0131es/x",
    "/memories\0/../x", "/memories\n/../x",
]  # fmt: skip
"""Spellings of paths outside of the directory."""


@pytest.mark.parametrize("path", TRAVERSALS)
async def test_no_spelling_leaves_the_directory(path: str) -> None:
    """Every command refuses the path and names it or the directory, and nothing is stored."""
    assert len(TRAVERSALS) >= 40
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        await files.create("/memories/a.md", "x")
        for command in (
            {"command": "view", "path": path},
            {"command": "create", "path": path, "file_text": "x"},
            {"command": "str_replace", "path": path, "old_str": "x", "new_str": "y"},
            {"command": "insert", "path": path, "insert_line": 0, "insert_text": "y"},
            {"command": "delete", "path": path},
            {"command": "rename", "old_path": path, "new_path": "/memories/b.md"},
            {"command": "rename", "old_path": "/memories/a.md", "new_path": path},
        ):
            kind, text = await answer(files, command)
            assert kind == "error"
            assert "/memories" in text
        assert await files.list_paths(9) == ["/memories/a.md"]
        assert len((await hf.records(user_id="ada").list(nested=True)).records) == 2


# -- versions --------------------------------------------------------------------


async def test_an_agent_named_like_a_namespace_sees_only_its_own_files() -> None:
    """The namespaces of versions and held changes never equal that of an agent."""
    async with holdfast.open(MEMORY) as hf:
        common = open_files(hf)
        await common.create("/memories/a.md", "x")
        await common.hold({"command": "delete", "path": "/memories/a.md"})
        for name in ("files", "versions", "held"):
            own = holdfast.MemoryFiles(hf.records(("memory_files", name), user_id="ada"))
            assert (await own.list_paths(9), await own.list_held()) == ([], [])
            await own.create("/memories/b.md", "y")
            await own.clear()
        assert await common.list_paths(9) == ["/memories/a.md"]
        assert len(await common.list_held()) == 1


async def test_concurrent_writers_lose_nothing() -> None:
    async with holdfast.open(MEMORY) as hf:
        one, other = open_files(hf), open_files(hf)
        await one.create("/memories/a.md", "")
        await asyncio.gather(*((one, other)[at % 2].insert("/memories/a.md", 0, f"line {at}") for at in range(8)))
        shown = await one.view("/memories/a.md")
        assert all(f"line {at}" in shown for at in range(8))
        assert [version.number for version in await one.list_versions("/memories/a.md")] == list(range(9, 0, -1))
        made = await asyncio.gather(
            *(answer(one, {"command": "create", "path": "/memories/b", "file_text": str(at)}) for at in range(6))
        )
        assert [kind for kind, _ in made].count("ok") == 1

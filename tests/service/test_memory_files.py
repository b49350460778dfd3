"""The commands of Anthropic's memory tool over records: answers, paths, versions, held changes and limits."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import UsageError
from tests.amounts import examples
from tests.service.memory_files_kit import answer_of_sdk, remove_empty_folders

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


PATHS = st.sampled_from(["a.md", "b.md", "notes/a.md", "notes/b.md", "notes/deep/c.md", "notes/x/y/z.md", ".hidden"])
PATH = PATHS.map("/memories/{}".format)
FOLDER = st.sampled_from(["/memories", "/memories/", "/memories/notes", "/memories/none", "/memories/.."]) | PATH
TEXT = st.sampled_from(["one\ntwo\nthree\n", "one two two", "", "ä\r\nend", "x" * 1500, "\n\n", "日本\n語"])
COMMANDS = st.one_of(
    st.fixed_dictionaries(
        {"command": st.just("view"), "path": FOLDER},
        optional={"view_range": st.sampled_from([[1, 2], [2, -1], [0, 9], [3, 1], [5, 5]])},
    ),
    st.fixed_dictionaries({"command": st.just("create"), "path": PATH, "file_text": TEXT}),
    st.fixed_dictionaries(
        {
            "command": st.just("str_replace"),
            "path": FOLDER,
            "old_str": st.sampled_from(["one", "two", "none", "\n"]),
            "new_str": st.sampled_from(["ONE", "", "1\n2"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "command": st.just("insert"),
            "path": FOLDER,
            "insert_line": st.integers(-1, 5),
            "insert_text": st.sampled_from(["new", "new\n", "a\nb", ""]),
        }
    ),
    st.fixed_dictionaries({"command": st.just("delete"), "path": FOLDER}),
    st.fixed_dictionaries({"command": st.just("rename"), "old_path": PATH, "new_path": PATH}),
)


@settings(max_examples=examples(1_700))
@given(st.lists(COMMANDS, min_size=1, max_size=15))
def test_answers_are_those_of_the_sdks_own_tool(commands: list[Command]) -> None:
    """To the byte, for random sequences of commands. A sequence ends where the SDK fails with an error of the disk."""

    async def compare(folder: str) -> None:
        theirs = BetaLocalFilesystemMemoryTool(folder)
        async with holdfast.open(MEMORY) as hf:
            ours = open_files(hf)
            for command in commands:
                expected = answer_of_sdk(theirs, command)
                if expected[1].startswith("uncaught"):
                    return
                remove_empty_folders(Path(folder) / "memories")
                assert await answer(ours, command) == expected, command

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(folder))


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


# -- held changes ----------------------------------------------------------------


# -- limits and wrong arguments ----------------------------------------------------


# -- stores ------------------------------------------------------------------------

"""The commands of Anthropic's memory tool over records: answers, paths, versions, held changes and limits."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import InvalidRequest, RecordNotFound, TooLarge, UsageError
from holdfast.limits import (
    MEMORY_FILE_BYTES,
    MEMORY_FILE_DEPTH,
    MEMORY_FILE_VERSIONS,
    MEMORY_FILES,
    MEMORY_FILES_HELD,
    MEMORY_PATH_BYTES,
)
from holdfast.memory import files as module
from tests.amounts import examples
from tests.service.memory_files_kit import answer_of_sdk, remove_empty_folders
from tests.service.turns_kit import SHARED
from tests.stores.servers import place

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


@pytest.mark.parametrize(
    "path", ["/memories/%2e%2e/x", "/memories/..%2fx", "/memories/...", "/memories/a..", "/memories/\uff0e\uff0e/x"]
)
async def test_names_that_only_look_like_a_way_out_are_names(path: str) -> None:
    """As with the SDK's tool: nothing is decoded, so the file is below the directory."""
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        assert await files.create(path, "x") == f"File created successfully at: {path}"
        assert await files.list_paths(9) == [path]


# -- versions --------------------------------------------------------------------


async def test_the_newest_versions_are_kept_and_can_be_restored() -> None:
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        await files.create("/memories/a.md", "0")
        for number in range(1, MEMORY_FILE_VERSIONS + 3):
            await files.str_replace("/memories/a.md", str(number - 1), str(number))
        kept = await files.list_versions("/memories/a.md")
        newest = MEMORY_FILE_VERSIONS + 3
        assert [one.number for one in kept] == list(range(newest, newest - MEMORY_FILE_VERSIONS, -1))
        await files.restore("/memories/a.md", kept[-1].number)
        assert (await files.list_versions("/memories/a.md"))[0].text == kept[-1].text
        with pytest.raises(InvalidRequest, match="has no version 1"):
            await files.restore("/memories/a.md", 1)


async def test_versions_move_with_a_file_and_are_deleted_with_it() -> None:
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        for number in range(30):
            await files.create(f"/memories/old/{number}.md", "a")
            await files.str_replace(f"/memories/old/{number}.md", "a", "b")
        await files.rename("/memories/old", "/memories/new")
        versions = await files.list_versions("/memories/new/29.md")
        assert [(one.operation, one.text) for one in versions] == [("renamed", "b"), ("edited", "b"), ("created", "a")]
        assert versions[0].path == "/memories/new/29.md"
        await files.delete("/memories/new")
        assert (await hf.records(user_id="ada").list(nested=True)).records == ()
        await files.create("/memories/new/29.md", "c")
        assert [one.number for one in await files.list_versions("/memories/new/29.md")] == [1]


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


async def test_a_held_change_that_cannot_be_made_stays_held() -> None:
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        edit = {"command": "str_replace", "path": "/memories/a.md", "old_str": "x", "new_str": "y"}
        held = await files.hold(edit)
        assert (await files.hold(edit)).id == held.id
        with pytest.raises(InvalidRequest, match="does not exist"):
            await files.review(held.id, "accept")
        await files.create("/memories/a.md", "x")
        assert (await files.review(held.id, "accept")).startswith("The memory file has been edited.")
        with pytest.raises(RecordNotFound):
            await files.review(held.id, "accept")


async def test_a_list_of_a_folder_reads_only_small_files_that_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the sizes of the others, the store's own sizes are close: there, a line break takes two bytes."""
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        await files.create("/memories/small.md", "é\n")
        await files.create("/memories/a/large.md", "x\n" * 500)
        await files.create("/memories/a/plain.md", "x" * 900)
        await files.create("/memories/a/b/deep.md", "deep")
        await files.create("/memories/.hidden", "hidden")
        exact = await files.view("/memories")
        assert "3B\t/memories/small.md" in exact
        assert "1000B\t/memories/a/large.md" in exact
        read: list[str] = []
        get_many = holdfast.Records.get_many

        async def note(self: holdfast.Records, keys: Sequence[str]) -> Any:
            read.extend(keys)
            return await get_many(self, keys)

        monkeypatch.setattr(holdfast.Records, "get_many", note)
        monkeypatch.setattr(module, "MEMORY_FILES_MEASURED_BYTES", 100)
        estimated = await files.view("/memories")
        assert read == ["small.md"]
        assert estimated == exact.replace("1000B\t", "1.5K\t")
        read.clear()
        assert "900B\t/memories/a/plain.md" in await files.view("/memories/a")
        assert "deep.md" in await files.view("/memories/a")
        assert "a/b/deep.md" in read


# -- limits and wrong arguments ----------------------------------------------------


async def test_limits_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_FILES", 4)
    monkeypatch.setattr(module, "MEMORY_FILES_HELD", 2)
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        await files.create("/memories/a.md", "x" * MEMORY_FILE_BYTES)
        with pytest.raises(TooLarge, match="split it"):
            await files.create("/memories/b.md", "x" * (MEMORY_FILE_BYTES + 1))
        with pytest.raises(TooLarge, match="split it"):
            await files.insert("/memories/a.md", 0, "x")
        await files.create("/memories/" + "/".join("d" * MEMORY_FILE_DEPTH), "x")
        with pytest.raises(InvalidRequest, match="more than 20 segments"):
            await files.create("/memories/" + "/".join("d" * (MEMORY_FILE_DEPTH + 1)), "x")
        await files.create("/memories/" + "n" * MEMORY_PATH_BYTES, "x")
        with pytest.raises(InvalidRequest, match="more than 500 bytes"):
            await files.create("/memories/" + "n" * (MEMORY_PATH_BYTES + 1), "x")
        await files.create("/memories/c.md", "x")
        with pytest.raises(InvalidRequest, match="has 4 files already"):
            await files.create("/memories/d.md", "x")
        for number in range(2):
            await files.hold({"command": "delete", "path": f"/memories/{number}"})
        with pytest.raises(InvalidRequest, match="wait for a review"):
            await files.hold({"command": "delete", "path": "/memories/2"})
    assert (MEMORY_FILES, MEMORY_FILES_HELD) == (1_000, 100)


async def test_replacement_without_a_new_text_deletes_the_old_one() -> None:
    """Models of the text editor leave `new_str` out."""
    async with holdfast.open(MEMORY) as hf:
        files = open_files(hf)
        await files.create("/memories/a.md", "one two")
        kind, _ = await answer(files, {"command": "str_replace", "path": "/memories/a.md", "old_str": " two"})
        assert kind != "error"
        assert "     1\tone" in (await files.view("/memories/a.md")).split("\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({}, "Unknown command: None"),
        ({"command": "destroy"}, "Unknown command: 'destroy'"),
        ({"command": "view"}, "view needs path"),
        ({"command": "view", "path": 7}, "view needs path"),
        ({"command": "view", "path": "/memories", "view_range": "1-2"}, "view_range"),
        ({"command": "create", "path": "/memories/a"}, "create needs file_text"),
        (
            {"command": "insert", "path": "/memories/a", "insert_line": True, "insert_text": ""},
            "insert needs insert_line",
        ),
        ({"command": "create", "path": "/memories/a\tb", "file_text": ""}, "control characters"),
    ],
)
async def test_wrong_arguments_are_named(command: Command, words: str) -> None:
    async with holdfast.open(MEMORY) as hf:
        kind, text = await answer(open_files(hf), command)
        assert kind == "error"
        assert words in text


# -- stores ------------------------------------------------------------------------


@SHARED
async def test_every_store_keeps_files_versions_and_held_changes(kind: str, tmp_path: Path) -> None:
    """Two connections to one store, as two servers have them."""
    with place(kind, tmp_path) as url:
        async with holdfast.open(url) as hf, holdfast.open(url) as other:
            files, theirs = open_files(hf), open_files(other)
            await files.create("/memories/notes/a.md", "one\ntwo\n")
            await theirs.str_replace("/memories/notes/a.md", "two", "zwei")
            await files.rename("/memories/notes", "/memories/old")
            held = await theirs.hold({"command": "delete", "path": "/memories/old/a.md"})
            kept = [(one.number, one.operation) for one in await files.list_versions("/memories/old/a.md")]
            assert kept == [(3, "renamed"), (2, "edited"), (1, "created")]
            assert (await theirs.view("/memories")).endswith("4K\t/memories/old/\n9B\t/memories/old/a.md")
            await asyncio.gather(*(one.insert("/memories/old/a.md", 0, "x") for one in (files, theirs) * 3))
            assert (await files.view("/memories/old/a.md")).count("\tx") == 6
            assert await files.review(held.id, "accept") == "Successfully deleted /memories/old/a.md"
            assert (await theirs.list_paths(9), await theirs.list_held()) == ([], [])

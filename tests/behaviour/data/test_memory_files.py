"""Memory files: the files of Anthropic's memory tool, their versions, and changes that wait for a review."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import MemoryFiles
from holdfast.errors import InvalidRequest
from tests.behaviour.kit import World, through

pytestmark = through("library", "connect")


def files_of(hf: Any, owner: str = "ada") -> MemoryFiles:
    return MemoryFiles(hf.native.records("memory_files", user_id=owner))


async def test_files_are_created_edited_renamed_and_deleted(world: World) -> None:
    async with world.open() as hf:
        files = files_of(hf)
        await files.create("/memories/seats.md", "Ada likes the window.\nBob does not.\n")
        await files.str_replace("/memories/seats.md", "window", "aisle")
        await files.insert("/memories/seats.md", 1, "Always.\n")
        shown = await files.view("/memories/seats.md")
        assert [word in shown for word in ("Ada likes the aisle.", "Always.", "Bob does not.")] == [True] * 3
        part = await files.view("/memories/seats.md", [2, 2])
        assert "Always." in part
        assert "Ada" not in part
        await files.create("/memories/trips/oslo.md", "May")
        await files.rename("/memories/trips", "/memories/travel")
        folder = await files.view("/memories")
        assert "/memories/travel" in folder
        assert "/memories/trips" not in folder
        assert list(await files.list_paths(10)) == ["/memories/seats.md", "/memories/travel/oslo.md"]
        await files.delete("/memories/travel")
        assert list(await files.list_paths(10)) == ["/memories/seats.md"]
        await files.clear()
        assert list(await files.list_paths(10)) == []


async def test_files_belong_to_one_user(world: World) -> None:
    async with world.open() as hf:
        await files_of(hf).create("/memories/a.md", "Ada's")
        assert list(await files_of(hf, "bob").list_paths(10)) == []
        with pytest.raises(InvalidRequest, match=r"a\.md"):
            await files_of(hf, "bob").view("/memories/a.md")


async def test_a_file_keeps_its_versions(world: World) -> None:
    async with world.open() as hf:
        files = files_of(hf)
        await files.create("/memories/a.md", "one")
        for old, new in (("one", "two"), ("two", "three")):
            await files.str_replace("/memories/a.md", old, new)
        versions = await files.list_versions("/memories/a.md")
        assert len(versions) >= 2
        await files.restore("/memories/a.md", versions[-1].number)
        assert "one" in await files.view("/memories/a.md")
        await files.delete("/memories/a.md")
        await files.create("/memories/a.md", "four")
        assert [(one.number, one.text) for one in await files.list_versions("/memories/a.md")] == [(1, "four")]


WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("view", ("/etc/passwd",), "/memories"),
    ("view", ("/memories/../x",), "/memories"),
    ("view", ("/memories/none.md",), "none.md"),
    ("create", ("/memories/a.md", "again"), "exists"),
    ("create", ("/memories/big.md", "x" * (100 * 1024 + 1)), "102,400"),
    ("str_replace", ("/memories/a.md", "absent", "x"), "absent"),
    ("str_replace", ("/memories/a.md", "a", "x"), "ultiple"),
    ("insert", ("/memories/a.md", 99, "x"), "insert_line"),
    ("delete", ("/memories/none.md",), "none.md"),
    ("delete", ("/memories",), "/memories"),
    ("rename", ("/memories/none.md", "/memories/c.md"), "none.md"),
    ("rename", ("/memories/a.md", "/memories/b.md"), "b.md"),
    ("create", ("/memories/" + "d/" * 20 + "x.md", "x"), "20"),
]


@pytest.mark.parametrize(("command", "given", "words"), WRONG, ids=[f"{row[0]} {row[2]}" for row in WRONG])
async def test_a_mistake_is_explained_to_the_model(
    world: World, command: str, given: tuple[Any, ...], words: str
) -> None:
    async with world.open() as hf:
        files = files_of(hf)
        await files.create("/memories/a.md", "a b a\n")
        await files.create("/memories/b.md", "b\n")
        with pytest.raises(InvalidRequest) as refusal:
            await getattr(files, command)(*given)
        assert words in str(refusal.value)
        assert list(await files.list_paths(10)) == ["/memories/a.md", "/memories/b.md"]


@pytest.mark.parametrize("decision", ["accept", "reject"])
async def test_a_held_change_waits_for_its_review(world: World, decision: Any) -> None:
    async with world.open() as hf:
        files = files_of(hf)
        await files.create("/memories/a.md", "one\n")
        command = {"command": "str_replace", "path": "/memories/a.md", "old_str": "one", "new_str": "two"}
        await files.hold(command)
        assert "one" in await files.view("/memories/a.md")
        (held,) = await files.list_held()
        await files.review(held.id, decision)
        assert ("two" in await files.view("/memories/a.md")) is (decision == "accept")
        assert list(await files.list_held()) == []


async def test_commands_of_the_tool_are_run_as_they_are_sent(world: World) -> None:
    async with world.open() as hf:
        files = files_of(hf)
        await files.run({"command": "create", "path": "/memories/a.md", "file_text": "one\n"})
        assert "one" in await files.run({"command": "view", "path": "/memories/a.md"})
        with pytest.raises(InvalidRequest, match="command"):
            await files.run({"command": "format", "path": "/memories/a.md"})


async def test_changes_may_be_reviewed_in_any_order(world: World) -> None:
    """After an older one was decided on, another change can be held beside the newer one."""
    async with world.open() as hf:
        files = files_of(hf)
        for name in "ab":
            await files.hold({"command": "create", "path": f"/memories/{name}.md", "file_text": name})
        older, newer = await files.list_held()
        await files.review(older.id, "reject")
        await files.hold({"command": "create", "path": "/memories/c.md", "file_text": "c"})
        assert [one.command["path"] for one in await files.list_held()] == ["/memories/b.md", "/memories/c.md"]
        await files.review(newer.id, "accept")
        assert list(await files.list_paths(10)) == ["/memories/b.md"]

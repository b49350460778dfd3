"""Memory files: commands, what they answer, versions, held changes, and their routes."""

from __future__ import annotations

from typing import Any

from holdfast import MemoryFiles
from holdfast.errors import HoldfastError
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.memory_exchanges import queries

FILES = "/v1/users/ada/memory_files"


def files_of(x: Exchange, owner: str = "ada", *agent: str) -> MemoryFiles:
    return MemoryFiles(x.served.native.records(("memory_files", *agent), user_id=owner))


async def say(x: Exchange, files: MemoryFiles, name: str, *given: Any) -> None:
    """Call a method; write down its answer, or its refusal."""
    try:
        answer = await getattr(files, name)(*given)
        if name == "list_versions":
            answer = [[one.number, one.path, one.operation, one.text] for one in answer]
    except HoldfastError as refusal:
        answer = f"! {refusal.code}: {refusal}"
    label = " ".join(str(one)[:60] for one in given)
    x.note(f"{name} {label}", answer if isinstance(answer, (str, list)) else str(answer))


@exchange(stores=DATABASES)
async def test_commands_and_their_answers(x: Exchange) -> None:
    files = files_of(x)
    text = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
    for name, *given in (
        ("view", "/memories"), ("create", "/memories/a.md", text), ("create", "/memories/a.md", "x"), ("create", "/memories/a.md/b", "x"),
        ("create", "/memories/dir/b.md", ""), ("create", "/memories/dir/deep/er/c.md", "ä" * 600), ("create", "/memories/dir", "x"),
        ("create", "/memories/.hidden", "x"), ("create", "/memories/dir.md", "x" * 1024), ("create", "/memories/dir/.h/x", "x"),
        ("view", "/memories"), ("view", "/memories/"), ("view", "/memories/dir"), ("view", "/memories/di"), ("view", "/memories/./dir/../a.md"),
        ("view", "/memories/a.md", [2, 3]), ("view", "/memories/a.md", [6, -1]), ("view", "/memories/a.md", [0, 1]),
        ("view", "/memories/a.md", [7, 99]), ("view", "/memories/a.md", [3]), ("view", "/memories/dir/b.md"),
        ("str_replace", "/memories/a.md", "four", "4\n4.5"), ("str_replace", "/memories/a.md", "one", ""), ("str_replace", "/memories/a.md", "e", "E"),
        ("str_replace", "/memories/a.md", "", "E"), ("str_replace", "/memories/a.md", "seven", "SEVEN"), ("str_replace", "/memories/dir", "x", "y"),
        ("insert", "/memories/a.md", 0, "zero"), ("insert", "/memories/a.md", 9, "end\n"), ("insert", "/memories/a.md", 11, "x"),
        ("insert", "/memories/a.md", -1, "x"), ("insert", "/memories/dir/b.md", 0, "first"), ("view", "/memories/a.md"),
        ("rename", "/memories/dir", "/memories/dir/x"), ("rename", "/memories/dir", "/memories/a.md"), ("rename", "/memories/dir", "/memories/a.md/x"),
        ("rename", "/memories/dir", "/memories/new/place"), ("rename", "/memories/a.md", "/memories/A.md"), ("rename", "/memories", "/memories/x"),
        ("view", "/memories"), ("list_paths", 2), ("list_paths", 9), ("list_versions", "/memories/A.md"), ("list_versions", "/memories/a.md"),
        ("delete", "/memories/new"), ("delete", "/memories/new"), ("delete", "/memories"), ("list_paths", 9), ("clear",), ("list_paths", 9),
        ("list_versions", "/memories/A.md"), ("create", "/memories/A.md", "again"), ("list_versions", "/memories/A.md"),
    ):  # fmt: skip
        await say(x, files, name, *given)


@exchange()
async def test_limits_and_wrong_commands(x: Exchange) -> None:
    files = files_of(x)
    kib = 1024
    for path, text in (
        ("/memories/full", "x" * 100 * kib), ("/memories/over", "x" * (100 * kib + 1)), ("/memories/wide", "ä" * (50 * kib + 1)),
        (f"/memories/{'d/' * 19}x", "x"), (f"/memories/{'d/' * 20}x", "x"), (f"/memories/{'n' * 500}", "x"), (f"/memories/{'n' * 501}", "x"),
        ("/memories/../x", "x"), ("/memoriesx", "x"), ("memories/x", "x"), ("/memories/a\x07b", "x"), ("/memories/..", "x"),
    ):  # fmt: skip
        await say(x, files, "create", path, text)
    await say(x, files, "view", "/memories")
    for command in (
        {"command": "view"}, {"command": "view", "path": 3}, {"command": "dance"}, {}, {"command": "undo_edit", "path": "/memories/full"},
        {"command": "view", "path": "/memories", "view_range": "1"}, {"command": "view", "path": "/memories", "view_range": [1, True]},
        {"command": "insert", "path": "/memories/full", "insert_line": True, "insert_text": "x"},
        {"command": "create", "path": "/memories/n", "file_text": None}, {"command": "create", "path": "/memories/n", "file_text": "x", "old": 1},
        {"command": "str_replace", "path": "/memories/n", "old_str": "x"}, {"command": "view", "path": "/memories/n"},
        {"command": "rename", "old_path": "/memories/n", "new_path": "/memories/m"}, {"command": "delete", "path": "/memories/m"},
    ):  # fmt: skip
        await say(x, files, "run", command)


@exchange()
async def test_limits_of_numbers(x: Exchange) -> None:
    """Of files, of changes that wait for a review, and of what is changed at once."""
    files, records = files_of(x), x.served.native.records(("memory_files",), user_id="ada")
    for start in range(0, 999, 37):
        await records.change([records.make_put(f"d/{start + at:03}", "ä\n" * (at % 3)) for at in range(37)])
    x.note("listed", (await files.view("/memories")).splitlines()[-3:])
    for name, *given in (
        ("create", "/memories/last", "x"), ("create", "/memories/more", "x"), ("insert", "/memories/last", 0, "y"),
        ("rename", "/memories/d", "/memories/e"), ("list_paths", 3), ("view", "/memories/e/001"), ("list_versions", "/memories/e/998"),
        ("delete", "/memories/e"), ("list_paths", 3), ("create", "/memories/more", "x"),
    ):  # fmt: skip
        await say(x, files, name, *given)
    for number in range(99):
        await files.hold({"command": "delete", "path": f"/memories/{number}"})
    for number in (99, 100, 0):
        await say(x, files, "hold", {"command": "delete", "path": f"/memories/{number}"})
    await x.rows(FILES, "id", limit=100, after=97)


@exchange(stores=DATABASES)
async def test_versions(x: Exchange) -> None:
    files = files_of(x)
    await files.create("/memories/a.md", "0")
    await files.create("/memories/b.md", "b")
    for number in range(1, 9):
        await files.str_replace("/memories/a.md", str(number - 1), str(number))
    for name, *given in (
        ("list_versions", "/memories/a.md"), ("restore", "/memories/a.md", 2), ("restore", "/memories/a.md", 3), ("restore", "/memories/a.md", 1),
        ("restore", "/memories/a.md", 2), ("restore", "/memories/none", 1), ("list_versions", "/memories/a.md"), ("rename", "/memories/a.md", "/memories/c.md"),
        ("list_versions", "/memories/a.md"), ("list_versions", "/memories/c.md"), ("list_versions", "/memories"), ("list_versions", "/memories/b.md"),
    ):  # fmt: skip
        await say(x, files, name, *given)
    for path in ("/memories/c.md", "/memories/b.md", "/memories/none"):
        await x.get(f"{FILES}?path={path}")
    await x.get("/v1/users/bob/memory_files?path=/memories/b.md")


@exchange(stores=DATABASES)
async def test_held_changes(x: Exchange) -> None:
    files, guide = files_of(x), files_of(x, "ada", "guide")
    await files.create("/memories/a.md", "one\n")
    edit = {"command": "str_replace", "path": "/memories/a.md", "old_str": "one", "new_str": "two"}
    for command in (
        edit, edit, {**edit, "old_str": "two", "new_str": "three"}, {"command": "create", "path": "/memories/a.md", "file_text": "x"},
        {"command": "delete", "path": "/memories/a.md", "extra": 1}, {"command": "fly"}, {"command": "create", "path": "/memories/z", "file_text": "z"},
    ):  # fmt: skip
        await say(x, files, "hold", command)
    await say(x, guide, "hold", edit)
    for query in queries(
        "", "limit=2", "limit=2&after=2", "after=5", "agent=guide", "agent=other", "limit=0", "limit=101", "after=0"
    ):
        await x.get(FILES, **query)
    for number, decision in (
        (2, "accept"), (1, "accept"), (2, "accept"), (2, "accept"), (3, "accept"), (3, "reject"), (5, "maybe"), (4, "reject")
    ):  # fmt: skip
        await x.post(f"{FILES}/{number}/review", decision=decision)
    await x.post(f"{FILES}/1/review?agent=guide", decision="accept")
    await x.post(f"{FILES}/x/review", decision="accept")
    await say(x, files, "hold", {"command": "create", "path": "/memories/new", "file_text": "n"})
    await x.get(FILES)
    await x.post(f"{FILES}/5/review", decision="accept")
    await say(x, files, "list_paths", 9)
    await x.get(FILES)

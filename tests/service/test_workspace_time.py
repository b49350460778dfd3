"""A workspace over time: concurrent writers, interruptions, history, purging, files by name."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import (
    InvalidRequest,
)
from holdfast.workspace import Workspace, Workspaces
from holdfast.workspace.files import make_user_file_name
from holdfast.workspace.repository import get_scratch_folder
from tests.service.workspace_kit import NEEDS_GIT, _kept, _one, check_repository, everything, files, git, subjects

__all__ = ["_kept", "_one"]


pytestmark = NEEDS_GIT


# -- concurrency and interruptions ----------------------------------------------------


WRITER = """
import asyncio, sys
from holdfast.workspace import Workspaces
async def main(root, name, count):
    one = Workspaces(root, lambda: 1700000000000).workspace("default", "writer")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        await one.write(f"{name}-{number}.md", "x" * 1000)
        await one.commit(f"{name} {number}")
        print(number, flush=True)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start_writer(root: Path, name: str, count: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


async def test_two_processes_lose_nothing(one: Workspace, kept: Workspaces) -> None:
    two = [start_writer(kept.root, name, 15) for name in ("a", "b")]
    for process in two:
        release(process)
    for process in two:
        process.communicate()
        assert process.returncode == 0
    assert files(one) == {".gitignore", ".gitattributes", *(f"{name}-{n}.md" for name in "ab" for n in range(15))}
    check_repository(one)


@pytest.mark.parametrize("after", [1, 4, 7])
async def test_repository_is_valid_after_a_kill_at_any_moment(one: Workspace, kept: Workspaces, after: int) -> None:
    """Committed files stay, nothing is half committed, and the next commit works at once."""
    process = start_writer(kept.root, "a", 500)
    release(process)
    assert process.stdout is not None
    for _ in range(after):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = {f"a-{number}.md" for number in range(after)}
    assert done <= files(one)
    git(one.folder, "fsck", "--strict", "--full")
    await one.write("after.md", "x")
    assert await one.commit("after")
    assert not get_scratch_folder(one.folder).exists(), "what it left of its work is gone, too"
    assert "after.md" in files(one)
    assert git(one.folder, "status", "--porcelain") == ""
    check_repository(one)


# -- history -------------------------------------------------------------------------


async def test_user_does_not_see_files_of_other_users(one: Workspace) -> None:
    users = ("ada", "bob", "Ü", "a.b")
    for user in users:
        await one.write(make_user_file_name("MEMORY.md", user), f"of {user}\n")
        await one.write(make_user_file_name("DREAMS.md", user), f"dreamt by {user}\n")
    await one.write("MEMORY.md", "of all\n")
    await one.commit("a")
    for user in users:
        diff = (await one.history(include_diff=True, user_id=user)).diff
        assert diff is not None
        told = {line for line in diff.splitlines() if line.startswith(("+of ", "+dreamt "))}
        assert told == {"+of all", f"+of {user}", f"+dreamt by {user}"}
    diff = (await one.history(include_diff=True)).diff
    assert diff is not None
    assert all(f"+of {user}\n" in diff for user in users)


# -- purging -------------------------------------------------------------------------


async def test_purged_text_is_nowhere_in_the_repository(one: Workspace) -> None:
    for text in ("forgotten-in-a-commit", "forgotten-before-the-purge"):
        await one.write("MEMORY.md", f"{text}\n")
        await one.commit(f"about {text}", text)
    (one.folder / "stashed").write_text("forgotten-in-a-stash")
    git(one.folder, "add", "stashed")
    who = ("-c", "user.name=forgotten-in-a-reflog", "-c", "user.email=u@example.org")
    git(one.folder, *who, "stash", "-q")
    git(one.folder, "branch", "forgotten-branch")
    git(one.folder, "gc", "-q")
    (one.folder / "dangling").write_text("forgotten-in-nothing")
    git(one.folder, "hash-object", "-w", "dangling")
    (one.folder / "dangling").unlink()
    assert everything(one).count(b"forgotten") > 5
    await one.write("MEMORY.md", "kept\n")
    outcome = await one.purge()
    assert outcome.commit is not None
    assert await subjects(one) == ["workspace purge"]
    assert b"forgotten" not in everything(one)
    assert not [path for path in one.folder.iterdir() if path.name.startswith(".git-")]
    assert git(one.folder, "show", "HEAD:MEMORY.md") == "kept\n"
    assert git(one.folder, "status", "--porcelain") == ""
    check_repository(one)
    await one.write("MEMORY.md", "more\n")
    assert await one.commit("on")


@pytest.mark.parametrize("state", ["new begun", "old away", "new in place", "init"])
async def test_interrupted_purge_is_repaired(one: Workspace, state: str) -> None:
    """At each step there is one complete repository, and the next operation finds it."""
    own, new, old = (one.folder / name for name in (".git", ".git-holdfast-new", ".git-holdfast-old"))
    await one.write("a.md", "x")
    await one.commit("a")
    if state == "new begun":
        new.mkdir()
        (new / "HEAD").write_text("ref: refs/hea")
    elif state == "old away":
        shutil.copytree(own, new)
        own.rename(old)
    elif state == "new in place":
        shutil.copytree(own, old)
    else:
        own.rename(new)
        (new / "HEAD").write_text("")
    await one.write("a.md", "y")
    assert await one.commit("b")
    assert (await subjects(one))[0] == "b"
    assert not new.exists()
    assert not old.exists()
    check_repository(one)


# -- files by name -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        ".git",
        ".GIT",
        ".gitignore",
        "a\0",
        "a\n",
        "x" * 201,
        "ü" * 101,
    ],
)
async def test_path_out_of_the_workspace_is_rejected(one: Workspace, name: str) -> None:
    before = git(one.folder, "status", "--porcelain")
    for work in (one.write(name, "x"), one.read(name)):
        with pytest.raises(InvalidRequest, match="is not a valid file name in a workspace"):
            await work
    assert git(one.folder, "status", "--porcelain") == before

"""A workspace over time: concurrent writers, interruptions, history, purging, files by name."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import (
    InvalidRequest,
    WorkspaceUnavailable,
    WorkspaceUnusable,
)
from holdfast.workspace import Workspace, Workspaces
from holdfast.workspace.files import make_user_file_name
from holdfast.workspace.repository import get_scratch_folder
from tests.clocks import TickingClock
from tests.fake_secrets import KEY
from tests.service.workspace_kit import NEEDS_GIT, _kept, _one, check_repository, everything, files, git, subjects

pytestmark = NEEDS_GIT

__all__ = ["_kept", "_one"]


# -- concurrency and interruptions ----------------------------------------------------


async def test_concurrent_commits_are_serialised(one: Workspace) -> None:
    async def change(number: int) -> None:
        await one.write(f"{number}.md", str(number))
        await one.commit(str(number))

    await asyncio.gather(*(change(number) for number in range(20)))
    assert len(files(one)) == 22
    assert len(await subjects(one)) <= 21
    check_repository(one)


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


@pytest.mark.parametrize("name", ["index.lock", "refs/heads/main.lock", "index.holdfast-part.lock", "HEAD.lock"])
async def test_stale_locks_of_a_killed_git_do_not_block(one: Workspace, name: str) -> None:
    lock = one.folder / ".git" / name
    lock.write_text("")
    os.utime(lock, (1_000_000_000, 1_000_000_000))
    await one.write("a.md", "x")
    assert await one.commit("x")
    assert lock.exists() is (name in {"index.lock", "HEAD.lock"}), "what is not in the way is not ours to remove"


async def test_lock_of_a_running_git_is_respected(tmp_path: Path) -> None:
    workspace = Workspaces(tmp_path, TickingClock()).workspace("default", "w")
    await workspace.write("a.md", "x")
    await workspace.open()
    lock = workspace.folder / ".git" / "refs" / "heads" / "main.lock"
    lock.write_text("")
    with pytest.raises(WorkspaceUnavailable, match="another git process is using"):
        await workspace.commit("x")
    assert lock.exists()
    lock.unlink()
    assert await workspace.commit("x")


async def test_scratch_folder_created_by_another_user_is_not_used(one: Workspace, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    place = get_scratch_folder(one.folder)
    place.symlink_to(tmp_path / "theirs")
    try:
        await one.write("a.md", "x")
        assert await one.commit("x")
        assert list((tmp_path / "theirs").iterdir()) == []
    finally:
        place.unlink()


async def test_concurrent_commit_by_another_git_is_built_upon(one: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's git does not know our lock, so the branch can move meanwhile."""
    from holdfast.workspace.repository import Repository

    listed, times = Repository.list_files, 0

    def meanwhile(self: Repository) -> list[bytes]:
        nonlocal times
        times += 1
        if times == 1:
            git(
                one.folder,
                *("-c", "user.name=U", "-c", "user.email=u@example.org"),
                *("commit", "-q", "--allow-empty", "-m", "theirs"),
            )
        return listed(self)

    monkeypatch.setattr(Repository, "list_files", meanwhile)
    await one.write("a.md", "x")
    assert await one.commit("ours")
    assert await subjects(one) == ["ours", "theirs", "workspace init"]


# -- history -------------------------------------------------------------------------


async def test_attributes_cannot_hide_changes_from_the_diff(one: Workspace) -> None:
    """Attribute files are not read, so a FIFO in their place does not block either."""
    await one.write("a.md", "first\n")
    await one.commit("a")
    (one.folder / ".gitattributes").write_text("* -diff\n")
    (one.folder / "deep").mkdir()
    os.mkfifo(one.folder / "deep" / ".gitattributes")
    (one.folder / "deep" / "b.md").write_text("within\n")
    await one.write("a.md", "second\n")
    await one.commit("b")
    diff = (await one.history(2, include_diff=True)).diff
    assert diff is not None
    assert "-first\n+second\n" in diff
    assert "+within\n" in diff


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


async def test_purge_leaves_out_a_secret_and_keeps_configuration_and_hooks(one: Workspace) -> None:
    await one.write("MEMORY.md", "old")
    await one.commit("old")
    git(one.folder, "config", "own.key", "value")
    (one.folder / ".git" / "hooks").mkdir()
    (one.folder / ".git" / "hooks" / "pre-push").write_text("x")
    os.mkfifo(one.folder / ".git" / "hooks" / "pipe")
    await one.write("s.md", KEY)
    outcome = await one.purge()
    assert [left.name for left in outcome.left_out] == ["s.md"]
    assert KEY.encode() not in everything(one)
    assert git(one.folder, "config", "own.key") == "value\n"
    assert (one.folder / ".git" / "hooks" / "pre-push").exists()
    assert (one.folder / "s.md").read_text() == KEY


@pytest.mark.parametrize("how", ["file", "link"])
async def test_repository_located_elsewhere_is_not_purged(one: Workspace, tmp_path: Path, how: str) -> None:
    own, other = one.folder / ".git", tmp_path / "other"
    own.rename(other)
    if how == "file":
        own.write_text(f"gitdir: {other}\n")
    else:
        own.symlink_to(other)
    with pytest.raises(WorkspaceUnusable, match="must be inside the workspace"):
        await one.purge()
    own.unlink()
    other.rename(own)
    await one.write("a.md", "x")
    assert await one.commit("all is as it was")
    assert await subjects(one) == ["all is as it was", "workspace init"]


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


async def test_file_is_written_atomically_and_private(one: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (one.folder / "MEMORY.md").symlink_to(outside)
    assert await one.read("MEMORY.md") is None
    await one.write("MEMORY.md", "a\n\ud800")
    assert outside.read_text() == "theirs"
    assert not (one.folder / "MEMORY.md").is_symlink()
    assert await one.read("MEMORY.md") == "a\n?"
    assert (one.folder / "MEMORY.md").stat().st_mode & 0o777 == 0o600
    assert await one.read("none.md") is None
    (one.folder / ".MEMORY.md.holdfast-part").write_text("what a killed process left")
    await one.write("MEMORY.md", "b")
    (one.folder / ".other.md.holdfast-part").write_text("what another one left")
    await one.commit("x")
    assert not list(one.folder.glob("*.holdfast-part"))
    assert files(one) == {".gitignore", ".gitattributes", "MEMORY.md"}


def count_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def test_non_files_are_not_read_and_leave_nothing_open(one: Workspace) -> None:
    (one.folder / "folder.md").mkdir()
    os.mkfifo(one.folder / "pipe.md")
    before = count_open_files()
    for _ in range(5):
        assert [await one.read(name) for name in ("folder.md", "pipe.md")] == [None, None]
    assert count_open_files() == before


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

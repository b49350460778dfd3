"""A bench for tests of workspaces: a clock, a git of the machine's user, and what it says of one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.limits import WORKSPACE_FILE_BYTES
from holdfast.workspace import Workspace, Workspaces
from tests.clocks import TickingClock

LARGE = b"x" * (WORKSPACE_FILE_BYTES + 1)


@pytest.fixture(name="kept")
def _kept(tmp_path: Path) -> Workspaces:
    """Where workspaces are to be: nothing is there yet."""
    return Workspaces(tmp_path / "deep" / "workspaces", TickingClock())


@pytest.fixture(name="one")
async def _one(kept: Workspaces) -> Workspace:
    """A workspace that was opened."""
    workspace = kept.workspace("default", "writer")
    await workspace.open()
    return workspace


def git(folder: Path, *arguments: str, **more: Any) -> str:
    """What a git of the machine's user says there."""
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, **more)
    out: bytes = done.stdout
    return out.decode("utf-8", "surrogateescape")


def files(workspace: Workspace, commit: str = "HEAD") -> set[str]:
    return set(git(workspace.folder, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")) - {""}


def content(workspace: Workspace, name: str) -> bytes:
    return subprocess.check_output(["git", "show", f"HEAD:{name}"], cwd=workspace.folder)


async def subjects(workspace: Workspace) -> list[str]:
    return [commit.subject for commit in (await workspace.history(100)).commits]


def check_repository(workspace: Workspace) -> None:
    """Git finds nothing to complain about, and nothing is staged."""
    git(workspace.folder, "fsck", "--strict", "--full")
    assert git(workspace.folder, "diff", "--cached", "--name-only") == ""


def everything(workspace: Workspace) -> bytes:
    """Every object of the repository, whether anything leads to it or not, and every file in it."""
    told = ["git", "cat-file", "--batch-all-objects", "--batch", "--unordered"]
    objects = subprocess.run(told, cwd=workspace.folder, capture_output=True, check=True).stdout
    return objects + b"".join(path.read_bytes() for path in (workspace.folder / ".git").rglob("*") if path.is_file())

"""A bench for tests of workspaces: a clock, and the machine's own git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.limits import WORKSPACE_FILE_BYTES
from holdfast.workspace import Workspace, Workspaces
from tests.clocks import TickingClock

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
LARGE = b"x" * (WORKSPACE_FILE_BYTES + 1)


@pytest.fixture(name="kept")
def _kept(tmp_path: Path) -> Workspaces:
    """A path for workspaces where nothing exists yet."""
    return Workspaces(tmp_path / "deep" / "workspaces", TickingClock())


@pytest.fixture(name="one")
async def _one(kept: Workspaces) -> Workspace:
    """An open workspace."""
    workspace = kept.workspace("default", "writer")
    await workspace.open()
    return workspace


def git(folder: Path, *arguments: str, **more: Any) -> str:
    """Run the machine's git and return its output."""
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
    """Check that git finds no errors and nothing is staged."""
    git(workspace.folder, "fsck", "--strict", "--full")
    assert git(workspace.folder, "diff", "--cached", "--name-only") == ""


def everything(workspace: Workspace) -> bytes:
    """Return every object of the repository, reachable or not, and every file in it."""
    told = ["git", "cat-file", "--batch-all-objects", "--batch", "--unordered"]
    objects = subprocess.run(told, cwd=workspace.folder, capture_output=True, check=True).stdout
    return objects + b"".join(path.read_bytes() for path in (workspace.folder / ".git").rglob("*") if path.is_file())

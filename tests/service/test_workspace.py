"""The workspace of an agent: its folder and owner, a new one, and one that was a repository before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import WorkspaceUnusable
from holdfast.workspace import Workspace, Workspaces
from tests.amounts import examples
from tests.clocks import TickingClock
from tests.service.workspace_kit import NEEDS_GIT, _kept, _one, git

__all__ = ["_kept", "_one"]


pytestmark = NEEDS_GIT


# -- a new workspace -----------------------------------------------------------------


@pytest.mark.parametrize("how", ["file", "link", "objects", "refs"])
async def test_repository_located_outside_the_workspace_is_rejected(one: Workspace, tmp_path: Path, how: str) -> None:
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "-b", "main", str(other))
    place = one.folder / ".git" / {"file": "", "link": "", "objects": "objects", "refs": "refs"}[how]
    place.rename(tmp_path / "away")
    if how == "file":
        place.write_text(f"gitdir: {other / '.git'}\n")
    else:
        place.symlink_to(other / ".git" / ("" if how == "link" else how))
    await one.write("MEMORY.md", "x")
    with pytest.raises(WorkspaceUnusable, match="must be inside the workspace"):
        await one.commit("elsewhere")
    assert git(other, "for-each-ref") == ""
    assert not list((other / ".git" / "objects").glob("??"))


@pytest.mark.parametrize(
    "how", ["branches", "packed branches", "objects of one kind", "alternates", "a branch that is a pipe"]
)
async def test_parts_of_another_repository_are_neither_read_nor_changed(
    one: Workspace, kept: Workspaces, how: str
) -> None:
    """A writer to `.git` could otherwise see and change the workspace of another agent or tenant."""
    other = kept.workspace("acme", "victim")
    for text in ("forgotten", "theirs"):
        await other.write("MEMORY.md", text)
        await other.commit(text)
    before = git(other.folder, "rev-parse", "HEAD")
    own, theirs = one.folder / ".git", other.folder / ".git"
    if how == "branches":
        (own / "refs" / "heads" / "x").symlink_to(theirs / "refs" / "heads")
        (own / "HEAD").write_text("ref: refs/heads/x/main\n")
    elif how == "packed branches":
        git(other.folder, "pack-refs", "--all")
        (own / "packed-refs").symlink_to(theirs / "packed-refs")
    elif how == "objects of one kind":
        missing = next(place for place in (theirs / "objects").iterdir() if not (own / "objects" / place.name).exists())
        (own / "objects" / missing.name).symlink_to(missing)
    elif how == "alternates":
        (own / "objects" / "info").mkdir(exist_ok=True)
        (own / "objects" / "info" / "alternates").write_text(f"{theirs / 'objects'}\n")
        (own / "refs" / "heads" / "main").write_text(before)
    else:
        (own / "refs" / "heads" / "main").unlink()
        os.mkfifo(own / "refs" / "heads" / "main")
    await one.write("a.md", "x")
    for work in (one.commit("x"), one.history(include_diff=True)):
        with pytest.raises(WorkspaceUnusable, match="must be inside the workspace"):
            await work
    assert git(other.folder, "rev-parse", "HEAD") == before


# -- ownership -----------------------------------------------------------------------

HOSTILE = (
    "..",
    ".",
    ".git",
    "a/b",
    "../../etc",
    "/etc",
    "a\\b",
    "A",
    "con",
    "x" * 500,
    "nl\n",
    "\0",
    "~",
    "@t",
    "ü",
    "-",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_stays_below_the_root(kept: Workspaces, name: str) -> None:
    for tenant, agent in (("default", name), (name, "a"), (name, name)):
        folder = kept.workspace(tenant, agent).folder
        assert kept.root in folder.parents
        assert all(part not in ("..", ".", ".git") and len(part) < 256 for part in folder.relative_to(kept.root).parts)
        assert folder == folder.resolve()


names = st.sampled_from([*HOSTILE, "default", "a", "@a", "agent", "tenant"]) | st.text(min_size=1, max_size=20)


@given(st.sets(st.tuples(names, names), max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_no_two_agents_share_a_folder(pairs: set[tuple[str, str]]) -> None:
    """Also on a file system that ignores case; and no folder is inside another one."""
    kept = Workspaces("/nowhere", TickingClock())
    pairs = {pair for pair in pairs if all(_unicode(name) for name in pair)}
    folders = {Path(str(kept.workspace(*pair).folder).lower()) for pair in pairs}
    assert len(folders) == len(pairs)
    assert not any(one in other.parents for one in folders for other in folders)


def _unicode(name: str) -> bool:
    try:
        return 0 < len(name.encode()) <= 512
    except UnicodeEncodeError:
        return False

"""The workspace of an agent: its folder and owner, a new one, and one that was a repository before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest, WorkspaceUnavailable, WorkspaceUnusable
from holdfast.workspace import Workspace, Workspaces, WorkspaceSettings
from tests.amounts import examples
from tests.clocks import START, TickingClock
from tests.service.workspace_kit import NEEDS_GIT, _kept, _one, check_repository, files, git, subjects

pytestmark = NEEDS_GIT

__all__ = ["_kept", "_one"]


# -- a new workspace -----------------------------------------------------------------


async def test_new_workspace_has_two_files_and_one_commit(one: Workspace) -> None:
    [commit] = (await one.history()).commits
    assert (commit.subject, commit.body) == ("workspace init", "Auto-generated bootstrap commit.")
    assert (commit.author, commit.timestamp_unix) == ("Holdfast <holdfast@localhost>", START // 1000 + 1)
    assert commit.short_oid == commit.oid[:7]
    assert (one.folder / ".gitignore").read_text() == "transcripts/\nmedia/\n*.tmp\n*.swp\n.DS_Store\n"
    assert "*.md text eol=lf\n" in (one.folder / ".gitattributes").read_text()
    assert files(one) == {".gitignore", ".gitattributes"}
    assert git(one.folder, "branch", "--show-current") == "main\n"
    assert git(one.folder, "status", "--porcelain") == ""
    assert git(one.folder, "log", "-1", "--format=%an %ae %cn %ce %ad", "--date=raw").split() == [
        *("Holdfast", "holdfast@localhost") * 2,
        *(str(START // 1000 + 1), "+0000"),
    ]
    assert (one.folder.stat().st_mode & 0o777, (one.folder / ".gitignore").stat().st_mode & 0o777) == (0o700, 0o600)
    check_repository(one)


async def test_opening_a_workspace_again_changes_nothing(one: Workspace, kept: Workspaces) -> None:
    before = git(one.folder, "rev-parse", "HEAD")
    await one.open()
    await Workspaces(kept.root, TickingClock()).workspace("default", "writer").open()
    assert git(one.folder, "rev-parse", "HEAD") == before


async def test_missing_workspace_has_no_history_and_is_not_created_by_reading(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "nobody")
    assert (await workspace.history(include_diff=True)).commits == []
    assert not kept.root.exists()


async def test_existing_repository_is_opened_unchanged(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "w")
    workspace.folder.mkdir(parents=True)
    git(workspace.folder, "init", "-q", "-b", "own/branch")
    (workspace.folder / "a").write_text("1")
    git(workspace.folder, "add", ".")
    git(workspace.folder, *("-c", "user.name=U", "-c", "user.email=u@example.org", "commit", "-q", "-m", "theirs"))
    git(workspace.folder, "pack-refs", "--all")
    (workspace.folder / "b").write_text("2")
    assert await workspace.commit("ours")
    assert await subjects(workspace) == ["ours", "theirs"]
    assert files(workspace) == {"a", "b"}
    assert git(workspace.folder, "branch", "--show-current") == "own/branch\n"
    check_repository(workspace)


async def test_enclosing_repository_is_never_committed_to(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    workspace = Workspaces(tmp_path / "ws", TickingClock()).workspace("default", "w")
    await workspace.write("MEMORY.md", "x")
    assert await workspace.commit("mine")
    assert git(workspace.folder, "rev-parse", "--show-toplevel").strip() == str(workspace.folder)
    assert git(tmp_path, "for-each-ref") == ""


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


async def test_impossible_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    workspace = Workspaces(tmp_path / "file", TickingClock()).workspace("default", "w")
    for work in (workspace.commit("x"), workspace.write("a.md", "x"), workspace.purge()):
        with pytest.raises(WorkspaceUnavailable, match="cannot be created"):
            await work


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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "agent must have 1 to 512 bytes"),
        ("x" * 513, "agent must have 1 to 512 bytes"),
        ("\ud800", "agent contains a lone surrogate"),
    ],
    ids=["empty", "too long", "no Unicode"],
)
def test_invalid_names_are_rejected(kept: Workspaces, name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        kept.workspace("default", name)


def test_missing_agent_uses_the_default_workspace(kept: Workspaces) -> None:
    assert kept.workspace("default", None) is kept.workspace("default", "default")
    assert kept.workspace("default", None).folder == kept.root / "default"
    assert kept.workspace("acme", "writer").folder == kept.root / "@acme" / "writer"


@pytest.mark.parametrize("given_", [{"path": ""}, {"path": "a\0"}])
def test_invalid_settings_are_rejected(given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        WorkspaceSettings(**given_)

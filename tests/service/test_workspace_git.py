"""The git program behind a workspace: it cannot be made to run anything, and the errors if it is missing, old, or
hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.workspace import Workspace
from tests.service.workspace_kit import NEEDS_GIT, _kept, _one, git

__all__ = ["_kept", "_one"]


pytestmark = NEEDS_GIT


# -- what git cannot be made to do ----------------------------------------------------


def set_traps(workspace: Workspace, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the user, the environment, the repository and its hooks name a script that creates `ran`, and other
    places.
    """
    script = outside / "script"
    script.write_text(f"#!/bin/sh\ntouch {outside / 'ran'}\ncat\n")
    script.chmod(0o755)
    evil = "".join(
        f"[{section}]\n\t{key} = {script}\n"
        for section, key in (
            ('filter "evil"', "clean"),
            ('filter "evil"', "smudge"),
            ('filter "evil"', "process"),
            ('diff "evil"', "textconv"),
            ('diff "evil"', "command"),
            ("diff", "external"),
            ("core", "fsmonitor"),
            ("core", "editor"),
            ("core", "pager"),
            ("core", "sshCommand"),
            ("core", "alternateRefsCommand"),
            ("gpg", "program"),
        )
    )
    evil += f"[commit]\n\tgpgSign = true\n[core]\n\thooksPath = {outside / 'hooks'}\n\tworktree = /\n[gc]\n\tauto = 1\n"
    home = outside / "home"
    (home / ".config" / "git").mkdir(parents=True)
    for place in (home / ".gitconfig", home / ".config" / "git" / "config"):
        place.write_text(evil)
    with (workspace.folder / ".git" / "config").open("a") as config:
        config.write(f"{evil}[include]\n\tpath = {home / '.gitconfig'}\n")
    (home / ".config" / "git" / "ignore").write_text("*.md\n")
    for folder in (workspace.folder / ".git" / "hooks", outside / "hooks"):
        folder.mkdir()
        for hook in ("pre-commit", "post-commit", "reference-transaction", "post-index-change", "pre-auto-gc"):
            (folder / hook).symlink_to(script)
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GIT_DIR": str(outside / "elsewhere"),
        "GIT_WORK_TREE": str(outside),
        "GIT_INDEX_FILE": str(outside / "index"),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(script),
        "GIT_EXTERNAL_DIFF": str(script),
        "GIT_AUTHOR_NAME": "Mallory",
        "GIT_AUTHOR_DATE": "1 +0000",
        "GIT_TRACE": str(outside / "trace"),
        "GIT_EXEC_PATH": str(outside),
    }.items():
        monkeypatch.setenv(name, value)


async def test_git_configuration_runs_nothing(one: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of the user, the system, the environment, the repository, its attributes nor its hooks."""
    ran = tmp_path / "ran"
    set_traps(one, tmp_path, monkeypatch)
    (one.folder / ".gitattributes").write_text(
        "* filter=evil diff=evil merge=evil -text working-tree-encoding=UTF-16\n"
    )
    (one.folder / "a.md").write_text("mine\n")
    first = await one.commit("a")
    (one.folder / "a.md").write_text("mine too\n")
    second = await one.commit("b")
    assert first is not None
    assert second is not None
    history = await one.history(include_diff=True)
    assert [commit.author for commit in history.commits] == ["Holdfast <holdfast@localhost>"] * 3
    assert history.diff is not None
    assert "+mine too" in history.diff
    await one.purge()
    assert not ran.exists()
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert (one.folder / "a.md").read_text() == "mine too\n"
    monkeypatch.undo()
    git(one.folder, "status")
    assert ran.exists(), "the traps are real"
    assert git(Path("/"), f"--git-dir={one.folder / '.git'}", "cat-file", "-p", "HEAD:a.md") == "mine too\n"


async def test_git_program_inside_the_workspace_is_not_run(
    one: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one.folder / "git").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (one.folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}.")
    assert await one.commit("x")
    assert not (tmp_path / "ran").exists()

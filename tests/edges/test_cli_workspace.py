"""`holdfast workspace`: history, checkpoint and purge with configured workspaces."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.limits import WORKSPACE_FILE_BYTES
from tests.fake_secrets import KEY
from tests.service.workspace_kit import NEEDS_GIT

pytestmark = NEEDS_GIT


@pytest.fixture(autouse=True)
def workspace_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure an agent and put a file into its workspace; return the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.yaml").write_text("hooks: {workspace_git: {path: ws}}\nagents: {writer: {}}\n")
    folder = tmp_path / "ws" / "writer"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("one\n")
    return folder


def workspace(*args: str, given: str | None = None) -> Result:
    return CliRunner().invoke(commands, ["workspace", *args], input=given)


def read_output(*args: str) -> str:
    """Return the output of a successful command."""
    result = workspace(*args)
    assert result.exit_code == 0, result.output
    return result.output


def test_commit_with_an_extreme_time_is_shown(workspace_folder: Path) -> None:
    read_output("checkpoint", "writer")
    commit = (
        b"commit refs/heads/main\ncommitter A <a@b> 99999999999999 +0000\ndata 5\nlater\nfrom refs/heads/main^0\n\n"
    )
    told = ["git", "fast-import", "--quiet", "--date-format=raw"]
    subprocess.run(told, input=commit, cwd=workspace_folder, check=True)
    assert "99999999999999000 ms" in read_output("history", "writer")


def test_skipped_files_are_named(workspace_folder: Path) -> None:
    (workspace_folder / "large\x1b[2J").write_bytes(bytes(WORKSPACE_FILE_BYTES + 1))
    result = workspace("checkpoint", "writer")
    assert "1 file left out:" in result.stderr
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("history", "nobody"), 1, "there is no agent 'nobody'"),
        (("history", "../.."), 1, "there is no agent '../..'"),
        (("history", "writer", "--tenant", "acme", "--limit", "101"), 2, "101"),
        (("checkpoint", "writer", "--note", KEY), 2, "secret in the subject, line 1"),
        (("checkpoint",), 2, "AGENT"),
    ],
)
def test_impossible_requests_are_reported(args: tuple[str, ...], code: int, words: str) -> None:
    result = workspace(*args)
    assert (result.exit_code, words in result.output) == (code, True), result.output
    assert KEY not in result.output


def test_missing_workspaces_or_git_are_reported(workspace_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = workspace("checkpoint", "writer")
    assert (result.exit_code, "install git" in result.output) == (1, True)
    Path("holdfast.yaml").write_text("agents: {writer: {}}\n")
    result = workspace("checkpoint", "writer")
    assert (result.exit_code, "enable them with hooks.workspace_git" in result.output) == (2, True)


def test_deleting_a_session_commits_its_agents_workspace(workspace_folder: Path) -> None:
    """Commands that end sessions run the configured hooks."""
    lines = json.dumps({"id": "s", "agent": "writer", "messages": [{"role": "user", "content": "hi"}]})
    Path("s.jsonl").write_text(lines)
    for args in (["sessions", "import", "s.jsonl"], ["sessions", "delete", "s", "--yes"]):
        result = CliRunner().invoke(commands, args)
        assert result.exit_code == 0, result.output
    log = subprocess.run(
        ["git", "log", "--format=%s"], cwd=workspace_folder, capture_output=True, text=True, check=True
    ).stdout
    assert log.splitlines()[0] == "session-close: s"

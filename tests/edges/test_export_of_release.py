"""`holdfast sessions import` reads an export of Holdfast 0.2.

The file was written by `holdfast sessions export --all --retired --calls --digests` of 0.2.0. It has edited, erased, rewound and pinned
messages, tool calls, a picture, an interrupted reply, records, model calls, and a closed session.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import commands

RECORDED = Path(__file__).parent / "exports" / "release_0_2.jsonl"
STORE = "sqlite:///new.db"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(commands, [*arguments, "--store", STORE])
    assert result.exit_code == 0, result.output
    return result.stdout


def read_sessions(text: str) -> dict[str, dict[str, Any]]:
    """Return the sessions by id, without the versions of sessions and records, which an import numbers anew."""
    sessions = {session["id"]: session for session in map(json.loads, text.splitlines())}
    for session in sessions.values():
        for one in (session, *session.get("records", ())):
            del one["version"]
    return sessions


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECORDED, "old.jsonl")


def test_every_session_is_imported_completely() -> None:
    recorded = read_sessions(RECORDED.read_text("utf-8"))
    assert len(recorded) == 4
    run("sessions", "import", "old.jsonl")
    assert "Verified 4 sessions" in run("sessions", "verify", "--all")
    assert read_sessions(run("sessions", "export", "--all", "--retired", "--calls", "--digests")) == recorded


def test_a_second_import_changes_nothing() -> None:
    run("sessions", "import", "old.jsonl")
    before = run("sessions", "export", "--all", "--retired", "--calls", "--digests")
    run("sessions", "import", "old.jsonl")
    assert run("sessions", "export", "--all", "--retired", "--calls", "--digests") == before

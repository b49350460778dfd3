"""`holdfast sessions verify`: intact sessions, and the first damaged place."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands


@pytest.fixture(autouse=True)
def stored_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions of two users."""
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    lines = [
        {"id": "a", "user_id": "ada", "messages": messages},
        {"id": "b", "user_id": "bob", "messages": messages[:1]},
    ]
    result = sessions("import", "-", input="\n".join(map(json.dumps, lines)))
    assert result.exit_code == 0, result.stderr


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def run_sql(sql: str) -> None:
    db = sqlite3.connect("holdfast.db", isolation_level=None)
    db.execute(sql)
    db.close()


def test_changed_message_is_named() -> None:
    run_sql("UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'Hello', 'Hallo') AS BLOB) WHERE seq = 1")
    result = sessions("verify", "--all")
    assert result.exit_code == 1
    assert result.stdout == "session a of user ada: corrupt\nVerified 1 session, 1 entry: no differences.\n"
    assert result.stderr == (
        "Error: corrupt: session 'a': message 1 has a wrong digest: it or one before it was changed\n"
    )
    told = json.loads(sessions("verify", "a", "b", "--json").stdout)
    assert "message 1" in told[0]["error"]
    assert told[1]["error"] is None


def test_damaged_file_is_reported_without_a_traceback() -> None:
    big = {"id": "big", "messages": [{"role": "user", "content": f"{at} kelp " * 400} for at in range(60)]}
    assert sessions("import", "-", input=json.dumps(big)).exit_code == 0
    data = bytearray(Path("holdfast.db").read_bytes())
    at = data.index(b"30 kelp ")
    data[at - at % 4096 : at - at % 4096 + 4096] = b"\xff" * 4096
    Path("holdfast.db").write_bytes(bytes(data))
    command = [sys.executable, "-m", "holdfast", "sessions", "verify", "--all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: corrupt: session 'big' of user 'default': the database is damaged")
    assert "Traceback" not in done.stderr
    assert "Verified 2 sessions, 3 entries: no differences." in done.stdout

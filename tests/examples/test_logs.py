"""Examples 7 and 10: logs and messages that somebody has already."""

from __future__ import annotations

import json
from pathlib import Path

from tests.examples.gallery import FOLDER, Example


def test_your_own_logs(tmp_path: Path) -> None:
    """Converted, compared, imported whole, and found by their customers."""
    example = Example("replay_logs/convert.py", tmp_path)
    output = example.run()
    example.check_output(output)
    lines = [json.loads(line) for line in (tmp_path / "sessions.jsonl").read_text(encoding="utf-8").splitlines()]
    log = (FOLDER / "replay_logs" / "app.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum(len(line["messages"]) for line in lines) == len(log)
    calls = [call for line in lines for message in line["messages"] for call in message.get("tool_calls", ())]
    assert len(calls) == sum('"kind": "call"' in line for line in log)
    rows = [line.split() for line in output.splitlines() if line.startswith(("token_window ", "digest "))]
    recall = {(strategy, budget): float(share.rstrip("%")) for strategy, budget, _, _, _, share, *_ in rows}
    for budget in ("300", "1,200"):
        assert recall["digest", budget] > recall["token_window", budget] > 0


def test_moving_in_from_a_json_file(tmp_path: Path) -> None:
    """Nothing is lost, nothing is doubled by a second run, and everybody finds their own."""
    example = Example("migrate_json/migrate.py", tmp_path)
    output = example.run()
    example.check_output(output)
    rows = json.loads((FOLDER / "migrate_json" / "messages.json").read_text(encoding="utf-8"))
    exported = example.shell("holdfast sessions export --all --store sqlite:///migrated.db")
    sessions = [json.loads(line) for line in exported.splitlines()]
    kept = {
        (session["user_id"], session["id"], message["metadata"]["id"]): message["content"]
        for session in sessions
        for message in session["messages"]
    }
    assert kept == {(row["user"], str(row["conversation"]), row["id"]): row["text"] for row in rows}
    assert len(kept) == len(rows) == 16
    assert sum(session["id"] == "1" for session in sessions) == 2  # ada's and bob's

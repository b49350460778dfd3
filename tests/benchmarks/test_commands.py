"""The commands of `python -m benchmarks` that measure quality run, and agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks.evaluation.commands import commands

SAMPLE = {
    "sessions": [
        {"messages": [{"role": "user", "content": "My bicycle is blue."}, {"role": "assistant", "content": "Noted."}]}
    ],
    "questions": [{"question": "What colour is the bicycle?", "evidence": ["0:0"], "values": ["blue"]}],
}
TALK = {
    "id": "rent",
    "messages": [{"id": "m", "role": "user", "content": "My rent is 790."}, {"role": "user", "content": "Thanks."}],
    "statements": [
        {
            "id": "s",
            "message": "m",
            "text": "My rent is 790",
            "kind": "number",
            "value": ["790"],
            "topic": ["rent"],
            "cue": False,
            "question": "What is my rent?",
        }
    ],
}


def run(folder: Path, data: Any, command: str, *options: str) -> Any:
    path = folder / "data.json"
    path.write_text(json.dumps(data))
    result = CliRunner().invoke(commands, [command, str(path), *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.output) if "--json" in options else result.output


def test_recall(tmp_path: Path) -> None:
    modes = run(tmp_path, SAMPLE, "recall", "--k", "1", "--json")["modes"]
    assert {one["mode"]: one["turns"] for one in modes} == {mode: {"1": 1.0} for mode in ("bm25", "fts5", "keyword")}
    assert "keyword" in run(tmp_path, SAMPLE, "recall", "--per-type", "--per-sample", "--compare", "bm25,keyword")


def test_evidence(tmp_path: Path) -> None:
    (figures,) = run(tmp_path, SAMPLE, "evidence", "--budget", "1000", "--json")["prompts"]
    assert (figures["all"]["evidence"], figures["all"]["parts"]["messages"]) == (1.0, 1.0)
    assert "1,000 tokens" in run(tmp_path, SAMPLE, "evidence", "--budget", "1000")


def test_statements(tmp_path: Path) -> None:
    options = ("--strategy", "digest", "--budget", "1000", "--asked")
    (figures,) = run(tmp_path, TALK, "statements", *options, "--json", "-")["figures"]
    assert (figures["all"]["with_topic"], figures["all"]["asked"]) == (1.0, 1.0)
    assert "with topic at 1,000" in run(tmp_path, TALK, "statements", *options)

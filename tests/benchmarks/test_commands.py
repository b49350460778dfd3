"""The commands of `python -m benchmarks` that measure quality run, and agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.core.measure import main as measure_core
from benchmarks.evaluation.commands import commands

ROLES = ("user", "assistant")
SAMPLE: Any = {
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


def test_core(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The prototype's digest recalls what has left a prompt of `token_window`."""
    talk = [{"role": role, "content": f"{role} {at} " + "more words. " * 40} for at in range(40) for role in ROLES]
    messages = [*talk[:2], *SAMPLE["sessions"][0]["messages"], *talk[2:]]
    question = {**SAMPLE["questions"][0], "evidence": ["0:2"]}
    sample = {"sessions": [{"messages": messages}], "questions": [question]}
    (tmp_path / "chats.json").write_text(json.dumps(sample))
    assert measure_core([str(tmp_path), "--budgets", "2048", "--names", "token_window,digest"]) == 0
    _, window, digest = capsys.readouterr().out.splitlines()
    assert (window.split()[3], digest.split()[3]) == ("0.0%", "100.0%")


def test_statements(tmp_path: Path) -> None:
    options = ("--strategy", "digest", "--budget", "1000", "--asked")
    (figures,) = run(tmp_path, TALK, "statements", *options, "--json", "-")["figures"]
    assert (figures["all"]["with_topic"], figures["all"]["asked"]) == (1.0, 1.0)

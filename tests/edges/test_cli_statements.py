"""`holdfast eval statements`: input, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands

LABELLED = Path(__file__).parents[2] / "benchmarks" / "statements"
ONE = LABELLED / "dev" / "life.json"
KEYS = ["strategy", "budget", "prompts", "refused", "late", "prompt_tokens", "all", "cues", "quarters", "kinds"]
KEYS += ["conversations", "stale", "asked_stale", "block_tokens", "block_statements", "per_100_tokens", "findings"]
FINDING = [
    "conversation",
    "statement",
    "group",
    "kind",
    "quarter",
    "cue",
    "with_topic",
    "present",
    "condensed",
    "stale",
]
FINDING += ["asked", "asked_stale"]
SHARES = ["statements", "with_topic", "present", "asked"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["eval", "statements", *map(str, arguments)])


def write_small_set(folder: Path, name: str = "small.json", **changes: Any) -> Path:
    """Write a conversation in which one message has two statements and a later one corrects the first."""
    said = ["My rent is 790, and please always use metric units.", "My rent is 760 now.", "Thanks."]
    messages = []
    for at, text in enumerate(said):
        messages += [{"id": f"u{at}", "role": "user", "content": text}]
        messages += [{"id": f"a{at}", "role": "assistant", "content": "All right. " * 40}]
    rows = [("u0", "My rent is 790", "790", "rent", "number", False)]
    rows += [("u0", "please always use metric units", "metric", "units", "instruction", True)]
    rows += [("u1", "My rent is 760 now", "760", "rent", "correction", False)]
    keys = ("message", "text", "value", "topic", "kind", "cue")
    statements = [{"id": f"s{at}", **dict(zip(keys, row, strict=True))} for at, row in enumerate(rows)]
    for one in statements:
        one |= {"value": [one["value"]], "topic": [one["topic"]], "question": f"What about my {one['topic']}?"}
    statements[2]["supersedes"] = "s0"
    path = folder / name
    path.write_text(json.dumps({"id": name, "kind": "chat", "messages": messages, "statements": statements, **changes}))
    return path


def read_figures(*arguments: str | Path) -> list[dict[str, Any]]:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    told: list[dict[str, Any]] = json.loads(result.stdout)["figures"]
    return told


def test_each_budget_has_a_table_of_strategies_and_one_of_groups(tmp_path: Path) -> None:
    result = run(write_small_set(tmp_path), "--budgets", "300,200")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    names = ["digest", "salience", "token_window", "head_tail", "buffer_window", "clear_tool_results"]
    rows = [line.split()[:2] for line in lines if line.split()[:1] and line.split()[0] in names]
    assert rows[:12] == [[name, budget] for budget in ("200", "300") for name in names]
    assert "with topic at 200" in lines
    assert "with topic at 300" in lines
    assert "asked at 200" not in lines
    assert {"cue", "no cue", "quarter 1", "instruction", "superseded", "in chat", "all"} <= {
        line[:12].strip() for line in lines
    }
    assert lines[-1] == "2 statements of 1 conversation, plus 1 that a later one corrects"


def test_tables_are_no_wider_than_100_columns(tmp_path: Path) -> None:
    strategies = "digest,salience,token_window,head_tail,buffer_window,clear_tool_results,summary_buffer,none"
    result = run(write_small_set(tmp_path), "--budgets", "999999", "--strategies", strategies, "--asked")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert result.stdout.count("with topic at 999,999") == 2  # six strategies and two more
    assert result.stdout.count("asked at 999,999") == 2


def test_json_has_every_figure_and_finding(tmp_path: Path) -> None:
    path, other = write_small_set(tmp_path), write_small_set(tmp_path, "other.json")
    out = tmp_path / "out.json"
    result = run(path, other, "--strategy", "none,buffer_window:window_size=1", "--budget", "900", "--json", out)
    assert result.exit_code == 0, result.output
    assert "with topic at 900" in result.stdout
    told = json.loads(out.read_bytes())
    assert [one["id"] for one in told["conversations"]] == ["small.json", "other.json"]
    assert told["conversations"][0] == told["conversations"][1] | {"id": "small.json"}
    assert {key: told["conversations"][0][key] for key in ("kind", "messages", "statements", "superseded")} == {
        "kind": "chat",
        "messages": 6,
        "statements": 3,
        "superseded": 1,
    }
    everything, last = told["figures"]
    assert list(everything) == KEYS
    assert all(list(one) == FINDING for one in everything["findings"])
    assert list(everything["all"]) == SHARES
    assert everything["all"] == {"statements": 4, "with_topic": 1.0, "present": 1.0, "asked": None}
    assert (last["strategy"], last["budget"]) == ("buffer_window:window_size=1", 900)
    assert last["all"]["with_topic"] == 0.0


def test_dash_prints_only_json(tmp_path: Path) -> None:
    (told,) = read_figures(write_small_set(tmp_path), "--strategies", "none", "--budgets", "100", "--asked")
    assert told["all"]["asked"] == 1.0
    assert told["prompts"] == 4


def test_equal_calls_give_equal_figures(tmp_path: Path) -> None:
    path = write_small_set(tmp_path)
    call = (path, "--strategies", "digest", "--budgets", "250", "--asked")
    assert read_figures(*call) == read_figures(*call)


def test_strategy_with_its_own_budget_is_measured_once(tmp_path: Path) -> None:
    told = read_figures(write_small_set(tmp_path), "--strategies", "digest@250,token_window", "--budgets", "300,400")
    assert [(one["strategy"], one["budget"]) for one in told] == [
        ("digest", 250),
        ("token_window", 300),
        ("token_window", 400),
    ]


def test_refused_prompts_are_reported(tmp_path: Path) -> None:
    result = run(write_small_set(tmp_path), "--strategies", "digest", "--budgets", "1")
    assert result.exit_code == 0, result.output
    assert "digest at 1: of 1 prompt 1 not built, 0 rebuilt because a search was late" in result.stdout


def test_labelled_conversations_can_be_measured() -> None:
    (told,) = read_figures(ONE, "--strategies", "token_window", "--budgets", "2048")
    assert told["all"]["statements"] == 45
    assert set(told["quarters"]) == {"1", "2", "3", "4"}
    assert set(told["cues"]) == {"cue", "no cue"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.json"], "does not exist"),
        ([ONE, "--budgets", "0"], "'0' is not a number of tokens"),
        ([ONE, "--budgets", ","], "the list is empty"),
        ([ONE, "--strategies", ","], "the list is empty"),
        ([ONE, "--strategies", "digets"], "did you mean 'digest'?"),
        ([ONE, "--json", "nowhere/out.json"], "nowhere: no such directory"),
        ([ONE, "--json", ONE], "is one of the files to measure"),
        ([ONE.parent, "--json", ONE], "is one of the files to measure"),
        ([], "Missing argument"),
    ],
)
def test_wrong_calls_explain_the_mistake(arguments: list[str | Path], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_malformed_file_is_named_with_its_statement(tmp_path: Path) -> None:
    path = write_small_set(tmp_path, messages=[{"id": "u0", "role": "user", "content": "My rent is 790."}])
    result = run(path)
    assert result.exit_code == 1
    assert "small.json: statement 's1': text must be verbatim in message 'u0'" in result.output

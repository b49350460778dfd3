"""`holdfast replay`: input, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.testing import Reply, ScriptedUpstream

KEYS = ["strategy", "budget", "calls", "refused", "tokens_per_call", "recall", "bound", "cached", "cost_per_call"]
KEYS += ["orphans", "tasks_lost", "build_ms"]
MORE = ["summaries", "summaries_failed", "summarizer_tokens"]
KEYS += MORE


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


MESSAGES = [
    {"role": "system", "content": "Help."},
    {"role": "user", "content": "Where is order A-1733?"},
    call("find_order", {"order": "A-1733"}),
    {"role": "tool", "tool_call_id": "c1", "content": '{"state": "sent"}'},
    {"role": "assistant", "content": "It was sent."},
]


@pytest.fixture(autouse=True)
def record_sessions(in_empty_folder: None) -> None:
    """Write two sessions to a file."""
    write("s.jsonl", {"id": "a", "messages": MESSAGES}, {"id": "b", "messages": MESSAGES})


def write(name: str, *lines: object) -> None:
    text = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    Path(name).write_text("\n".join(text) + "\n" if text else "")


def replay(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["replay", *args], prog_name="holdfast", **more)


def read_results(*args: str, **more: Any) -> list[dict[str, Any]]:
    result = replay(*args, "--json", **more)
    assert result.exit_code == 0, result.stderr
    told: list[dict[str, Any]] = json.loads(result.stdout)
    return told


def test_chain_joins_the_sessions_of_each_file() -> None:
    """With the system prompt of the first one."""
    options = ("--strategy", "none", "--budget", "900")
    (apart,), joined = read_results("s.jsonl", *options), []
    for others in ([], [{"role": "system", "content": "Be very kind to everyone who asks."}]):
        write("t.jsonl", {"id": "c", "messages": MESSAGES}, {"id": "d", "messages": [*others, *MESSAGES]})
        joined += read_results("s.jsonl", "t.jsonl", "--chain", *options)
    assert [one["calls"] for one in (apart, *joined)] == [4, 8, 8]
    assert joined[1]["tokens_per_call"] == joined[0]["tokens_per_call"] > apart["tokens_per_call"]


def test_a_strategy_may_have_a_budget_of_its_own() -> None:
    told = read_results("s.jsonl", "--strategy", "token_window@500,none", "--budget", "900,1000")
    assert [(one["strategy"], one["budget"]) for one in told] == [("token_window", 500), ("none", 900), ("none", 1000)]


# -- sessions, comparison --------------------------------------------------------


def test_two_strategies_are_compared() -> None:
    args = ("s.jsonl", "--compare", "none@30", "token_window:preserve_recent=3", "--budget", "30,900")
    told = read_results(*args)
    assert [(one["a"]["budget"], one["b"]["budget"]) for one in told] == [(30, 30), (30, 900)]
    assert list(told[0]) == ["a", "b", "difference", "paired"]
    assert list(told[0]["a"]) == KEYS
    assert told[0]["b"]["strategy"] == "token_window:preserve_recent=3"
    assert told[0]["paired"]["recall"] == {"wins": 0, "losses": 0, "ties": 2, "mean_difference": 0.0}
    assert list(read_results(*args, "--per-session")[0]["a"]) == [*KEYS, "sessions"]
    table = replay(*args, "--per-session").stdout
    assert "token_window:preserve_recent=3" in table
    assert "second better in 0, worse in 0, equal in 2 of 2 sessions; mean difference 0.0 points" in table
    assert max(map(len, table.splitlines())) <= 100


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--compare", "digest", "digset"], "did you mean 'digest'"),
        (["--compare", "digest", "none:x=1"], "unknown key"),
        (["--compare", "digest", "none", "--strategy", "none"], "leave out --strategy"),
    ],
)
def test_wrong_usage_is_reported_before_the_replay(args: list[str], said: str) -> None:
    result = replay("s.jsonl", *args)
    assert result.exit_code == 2
    assert said in result.stderr


# -- summaries -----------------------------------------------------------------

LONG = [
    {"role": "user", "content": "Where are my orders?"},
    *(
        message
        for at in range(12)
        for message in (
            call("find_order", {"order": f"A-{1000 + at}"}),
            {"role": "tool", "tool_call_id": "c1", "content": f'{{"state": "sent", "box": "{"B-" + str(at):>60}"}}'},
            {"role": "assistant", "content": f"Order A-{1000 + at} was sent."},
            {"role": "user", "content": f"And order A-{1001 + at}? " + "I wonder. " * 10},
        )
    ),
]


def replay_summaries(*args: str, name: str, **more: Any) -> dict[str, Any]:
    write("long.jsonl", {"id": "a", "messages": LONG})
    (row,) = read_results(
        "long.jsonl", "--strategy", "summary_buffer", "--budget", "500", "--summarizer", name, *args, **more
    )
    return row


@pytest.fixture
def clear_model_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "HOLDFAST_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_digests_cost_no_summarizer() -> None:
    assert [replay_summaries(name="digest")[key] for key in MORE] == [0, 0, 0]


def test_summaries_of_a_configured_llm_are_counted_and_charged(clear_model_environment: None) -> None:
    usage = {"prompt_tokens": 9000, "completion_tokens": 9, "total_tokens": 9009}
    with ScriptedUpstream(
        lambda body: Reply(text="Orders from A-1000 on were sent.", usage=usage)
    ).in_thread() as upstream:
        Path("holdfast.yaml").write_text(f"llms: {{pen: {{model: tiny, base_url: '{upstream.url}'}}}}\n")
        row = replay_summaries(name="pen")
        assert row["summaries"] > row["summaries_failed"] == 0
        assert row["summarizer_tokens"] == row["summaries"] * 9009
        assert row["cost_per_call"] > row["tokens_per_call"] * 1.25
        Path("holdfast.yaml").rename("other.yaml")
        assert replay_summaries("--config", "other.yaml", name="pen")["summaries"] > 0
    assert {one.body["model"] for one in upstream.requests} == {"tiny"}


def test_a_summary_that_failed_is_tried_again_after_more_and_more_calls(clear_model_environment: None) -> None:
    with ScriptedUpstream(lambda body: "").in_thread() as upstream:
        Path("holdfast.yaml").write_text(f"llms: {{pen: {{model: tiny, base_url: '{upstream.url}'}}}}\n")
        row = replay_summaries(name="pen")
    assert (row["calls"], row["summaries_failed"]) == (24, 4)


# -- mistakes ------------------------------------------------------------------


@pytest.mark.parametrize("source", ["bad.jsonl", "-"])
def test_bad_line_is_named_by_file_and_line(source: str) -> None:
    write("bad.jsonl", {"id": "a", "messages": MESSAGES}, "{no", {"id": "b", "messages": [{"role": "robot"}]})
    given = Path("bad.jsonl").read_text()
    result = replay(source, "--strategy", "none", input=given)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{source}:2: invalid JSON" in result.stderr
    skipped = replay(source, "--strategy", "none", "--budget", "900", "--skip-bad", "--json", input=given)
    assert skipped.exit_code == 0
    assert f"Skipped 2 bad lines; the first: {source}:2" in skipped.stderr
    assert json.loads(skipped.stdout)[0]["calls"] == 2

"""`holdfast replay`: input, output and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def test_json_has_a_row_per_strategy_and_budget_with_exactly_the_keys() -> None:
    told = read_results("s.jsonl", "--strategy", "token_window,none", "--budget", "500, 1000")
    assert [(row["strategy"], row["budget"]) for row in told] == [
        ("token_window", 500),
        ("none", 500),
        ("token_window", 1000),
        ("none", 1000),
    ]
    assert all(list(row) == KEYS for row in told)
    assert all(row["calls"] == 4 and row["refused"] == 0 and row["recall"] == 1.0 for row in told)


def test_repeated_options_are_combined_without_duplicates() -> None:
    told = read_results("s.jsonl", "--strategy", "none", "--strategy", "digest,none", "--budget", "900,900")
    assert [row["strategy"] for row in told] == ["none", "digest"]


def test_table_is_no_wider_than_100_columns() -> None:
    result = replay("s.jsonl", "--budget", "1024,128000")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert {"strategy", "refused", "recall", "cached", "orphans"} <= set(lines[1].split())
    row = next(one.split() for one in lines if one.startswith("token_window"))
    assert row[:6] == ["token_window", "1,024", "4", "0", row[4], "100%"]
    assert "128,000" in result.stdout
    assert "\x1b" not in result.stdout


def test_file_without_tool_calls_has_no_recall() -> None:
    write("talk.jsonl", [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
    row = next(one.split() for one in replay("talk.jsonl").stdout.splitlines() if one.startswith("none"))
    assert row[5] == "-"


def test_color_follows_the_environment() -> None:
    assert "\x1b" in replay("s.jsonl", "--strategy", "none", env={"FORCE_COLOR": "1"}).stdout
    coloured = replay("s.jsonl", "--strategy", "none", env={"NO_COLOR": "1", "FORCE_COLOR": "1"}).stdout
    assert "\x1b[3" not in coloured


def test_chain_joins_the_sessions_of_each_file() -> None:
    write("t.jsonl", {"id": "c", "messages": MESSAGES})
    apart, (joined,) = (
        read_results("s.jsonl", "--strategy", "none", "--budget", "900"),
        read_results("s.jsonl", "t.jsonl", "--chain", "--strategy", "none", "--budget", "900"),
    )
    assert apart[0]["calls"] == 4
    assert joined["calls"] == 6
    assert joined["tokens_per_call"] > apart[0]["tokens_per_call"]


def test_standard_input_is_accepted() -> None:
    (row,) = read_results("-", "--strategy", "none", "--budget", "900", input=json.dumps(MESSAGES))
    assert row["calls"] == 2


def test_one_message_per_line_is_accepted() -> None:
    lines = "\n".join(json.dumps({**message, "session_id": "x"}) for message in MESSAGES)
    (row,) = read_results("-", "--strategy", "none", "--budget", "900", input=lines)
    assert row["calls"] == 2


# -- sessions, comparison, plots -------------------------------------------------


def test_per_session_rows() -> None:
    (row,) = read_results("s.jsonl", "--strategy", "none", "--budget", "900", "--per-session")
    assert list(row) == [*KEYS, "sessions"]
    assert [list(one) for one in row["sessions"]] == [
        ["id", "calls", "recall", "bound", "cost_per_call", "refused"]
    ] * 2
    assert [(one["id"], one["calls"], one["recall"]) for one in row["sessions"]] == [("a", 2, 1.0), ("b", 2, 1.0)]
    table = replay("s.jsonl", "--strategy", "none,digest", "--budget", "900", "--per-session").stdout
    assert "\nnone at 900\n" in table
    assert "\ndigest at 900\n" in table
    assert sum(one.startswith("a ") for one in table.splitlines()) == 2


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


def test_comparison_with_own_budgets_is_one_row() -> None:
    assert len(read_results("s.jsonl", "--compare", "digest@500", "digest@900")) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--compare", "digest", "digset"], "did you mean 'digest'"),
        (["--compare", "digest", "none:x=1"], "unknown key"),
        (["--compare", "digest", "none", "--strategy", "none"], "leave out --strategy"),
        (["--plot", "x.pdf"], "end with .svg or .png"),
        (["--plot", "no/such/x.svg"], "no such directory"),
    ],
)
def test_wrong_usage_is_reported_before_the_replay(args: list[str], said: str) -> None:
    result = replay("s.jsonl", *args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_plot_is_reproducible() -> None:
    args = ("s.jsonl", "--budget", "500,900")
    result = replay(*args, "--plot", "one.svg")
    assert (result.exit_code, result.stderr) == (0, "Plot written to one.svg.\n")
    command = [sys.executable, "-m", "holdfast", "replay", *args, "--json", "--plot", "two.SVG"]
    subprocess.run(command, capture_output=True, timeout=120, check=True, env={**os.environ, "TZ": "Asia/Tokyo"})
    assert Path("one.svg").read_bytes() == Path("two.SVG").read_bytes()
    assert replay(*args, "--compare", "none", "digest", "--plot", "x.png").exit_code == 0
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


def test_plot_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = replay("s.jsonl", "--plot", "x.svg")
    assert result.exit_code == 1
    assert f"from a clone: {sys.executable} -m pip install '.[plot]'" in result.stderr, "the Python that needs it"


# -- specs and compositions --------------------------------------------------------

COMPOSED = "clear_tool_results:keep=2,clear_at_least=500+token_window"


def test_specs_in_a_list_have_keys_and_budgets() -> None:
    given = f"{COMPOSED},digest@300,digest@900,target=0.5,none"
    told = read_results("s.jsonl", "--strategy", given, "--budget", "900,500")
    assert [(row["strategy"], row["budget"]) for row in told] == [
        (COMPOSED, 900),
        ("digest:target=0.5", 900),
        ("none", 900),
        ("digest", 300),
        (COMPOSED, 500),
        ("none", 500),
    ]


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


def replay_summaries(*args: str, name: str = "scripted", **more: Any) -> dict[str, Any]:
    write("long.jsonl", {"id": "a", "messages": LONG})
    (row,) = read_results(
        "long.jsonl", "--strategy", "summary_buffer", "--budget", "500", "--summarizer", name, *args, **more
    )
    return row


@pytest.fixture
def clear_model_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "HOLDFAST_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_scripted_summaries_are_counted_and_charged() -> None:
    none, scripted = replay_summaries(name="digest"), replay_summaries()
    assert [none[key] for key in MORE] == [0, 0, 0]
    assert scripted["summaries"] > 0
    assert scripted["summaries_failed"] == 0
    assert scripted["cost_per_call"] > scripted["tokens_per_call"] * 1.25
    assert scripted["summarizer_tokens"] > scripted["summaries"] * 300
    assert {**scripted, "build_ms": 0} == {**replay_summaries(), "build_ms": 0}


def test_footnote_names_the_summarizer() -> None:
    replay_summaries()
    given = ("long.jsonl", "--strategy", "digest,summary_buffer", "--budget", "500")
    table = replay(*given, "--summarizer", "scripted").stdout
    assert re.search(r"summary_buffer at 500: \d+ summar(y|ies) by scripted, [\d,]+ tokens\n", table)
    assert "The cost per call includes the summarizer's tokens: 1 per token read and 5 per token written." in table
    assert "no model wrote summaries, so the digest was used" in replay(*given).stdout
    assert "summar" not in replay(*given[:2], "digest").stdout


def test_spec_can_name_its_own_summarizer() -> None:
    replay_summaries()
    pair = ("summary_buffer", "summary_buffer:summarizer_llm=scripted,target=0.5")
    (told,) = read_results("long.jsonl", "--compare", *pair, "--budget", "500")
    assert (told["a"]["summaries"], told["difference"]["summaries"]) == (0, told["b"]["summaries"])
    table = replay("long.jsonl", "--compare", *pair, "--budget", "500").stdout
    assert "summarizer tokens" in table


def test_configured_llm_writes_summaries(clear_model_environment: None) -> None:
    with ScriptedUpstream(lambda body: "Orders from A-1000 on were sent.").in_thread() as upstream:
        Path("holdfast.yaml").write_text(f"llms: {{pen: {{model: tiny, base_url: '{upstream.url}'}}}}\n")
        assert replay_summaries(name="pen")["summaries"] > 0
        Path("holdfast.yaml").rename("other.yaml")
        assert replay_summaries("--config", "other.yaml", name="pen")["summaries"] > 0
    assert {one.body["model"] for one in upstream.requests} == {"tiny"}


def test_failing_model_is_reported_and_the_digest_is_used(
    clear_model_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedUpstream(lambda body: Reply(status=400, error="no such model")).in_thread() as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.url)
        row = replay_summaries(name="gpt-4o-mini")
        table = replay("long.jsonl", "--strategy", "summary_buffer", "--budget", "500", "--summarizer", "gpt-4o-mini")
    assert (row["summaries"], row["refused"], row["calls"]) == (0, 0, 24)
    assert row["summaries_failed"] > 0
    assert f"{row['summaries_failed']} failed" in table.stdout
    assert "Summaries by gpt-4o-mini failed; first error: " in table.stderr
    assert "no such model" in table.stderr


def test_summarizer_without_a_model_is_refused(clear_model_environment: None) -> None:
    write("long.jsonl", {"id": "a", "messages": LONG})
    result = replay("long.jsonl", "--strategy", "summary_buffer", "--summarizer", "gpt-4o-mini")
    assert result.exit_code == 2
    assert "set OPENAI_BASE_URL and OPENAI_API_KEY" in result.stderr
    assert replay("long.jsonl", "--strategy", "digest", "--summarizer", "gpt-4o-mini").exit_code == 0, (
        "no model is called"
    )


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


def test_empty_file_is_reported() -> None:
    write("empty.jsonl")
    result = replay("empty.jsonl")
    assert result.exit_code == 1
    assert result.stderr == "Error: no sessions in empty.jsonl\n"


def test_recording_without_a_call_is_reported() -> None:
    result = replay("-", input=json.dumps([{"role": "user", "content": "Hello?"}]))
    assert result.exit_code == 0
    assert "No call was measured" in result.stderr


# -- a terminal ----------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of POSIX")
def test_progress_is_shown_only_on_a_terminal() -> None:
    terminal, end = os.openpty()
    command = [sys.executable, "-m", "holdfast", "replay", "s.jsonl", "--strategy", "none", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, timeout=60, check=True)
    os.close(end)
    shown = os.read(terminal, 100_000)
    os.close(terminal)
    assert b"none 1024" in shown
    assert len(json.loads(done.stdout)) == 3


# -- the recorded sessions -------------------------------------------------------

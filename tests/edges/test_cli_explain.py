"""`holdfast explain`: where messages are and why, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast import from_config
from holdfast.cli import commands
from tests.edges.cli_kit import AGENT_CONFIG, CONTROLS


@pytest.fixture
def trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a session of a configured agent in `holdfast.db`."""
    monkeypatch.chdir(tmp_path)
    Path("holdfast.yaml").write_text(AGENT_CONFIG, encoding="utf-8")

    async def talk() -> None:
        async with from_config() as hf:
            session = await hf.session("trip", user_id="ada", agent="planner")
            for n in range(20):
                words = f"What about harbour number {n} and its {n * 7} boats? " * 2
                async with session.turn(CONTROLS if n == 2 else words) as turn:
                    turn.add("That is fine: a boat with a large sail takes you there in an afternoon. " * 2)

    anyio.run(talk)


def explain(*args: str) -> Result:
    return CliRunner().invoke(commands, ["explain", *args], prog_name="holdfast")


def explain_output(*args: str) -> str:
    result = explain(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.usefixtures("trip")
def test_message_is_explained_in_words() -> None:
    """With the agent's own strategy; stored text cannot control the terminal."""
    text = explain_output("trip", "--text", "seasick")
    assert text.startswith("session trip, the next prompt: strategy digest, ")
    assert "message 4 of turn 2, user" in text
    assert "  why: compacted, condensed\n" in text
    assert "  removed in turn " in text
    assert "  to get it back: pin it, which adds its " in text
    assert " tokens to every prompt: holdfast sessions annotate --pin trip 4\n" in text
    assert ": holdfast sessions annotate --pin --user ada --store sqlite:///holdfast.db trip 4\n" in explain_output(
        "trip", "--seq", "4", "--user", "ada", "--store", "sqlite:///holdfast.db", "--agent", "planner"
    )
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert explain_output("trip", "--seq", "4").splitlines()[3:6] == text.splitlines()[3:6]


@pytest.mark.usefixtures("trip")
def test_another_strategy_and_budget_are_explained() -> None:
    """For the next prompt and for a past turn, of all messages and of one; nothing is stored."""
    before = explain_output("trip")
    small, large = (explain_output("trip", "--budget", budget, "--json") for budget in ("300", "50000"))
    assert [json.loads(one)["budget"] for one in (small, large)] == [300, 50000]
    assert [json.loads(one)["strategy"] for one in (small, large)] == ["digest", "digest"]
    (part,) = json.loads(explain_output("trip", "--seq", "4", "--budget", "300", "--json"))["messages"]
    (whole,) = json.loads(explain_output("trip", "--seq", "4", "--budget", "50000", "--json"))["messages"]
    assert (part["state"] == "whole", whole["state"]) == (False, "whole")
    text = explain_output("trip", "--text", "seasick", "--strategy", "token_window", "--budget", "400")
    assert text.startswith("session trip, the next prompt: strategy token_window, ")
    assert "not in the prompt" in text
    past = json.loads(explain_output("trip", "--turn", "19", "--strategy", "none", "--json"))
    assert (past["strategy"], past["exact"]) == ("none", None)
    assert explain_output("trip") == before


@pytest.mark.usefixtures("trip")
@pytest.mark.parametrize(
    "wrong", [("--strategy", "digets"), ("--budget", "0"), ("--budget", "300", "--strategy", "none")]
)
def test_wrong_strategy_or_budget_is_refused(wrong: tuple[str, ...]) -> None:
    assert explain("trip", *wrong).exit_code != 0


@pytest.mark.usefixtures("trip")
def test_past_turn_is_rebuilt() -> None:
    text = explain_output("trip", "--seq", "4", "--turn", "2", "--user", "ada")
    assert "the prompt of turn 2, rebuilt as it was sent" in text
    assert "message 4 of turn 2, user" in text
    assert "in the prompt, whole" in text
    assert "in block current" in text


@pytest.mark.usefixtures("trip")
def test_past_turn_is_explained_after_the_configuration_changed() -> None:
    before = explain_output("trip", "--seq", "4", "--turn", "19")
    Path("holdfast.yaml").write_text(AGENT_CONFIG.replace("500", "20000"), encoding="utf-8")
    assert explain_output("trip", "--seq", "4", "--turn", "19") == before
    assert "in the prompt in part" in before
    assert "message 4 of turn 2, user" in before
    assert "in the prompt, whole" in explain_output("trip", "--seq", "4")


@pytest.mark.usefixtures("trip")
def test_first_line_says_if_the_turn_had_another_agent() -> None:
    Path("holdfast.yaml").write_text("agents: {planner: {}, other: {context: {budget: 9000}}}", encoding="utf-8")
    first, second = explain_output("trip", "--turn", "19", "--agent", "other").splitlines()[:2]
    assert first == (
        "session trip, turn 19: no call of this turn was sent with the current settings (strategy digest, "
        "budget 9,000); this is what they would give; the last call went to offline: it had strategy digest, budget 500"
    )
    assert second.startswith("  strategy digest, ")
    answer = json.loads(explain_output("trip", "--turn", "19", "--agent", "other", "--json"))
    assert answer["exact"] is None
    assert answer["not_sent"] in first


@pytest.mark.usefixtures("trip")
def test_json_equals_the_api_answer() -> None:
    answer: dict[str, Any] = json.loads(explain_output("trip", "--text", "boats", "--limit", "3", "--json"))
    assert (answer["object"], answer["session_id"]) == ("explanation", "trip")
    assert [one["seq"] for one in answer["messages"]] == [38, 36, 34]
    further = json.loads(
        explain_output("trip", "--text", "boats", "--limit", "1", "--before", str(answer["before"]), "--json")
    )
    assert [one["seq"] for one in further["messages"]] == [32]


@pytest.mark.usefixtures("trip")
def test_prompt_is_explained_without_a_message() -> None:
    text = explain_output("trip")
    assert "digest of messages 1 to " in text
    assert "\nmessage " not in text
    decisions = json.loads(explain_output("trip", "--json"))["decisions"]
    assert [decisions[0]["from"], decisions[-1]["to"]] == [0, 39]
    rows = [row.split() for row in text.splitlines()[2:]]
    assert [row[1] for row in rows] == [one["decision"] for one in decisions]
    assert rows[0] == ["0", "anchored", str(decisions[0]["tokens"]), "tokens", "the", "task"]
    assert json.loads(explain_output("trip", "--seq", "4", "--json"))["decisions"] == []
    chat = CliRunner().invoke(commands, ["chat", "--session", "trip"], prog_name="holdfast", input="/explain\n")
    assert text in chat.stdout


@pytest.mark.usefixtures("trip")
def test_suggested_command_pins_the_message() -> None:
    text = explain_output("trip", "--seq", "4")
    (command,) = [row.partition("prompt: ")[2] for row in text.splitlines() if ": holdfast sessions annotate" in row]
    pinned = CliRunner().invoke(commands, command.split()[1:], prog_name="holdfast")
    assert (pinned.exit_code, pinned.stdout) == (
        0,
        "Message 4, pinned: By the way, I get seasick \\x1b[2J\\u202e always.\n",
    )
    assert "in the prompt, whole" in explain_output("trip", "--seq", "4")
    unpinned = CliRunner().invoke(
        commands, ["sessions", "annotate", "trip", "4", "--unpin", "--json"], prog_name="holdfast"
    )
    assert "pinned" not in json.loads(unpinned.stdout)
    assert "in the prompt in part" in explain_output("trip", "--seq", "4")
    chat = CliRunner().invoke(commands, ["chat", "--session", "trip"], prog_name="holdfast", input="/explain 4\n")
    assert " tokens to every prompt: /pin 4\n" in chat.stdout
    for args in (("trip", "99"), ("nowhere", "1")):
        refused = CliRunner().invoke(commands, ["sessions", "annotate", "--pin", *args], prog_name="holdfast")
        assert (refused.exit_code, len(refused.stderr.strip().splitlines())) == (1, 1)


@pytest.mark.usefixtures("trip")
def test_mistakes_are_one_line() -> None:
    for args, words in (
        (("nowhere",), "nowhere"),
        (("trip", "--seq", "99"), "no live message with seq 99"),
        (("trip", "--turn", "99"), "has no turn 99: the last one is 19"),
        (("trip", "--seq", "1", "--text", "x"), "not both"),
    ):
        result = explain(*args)
        assert result.exit_code in (1, 2), result.output
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert explain("trip", "--limit", "0").exit_code == 2
    result = explain("trip", "--text", "nobody said that")
    assert (result.exit_code, result.stderr) == (0, "No message contains that text.\n")

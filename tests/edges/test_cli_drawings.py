"""`sessions show` and `explain` on a terminal: the stacked bar, the marks, and what a terminal must never get."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from holdfast import from_config
from holdfast.cli import commands
from holdfast.cli.terminal import sanitize

CONFIG = """\
agents:
  planner:
    context: {strategy: digest, budget: 500}
"""
EVIL = "\x1b[2J\u202e" + "seasick " * 20
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def trip(in_empty_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a session of a configured agent in `holdfast.db`, and show everything as on a terminal of 80 columns."""
    Path("holdfast.yaml").write_text(CONFIG, encoding="utf-8")

    async def talk() -> None:
        async with from_config() as hf:
            session = await hf.session("trip", user_id="ada", agent="planner", system="Help people. " * 40)
            for n in range(20):
                words = f"What about harbour number {n} and its {n * 7} boats? " * 2
                async with session.turn(f"I am allergic to nut-{n}. {EVIL}" if n in (2, 19) else words) as turn:
                    turn.add(f"That is fine: boat {n} with a large sail takes you there in an afternoon. " * 2)

    anyio.run(talk)
    monkeypatch.setenv("COLUMNS", "80")
    for module in ("sessions", "explain"):
        monkeypatch.setattr(f"holdfast.cli.{module}.is_output_terminal", lambda: True)


def run(*args: str, **env: str) -> str:
    result = CliRunner().invoke(commands, args, prog_name="holdfast", env=env, color=bool(env))
    assert result.exit_code == 0, result.output
    return result.stdout


def find_marks(text: str) -> dict[int, str]:
    """Return the mark of each message that `sessions show` printed, by number."""
    return {int(seq): mark for mark, seq in re.findall(r"^([●◐○· ]) +(\d+)  \w+  \d", text, re.MULTILINE)}


@pytest.mark.usefixtures("trip")
def test_show_draws_the_last_prompt_and_marks_the_last_messages() -> None:
    text = run("sessions", "show", "trip")
    lines = text.splitlines()
    assert lines[0] == "session trip of user ada, agent planner"
    assert lines[5].startswith("the last prompt of turn 19: ")
    assert re.fullmatch(r"\[S▒*T▒*F?▒*D▒*N?▒*C▒*·*_*//_*s─*r─*\]", lines[6])
    assert len(lines[6]) == 80
    assert "D digest " in text
    assert "● in the prompt  ◐ in part  ○ not in the prompt  · written later" in lines
    assert "… 30 earlier messages (use --last)" in lines
    marks = find_marks(text)
    assert [*marks] == [*range(30, 40)]
    assert (marks[30], marks[38], marks[39]) in {("◐", "●", "·"), ("○", "●", "·")}
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("trip")
def test_number_of_messages_can_be_chosen() -> None:
    text = run("sessions", "show", "trip", "--last", "36")
    assert [*find_marks(text)] == [*range(4, 40)]
    assert find_marks(text)[4] == "◐"
    assert "compacted: condensed" in text
    assert 'in digest "' in text
    assert [*find_marks(run("sessions", "show", "trip", "--last", "1000"))] == [*range(40)]
    wrong = CliRunner().invoke(commands, ["sessions", "show", "trip", "--json", "--last", "3"])
    assert wrong.exit_code == 2


@pytest.mark.usefixtures("trip")
def test_explain_names_messages_with_some_of_the_words() -> None:
    text = run("explain", "trip", "--text", "harbour boats nonsense")
    assert re.search(r"^message \d+ of turn \d+, \w+, has some of the words: ", text, re.MULTILINE)


@pytest.mark.usefixtures("trip")
def test_explain_draws_the_same_bar_and_marks_ranges_and_messages() -> None:
    ranges = run("explain", "trip")
    bar = next(line for line in ranges.splitlines() if line.startswith("["))
    assert re.fullmatch(r"\[S▒*T▒*F?▒*D▒*N?▒*C▒*N?▒*·*_*//_*s─*r─*\]", bar)
    rows = [line for line in ranges.splitlines() if " tokens  " in line]
    assert [row[0] for row in rows[:3]] == ["●", "●", "◐"]
    assert {row[0] for row in rows[3:]} == {"●"}
    one = run("explain", "trip", "--text", "nut-2.")
    assert re.search(r"^[◐○] message 4 of turn 2, user", one, re.MULTILINE)
    past = run("explain", "trip", "--seq", "4", "--turn", "2")
    assert "● message 4 of turn 2, user" in past
    later = run("explain", "trip", "--seq", "30", "--turn", "2")
    assert "· message 30" in later


@pytest.mark.usefixtures("trip")
@pytest.mark.parametrize(
    "args", [("sessions", "show", "trip", "--last", "40"), ("explain", "trip", "--text", "nut-2.")]
)
def test_stored_text_cannot_control_the_terminal(args: tuple[str, ...]) -> None:
    text = run(*args, FORCE_COLOR="1")
    plain = _ESCAPES.sub("", text)
    assert plain != text
    assert sanitize(plain) == plain
    assert r"\x1b[2J\u202eseasick" in plain


@pytest.mark.usefixtures("trip")
def test_pipes_get_the_text_without_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [run("sessions", "show", "trip"), run("explain", "trip")]
    for module in ("sessions", "explain"):
        monkeypatch.setattr(f"holdfast.cli.{module}.is_output_terminal", lambda: False)
    plain = [run("sessions", "show", "trip"), run("explain", "trip")]
    assert all("●" in text for text in drawn)
    assert not any("●" in text or "[S" in text for text in plain)
    assert "earlier message" not in plain[0]
    assert "… 37 earlier messages" in run("sessions", "show", "trip", "--last", "3")


@pytest.mark.usefixtures("trip")
def test_json_is_the_same_on_a_terminal() -> None:
    assert len(json.loads(run("sessions", "show", "trip", "--json"))["messages"]) == 40
    assert json.loads(run("explain", "trip", "--json"))["object"] == "explanation"


@pytest.mark.usefixtures("trip")
def test_session_of_an_unknown_agent_is_shown_without_a_bar() -> None:
    Path("holdfast.yaml").write_text("agents: {other: {}}\n", encoding="utf-8")
    text = run("sessions", "show", "trip")
    assert "boat 19" in text
    assert "[S" not in text


@pytest.mark.usefixtures("trip")
@pytest.mark.parametrize(
    ("env", "bar", "mark"),
    [
        ({}, "[S", "●"),
        ({"PYTHONIOENCODING": "ascii"}, "[S", "#"),
        ({"NO_COLOR": "1"}, "[S▒", "●"),
        ({"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}, "[S=", "#"),
    ],
)
def test_bar_is_legible_on_every_terminal(env: dict[str, str], bar: str, mark: str) -> None:
    """On a real pseudo-terminal, with and without colours and Unicode."""
    end, other_end = os.openpty()
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", "PYTHONUTF8": "0", **env}
    command = [sys.executable, "-m", "holdfast", "explain", "trip"]
    subprocess.run(command, stdout=other_end, timeout=60, check=True, env=given)
    os.close(other_end)
    shown = os.read(end, 100_000).decode()
    os.close(end)
    plain = _ESCAPES.sub("", shown)
    assert bar in plain
    assert f"{mark} in the prompt" in plain
    assert ("\x1b[97;44mS" in shown) == ("NO_COLOR" not in env)

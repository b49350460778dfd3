"""`sessions show` and `explain` on a terminal: the stacked bar, the marks, and what a terminal must never get."""

from __future__ import annotations

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

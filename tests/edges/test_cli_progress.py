"""Progress bars: on a terminal only, with labels that cannot control it, and a moving bar if a command takes long."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from holdfast.cli.terminal import show_progress
from tests.edges.cli_kit import make_session, store

pytestmark = pytest.mark.usefixtures("in_empty_folder")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


@contextmanager
def use_terminal() -> Iterator[FakeTerminal]:
    """Replace standard error by a terminal of 80 columns for the duration of the block."""
    with redirect_stderr(FakeTerminal()) as screen:
        yield screen


def test_output_in_a_pipe_stays_in_the_pipe() -> None:
    with use_terminal() as screen, redirect_stdout(io.StringIO()) as piped, show_progress(2):
        sys.stdout.write("a line\n")
    assert piped.getvalue() == "a line\n"
    assert "a line" not in screen.getvalue()


def run_on_terminal(*args: str) -> tuple[str, str]:
    """Run a command with stderr on a terminal and stdout in a pipe, and return both outputs."""
    end, other_end = os.openpty()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "holdfast", *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=other_end, timeout=60, check=True, env=env)
    os.close(other_end)
    shown = os.read(end, 100_000)
    os.close(end)
    return shown.decode(), done.stdout.decode()


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ("sessions close a b", ["2/2", "closing"]),
        ("sessions delete --yes a b", ["2/2", "deleting"]),
        ("sessions verify --all", ["2/2"]),
        ("sessions export --all", ["2/?"]),
        ("sessions prune --older-than 1h --status any", ["0/?"]),
        ("backup copy.db", ["checking the copy"]),
    ],
)
def test_long_commands_have_bars(args: str, shown: list[str]) -> None:
    store(make_session("x", name="a"), make_session("y", name="b"))
    bars, output = run_on_terminal(*args.split())
    assert all(part in bars for part in [*shown, "━"])
    assert "━" not in output
    assert "\x1b" not in output

"""`holdfast sessions list | show | delete`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.edges.cli_kit import make_session, sessions, store

pytestmark = pytest.mark.usefixtures("in_empty_folder")


# -- list ----------------------------------------------------------------------


def test_names_cannot_control_the_terminal_or_act_as_markup() -> None:
    store({**make_session("x", name="[red]\x1b[2J\nnew"), "user_id": "\u202eada"})
    listed = sessions("list").stdout
    assert r"[red]\x1b[2J new" in listed
    assert r"\u202eada" in listed


# -- show ----------------------------------------------------------------------


def test_stored_text_cannot_control_the_terminal_or_imitate_a_heading() -> None:
    store(make_session("\x1b]0;title\x07 \x9b2J\r\n\nturn 7\n   9  system  1 token\n[bold]x[/bold]"))
    shown = sessions("show", "s").stdout
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)
    assert r"\x1b]0;title\x07 \x9b2J" in shown
    assert "\n        turn 7\n" in shown
    assert "[bold]x[/bold]" in shown


# -- a real process --------------------------------------------------------------


def test_closed_pipe_ends_the_command_quietly() -> None:
    store(*(make_session("x" * 20_000, name=f"s{at}") for at in range(20)))
    for args in (["export", "--all"], ["show", "s1", "--full"], ["list"]):
        command = [sys.executable, "-m", "holdfast", "sessions", *args]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.close()
            process.stdout = None
            _, told = process.communicate(timeout=60)
        assert told == ""

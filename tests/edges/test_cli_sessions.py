"""`holdfast sessions list | show | delete`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.edges.cli_kit import make_session, sessions, store

pytestmark = pytest.mark.usefixtures("in_empty_folder")

CALL = {"id": "c1", "type": "function", "function": {"name": "find_order", "arguments": '{"order":\n "A-1733"}'}}
SUPPORT: dict[str, Any] = {
    "id": "support-42",
    "user_id": "ada",
    "agent": "helper",
    "system_messages": [{"role": "system", "content": "Help people."}],
    "messages": [
        {"role": "user", "content": "Where is my order?", "pinned": True, "metadata": {"source": "message"}},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"state":\n  "sent"}'},
        {"role": "assistant", "content": "Sent.", "metadata": {"interrupted": True}, "importance": 0.5},
        {
            "role": "user",
            "content": [{"type": "text", "text": "A picture"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
    ],
}


def ids(*args: str) -> list[str]:
    return [one["id"] for one in json.loads(sessions("list", "--json", *args).stdout)]


# -- where ---------------------------------------------------------------------


@pytest.mark.parametrize("args", [["list"], ["show", "x"], ["export", "--all"], ["delete", "x", "--yes"]])
def test_reading_a_missing_database_does_not_create_it(args: list[str], tmp_path: Path) -> None:
    result = sessions(*args)
    assert result.exit_code == 1
    assert "holdfast.db: no such database" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_store_is_found_like_in_serve() -> None:
    Path("holdfast.yaml").write_text("databases: {main: {driver: sqlite, path: file.db}}\n")
    store(make_session("in the file's", name="file"))
    for place in ("env", "flag"):
        args = ("import", "-", "--store", f"sqlite:///{place}.db")
        assert sessions(*args, input=json.dumps(make_session("x", name=place))).exit_code == 0
    env = {"HOLDFAST_STORE": "sqlite:///env.db"}
    assert "file " in sessions("list").stdout
    assert "env " in sessions("list", env=env).stdout
    assert "flag " in sessions("list", "--store", "sqlite:///flag.db", env=env).stdout


def test_wrong_configuration_is_reported_in_full() -> None:
    Path("holdfast.yaml").write_text("agent: {}\ngatway: {}\n")
    result = sessions("list")
    assert result.exit_code == 2
    assert result.stderr.count("did you mean") == 2


# -- list ----------------------------------------------------------------------


def test_list_says_if_there_are_more_or_none() -> None:
    store(*(make_session("x", name=f"s{at}") for at in range(3)))
    result = sessions("list", "--limit", "2")
    assert len(result.stdout.splitlines()) == 4
    assert "show more with --limit" in result.stderr
    assert "No sessions found" in sessions("list", "--user", "nobody").stderr


def test_names_cannot_control_the_terminal_or_act_as_markup() -> None:
    store({**make_session("x", name="[red]\x1b[2J\nnew"), "user_id": "\u202eada"})
    listed = sessions("list").stdout
    assert r"[red]\x1b[2J new" in listed
    assert r"\u202eada" in listed


# -- show ----------------------------------------------------------------------


def test_long_texts_are_shortened_unless_full_is_given() -> None:
    text, result = "\n".join(f"line {at}" for at in range(50)), "value " * 100 + "end"
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": "c1", "content": result}
    store({"id": "s", "messages": [*make_session(text)["messages"], {"role": "assistant", "tool_calls": [call]}, tool]})
    short = sessions("show", "s").stdout
    assert "line 11\n" in short
    assert "line 12\n" not in short
    assert "more characters (use --full)" in short
    assert "end" not in short
    full = sessions("show", "s", "--full").stdout
    assert "line 49\n" in full
    assert "value end" in full
    assert "--full" not in full


def test_stored_text_cannot_control_the_terminal_or_imitate_a_heading() -> None:
    store(make_session("\x1b]0;title\x07 \x9b2J\r\n\nturn 7\n   9  system  1 token\n[bold]x[/bold]"))
    shown = sessions("show", "s").stdout
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)
    assert r"\x1b]0;title\x07 \x9b2J" in shown
    assert "\n        turn 7\n" in shown
    assert "[bold]x[/bold]" in shown


def test_color_follows_the_environment() -> None:
    store(make_session("x"))
    assert "\x1b[" not in sessions("show", "s").stdout
    assert "\x1b[" in sessions("show", "s", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" not in sessions("show", "s", env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


# -- which session -------------------------------------------------------------


def test_session_id_of_several_users_needs_a_user() -> None:
    store(SUPPORT, {**SUPPORT, "user_id": "bob"})
    for args in (["show", "support-42"], ["export", "support-42"], ["delete", "support-42", "--yes"]):
        result = sessions(*args)
        assert result.exit_code == 1
        assert "--user" in result.stderr
    assert "of user bob" in sessions("show", "support-42", "--user", "bob").stdout


# -- delete --------------------------------------------------------------------


def test_delete_accepts_several_ids_and_reports_the_count() -> None:
    store(make_session("x", name="a"), make_session("x", name="b"), make_session("x", name="c"))
    result = sessions("delete", "a", "b", "a", "--yes")
    assert result.stdout == "Deleted 2 sessions, 2 messages.\n"
    assert ids() == ["c"]
    (gone,) = json.loads(sessions("delete", "c", "--yes", "--json").stdout)
    assert (gone["id"], gone["user_id"], gone["receipt"]["messages"]) == ("c", "default", 1)


@pytest.mark.parametrize(("typed", "code", "left"), [("y\n", 0, []), ("n\n", 1, ["a"]), ("\n", 1, ["a"])])
def test_delete_asks_on_a_terminal(typed: str, code: int, left: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    store(make_session("x", name="a"))
    monkeypatch.setattr("holdfast.cli.sessions.is_interactive", lambda: True)
    result = sessions("delete", "a", input=typed)
    assert result.exit_code == code
    assert "a of user default, 1 message" in result.stderr
    assert ids() == left


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


def test_unsupported_characters_are_escaped() -> None:
    store(make_session("naïve 👩"))
    command = [sys.executable, "-m", "holdfast", "sessions", "show", "s"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, env={"PYTHONIOENCODING": "latin-1"})
    assert b"na\xefve \\U0001f469" in done.stdout

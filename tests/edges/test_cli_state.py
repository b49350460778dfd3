"""`holdfast state` shows and changes the same state as a server and the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.holdfast import Holdfast

ADA = ("--session", "s", "--user", "ada")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a session `s` of ada, one of bob, and a session `t` of ada."""
    url = f"sqlite:///{tmp_path}/s.db"

    async def make() -> None:
        async with Holdfast(url) as hf:
            for name, user in (("s", "ada"), ("s", "bob"), ("t", "ada")):
                await hf.session(name, user_id=user)

    anyio.run(make)
    return url


def state(url: str, *args: str) -> Result:
    return CliRunner().invoke(commands, ["state", *args, "--store", url])


def read_output(url: str, *args: str) -> str:
    """Return the output of a successful command."""
    result = state(url, *args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def read_json(url: str, *args: str) -> Any:
    """Return the JSON output of a successful command."""
    return json.loads(read_output(url, *args, "--json"))


def test_set_get_unset(store: str) -> None:
    """For a session and its shared scopes; valid JSON is stored as a value, everything else as text."""
    assert read_output(store, "set", "topic", "the moon", *ADA) == "Set topic."
    assert read_json(store, "set", "user:prefs", '{"a": [1]}', *ADA) == {"user:prefs": {"a": [1]}}
    read_output(store, "set", "app:version", "2.0", "--text", "--session", "t")
    assert read_output(store, "get", "topic", *ADA) == "the moon"
    assert read_output(store, "get", "user:prefs", "--session", "t") == '{"a":[1]}'
    assert read_json(store, "get", "app:version", *ADA) == "2.0"
    assert read_json(store, "get", *ADA) == {"topic": "the moon", "user:prefs": {"a": [1]}, "app:version": "2.0"}
    assert read_json(store, "get", "--session", "s", "--user", "bob") == {"app:version": "2.0"}
    assert "topic" in read_output(store, "get", *ADA)
    assert read_output(store, "unset", "topic", "app:version", "none", *ADA) == "Deleted 3 keys."
    assert read_json(store, "get", *ADA) == {"user:prefs": {"a": [1]}}
    missing = state(store, "get", "topic", *ADA)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "no value is stored under 'topic'" in missing.stderr


def test_mistakes_are_reported(store: str) -> None:
    """A wrong scope, key or number is wrong usage; a missing or ambiguous session is a failure."""
    read_output(store, "set", "word", "w", *ADA)
    for args in (
        ("get",),
        ("get", "--app", "--user", "ada"),
        ("get", "--app", *ADA),
        ("set", "app:x", "1", "--user", "ada"),
        ("set", "x", "1", "--app"),
        ("set", "user:", "1", *ADA),
        ("set", "x", "null", *ADA),
        ("set", "n", "--increment", "many", *ADA),
        ("set", "n", "--increment", "true", *ADA),
        ("set", "n", "7", "--increment", "1", *ADA),
        ("set", "l", "--append", *ADA),
        ("set", "word", "--increment", "1", *ADA),
        ("set", "n", "1", "2", *ADA),
        ("set", "temp:x", "1", *ADA),
        ("set", "temp:x", "--increment", "1", *ADA),
        ("set", "--append", "temp:x", "1", *ADA),
        ("unset", "x", "temp:x", *ADA),
    ):
        result = state(store, *args)
        assert (result.exit_code, result.stdout) == (2, ""), (args, result.output)
    assert "only during a turn" in state(store, "set", "temp:x", "1", *ADA).stderr
    for whose in (("none",), ("s",), ("s", "--user", "eve")):
        assert state(store, "get", "--session", *whose).exit_code == 1
    assert state("sqlite:///none.db", "get", "--app").exit_code == 1
    assert read_json(store, "get", *ADA) == {"word": "w"}

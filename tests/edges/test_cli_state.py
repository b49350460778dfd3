"""`holdfast state`: what it shows and changes is what a server and the library have."""

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
    """A store with a session `s` of ada's, one of bob's, and `t` of ada's."""
    url = f"sqlite:///{tmp_path}/s.db"

    async def make() -> None:
        async with Holdfast(url) as hf:
            for name, user in (("s", "ada"), ("s", "bob"), ("t", "ada")):
                await hf.session(name, user_id=user)

    anyio.run(make)
    return url


def state(url: str, *args: str) -> Result:
    return CliRunner().invoke(commands, ["state", *args, "--store", url])


def said(url: str, *args: str) -> str:
    """What a command that works says."""
    result = state(url, *args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def told(url: str, *args: str) -> Any:
    """The same as JSON."""
    return json.loads(said(url, *args, "--json"))


def test_set_get_unset(store: str) -> None:
    """Of a session with what it shares; JSON is taken as such, all else as a text."""
    assert said(store, "set", "topic", "the moon", *ADA) == "Set topic."
    assert told(store, "set", "user:prefs", '{"a": [1]}', *ADA) == {"user:prefs": {"a": [1]}}
    said(store, "set", "app:version", "2.0", "--text", "--session", "t")
    assert said(store, "get", "topic", *ADA) == "the moon"
    assert said(store, "get", "user:prefs", "--session", "t") == '{"a":[1]}'
    assert told(store, "get", "app:version", *ADA) == "2.0"
    assert told(store, "get", *ADA) == {"topic": "the moon", "user:prefs": {"a": [1]}, "app:version": "2.0"}
    assert told(store, "get", "--session", "s", "--user", "bob") == {"app:version": "2.0"}
    assert "topic" in said(store, "get", *ADA)
    assert said(store, "unset", "topic", "app:version", "none", *ADA) == "Deleted 3 keys."
    assert told(store, "get", *ADA) == {"user:prefs": {"a": [1]}}
    missing = state(store, "get", "topic", *ADA)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "no value is stored under 'topic'" in missing.stderr


def test_what_adds_up(store: str) -> None:
    """Of a user, and of all."""
    assert said(store, "increment", "user:n", "--user", "ada") == "1"
    assert said(store, "increment", "user:n", "--by", "-2.5", *ADA) == "-1.5"
    assert told(store, "increment", "app:n", "--by", "3", "--app") == {"app:n": 3}
    assert said(store, "append", "app:l", "1", "two", "--app") == "app:l has 2 values."
    below = ["state", "set", "app:n", "--app", "--store", store, "--", "-1.5"]
    assert CliRunner().invoke(commands, below).exit_code == 0
    assert told(store, "increment", "app:n", "--by", "4.5", "--app") == {"app:n": 3}
    assert told(store, "append", "app:l", "3", "--text", "--app") == {"key": "app:l", "length": 3}
    assert told(store, "get", "--app") == {"app:n": 3, "app:l": [1, "two", "3"]}
    assert told(store, "get", "--user", "ada") == {"user:n": -1.5}
    empty = state(store, "get", "--user", "nobody")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert told(store, "get", "--user", "nobody") == {}


def test_what_is_wrong_is_said(store: str) -> None:
    """Whose state, which key, which number: as wrong usage; a session that is not there, or not the only one, as failed work."""
    said(store, "set", "word", "w", *ADA)
    for args in (
        ("get",),
        ("get", "--app", "--user", "ada"),
        ("get", "--app", *ADA),
        ("set", "app:x", "1", "--user", "ada"),
        ("set", "x", "1", "--app"),
        ("set", "user:", "1", *ADA),
        ("set", "x", "null", *ADA),
        ("increment", "n", "--by", "many", *ADA),
        ("increment", "n", "--by", "true", *ADA),
        ("increment", "word", *ADA),
        ("set", "temp:x", "1", *ADA),
        ("increment", "temp:x", *ADA),
        ("append", "temp:x", "1", *ADA),
        ("unset", "x", "temp:x", *ADA),
    ):
        result = state(store, *args)
        assert (result.exit_code, result.stdout) == (2, ""), (args, result.output)
    assert "only during a turn" in state(store, "set", "temp:x", "1", *ADA).stderr
    for whose in (("none",), ("s",), ("s", "--user", "eve")):
        assert state(store, "get", "--session", *whose).exit_code == 1
    assert state("sqlite:///none.db", "get", "--app").exit_code == 1
    assert told(store, "get", *ADA) == {"word": "w"}


def test_a_value_does_nothing_to_a_terminal(store: str) -> None:
    """What is shown is cleaned; as JSON it is whole."""
    said(store, "set", "x", "\x1b[31mred", *ADA)
    assert "\x1b" not in said(store, "get", "x", *ADA)
    assert "\x1b" not in said(store, "get", *ADA)
    assert told(store, "get", "x", *ADA) == "\x1b[31mred"

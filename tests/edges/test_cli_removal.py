"""`holdfast sessions fork`, `move`, `rewind`, `delete --user` and `prune`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands

pytestmark = pytest.mark.usefixtures("in_empty_folder")

DAY = 86_400_000
OLD = 1_600_000_000_000
"""Milliseconds since the epoch: years ago."""


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def make_session(name: str, **fields: Any) -> dict[str, Any]:
    texts = [{"role": role, "content": f"{role} {at}"} for at in range(3) for role in ("user", "assistant")]
    return {"schema": 1, "id": name, "messages": texts, **fields}


def make_closed_session(name: str, when: int = OLD, **fields: Any) -> dict[str, Any]:
    ended = {"status": "closed", "ended_at": when, "created_at": when, "updated_at": when}
    return make_session(name, **ended, **fields)


def store(*given: dict[str, Any]) -> None:
    result = sessions("import", "-", input="\n".join(map(json.dumps, given)))
    assert result.exit_code == 0, result.stderr


def ids() -> set[str]:
    return {one["id"] for one in json.loads(sessions("list", "--json", "--limit", "1000").stdout)}


# -- fork and rewind -------------------------------------------------------------


def test_lift_sends_a_refused_message_again() -> None:
    """To one of the upstreams that refused it, or to all."""
    refused = {
        "role": "user",
        "content": "look",
        "metadata": {"refused_by": {"main": "400", "other": "400"}, "kept": 1},
    }
    store({"schema": 1, "id": "a", "messages": [refused]})
    kept = json.loads(sessions("annotate", "a", "0", "--lift", "main", "--json").stdout)
    assert kept["metadata"] == {"refused_by": {"other": "400"}, "kept": 1}
    assert sessions("annotate", "a", "0", "--lift", "all").stdout == "Message 0, will be sent again: look\n"
    assert json.loads(sessions("export", "a").stdout)["messages"][0]["metadata"] == {"kept": 1}
    assert sessions("annotate", "a", "7", "--lift", "all").exit_code == 1
    assert sessions("annotate", "a", "0").exit_code == 2


# -- a user ----------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "code", "left"), [("y\n", 0, {"c"}), ("n\n", 1, {"a", "c"})])
def test_deleting_a_user_asks_for_confirmation(
    typed: str, code: int, left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal; elsewhere --yes is needed."""
    store(make_session("a", user_id="ada"), make_session("c", user_id="bob"))
    assert sessions("delete", "--user", "ada", input="y\n").exit_code == 2
    monkeypatch.setattr("holdfast.cli.sessions.is_interactive", lambda: True)
    result = sessions("delete", "--user", "ada", input=typed)
    assert result.exit_code == code
    assert "1 session and the artifacts" in result.stderr
    assert "all data of user ada?" in result.stderr
    assert ids() == left


# -- prune -----------------------------------------------------------------------


def make_sessions_to_prune() -> None:
    """Create closed and active sessions, old and new, of two users."""
    now = json.loads(sessions("fork", "seed", "--json").stdout)["created_at"]
    store(
        *(make_closed_session(f"old-{at}", OLD + at * DAY, user_id=f"u{at % 2}") for at in range(6)),
        make_closed_session("new", now, user_id="u0"),
        make_session("active", created_at=OLD, updated_at=OLD, user_id="u0"),
    )


@pytest.mark.parametrize(
    "args",
    [
        ("--older-than", "30d"),
        ("--older-than", "30d", "--user", "u1"),
        ("--older-than", "0s", "--status", "any"),
        ("--older-than", "0s", "--status", "active"),
        ("--older-than", "36500d"),
    ],
)
def test_prune_dry_run_lists_what_prune_deletes(args: tuple[str, ...]) -> None:
    """The same ids in the same order; the other sessions remain."""
    store(make_session("seed"))
    make_sessions_to_prune()
    everything = ids()
    planned = [one["id"] for one in json.loads(sessions("prune", *args, "--dry-run", "--json").stdout)]
    assert ids() == everything
    gone = json.loads(sessions("prune", *args, "--json").stdout)
    assert [one["id"] for one in gone] == planned
    assert ids() == everything - set(planned)
    assert all(one["receipt"]["messages"] == one["messages"] == 6 for one in gone)


def test_prune_reports_each_session() -> None:
    """A dry run reports one session per line."""
    store(make_session("seed"))
    make_sessions_to_prune()
    dry = sessions("prune", "--older-than", "30d", "--dry-run")
    assert len(dry.stdout.splitlines()) == 6
    assert dry.stdout.startswith("old-0 of user u0, closed, last changed 2020-")
    assert dry.stderr == "Would delete 6 sessions, 36 messages.\n"
    result = sessions("prune", "--older-than", "30d")
    assert (result.exit_code, result.stdout) == (0, "Deleted 6 sessions, 36 messages.\n")
    assert sessions("prune", "--older-than", "30d").stdout == "Deleted 0 sessions, 0 messages.\n"

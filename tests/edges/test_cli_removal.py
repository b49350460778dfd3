"""`holdfast sessions fork`, `move`, `rewind`, `delete --user` and `prune`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def make_session(name: str, **fields: Any) -> dict[str, Any]:
    texts = [{"role": role, "content": f"{role} {at}"} for at in range(3) for role in ("user", "assistant")]
    return {"schema": 1, "id": name, "messages": texts, **fields}


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
    monkeypatch.setattr("holdfast.cli.command.is_interactive", lambda: True)
    result = sessions("delete", "--user", "ada", input=typed)
    assert result.exit_code == code
    assert "1 session and the artifacts" in result.stderr
    assert "all data of user ada?" in result.stderr
    assert ids() == left

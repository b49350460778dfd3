"""Standing facts over REST and on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from tests.edges.server import Served, gateway
from tests.service.test_session_facts import NUTS, OAK, make_conversation

FACTS = "/v1/sessions/s/facts"
CONFIG = "context: {strategy: digest, budget: 1200}"


async def list_facts(served: Served, query: str = "") -> dict[str, dict[str, Any]]:
    page = (await served.http.get(f"{FACTS}{query}")).json()
    assert (page["object"], page["has_more"]) == ("list", False)
    return {one["text"]: one for one in page["data"]}


async def test_facts_are_listed_pinned_and_dropped() -> None:
    async with gateway([], CONFIG) as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": make_conversation(NUTS, OAK)})
        nuts = (await list_facts(served))[NUTS]
        assert nuts == nuts | {"object": "fact", "session_id": "s", "id": "2.1", "seq": 2, "source": "block"}
        assert (nuts["in_prompt"], nuts["pinned"], nuts["dropped"], nuts["corrected_by"]) == (True, False, False, None)
        dropped = (await served.http.patch(f"{FACTS}/2.1", json={"dropped": True})).json()
        assert (dropped["text"], dropped["dropped"], dropped["pinned"]) == (NUTS, True, False)
        assert (await list_facts(served))[NUTS]["in_prompt"] is False
        assert "nuts" not in (await served.http.post("/v1/sessions/s/context", json={})).text
        assert (await served.http.patch(f"{FACTS}/2.1", json={"pinned": False})).json()["dropped"] is True
        assert (await served.http.patch(f"{FACTS}/2.1", json={"pinned": True})).json()["pinned"] is True
        assert (await list_facts(served))[NUTS]["pinned"] is True
        assert (await list_facts(served, "?strategy=token_window&budget=600")).get(NUTS) is None


@pytest.mark.parametrize(
    ("fact", "body", "status", "says"),
    [
        ("2.1", {}, 400, "set either pinned or dropped"),
        ("2.1", {"pinned": True, "dropped": True}, 400, "set either pinned or dropped"),
        ("2.1", {"pinned": 1}, 400, "pinned must be true or false"),
        ("2.1", {"pin": True}, 400, "pin"),
        ("2.9", {"pinned": True}, 404, "has no fact '2.9'"),
        ("3.0", {"pinned": True}, 404, "has no fact '3.0'"),
        ("x", {"pinned": True}, 404, "has no fact 'x'"),
    ],
)
async def test_invalid_changes_are_refused(fact: str, body: Any, status: int, says: str) -> None:
    async with gateway([], CONFIG) as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": make_conversation(NUTS)})
        answer = await served.http.patch(f"{FACTS}/{fact}", json=body)
        assert answer.status_code == status
        assert says in answer.json()["error"]["message"]


# -- command line --------------------------------------------------------------


def run_cli(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, [*args], prog_name="holdfast", **more)


@pytest.mark.usefixtures("in_empty_folder")
def test_command_lists_and_changes_facts() -> None:
    session = {"schema": 1, "id": "s", "user_id": "ada", "messages": make_conversation(NUTS, OAK)}
    assert run_cli("sessions", "import", "-", input=json.dumps(session)).exit_code == 0
    shown = run_cli("facts", "s", "--budget", "1200")
    assert shown.exit_code == 0, shown.stderr
    assert NUTS in shown.stdout
    changed = run_cli("facts", "s", "--drop", "2.1", "--pin", "4.1", "--budget", "1200", "--json")
    facts = {one["id"]: one for one in json.loads(changed.stdout)}
    assert (facts["2.1"]["dropped"], facts["2.1"]["source"]) == (True, None)
    assert (facts["4.1"]["pinned"], facts["4.1"]["source"]) == (True, "block")
    restored = json.loads(run_cli("facts", "s", "--reset", "2.1", "--budget", "1200", "--json").stdout)
    assert {one["id"]: one for one in restored}["2.1"]["source"] == "block"
    wrong = run_cli("facts", "s", "--pin", "9.9")
    assert (wrong.exit_code, "has no fact '9.9'" in wrong.stderr) == (1, True)


@pytest.mark.usefixtures("in_empty_folder")
def test_command_lists_facts_page_by_page() -> None:
    """The last line says how many more there are; facts that the command changes are listed in any case."""
    said = [f"I never eat dish number {at} in winter." for at in range(12)]
    session = {"schema": 1, "id": "s", "user_id": "ada", "messages": make_conversation(*said)}
    assert run_cli("sessions", "import", "-", input=json.dumps(session)).exit_code == 0
    whole = run_cli("facts", "s", "--json")
    assert (whole.exit_code, whole.stderr) == (0, "")
    facts = json.loads(whole.stdout)
    ids = [one["id"] for one in facts]
    assert len(ids) > 2 * len(said)
    listed: list[str] = []
    while True:
        page = run_cli("facts", "s", "--limit", "5", *(("--after", listed[-1]) if listed else ()))
        listed += [line.split()[0] for line in page.stdout.splitlines()[2:]]
        if not page.stderr:
            break
        more = facts[len(listed) :]
        kept = sum(one["in_prompt"] for one in more)
        noun = "more fact" if len(more) == 1 else "more facts"
        begin = f"{len(more)} {noun}, {kept} of them in the prompt: show them with --after {listed[-1]},"
        assert page.stderr.startswith(begin)
    assert listed == ids
    changed = run_cli("facts", "s", "--limit", "1", "--drop", ids[-1], "--json")
    assert [one["id"] for one in json.loads(changed.stdout)] == [ids[0], ids[-1]]
    assert changed.stderr.startswith(f"{len(ids) - 2} more facts, ")
    end = run_cli("facts", "s", "--after", ids[-1])
    assert (end.stdout, end.stderr) == ("", "There are no more facts.\n")
    wrong = run_cli("facts", "s", "--after", "9.9")
    assert (wrong.exit_code, "has no fact '9.9'" in wrong.stderr) == (2, True)

"""Files that earlier states of Holdfast really wrote (older_databases/): upgraded, read as they were, and gone on with."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from tests.edges.server import Process

OLDER = Path(__file__).parent / "older_databases"
SCHEMAS = sorted(int(path.name.removeprefix("schema-").partition(".")[0]) for path in OLDER.glob("*.db.xz"))
DERIVED = ("timestamp", "tokens")


@pytest.fixture(params=SCHEMAS)
def older(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """The URL of a copy, and what its own server said was in it."""
    packed = OLDER / f"schema-{request.param}.db.xz"
    path = tmp_path / "holdfast.db"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    said: dict[str, list[dict[str, Any]]] = json.loads((OLDER / f"schema-{request.param}.json").read_bytes())
    return f"sqlite:///{path}", said


def run(*args: str) -> Result:
    """A command, which succeeds."""
    result = CliRunner().invoke(commands, list(args), prog_name="holdfast")
    assert result.exit_code == 0, (args, result.output)
    return result


def messages(http: httpx2.Client, session: str) -> list[dict[str, Any]]:
    """A session's log, as the older server's answer is kept."""
    data = http.get(f"/v1/sessions/{session}/messages", params={"user_id": "ada"}).raise_for_status().json()["data"]
    return [{name: value for name, value in one.items() if name not in DERIVED} for one in data]


def test_the_newest_schema_is_among_them() -> None:
    """A new migration needs a file of the schema before it, which nobody can make afterwards."""
    from holdfast.stores.sql import load_migrations

    assert SCHEMAS[0] == 1
    assert SCHEMAS[-1] >= len(load_migrations("sqlite")) - 1


def test_a_server_goes_on_with_it(older: tuple[str, dict[str, list[dict[str, Any]]]]) -> None:
    """It upgrades the file by itself; the logs are what they were, the next turn sees them, and search finds what is older than the index."""
    url, said = older
    with Process(url) as server, httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        assert {name: messages(http, name) for name in said} == said
        body = {"session_id": "trip", "user": "ada", "messages": [{"role": "user", "content": "what do you see?"}]}
        reply = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        assert "QX-4711" in reply["choices"][0]["message"]["content"]
        assert reply["session"]["turn"] == 3
        found = http.get("/v1/search", params={"q": "window seat", "user_id": "ada"}).raise_for_status().json()
        assert any(one["session_id"] == "trip" for one in found["data"])
        assert http.get("/v1/sessions/gone", params={"user_id": "ada"}).status_code == 404


def test_commands_go_on_with_it(
    older: tuple[str, dict[str, list[dict[str, Any]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migrated by hand, verified, taken out and read in elsewhere: the same messages."""
    monkeypatch.chdir(tmp_path)
    url, said = older
    run("migrate", "--store", url)
    assert "pending" not in run("migrate", "--show", "--store", url).stdout
    run("sessions", "verify", "--all", "--store", url)
    export = tmp_path / "all.jsonl"
    run("sessions", "export", "--all", "--retired", "--calls", "--digests", "-o", str(export), "--store", url)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    run("sessions", "import", str(export), "--store", elsewhere)
    with Process(elsewhere) as server, httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        assert {name: messages(http, name) for name in said} == said

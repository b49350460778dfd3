"""Database files written by earlier versions of Holdfast (older_databases/): migrated, read unchanged, and continued."""

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
def older_database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Return the URL of a copy, and the content that its own server reported."""
    packed = OLDER / f"schema-{request.param}.db.xz"
    path = tmp_path / "holdfast.db"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    said: dict[str, list[dict[str, Any]]] = json.loads((OLDER / f"schema-{request.param}.json").read_bytes())
    return f"sqlite:///{path}", said


def run(*args: str) -> Result:
    """Run a command that must succeed."""
    result = CliRunner().invoke(commands, list(args), prog_name="holdfast")
    assert result.exit_code == 0, (args, result.output)
    return result


def messages(http: httpx2.Client, session: str) -> list[dict[str, Any]]:
    """Return a session's log in the form of the older server's answer."""
    data = http.get(f"/v1/sessions/{session}/messages", params={"user_id": "ada"}).raise_for_status().json()["data"]
    return [{name: value for name, value in one.items() if name not in DERIVED} for one in data]


def test_newest_schema_is_included() -> None:
    """A new migration needs a file of the previous schema, which cannot be created later."""
    from holdfast.stores.sql import load_migrations

    assert SCHEMAS[0] == 1
    assert SCHEMAS[-1] >= len(load_migrations("sqlite")) - 1


def test_server_continues_an_older_database(older_database: tuple[str, dict[str, list[dict[str, Any]]]]) -> None:
    """It migrates the file; logs are unchanged, the next turn includes them, and search finds messages older than the
    index.
    """
    url, said = older_database
    with Process(url) as server, httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        assert {name: messages(http, name) for name in said} == said
        body = {"session_id": "trip", "user": "ada", "messages": [{"role": "user", "content": "what do you see?"}]}
        reply = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        assert "QX-4711" in reply["choices"][0]["message"]["content"]
        assert reply["session"]["turn"] == 3
        found = http.get("/v1/search", params={"q": "window seat", "user_id": "ada"}).raise_for_status().json()
        assert any(one["session_id"] == "trip" for one in found["data"])
        assert http.get("/v1/sessions/gone", params={"user_id": "ada"}).status_code == 404


def test_commands_continue_an_older_database(
    older_database: tuple[str, dict[str, list[dict[str, Any]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migrated by hand, verified, exported and imported elsewhere: the same messages."""
    monkeypatch.chdir(tmp_path)
    url, said = older_database
    run("migrate", "--store", url)
    assert "pending" not in run("migrate", "--show", "--store", url).stdout
    run("sessions", "verify", "--all", "--store", url)
    export = tmp_path / "all.jsonl"
    run("sessions", "export", "--all", "--retired", "--calls", "--digests", "-o", str(export), "--store", url)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    run("sessions", "import", str(export), "--store", elsewhere)
    with Process(elsewhere) as server, httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        assert {name: messages(http, name) for name in said} == said

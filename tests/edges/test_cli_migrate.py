"""`holdfast migrate`: applied and pending migrations of a database."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.stores import open_store
from holdfast.stores.sql import load_migrations


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)


def migrate(*args: str) -> Result:
    """Run the command on `chat.db`."""
    return CliRunner().invoke(commands, ["migrate", "--store", "sqlite:///chat.db", *args])


def statuses(*args: str) -> list[str]:
    """Return the status of each migration."""
    done = migrate("--json", *args)
    assert done.exit_code == 0
    return [one["status"] for one in json.loads(done.stdout)["migrations"]]


def _make_database(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a file with the first `count` migrations."""
    with monkeypatch.context() as then:
        then.setattr(
            "holdfast.stores.sqlite_connection.load_migrations", lambda dialect: load_migrations(dialect)[:count]
        )
        anyio.run(_open_and_close)


async def _open_and_close() -> None:
    await (await open_store("sqlite:///chat.db", tenant="acme")).close()


def test_old_database_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    _make_database(1, monkeypatch)
    newer = len(load_migrations("sqlite")) - 1
    assert statuses("--show") == statuses("--show") == ["applied", *["pending"] * newer]
    assert statuses() == ["applied", *["applied now"] * newer]
    assert statuses() == statuses("--show") == ["applied"] * (newer + 1)
    assert migrate().stdout.splitlines()[0].split() == ["1", "initial", "applied"]


def test_missing_database_is_not_created() -> None:
    for args in ((), ("--show",)):
        done = migrate(*args)
        assert (done.exit_code, list(Path.cwd().iterdir())) == (1, [])
        assert "no such database" in done.stderr


def test_newer_database_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _make_database(len(load_migrations("sqlite")), monkeypatch)
    monkeypatch.setattr("holdfast.stores.load_migrations", lambda dialect: load_migrations(dialect)[:1])
    done = migrate("--show")
    assert done.exit_code == 1
    assert "made by a newer release" in done.stderr


def test_unreachable_server_is_one_error_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(commands, ["migrate", "--store", "postgresql://u:secret@127.0.0.1:1/d"])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr

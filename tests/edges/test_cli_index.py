"""`holdfast index`, and what `GET /v1/status` and the metrics report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import commands
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import gateway


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with two users' sessions and no index."""
    monkeypatch.chdir(tmp_path)

    async def write() -> None:
        async with holdfast.open("sqlite:///holdfast.db", index=None) as hf:
            for user in ("ada", "bob"):
                session = await hf.session("s", user_id=user)
                await session.append([{"role": "user", "content": "Where is order 17?"}])

    anyio.run(write)
    return tmp_path


def index(*args: str) -> Result:
    return CliRunner().invoke(commands, ["index", *args])


def read_output(*args: str) -> str:
    """Return the output of a successful command."""
    result = index(*args)
    assert result.exit_code == 0, result.output
    return result.output


def report_index() -> str:
    """Return the output of `holdfast doctor`, which has a line about the index."""
    return CliRunner().invoke(commands, ["doctor"]).output


def read_json(*args: str) -> dict[str, Any]:
    """Return the JSON output of a successful command."""
    found: dict[str, Any] = json.loads(read_output(*args, "--json"))
    return found


def test_doctor_reports_missing_sessions_and_rebuild_adds_them() -> None:
    read_output("rebuild", "--user", "bob")
    assert "1 text of 1 source; 1 session not indexed yet, 1 message" in report_index()
    assert read_output("rebuild") == "Rebuilt 2 sessions, 2 messages.\n"
    assert "2 texts of 2 sources; all sessions are indexed" in report_index()


def test_rebuild_of_one_user_or_session_indexes_only_that() -> None:
    assert read_json("rebuild", "--user", "bob")["sessions"] == 1
    assert "1 text of 1 source" in report_index()
    assert read_json("rebuild", "--user", "ada", "--session", "s")["sessions"] == 1
    assert "2 texts of 2 sources" in report_index()


def test_user_without_sessions_is_reported() -> None:
    """It is not a failure: a user's sessions may all be deleted."""
    result = index("rebuild", "--user", "bab")
    assert (result.exit_code, result.stderr) == (0, "User bab has no sessions.\n")


def test_disabled_index_cannot_be_rebuilt(here: Path) -> None:
    (here / "holdfast.yaml").write_text("storage: {index: {enabled: false}}\n")
    result = index("rebuild")
    assert (result.exit_code, "storage.index.enabled" in result.output) == (1, True)
    assert not (here / "holdfast.index.db").exists()


def test_index_is_stored_where_the_configuration_says(here: Path) -> None:
    provider = "{type: chromem, chromem: {persist_path: .hector/memory_vectors, compress: true}}"
    (here / "holdfast.yaml").write_text(f"storage: {{memory: {{backend: keyword, vector_provider: {provider}}}}}\n")
    read_output("rebuild")
    assert (here / ".hector" / "memory_vectors" / "holdfast.index.db").exists()
    assert not (here / "holdfast.index.db").exists()


async def test_server_reports_the_state_of_its_index() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "ada"})
        await served.http.post("/v1/sessions/s/messages", json={"messages": [{"role": "user", "content": "tea"}]})
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        status = (await served.http.get("/v1/status")).json()["index"]
        assert (status["mode"], status["documents"]) == ("keyword", 1)
        metrics = (await served.http.get("/metrics")).text
        assert "holdfast_index_entries_total 1.0" in metrics
        assert "holdfast_index_waiting 0.0" in metrics


async def test_key_of_one_user_cannot_read_the_index_status() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        one, everybody = await create_stored_key(served.hf, user_id="ada"), await create_stored_key(served.hf)
        assert (await served.http.get("/v1/status", headers=bearer(one))).status_code == 403
        assert (await served.http.get("/v1/status", headers=bearer(everybody))).status_code == 200

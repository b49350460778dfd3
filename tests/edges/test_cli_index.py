"""`holdfast index`, and what `GET /v1/index` and the metrics tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import commands
from holdfast.indexes.rebuild import IndexReport, LastError
from holdfast.indexes.service import IndexService
from tests.edges.keys import bearer, made
from tests.edges.server import gateway


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two users' sessions, and no index of them."""
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


def said(*args: str) -> str:
    """What a command that works says."""
    result = index(*args)
    assert result.exit_code == 0, result.output
    return result.output


def told(*args: str) -> dict[str, Any]:
    """The same as JSON."""
    found: dict[str, Any] = json.loads(said(*args, "--json"))
    return found


def test_status_tells_what_is_missing_and_a_rebuild_makes_it() -> None:
    assert "2 sessions not indexed yet, 2 messages" in said("status")
    assert said("rebuild") == "Rebuilt 2 sessions, 2 messages.\n"
    assert "2 texts of 2 sources, keyword search\nall sessions are indexed\n" in said("status")
    status = told("status")
    assert (status["documents"], status["behind"], status["last_error"]) == (2, 0, None)


def test_a_look_at_an_index_that_is_not_there_makes_none(here: Path) -> None:
    before = {path.name for path in here.iterdir()}
    assert (told("status")["documents"], told("status")["behind"]) == (0, 2)
    assert {path.name for path in here.iterdir()} == before


def test_a_rebuild_of_a_user_or_a_session_makes_only_that() -> None:
    assert told("rebuild", "--user", "bob")["sessions"] == 1
    assert told("status")["documents"] == 1
    assert told("rebuild", "--user", "ada", "--session", "s")["sessions"] == 1
    assert told("status")["documents"] == 2


def test_a_user_without_sessions_is_told() -> None:
    """It is no failure: whose sessions are all deleted has none."""
    result = index("rebuild", "--user", "bab")
    assert (result.exit_code, result.stderr) == (0, "User bab has no sessions.\n")


def test_status_tells_what_has_no_vector_and_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = IndexReport(
        mode="hybrid",
        sources=2,
        incomplete=0,
        documents=1200,
        pending=1000,
        unembedded=3,
        last_error=LastError(1_700_000_000_000, "embedding", "EmbeddingFailed"),
    )

    async def status(_: IndexService) -> IndexReport:
        return report

    monkeypatch.setattr(IndexService, "status", status)
    shown = said("status")
    assert "1,000+ texts wait for a vector: a running server makes them; `holdfast embeddings check` tests" in shown
    assert "3 texts cannot be embedded" in shown
    assert "embedding failed at 2023-11-14" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--session", "s"), "several users have a session"),
        (("--session", "none"), "no session"),
        (("--user", "ada", "--session", "none"), "no session"),
    ],
)
def test_a_rebuild_of_what_is_not_there_says_so(args: tuple[str, ...], message: str) -> None:
    result = index("rebuild", *args)
    assert result.exit_code == 1
    assert message in result.output


def test_without_an_index_both_say_so(here: Path) -> None:
    (here / "holdfast.yaml").write_text("storage: {index: {enabled: false}}\n")
    for command in ("status", "rebuild"):
        result = index(command)
        assert (result.exit_code, "storage.index.enabled" in result.output) == (1, True)
    assert not (here / "holdfast.index.db").exists()


def test_an_index_lies_where_the_configuration_says(here: Path) -> None:
    provider = "{type: chromem, chromem: {persist_path: .hector/memory_vectors, compress: true}}"
    (here / "holdfast.yaml").write_text(f"storage: {{memory: {{backend: keyword, vector_provider: {provider}}}}}\n")
    said("rebuild")
    assert (here / ".hector" / "memory_vectors" / "holdfast.index.db").exists()
    assert not (here / "holdfast.index.db").exists()


def test_a_file_that_is_no_index_is_an_error_that_says_so(here: Path) -> None:
    (here / "holdfast.index.db").write_text("no database" * 1000)
    result = index("status")
    assert result.exit_code == 1
    assert "Traceback" not in result.output


async def test_a_server_tells_how_its_index_is_doing() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "ada"})
        await served.http.post("/v1/sessions/s/messages", json={"messages": [{"role": "user", "content": "tea"}]})
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        status = (await served.http.get("/v1/index")).json()
        assert (status["object"], status["enabled"], status["documents"]) == ("index", True, 1)
        metrics = (await served.http.get("/metrics")).text
        assert "holdfast_index_entries_total 1.0" in metrics
        assert "holdfast_index_waiting 0.0" in metrics


async def test_who_is_one_user_learns_nothing_of_the_index_of_all() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        one, everybody = await made(served.hf, user_id="ada"), await made(served.hf)
        assert (await served.http.get("/v1/index", headers=bearer(one))).status_code == 403
        assert (await served.http.get("/v1/index", headers=bearer(everybody))).status_code == 200

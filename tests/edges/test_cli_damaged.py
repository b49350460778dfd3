"""Commands continue past a damaged session and name it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import commands
from holdfast.domain.session import SessionRef
from tests.stores.damage_kit import NO_JSON, damage_message, damage_profile, store_with_damaged_text

BAD = SessionRef("ada", "bad")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A file with one damaged and one intact session."""
    url = f"sqlite:///{tmp_path}/chat.db"

    async def fill() -> None:
        async with holdfast.open(url) as hf:
            for name in ("bad", "good"):
                await (await hf.session(name, user_id="ada")).append(f"the harbour of {name}")
            await damage_profile(hf.store, BAD, metadata=NO_JSON)

    asyncio.run(fill())
    return url


@pytest.mark.parametrize("column", ["agent", "id", "user_id"])
def test_invalid_utf8_text_is_reported(tmp_path: Path, column: str) -> None:
    store = asyncio.run(store_with_damaged_text(tmp_path, column))
    verified = run("sessions", "verify", "--all", "--store", store)
    assert verified.exit_code == 1
    assert f"{column} damaged" in verified.stderr
    exported = run("sessions", "export", "--all", "--store", store)
    assert exported.exit_code == 1
    assert [json.loads(text)["id"] for text in exported.stdout.splitlines()] == ["good"]
    rebuilt = run("index", "rebuild", "--store", store)
    assert rebuilt.exit_code == 0
    assert "is damaged and was skipped" in rebuilt.stderr


def run(*args: str) -> Result:
    return CliRunner().invoke(commands, args, prog_name="holdfast")


def test_verify_all_names_the_damaged_session(store: str) -> None:
    result = run("sessions", "verify", "--all", "--store", store)
    assert result.exit_code == 1
    assert "session bad of user ada: corrupt" in result.stdout
    assert "Verified 1 session" in result.stdout


def test_export_all_skips_the_damaged_session(store: str) -> None:
    result = run("sessions", "export", "--all", "--store", store)
    assert result.exit_code == 1
    assert [json.loads(text)["id"] for text in result.stdout.splitlines()] == ["good"]
    assert "Skipped: session 'bad' of user 'ada'" in result.stderr


def test_index_rebuild_skips_the_damaged_session(store: str) -> None:
    result = run("index", "rebuild", "--store", store)
    assert result.exit_code == 0
    assert "Rebuilt 1 session" in result.stdout
    assert "session bad of user ada is damaged" in result.stderr


def test_search_skips_a_session_that_was_damaged_since(store: str) -> None:
    async def damage() -> None:
        async with holdfast.open(store) as hf:
            await (await hf.session("other", user_id="ada")).append("the harbour of other")
            await damage_message(hf.store, SessionRef("ada", "good"), 0)

    asyncio.run(damage())
    result = run("search", "harbour", "--user", "ada", "--store", store)
    assert (result.exit_code, "harbour of other" in result.stdout) == (0, True)
    assert "session 'good' is damaged: left out" in result.stdout + result.stderr


def test_damaged_session_can_be_listed_and_deleted(store: str) -> None:
    assert "bad" in run("sessions", "list", "--store", store).stdout
    assert run("sessions", "delete", "bad", "--user", "ada", "--yes", "--store", store).exit_code == 0
    assert run("sessions", "verify", "--all", "--store", store).exit_code == 0


def test_doctor_names_the_damaged_session(store: str) -> None:
    assert "session 'bad' of user 'ada'" in run("doctor", "--store", store).stdout

"""`holdfast memories consolidate` and `diary` promote and report the same as a server and the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.domain.memory import Owner
from holdfast.holdfast import Holdfast

USERS = ("ann", "bob")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store in which two users have one memory each that qualifies, and ann one that does not."""
    url = f"sqlite:///{tmp_path}/s.db"

    async def make() -> None:
        async with Holdfast(url) as hf:
            for user in USERS:
                await hf.memories.remember(f"Tea of {user} is at five", user_id=user)
                for query in ("when is tea", "tea or coffee", "tea at five"):
                    await hf.memories.recall(query, user_id=user)
            await hf.memories.remember("Kayaks are blue", user_id="ann")
            await hf.memories.recall("kayaks", user_id="ann")

    anyio.run(make)
    return url


def memories(url: str, *args: str) -> Result:
    return CliRunner().invoke(commands, ["memories", *args, "--store", url])


def read_output(url: str, *args: str) -> str:
    result = memories(url, *args)
    assert result.exit_code == 0, result.output
    return result.stdout


def read_json(url: str, *args: str) -> Any:
    return json.loads(read_output(url, *args, "--json"))


def read_diary(url: str) -> list[dict[str, Any]]:
    """Return the sweeps over the memories of the user ann."""

    async def read() -> list[dict[str, Any]]:
        async with Holdfast(url) as hf:
            return await hf.consolidation.diary(Owner("user", "ann"))

    return anyio.run(read)


def test_dry_run_predicts_the_sweep_and_the_diary_records_it(store: str) -> None:
    dry = read_json(store, "consolidate", "--user", "ann", "--dry-run")
    assert (dry["written"], dry["promotions"]) == (False, 1)
    assert read_diary(store) == []
    done = read_json(store, "consolidate", "--user", "ann")
    assert (done["written"], done["promotions"]) == (True, 1)
    assert done["candidates"] == dry["candidates"]
    (entry,) = read_diary(store)
    assert entry["candidates"] == done["candidates"]
    assert read_json(store, "consolidate", "--user", "ann")["written"] is False


def test_output_explains_each_promotion(store: str) -> None:
    text = read_output(store, "consolidate", "--user", "ann")
    assert "1 promoted" in text
    assert "Tea of ann is at five" in text
    assert "1 recall, 1 question, 1 day; 1 of 3 recalls; 1 of 2 different questions" in text
    assert "Kayaks are blue" in text
    assert "would be promoted" in read_output(store, "consolidate", "--user", "bob", "--dry-run")


def test_all_sweeps_every_owner_and_names_each(store: str) -> None:
    assert [one["promotions"] for one in read_json(store, "consolidate", "--all")] == [1, 1]
    text = read_output(store, "consolidate", "--all")
    assert "user ann:" in text
    assert "user bob:" in text


def test_empty_results_are_reported(store: str) -> None:
    assert read_output(store, "consolidate", "--app") == "No memory was recalled.\n"


@pytest.mark.parametrize("whose", [("--user", "ann"), ("--agent", "desk"), ("--app",)])
def test_all_cannot_be_combined_with_an_owner(store: str, whose: tuple[str, ...]) -> None:
    assert memories(store, "consolidate", "--all", *whose).exit_code == 2

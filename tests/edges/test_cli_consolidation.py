"""`holdfast memories consolidate` and `diary` promote and report the same as a server and the library."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.agents import Llm, Roster
from holdfast.cli import commands
from holdfast.config.build import BUILDERS
from holdfast.holdfast import Holdfast
from tests.service.memories_kit import MergingModel, format_merges

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


def test_dry_run_predicts_the_sweep_and_the_diary_records_it(store: str) -> None:
    dry = read_json(store, "consolidate", "--user", "ann", "--dry-run")
    assert (dry["written"], dry["promotions"]) == (False, 1)
    assert read_json(store, "diary", "--user", "ann") == []
    done = read_json(store, "consolidate", "--user", "ann")
    assert (done["written"], done["promotions"]) == (True, 1)
    assert done["candidates"] == dry["candidates"]
    (entry,) = read_json(store, "diary", "--user", "ann")
    assert entry["candidates"] == done["candidates"]
    assert read_json(store, "consolidate", "--user", "ann")["written"] is False


def test_output_explains_each_promotion(store: str) -> None:
    text = read_output(store, "consolidate", "--user", "ann")
    assert "1 promoted" in text
    assert "Tea of ann is at five" in text
    assert "1 recall, 1 question, 1 day; 1 of 3 recalls; 1 of 2 different questions" in text
    diary = read_output(store, "diary", "--user", "ann")
    assert "Kayaks are blue" in diary
    assert "1 promoted" in diary
    assert "would be promoted" in read_output(store, "consolidate", "--user", "bob", "--dry-run")


def test_all_sweeps_every_owner_and_names_each(store: str) -> None:
    assert [one["promotions"] for one in read_json(store, "consolidate", "--all")] == [1, 1]
    text = read_output(store, "consolidate", "--all")
    assert "user ann:" in text
    assert "user bob:" in text


def test_forgotten_memory_is_hidden_in_the_diary(store: str) -> None:
    (candidate, _) = read_json(store, "consolidate", "--user", "ann")["candidates"]
    read_output(store, "forget", candidate["memory_id"])
    diary = read_output(store, "diary", "--user", "ann")
    assert "(forgotten)" in diary
    assert "Tea" not in diary


def test_empty_results_are_reported(store: str) -> None:
    assert read_output(store, "consolidate", "--app") == "No memory was recalled.\n"
    assert memories(store, "diary", "--app").stderr == "No consolidation of memories of the app has written anything.\n"


@pytest.mark.parametrize("whose", [("--user", "ann"), ("--agent", "desk"), ("--app",)])
def test_all_cannot_be_combined_with_an_owner(store: str, whose: tuple[str, ...]) -> None:
    assert memories(store, "consolidate", "--all", *whose).exit_code == 2


def test_proposed_merges_are_shown_with_review_instructions(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def another() -> None:
        async with Holdfast(store) as hf:
            await hf.memories.remember("Every day ann takes tea with milk at five", user_id="ann")
            for query in ("ann tea", "milk at five", "who takes tea"):
                await hf.memories.recall(query, user_id="ann")

    anyio.run(another)
    model = MergingModel(lambda ids: format_merges(ids, "Tea of ann is at five"))
    roster = Roster({"tidy": Llm(name="tidy", model="m", client=model)})
    monkeypatch.setattr("holdfast.config.build.BUILDERS", {**BUILDERS, "roster": lambda _: roster})
    config = tmp_path / "holdfast.yaml"
    config.write_text("dreaming: {model: tidy}\n")
    text = read_output(store, "consolidate", "--user", "ann", "--config", str(config))
    found = re.search(r"holdfast memories review (mem_[0-9a-f]{32}) accept", text)
    assert found is not None, text
    assert found[1] in read_output(store, "review", "--user", "ann")
    assert "active" in read_output(store, "review", found[1], "accept")
    assert found[1] in read_output(store, "diary", "--user", "ann")

"""`holdfast memories` remembers, recalls, changes, reviews and forgets the same memories as a server and the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.domain.memory import MemorySource
from holdfast.holdfast import Holdfast
from tests.service.embeddings_stub import serving

ANN = ("--user", "ann")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    return f"sqlite:///{tmp_path}/s.db"


def memories(url: str, *args: str) -> Result:
    return CliRunner().invoke(commands, ["memories", *args, "--store", url])


def read_output(url: str, *args: str) -> str:
    """Return the output of a successful command."""
    result = memories(url, *args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def read_json(url: str, *args: str) -> Any:
    """Return the JSON output of a successful command."""
    return json.loads(read_output(url, *args, "--json"))


def plant_memory(url: str, content: str) -> str:
    """Store a memory whose origin is a tool result."""

    async def make() -> str:
        async with Holdfast(url) as hf:
            source = MemorySource(session_id="s", user_id="ann", seqs=(3, 4), origin="tool")
            return (await hf.memories.remember(content, user_id="ann", sources=[source])).memory.id

    return anyio.run(make)


def test_command_line_recall_does_not_count_for_consolidation(store: str) -> None:
    read_output(store, "remember", "Ann likes tea", *ANN)
    read_output(store, "recall", "tea", *ANN)

    async def signals() -> int:
        from holdfast.domain.memory import Owner

        async with Holdfast(store) as hf:
            return len(await hf.store.signals(Owner("user", "ann")))

    assert anyio.run(signals) == 0


def test_lists_have_filters_and_pages(store: str) -> None:
    for number in range(3):
        read_output(store, "remember", f"fact number {number}", *ANN, *(("--tag", "odd") if number % 2 else ()))
    read_output(store, "remember", "a fact for all", "--app")
    read_output(store, "remember", "a fact of the desk", "--agent", "desk")
    assert [one["content"][-1] for one in read_json(store, "list", "--limit", "2", *ANN)] == ["0", "1"]
    last = read_json(store, "list", "--limit", "2", *ANN)[-1]["id"]
    assert [one["content"][-1] for one in read_json(store, "list", "--after", last, *ANN)] == ["2"]
    assert [one["content"][-1] for one in read_json(store, "list", "--tag", "odd", *ANN)] == ["1"]
    assert [one["content"] for one in read_json(store, "list", "--app")] == ["a fact for all"]
    assert [one["content"] for one in read_json(store, "list", "--agent", "desk")] == ["a fact of the desk"]
    assert "There are more: continue with --after" in memories(store, "list", "--limit", "2", *ANN).stderr
    assert len(read_json(store, "recall", "fact", "--agent", "desk", *ANN)) == 5


def test_held_memories_are_reviewed_with_their_source(store: str) -> None:
    one, other = plant_memory(store, "Ann pays to account 7"), plant_memory(store, "Ann pays to account 8")
    listed = read_output(store, "review", *ANN)
    assert one in listed
    assert "s #3,#4" in listed
    assert read_output(store, "review", one, "accept") == f"{one} is active."
    assert read_json(store, "review", other, "reject")["status"] == "rejected"
    assert read_json(store, "review", *ANN) == []
    assert memories(store, "review", one).exit_code == 2


def test_memories_of_a_session_are_forgotten_together(store: str) -> None:
    plant_memory(store, "Ann pays to account 7")
    assert read_output(store, "forget", "--session", "s", "--user", "bob") == "Forgot 0 memories."
    assert read_output(store, "forget", "--session", "s", *ANN) == "Forgot 1 memory."


def test_list_does_not_create_a_missing_store(store: str) -> None:
    assert memories(store, "list").exit_code != 0
    assert not Path(store.removeprefix("sqlite:///")).exists()


def test_empty_list_names_its_owner(store: str) -> None:
    read_output(store, "remember", "Ann likes tea", *ANN)
    assert memories(store, "list").stderr == "No memories of user default.\n"
    assert memories(store, "review", "--app").stderr == "No memories of the app.\n"


def test_empty_results_name_the_owner(store: str) -> None:
    """A typo in the name looks the same."""
    read_output(store, "remember", "Ann likes tea", *ANN)
    assert memories(store, "recall", "tea", "--user", "an").stderr == "No memory of user an or the app matches.\n"
    assert memories(store, "recall", "tea", "--app").stderr == "No memory of the app matches.\n"
    none = "No memory has session s of user an as its only source.\n"
    assert memories(store, "forget", "--session", "s", "--user", "an").stderr == none
    result = memories(store, "remember", "x", "--app", *ANN)
    assert result.stderr.endswith("--app and --user exclude each other: --app means memories that all users share\n")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a configuration with one agent."""
    monkeypatch.chdir(tmp_path)
    Path("holdfast.yaml").write_text("agents: {writer: {memory: {enabled: true}}}\n", encoding="utf-8")


@pytest.mark.usefixtures("configured")
def test_unconfigured_agent_is_reported(store: str) -> None:
    """When a memory is stored for it and when nothing is found; another program may still have that agent."""
    doubt = "The configuration has no agent writr; did you mean writer?\n"
    assert memories(store, "remember", "short sentences", "--agent", "writr").stderr == doubt
    assert memories(store, "list", "--agent", "writr").stderr == ""
    read_output(store, "forget", read_json(store, "list", "--agent", "writr")[0]["id"])
    assert memories(store, "list", "--agent", "writr", "--json").stderr == doubt
    for args in (("list",), ("review",), ("recall", "tea"), ("consolidate",)):
        assert doubt in memories(store, *args, "--agent", "writr").stderr, args
        assert "The configuration" not in memories(store, *args, "--agent", "writer").stderr, args
    assert memories(store, "list", "--agent", "zebra").stderr.startswith(
        "The configuration has no agent zebra; its agents are writer\n"
    )


def test_list_combines_agent_and_user(store: str) -> None:
    read_output(store, "remember", "Ann likes tea", "--agent", "desk", *ANN)
    read_output(store, "remember", "Ann lives in Porto", *ANN)
    assert [one["content"] for one in read_json(store, "list", "--agent", "desk", *ANN)] == ["Ann likes tea"]
    assert read_json(store, "list", "--agent", "else", *ANN) == []
    assert len(read_json(store, "list", *ANN)) == 2


def test_expired_memory_is_stored_with_a_warning(store: str) -> None:
    result = memories(store, "remember", "Ann flies to Oslo", "--until", "2020-01-02", *ANN)
    assert (result.exit_code, "recall does not return it" in result.stderr) == (0, True)
    assert read_json(store, "recall", "oslo", *ANN) == []
    assert memories(store, "remember", "Ann flies to Rome", "--until", "2999-01-02", *ANN).stderr == ""


@pytest.mark.usefixtures("configured")
def test_changes_are_written_to_the_workspace(store: str, tmp_path: Path) -> None:
    """Without a server: superseded, rejected and forgotten memories leave the file at once."""
    Path("holdfast.yaml").write_text("hooks: {workspace_git: true}\n", encoding="utf-8")
    file = tmp_path / "workspaces" / "writer" / "MEMORY.ann.md"
    mine = ("--agent", "writer", *ANN)
    for text in ("My favourite colour is blue", "Sentences are short", "My favourite food is soup"):
        read_output(store, "remember", text, *mine)

    async def recall_memories() -> None:
        async with Holdfast(store) as hf:
            for word in ("colour", "sentences", "food"):
                for query in (word, f"{word} walnut", f"{word} zephyr"):
                    await hf.memories.recall(query, user_id="ann")

    anyio.run(recall_memories)
    read_output(store, "consolidate", *mine)
    assert [word in file.read_text() for word in ("blue", "short", "soup")] == [True, True, True]
    ids = {one["content"]: one["id"] for one in read_json(store, "list", *mine)}
    read_output(store, "forget", ids["My favourite colour is blue"])
    read_output(store, "remember", "My favourite food is bread", *mine)
    assert [word in file.read_text() for word in ("blue", "short", "soup")] == [False, True, False]


async def test_memories_added_without_a_server_are_found_by_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command ends when its memory has a vector, since there may be no server to add it later."""
    monkeypatch.chdir(tmp_path)
    async with serving() as stub:
        embedders = f"embedders: {{mine: {{base_url: {stub.url}, model: m}}}}"
        config = f"{embedders}\nstorage: {{memory: {{backend: vector, embedder: mine}}}}\n"
        await anyio.Path("holdfast.yaml").write_text(config, encoding="utf-8")
        places = f"sqlite:///{tmp_path}/s.db"

        async def read_json_in_thread(*args: str) -> Any:
            return await anyio.to_thread.run_sync(lambda: read_json(places, *args))

        one = await read_json_in_thread("remember", "Ann likes tea", *ANN)
        assert stub.inputs == [["Ann likes tea"]]
        assert [hit["id"] for hit in await read_json_in_thread("recall", "Ann likes tea", *ANN)] == [one["id"]]

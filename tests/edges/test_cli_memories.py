"""`holdfast memories`: what it remembers, recalls, changes, reviews and forgets is what a server and the library have."""

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
    """A store with nothing in it."""
    return f"sqlite:///{tmp_path}/s.db"


def memories(url: str, *args: str) -> Result:
    return CliRunner().invoke(commands, ["memories", *args, "--store", url])


def said(url: str, *args: str) -> str:
    """What a command that works says."""
    result = memories(url, *args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def told(url: str, *args: str) -> Any:
    """The same as JSON."""
    return json.loads(said(url, *args, "--json"))


def planted(url: str, content: str) -> str:
    """A memory that a tool's result brought."""

    async def make() -> str:
        async with Holdfast(url) as hf:
            source = MemorySource(session_id="s", user_id="ann", seqs=(3, 4), origin="tool")
            return (await hf.memories.remember(content, user_id="ann", sources=[source])).memory.id

    return anyio.run(make)


def test_remember_recall_update_and_forget(store: str) -> None:
    one = told(store, "remember", "Ann", "likes", "tea", "--tag", "drink", "--type", "user", *ANN)
    assert (one["outcome"], one["content"], one["tags"], one["type"]) == ("new", "Ann likes tea", ["drink"], "user")
    assert said(store, "remember", "ann likes tea.", *ANN) == f"Merged into {one['id']}."
    assert "Ann likes tea" in said(store, "recall", "what", "tea?", *ANN)
    assert [hit["id"] for hit in told(store, "recall", "tea", *ANN)] == [one["id"]]
    assert told(store, "recall", "tea", "--user", "bob") == []
    assert f"Replaced {one['id']} by" in said(store, "update", one["id"], "--content", "Ann likes gin")
    (newer,) = told(store, "recall", "gin", *ANN)
    assert newer["supersedes"] == [one["id"]]
    assert "origin       user, trust 1" in said(store, "show", newer["id"])
    assert said(store, "forget", newer["id"]) == "Forgot 2 memories."
    assert told(store, "list", *ANN) == []


def test_a_recall_from_here_is_none_that_dreams_go_by(store: str) -> None:
    said(store, "remember", "Ann likes tea", *ANN)
    said(store, "recall", "tea", *ANN)

    async def signals() -> int:
        from holdfast.domain.memory import Owner

        async with Holdfast(store) as hf:
            return len(await hf.store.signals(Owner("user", "ann")))

    assert anyio.run(signals) == 0


def test_lists_have_filters_and_pages(store: str) -> None:
    for number in range(3):
        said(store, "remember", f"fact number {number}", *ANN, *(("--tag", "odd") if number % 2 else ()))
    said(store, "remember", "a fact for all", "--app")
    said(store, "remember", "a fact of the desk", "--agent", "desk")
    assert [one["content"][-1] for one in told(store, "list", "--limit", "2", *ANN)] == ["0", "1"]
    last = told(store, "list", "--limit", "2", *ANN)[-1]["id"]
    assert [one["content"][-1] for one in told(store, "list", "--after", last, *ANN)] == ["2"]
    assert [one["content"][-1] for one in told(store, "list", "--tag", "odd", *ANN)] == ["1"]
    assert [one["content"] for one in told(store, "list", "--app")] == ["a fact for all"]
    assert [one["content"] for one in told(store, "list", "--agent", "desk")] == ["a fact of the desk"]
    assert "There are more: continue with --after" in memories(store, "list", "--limit", "2", *ANN).stderr
    assert len(told(store, "recall", "fact", "--agent", "desk", *ANN)) == 5


def test_what_is_held_is_listed_with_where_it_comes_from_and_decided(store: str) -> None:
    one, other = planted(store, "Ann pays to account 7"), planted(store, "Ann pays to account 8")
    listed = said(store, "review", *ANN)
    assert one in listed
    assert "s #3,#4" in listed
    assert said(store, "review", one, "accept") == f"{one} is active."
    assert told(store, "review", other, "reject")["status"] == "rejected"
    assert told(store, "review", *ANN) == []
    assert memories(store, "review", one).exit_code == 2


def test_what_came_from_a_session_is_forgotten_together(store: str) -> None:
    planted(store, "Ann pays to account 7")
    assert said(store, "forget", "--session", "s", "--user", "bob") == "Forgot 0 memories."
    assert said(store, "forget", "--session", "s", *ANN) == "Forgot 1 memory."


def test_nothing_stored_reaches_the_terminal_as_more_than_text(store: str) -> None:
    one = planted(store, "tea \x1b[31mred\x07\u202e gin")
    for args in (("show", one), ("list", *ANN), ("review", *ANN), ("recall", "tea", *ANN)):
        shown = said(store, *args)
        assert "tea" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.mark.parametrize(
    "args",
    [
        ("forget",),
        ("forget", "mem_1", "--session", "s"),
        ("update", "mem_1"),
        ("remember", "x", "--app", "--user", "ann"),
        ("remember", "x", "--type", "odd"),
        ("remember", "x", "--importance", "7"),
        ("remember", "x", "--until", "soon"),
        ("recall", "x", "--mode", "vector"),
        ("recall",),
    ],
)
def test_what_cannot_be_asked_is_told(store: str, args: tuple[str, ...]) -> None:
    said(store, "remember", "Ann likes tea", *ANN)
    result = memories(store, *args)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("args", [("show", "mem_1"), ("forget", "mem_1"), ("review", "mem_1", "accept")])
def test_a_memory_that_is_not_there_is_told(store: str, args: tuple[str, ...]) -> None:
    said(store, "remember", "Ann likes tea", *ANN)
    result = memories(store, *args)
    assert (result.exit_code, "there is no memory" in result.output) == (1, True)


def test_a_store_that_is_not_there_is_not_made_by_a_look(store: str) -> None:
    assert memories(store, "list").exit_code != 0
    assert not Path(store.removeprefix("sqlite:///")).exists()


def test_a_list_of_nobody_says_whose_it_is(store: str) -> None:
    said(store, "remember", "Ann likes tea", *ANN)
    assert memories(store, "list").stderr == "No memories of user default.\n"
    assert memories(store, "review", "--app").stderr == "No memories of the app.\n"


def test_what_nobody_has_says_whose_was_looked_at(store: str) -> None:
    """A typo looks like that, too."""
    said(store, "remember", "Ann likes tea", *ANN)
    assert memories(store, "recall", "tea", "--user", "an").stderr == "No memory of user an or the app matches.\n"
    assert memories(store, "recall", "tea", "--app").stderr == "No memory of the app matches.\n"
    none = "No memory has session s of user an as its only source.\n"
    assert memories(store, "forget", "--session", "s", "--user", "an").stderr == none
    result = memories(store, "remember", "x", "--app", *ANN)
    assert result.stderr.endswith("--app and --user exclude each other: --app means memories that all users share\n")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration with one agent."""
    monkeypatch.chdir(tmp_path)
    Path("holdfast.yaml").write_text("agents: {writer: {memory: {enabled: true}}}\n", encoding="utf-8")


@pytest.mark.usefixtures("configured")
def test_an_agent_that_the_configuration_does_not_have_is_told(store: str) -> None:
    """Where it would be remembered for nobody, and where nothing is found; a program may have it all the same."""
    doubt = "The configuration has no agent writr; did you mean writer?\n"
    assert memories(store, "remember", "short sentences", "--agent", "writr").stderr == doubt
    assert memories(store, "list", "--agent", "writr").stderr == ""
    said(store, "forget", told(store, "list", "--agent", "writr")[0]["id"])
    assert memories(store, "list", "--agent", "writr", "--json").stderr == doubt
    for args in (("list",), ("review",), ("recall", "tea"), ("dream",), ("diary",)):
        assert doubt in memories(store, *args, "--agent", "writr").stderr, args
        assert "The configuration" not in memories(store, *args, "--agent", "writer").stderr, args
    assert memories(store, "list", "--agent", "zebra").stderr.startswith(
        "The configuration has no agent zebra; its agents are writer\n"
    )


def test_a_list_is_of_what_the_agent_remembered_for_the_user(store: str) -> None:
    said(store, "remember", "Ann likes tea", "--agent", "desk", *ANN)
    said(store, "remember", "Ann lives in Porto", *ANN)
    assert [one["content"] for one in told(store, "list", "--agent", "desk", *ANN)] == ["Ann likes tea"]
    assert told(store, "list", "--agent", "else", *ANN) == []
    assert len(told(store, "list", *ANN)) == 2


def test_what_holds_no_more_is_remembered_and_said_to_be_so(store: str) -> None:
    result = memories(store, "remember", "Ann flies to Oslo", "--until", "2020-01-02", *ANN)
    assert (result.exit_code, "recall does not return it" in result.stderr) == (0, True)
    assert told(store, "recall", "oslo", *ANN) == []
    assert memories(store, "remember", "Ann flies to Rome", "--until", "2999-01-02", *ANN).stderr == ""


@pytest.mark.usefixtures("configured")
def test_what_is_changed_here_is_what_the_workspace_says(store: str, tmp_path: Path) -> None:
    """No server is needed for that: what is superseded or rejected leaves the file at once, as what is forgotten does."""
    settings = "hooks: {workspace_git: true}\ndreaming: {min_recalls: 1, min_queries: 1, min_score: 0.1}\n"
    Path("holdfast.yaml").write_text(settings, encoding="utf-8")
    file = tmp_path / "workspaces" / "writer" / "MEMORY.ann.md"
    mine = ("--agent", "writer", *ANN)
    for text in ("My favourite colour is blue", "Sentences are short", "My favourite food is soup"):
        said(store, "remember", text, *mine)

    async def asked() -> None:
        async with Holdfast(store) as hf:
            for query in ("colour", "sentences", "food"):
                await hf.memories.recall(query, user_id="ann")

    anyio.run(asked)
    said(store, "dream", *mine)
    assert [word in file.read_text() for word in ("blue", "short", "soup")] == [True, True, True]
    ids = {one["content"]: one["id"] for one in told(store, "list", *mine)}
    said(store, "update", ids["My favourite colour is blue"], "--content", "My favourite colour is green")
    said(store, "remember", "My favourite food is bread", *mine)
    assert [word in file.read_text() for word in ("blue", "short", "soup")] == [False, True, False]


async def test_what_is_remembered_without_a_server_is_found_by_what_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command ends when what it wrote has a vector: nobody may be there to make it behind."""
    monkeypatch.chdir(tmp_path)
    async with serving() as stub:
        embedders = f"embedders: {{mine: {{base_url: {stub.url}, model: m}}}}"
        config = f"{embedders}\nstorage: {{memory: {{backend: vector, embedder: mine}}}}\n"
        await anyio.Path("holdfast.yaml").write_text(config, encoding="utf-8")
        places = f"sqlite:///{tmp_path}/s.db"

        async def told_by(*args: str) -> Any:
            return await anyio.to_thread.run_sync(lambda: told(places, *args))

        one = await told_by("remember", "Ann likes tea", *ANN)
        assert stub.inputs == [["Ann likes tea"]]
        assert [hit["id"] for hit in await told_by("recall", "Ann likes tea", *ANN)] == [one["id"]]
        newer = await told_by("update", one["id"], "--content", "Ann likes gin")
        assert [hit["id"] for hit in await told_by("recall", "Ann likes gin", *ANN)] == [newer["id"]]

"""Statements of document 002 about whole configuration files, databases, and agents that work together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import answer_of, assistant, gateway, texts, user
from tests.behaviour.kit.examples import (
    CHOICES,
    EMBEDDER,
    KEYWORD,
    PRODUCTION,
    SQLITE,
    TEAM,
    VECTOR,
    check_accepted,
)
from tests.behaviour.kit.receivers import embedder
from tests.behaviour.kit.seams import fresh_store

TO = {
    name: Reply(tool_calls=[("transfer_to_agent", {"agent_name": name})])
    for name in ("coordinator", "researcher", "writer")
}


def tools_of(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.body.get("tools", [])]


@pytest.mark.parametrize(("name", "kept"), [("short conversations", 20), ("long conversations", 41), ("low cost", 4)])
async def test_002_87_a_context_at_the_top_level_is_accepted_as_written(tmp_path: Path, name: str, kept: int) -> None:
    await check_accepted(tmp_path, CHOICES[name])
    long = "word " * (2_000 if name == "low cost" else 5)
    async with gateway(["Done."], CHOICES[name]) as served:
        past = [(user, assistant)[at % 2](f"{at} {long}") for at in range(40)]
        await served.rest.given("s", *past)
        await served.chat("And now?")
        sent = texts(served.upstream.requests[0].body["messages"])
        whole = [text for text in sent if text in {one["content"] for one in past}]
        assert len(sent) == kept
        assert whole == [one["content"] for one in past[40 - len(whole) :]]


@pytest.mark.parametrize(("block", "mode"), [(KEYWORD, "keyword"), (EMBEDDER + VECTOR, "hybrid")])
async def test_002_88_index_examples_are_accepted_as_written(tmp_path: Path, block: str, mode: str) -> None:
    await check_accepted(tmp_path, block)
    async with embedder(ferry=0, boat=0, train=1) as endpoint:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": endpoint.url}
        async with gateway(["Noon."], block, env=env) as served:
            await served.rest.given("s", user("When does the ferry leave?"), user("And the train?"))
            found = await served.rest.search("boat")
            assert [hit["snippet"] for hit in found[:1]] == (
                [] if mode == "keyword" else ["When does the ferry leave?"]
            )


@pytest.mark.parametrize("kind", ["memory", "file", "postgres", "mysql"])
async def test_002_89_four_databases_can_be_chosen(kind: str, tmp_path: Path) -> None:
    with fresh_store(kind, tmp_path) as url:
        for said, count in (("Hi.", 2), ("Again.", 2 if kind == "memory" else 4)):
            async with gateway(["Hello."], store=url) as served:
                assert (await served.chat(said))["status"] == 200
                assert len(await served.rest.session("s").messages()) == count


async def test_002_90_the_sqlite_example_is_accepted_and_creates_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_accepted(tmp_path, SQLITE)
    monkeypatch.chdir(tmp_path)
    for count in (2, 4):
        async with gateway(["Hello."], SQLITE, store="") as served:
            await served.chat("Hi.")
            assert len(await served.rest.session("s").messages()) == count
    assert (tmp_path / ".hector/hector.db").is_file()


async def served_in_production(tmp_path: Path, block: str) -> tuple[list[Any], Any]:
    """Serve the production example on PostgreSQL; return the session that has a word of this meaning, and a reply."""
    await check_accepted(tmp_path, block)
    async with embedder(ferry=0, boat=0, train=1) as endpoint:
        env = {
            "OPENAI_API_KEY": "sk",
            "OPENAI_BASE_URL": endpoint.url,
            "DB_HOST": "h",
            "DB_USER": "u",
            "DB_PASSWORD": "p",
        }
        async with gateway(["Noon."], block, store="postgres", env=env) as served:
            await served.rest.given("train", user("And the train?"))
            reply = await served.chat("When does the ferry leave?", "ferry", model="assistant")
            return [hit["session_id"] for hit in await served.rest.search("boat", limit=1)], reply


async def test_002_91_the_production_example_is_accepted_as_written(tmp_path: Path) -> None:
    hits, reply = await served_in_production(tmp_path, PRODUCTION)
    assert answer_of(reply) == "Noon."
    assert reply["session"]["agent"] == "assistant"
    assert reply["session"]["working_set"]["budget"] == 8000
    assert hits == ["ferry"]


async def test_002_92_its_index_is_a_vector_index_with_an_embedder(tmp_path: Path) -> None:
    block = PRODUCTION[: PRODUCTION.index("agents:")]
    hits, _ = await served_in_production(tmp_path, block)
    assert hits == ["ferry"]
    hits, _ = await served_in_production(
        tmp_path, block.replace("type: vector\n    embedder: default", "type: keyword")
    )
    assert hits == []


async def test_002_93_the_example_of_a_team_is_accepted_as_written(tmp_path: Path) -> None:
    await check_accepted(tmp_path, TEAM)
    async with gateway(["Hello."], TEAM) as served:
        reply = await served.chat("Hi.", model="coordinator")
        assert (answer_of(reply), reply["session"]["agent"]) == ("Hello.", "coordinator")


async def test_002_94_an_agent_hands_over_to_its_sub_agents() -> None:
    async with gateway([TO["researcher"], "Found.", TO["writer"], "Written."], TEAM) as served:
        reply = await served.chat("Look it up.", model="coordinator")
        assert (answer_of(reply), reply["session"]["agent"]) == ("Found.", "researcher")
        reply = await served.chat("Write it down.", model="coordinator")
        assert (answer_of(reply), reply["session"]["agent"]) == ("Written.", "writer")


@pytest.mark.parametrize(
    ("statement", "agent", "tool"),
    [
        pytest.param("002-95", "researcher", "search_conversations", id="002-95"),
        pytest.param("002-96", "writer", "text_editor", id="002-96"),
    ],
)
async def test_002_95_96_a_tool_of_an_agent_is_offered_to_its_model_only(statement: str, agent: str, tool: str) -> None:
    async with gateway(["Hello."] * 2, TEAM) as served:
        await served.chat("Hi.", "one", model=agent)
        await served.chat("Hi.", "two", model="coordinator")
        assert [tool in tools_of(request) for request in served.upstream.requests] == [True, False], statement


async def test_002_97_each_agent_has_its_own_window() -> None:
    async with gateway([TO["researcher"], "Found.", "More."], TEAM) as served:
        past = [(user, assistant)[at % 2](f"message {at}") for at in range(41)]
        await served.rest.given("s", *past, agent="coordinator")
        await served.chat("Look it up.", model="coordinator")
        await served.chat("And more.", model="coordinator")
        seen = [str(request.body["messages"]).count("message ") for request in served.upstream.requests]
        assert len(served.upstream.requests[0].body["messages"]) == 30
        assert seen[0] > seen[1] > seen[2]
        assert len(served.upstream.requests[2].body["messages"]) <= 20


async def test_002_98_agents_that_work_together_share_one_session() -> None:
    script = [TO["researcher"], "Found.", TO["writer"], "Written."]
    async with gateway(script, TEAM) as served:
        await served.chat("Look it up.", model="coordinator")
        await served.chat("Write it down.", model="coordinator")
        assert [row["id"] for row in await served.rest.sessions()] == ["s"]
        entries = await served.rest.session("s").messages()
        spoken = [row.get("agent") for row in entries if row["role"] == "assistant"]
        assert spoken == ["coordinator", "researcher", "researcher", "writer"]
        assert "Found." in str(served.upstream.requests[-1].body["messages"])

"""Agent blocks written for other systems, over the gateway: each does in a turn what its text says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.edges.server import Process, Served, config_text, serving
from tests.stores.servers import reach
from tests.unit.blocks import BLOCKS, PRODUCTION, SUMMARY, TEAM, TEMPLATE

Asked = list[dict[str, Any]]


@asynccontextmanager
async def server(block: str, says: Callable[[dict[str, Any]], Reply | str] = lambda _: "ok") -> AsyncIterator[Any]:
    """Run a server with a block and a default model; yield it with the requests of that model."""
    asked: Asked = []

    def answer(body: dict[str, Any]) -> Reply | str:
        asked.append(body)
        return says(body)

    async with ScriptedUpstream(answer) as upstream, serving(config_text(upstream.url, block)) as served:
        yield served, asked


def of(strategy: str) -> str:
    """Return the block that sets that strategy for an agent."""
    return next(block for block in BLOCKS if block.startswith("agents") and f"strategy: {strategy}" in block)


def top(strategy: str) -> str:
    """Return the block that sets that strategy at top level."""
    return next(block for block in BLOCKS if block.startswith("context") and f"strategy: {strategy}" in block)


async def fill_session(served: Served, count: int, words: int = 1, **fields: Any) -> list[str]:
    """Fill session `s` with `count` messages of `words` words; return their texts."""
    texts = [f"message {at} " + f"word{at} " * (words - 1) for at in range(count)]
    log = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    assert (await served.http.post("/v1/sessions", json={"id": "s", **fields})).status_code == 201
    assert (await served.http.post("/v1/sessions/s/messages", json={"messages": log})).status_code == 200
    return texts


def list_received(body: dict[str, Any]) -> list[Any]:
    """Return the messages that a model received, without the system prompt."""
    return [message["content"] for message in body["messages"] if message["role"] != "system"]


async def test_instruction_templates_are_filled_from_state() -> None:
    """User, session and app state; optional values may be empty, missing required ones are named."""
    async with server(TEMPLATE) as (served, asked):
        made = {"id": "s", "agent": "assistant", "state": {"user:language": "French", "app:version": "3.1"}}
        assert (await served.http.post("/v1/sessions", json=made)).status_code == 201
        assert (await served.chat("hello"))["status"] == 200
        told = asked[0]["messages"][0]
        assert told["role"] == "system"
        assert told["content"].split("\n")[:3] == [
            "User's preferred language: French",
            "Current topic: ",
            "App version: 3.1",
        ]
        answer = await served.chat("hello", session_id="t", agent="assistant", user="bob")
        assert answer["status"] == 400
        assert "user:language" in answer["error"]["message"]
        assert "assistant" in answer["error"]["message"]


@pytest.mark.parametrize("strategy", ["none", "buffer_window", "token_window"])
async def test_agent_prompt_of_a_short_session_follows_its_strategy(strategy: str) -> None:
    """Either everything or the last twenty messages."""
    async with server(of(strategy)) as (served, asked):
        texts = await fill_session(served, 60, agent="assistant")
        assert (await served.chat("now"))["status"] == 200
        expected = [*texts, "now"]
        assert list_received(asked[-1]) == (expected[-20:] if strategy == "buffer_window" else expected)


@pytest.mark.parametrize("block", [of("token_window"), top("token_window")], ids=["agent", "all"])
async def test_token_budget_limits_the_prompt(block: str) -> None:
    """The newest messages are kept whole."""
    async with server(block) as (served, asked):
        budget, newest = (8000, 5) if "8000" in block else (4000, 3)
        texts = await fill_session(served, 60, 200, **({"agent": "assistant"} if "agents" in block else {}))
        answer = await served.chat("now")
        assert answer["session"]["working_set"]["conversation_tokens"] <= budget
        kept = list_received(asked[-1])
        assert kept[-newest:] == [*texts, "now"][-newest:]
        assert len(kept) < 60


async def test_agent_context_overrides_the_top_level_window() -> None:
    async with server(top("buffer_window") + "agents: {all: {context: {strategy: none}}}\n") as (served, asked):
        texts = await fill_session(served, 60)
        await served.chat("now")
        await served.chat("and now", agent="all")
        assert list_received(asked[0]) == [*texts, "now"][-20:]
        assert len(list_received(asked[1])) == 63


@pytest.mark.parametrize("block", [SUMMARY, top("summary_buffer")], ids=["agent", "all"])
async def test_summary_is_written_past_the_threshold(block: str) -> None:
    """By the cheaper model if one is named; recent messages stay whole."""

    def says(body: dict[str, Any]) -> str:
        return "They spoke of words." if "now" not in str(body["messages"][-1]["content"])[:5] else "ok"

    async with server(block, says) as (served, asked):
        texts = await fill_session(served, 60, 200, **({"agent": "assistant"} if "agents" in block else {}))
        for turn in range(2):
            assert (await served.chat(f"now {turn}"))["status"] == 200
            await served.hf.compactor.wait_until_idle()
        writers = [body["model"] for body in asked if body["messages"][-1]["content"][:3] != "now"]
        assert set(writers) == ({"fast"} if "fast" in block else {"gpt-4o"})
        assert (await served.chat("now at last"))["status"] == 200
        last = list_received(asked[-1])
        assert any("They spoke of words." in str(one) for one in last)
        assert [*texts, "now 0", "ok", "now 1", "ok", "now at last"][-8:] == last[-8:]


async def test_agent_uses_the_model_it_names() -> None:
    """With the default model's base URL."""
    block = next(block for block in BLOCKS if "llm: gpt-4o" in block)
    async with server(block) as (served, asked):
        assert (await served.chat("hello", agent="assistant"))["status"] == 200
        assert asked[0]["model"] == "gpt-4o"


async def test_coordinator_hands_over_to_the_researcher() -> None:
    """One session with separate windows; the researcher gets the conversation and the next turn too."""

    def says(body: dict[str, Any]) -> Reply | str:
        transfers = "transfer_to_agent" in json.dumps(body.get("tools") or [])
        asked_for = str(body["messages"][-1]["content"])
        if transfers and asked_for.startswith("research"):
            return Reply(tool_calls=[("transfer_to_agent", {"agent_name": "researcher"})])
        return "done"

    async with server(TEAM, says) as (served, asked):
        await fill_session(served, 60, agent="coordinator")
        await served.chat("hello")
        assert len(list_received(asked[0])) == 30
        answer = await served.chat("research this")
        assert (answer["status"], answer["session"]["agent"]) == (200, "researcher")
        assert len(list_received(asked[2])) <= 21  # one unit more than 20 where the cut would split one
        assert (await served.chat("go on"))["session"]["agent"] == "researcher"


@pytest.mark.parametrize("name", ["postgres"])
async def test_production_block_works_unchanged(tmp_path: Path, name: str) -> None:
    """Database, embedder, index and agent together serve requests and keep data."""
    place = reach(name)
    url = place.place()
    schema = url.rpartition("schema=")[2]
    block = PRODUCTION.replace("database: chat", f"database: postgres\n    options: {{schema: {schema}}}")
    (tmp_path / "holdfast.yaml").write_text(block)
    env = {"DB_HOST": "127.0.0.1", "DB_USER": "postgres", "DB_PASSWORD": "unused", "OPENAI_API_KEY": "k"}
    try:
        async with ScriptedUpstream(["one", "two"]) as upstream, httpx2.AsyncClient(trust_env=False) as client:
            for said in ("hello", "again"):
                address = {**env, "OPENAI_BASE_URL": upstream.url}
                with Process("", config=tmp_path / "holdfast.yaml", env=address) as running:
                    messages = [{"role": "user", "content": said}]
                    body = {"model": "assistant", "session_id": "s", "messages": messages}
                    answer = await client.post(f"{running.url}/v1/chat/completions", json=body)
                    assert answer.status_code == 200
            assert [one["content"] for one in upstream.requests[1].body["messages"]] == ["hello", "one", "again"]
    finally:
        place.drop(url)

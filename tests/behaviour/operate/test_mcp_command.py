"""`holdfast mcp`: the official MCP client starts the command and speaks with it over its standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast import Owner
from tests.behaviour.kit.mcp_client import LEGACY, call, fail
from tests.behaviour.kit.seams import hide_mcp, run_command


@asynccontextmanager
async def start(store: str, *options: str, mode: str = "auto") -> AsyncIterator[Client]:
    """Start the command as an MCP client does, and connect to it."""
    args = ["-m", "holdfast", "mcp", "--store", store, *options]
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    async with Client(StdioServerParameters(command=sys.executable, args=args, env=env), mode=mode) as client:
        yield client


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new/chat.db"


@pytest.mark.parametrize("mode", ["auto", LEGACY])
async def test_a_client_starts_the_command_and_uses_every_tool(store: str, tmp_path: Path, mode: str) -> None:
    (tmp_path / "new").mkdir()
    async with holdfast.open(store) as hf:
        await hf.import_(
            {"messages": [{"role": "user", "content": "Redis runs on 7001"}]}, session_id="s", user_id="ada"
        )
        await hf.import_({"messages": [{"role": "user", "content": "Nothing for ada"}]}, session_id="t", user_id="bob")
    async with start(store, "--user", "ada", mode=mode) as client:
        assert len((await client.list_tools()).tools) == 8
        stored = await call(client, "remember", content="Ada deploys on Fridays")
        assert (await call(client, "recall", query="when are deploys?"))["memories"][0]["id"] == stored["id"]
        assert (await call(client, "search", query="Redis"))["hits"][0]["session_id"] == "s"
        assert [one["id"] for one in (await call(client, "list_sessions"))["sessions"]] == ["s"]
        assert (await call(client, "read_session", session_id="s"))["messages"][0]["text"] == "Redis runs on 7001"
        assert (await call(client, "explain", session_id="s", text="redis"))["messages"][0]["in_prompt"] == "whole"
        assert (await call(client, "append_note", session_id="s", text="Checked"))["seq"] == 1
        assert await fail(client, "read_session", session_id="t") == "no session 't'"
        with pytest.raises(MCPError, match="no session 't'"):
            await client.read_resource("holdfast://sessions/t")
        assert (await call(client, "forget", id=stored["id"]))["forgotten"] == 1
    async with holdfast.open(store) as hf:
        assert {one.id for one in (await hf.sessions()).sessions} == {"s", "t"}
        assert (await hf.memories.page(Owner("user", "ada"))).memories == ()


async def test_the_command_creates_the_database_and_memories_survive_it(store: str) -> None:
    async with start(store) as client:
        found = await asyncio.gather(
            *(call(client, "remember", content=f"Project {number} is called Alpha{number}") for number in range(20))
        )
        assert len({one["id"] for one in found}) == 20
        assert "length <= 8000" in await fail(client, "remember", content="x" * 1_000_000)
    async with start(store, "--read-only") as client:
        assert "remember" not in [tool.name for tool in (await client.list_tools()).tools]
        assert "role 'write'" in await fail(client, "remember", content="more")
        assert len((await call(client, "recall", query="Alpha7"))["memories"]) >= 1


async def test_the_configuration_can_hold_what_is_remembered(store: str, tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text("mcp: {remember: held}")
    async with start(store, "--config", str(file), "--agent", "clerk") as client:
        assert (await call(client, "remember", content="Ada deploys on Fridays"))["status"] == "quarantined"
    async with holdfast.open(store) as hf:
        (held,) = (await hf.memories.page(Owner("user", "default"), status="quarantined")).memories
        assert held.agent == "clerk"


async def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    hide_mcp(monkeypatch)
    printed = await run_command(["mcp", "--store", store])
    assert printed.code == 1
    assert "extra 'mcp'" in printed.err

"""Calls of the MCP server without a socket: cancelled, too slow, and about memories that others own or stated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client

import holdfast
from holdfast.mcp_server import protocol
from holdfast.mcp_server.caller import CallLimiter, McpCaller
from holdfast.memory.memories import Memories


@asynccontextmanager
async def connect(**options: Any) -> AsyncIterator[tuple[holdfast.Holdfast, Client]]:
    """Connect the client to a server in this process, with the messages that it sends over standard input."""
    async with holdfast.open("sqlite://:memory:", **options) as hf:
        service = protocol.McpService(McpCaller(hf=hf, user_id="ada"), CallLimiter(most=1, waiting=1))
        async with Client(service.make_server(), mode="legacy") as client:
            yield hf, client


class Hanging:
    """Recalls that never end, in place of those of `Memories`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

        async def wait(*args: Any, **more: Any) -> Any:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        monkeypatch.setattr(Memories, "recall", wait)


async def test_a_cancelled_call_ends_and_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = Hanging(monkeypatch)
    async with connect() as (_, client):
        task = asyncio.create_task(client.call_tool("recall", {"query": "tea"}))
        await hanging.began.wait()
        task.cancel()
        async with asyncio.timeout(20):
            await hanging.ended.wait()
            assert not (await client.call_tool("list_sessions", {})).is_error


async def test_a_call_that_takes_too_long_is_ended_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = Hanging(monkeypatch)
    monkeypatch.setattr(protocol, "MCP_CALL_SECONDS", 0.0)
    async with connect() as (_, client):
        result = await client.call_tool("recall", {"query": "tea"})
        assert result.is_error
        assert "took longer than 0 s; ask for less" in str(result.content)
        assert hanging.ended.is_set()


async def test_a_memory_of_the_app_is_recalled_but_not_forgotten() -> None:
    async with connect() as (hf, client):
        made = await hf.memories.remember("The office closes at six", app=True)
        found = (await client.call_tool("recall", {"query": "when does the office close?"})).structured_content
        assert found["memories"][0]["id"] == made.memory.id
        assert (await client.call_tool("forget", {"id": made.memory.id})).is_error
        assert (await hf.memories.get(made.memory.id)).content == "The office closes at six"


async def test_an_assistant_does_not_replace_what_the_user_said() -> None:
    async with connect() as (hf, client):
        said = (await hf.memories.remember("The user's home airport is Oslo", user_id="ada")).memory
        await client.call_tool("remember", {"content": "The user's home airport is Bergen"})
        assert (await hf.memories.get(said.id)).status == "active"

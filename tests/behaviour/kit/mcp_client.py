"""The official client of the Model Context Protocol, pointed at Holdfast's MCP server over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError

LEGACY, MODERN = "legacy", "auto"
"""Modes of the client: with the handshake of older protocol versions, and with the newest version that the server has."""


@asynccontextmanager
async def connect(
    url: str, headers: Mapping[str, str] | None = None, query: str = "", mode: Any = MODERN
) -> AsyncIterator[Client]:
    """Connect the client to the server at `url`, without the proxies of the environment."""
    async with create_mcp_http_client(headers=dict(headers or {})) as http:
        transport = streamable_http_client(f"{url}/mcp{query}", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that succeeds; return its structured result."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


async def fail(client: Client, name: str, **arguments: Any) -> str:
    """Call a tool that fails; return the message for the model."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.content
    [content] = result.content
    assert content.type == "text"
    return content.text


async def get_refusal(url: str, headers: Mapping[str, str] | None = None, query: str = "") -> str:
    """Try to connect; return the message of the error with which the server refuses."""
    found: list[str] = []
    try:
        async with connect(url, headers, query):
            pass
    except* MCPError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            [error] = error.exceptions
        found = [str(error)]
    assert found, "the server must refuse"
    return found[0]

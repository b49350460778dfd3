"""Connect to an MCP server by URL, with the SDK's transport for streamable HTTP and a limit on the size of messages.

Import this module only when a connection is needed, because it requires the HTTP client that is installed with the SDK.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.limits import MCP_MESSAGE_BYTES

_log = logging.getLogger("holdfast.mcp")
_EXPECTED_STATUSES: Final = frozenset({400, 404, 405})
"""Statuses with which servers answer requests that they do not support, mostly requests of newer protocol versions. They are not logged."""


@asynccontextmanager
async def open_http(name: str, url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    """Connect to a server, and yield streams that read from it and write to it, in the form of the SDK's transports.

    Args:
        name: name of the server in the configuration.
        url: address of the server.
        headers: HTTP headers that are sent with each request.
    """

    async def log_error_status(response: httpx2.Response) -> None:
        if response.is_error and response.status_code not in _EXPECTED_STATUSES:
            fields = {"server": name, "status": response.status_code}
            _log.warning("an MCP server refused a request", extra={"fields": fields})

    async with create_mcp_http_client(headers=dict(headers)) as client:
        client.event_hooks = {"response": [log_error_status, _limit_body]}
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MCP_MESSAGE_BYTES) as streams:
            yield streams


async def _limit_body(response: httpx2.Response) -> None:
    """Limit the size of a response's body. Event streams are left unchanged, because each of their events already has a limit."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Body(response.stream)


class _Body(httpx2.AsyncByteStream):
    """A body of a response. Reading it raises an error if it is larger than the maximum size of a message."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._body:
            size += len(chunk)
            if size > MCP_MESSAGE_BYTES:
                raise httpx2.StreamError(f"a message has at most {MCP_MESSAGE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()

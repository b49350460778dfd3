"""Connect to an MCP server by URL, through the SDK's streamable HTTP, with a limit on the size of messages.

Import this module only to connect: it needs the HTTP client that is installed with the SDK.
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
"""Statuses with which servers answer requests that they do not support, mostly those of newer protocols."""


@asynccontextmanager
async def open_http(name: str, url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    """Yield the read and write streams of a server in the form of the SDK's transports.

    Args:
        name: name of the server in the configuration.
        url: its address.
        headers: sent with each request.
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
    """Limit the size of a body. In event streams, each event already has a limit."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Body(response.stream)


class _Body(httpx2.AsyncByteStream):
    """A body that raises an error if it is larger than a message may be."""

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

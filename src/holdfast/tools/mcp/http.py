"""A server at an address, through the SDK's streamable HTTP; no message of it is larger than one may be.

Imported by whoever connects only: it needs the HTTP client that comes with the SDK.
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
_USUAL: Final = frozenset({400, 404, 405})
"""What servers answer to what they do not know, a newer protocol above all."""


@asynccontextmanager
async def over_http(name: str, url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    """Its messages, and where to send others, as transports of the SDK have them.

    Args:
        name: what the server is called here.
        url: its address.
        headers: sent with each request.
    """

    async def refused(response: httpx2.Response) -> None:
        if response.is_error and response.status_code not in _USUAL:
            fields = {"server": name, "status": response.status_code}
            _log.warning("an MCP server refused a request", extra={"fields": fields})

    async with create_mcp_http_client(headers=dict(headers)) as client:
        client.event_hooks = {"response": [refused, _bound]}
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MCP_MESSAGE_BYTES) as streams:
            yield streams


async def _bound(response: httpx2.Response) -> None:
    """Have a body end with an error where it is too large; of a stream of events, each has its limit already."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Body(response.stream)


class _Body(httpx2.AsyncByteStream):
    """A body up to what a message may have."""

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

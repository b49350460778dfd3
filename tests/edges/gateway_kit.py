"""Shared helpers for gateway tests: a scripted reply, clients that disconnect, tools, and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2

from holdfast.domain.session import Entry, SessionRef
from holdfast.testing import ScriptedUpstream
from holdfast.tools.functions import make_toolset
from holdfast.tools.tool import ToolLimits
from tests.edges.server import Served, gateway

REF = SessionRef("default", "s")
WORDS = ["one ", "two ", "three ", "four"]
TEXT = "".join(WORDS)
CHUNKS = len(WORDS) + 2
"""Chunks of that reply: the role, the words, and the one that ends it."""
PIECE = "x" * 65_000 + " "
LONG = PIECE * 180
"""More than the buffers between an upstream and a client that does not read can hold: 12 MB."""


async def entries(served: Served) -> tuple[Entry, ...]:
    return await served.hf.store.entries(REF)


async def assert_next_turn_works(served: Served, upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    """Run another turn on the session; return the conversation that the model receives."""
    before = len(upstream.requests)
    answer = await served.chat("go on")
    assert answer["status"] == 200, answer
    assert answer["choices"][0]["message"]["content"] == "fine"
    handle = await served.hf.session("s")
    await handle.verify()
    sent: list[dict[str, Any]] = upstream.requests[before].body["messages"]
    assert sent[-1] == {"role": "user", "content": "go on"}
    return sent


async def send_and_disconnect(
    client: httpx2.AsyncClient, body: dict[str, Any], text: str | None, upstream: ScriptedUpstream
) -> None:
    """Send a request and disconnect: once `text` has arrived in the stream, or as soon as the model has been called."""
    if not text:
        request = client.build_request("POST", "/v1/chat/completions", json=body)

        sending = asyncio.create_task(client.send(request))
        await upstream.until(lambda: upstream.requests)
        sending.cancel()
        await asyncio.wait([sending])
        return
    got = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                got += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            if got == text:
                return


@asynccontextmanager
async def gateway_with_tools(
    script: Sequence[Any] | Callable[[dict[str, Any]], Any], *tools: Any, more: Sequence[str] = (), **limits: Any
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """Run a gateway whose model can call these tools."""
    async with gateway(script, *more) as (served, upstream):
        served.hf.roster.tools = make_toolset(tools, ToolLimits(**limits))
        yield served, upstream


async def read_metric(served: Served, name: str) -> float:
    """Return the value of the metric whose line starts with `name`."""
    text = (await served.http.get("/metrics")).text
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))


def count_blocked_connections(served: Served) -> int:
    """Return how many connections have more unread data than the server buffers for them."""
    return sum(cast("Any", one).flow.write_paused for one in served.server.server_state.connections)

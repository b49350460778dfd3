"""What tests of the gateway share: a reply in known words, clients that leave in the middle of it, tools, and what a server tells of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2

from holdfast.domain.session import Entry, SessionRef
from holdfast.testing import ScriptedUpstream
from holdfast.tools.context import ToolContext
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


async def goes_on(served: Served, upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    """The next turn on the session works; the conversation that the model is sent in it."""
    before = len(upstream.requests)
    answer = await served.chat("go on")
    assert answer["status"] == 200, answer
    assert answer["choices"][0]["message"]["content"] == "fine"
    handle = await served.hf.session("s")
    await handle.verify()
    sent: list[dict[str, Any]] = upstream.requests[before].body["messages"]
    assert sent[-1] == {"role": "user", "content": "go on"}
    return sent


async def heard(client: httpx2.AsyncClient, body: dict[str, Any], text: str | None, upstream: ScriptedUpstream) -> None:
    """Send a request and leave: when `text` has come in its stream, or at once when the model has been asked."""
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


async def find_order(number: int) -> dict[str, Any]:
    """Find an order.

    Args:
        number: the order's
    """
    return {"order": number, "status": "sent"}


def note(context: ToolContext, text: str) -> str:
    """Keep a note."""
    context.state["note"] = text
    return "kept"


@asynccontextmanager
async def tooled(
    script: Sequence[Any], *tools: Any, more: Sequence[str] = (), **limits: Any
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """A gateway whose model may call these."""
    async with gateway(script, *more) as (served, upstream):
        served.hf.roster.tools = make_toolset(tools or (find_order, note), ToolLimits(**limits))
        yield served, upstream


async def metric(served: Served, name: str) -> float:
    """A figure of the server's, by the beginning of its line."""
    text = (await served.http.get("/metrics")).text
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))


def blocked(served: Served) -> int:
    """Connections whose clients have more to read than the server keeps for them."""
    return sum(cast("Any", one).flow.write_paused for one in served.server.server_state.connections)

"""A receiver of webhooks, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from holdfast import limits


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=64 * limits.MIB)
    app.router.add_route("*", "/{path:.*}", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook?token=sk-path-secret"
        yield receiver
    finally:
        await runner.cleanup()


class Receiver:
    """Takes what is posted, raw."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = asyncio.Event()
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = fine

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append({key.lower(): value for key, value in request.headers.items()})
        self.arrived.set()
        return await self.answer(request)

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [json.loads(body)["payload"] for body in self.bodies]


async def fine(request: web.Request) -> web.StreamResponse:
    return web.Response(status=204)

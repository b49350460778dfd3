"""A receiver of webhooks on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from holdfast import limits
from tests.web_apps import serve_app


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=64 * limits.MIB)
    app.router.add_route("*", "/{path:.*}", receiver.take)
    async with serve_app(app) as origin:
        receiver.url = f"{origin}/hook?token=sk-path-secret"
        yield receiver


class Receiver:
    """Store everything that is posted, as raw bytes."""

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

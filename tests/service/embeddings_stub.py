"""An embeddings endpoint for tests on a real socket: vectors from words, and any trouble that a test asks for."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.web_apps import serve_app

WIDTH = 8
Trouble = Callable[[dict[str, Any]], web.Response | None]


def numbers(text: str, width: int = WIDTH) -> list[float]:
    """Return numbers that are always the same for a text and differ between texts. They are not of unit length."""
    seeded = random.Random(hashlib.sha256(text.encode()).digest())
    return [seeded.uniform(-3, 3) for _ in range(width)]


def make_error(status: int, message: str = "no", headers: dict[str, str] | None = None, **fields: Any) -> web.Response:
    """An error in OpenAI's shape."""
    return web.json_response({"error": {"message": message, **fields}}, status=status, headers=headers)


@dataclass
class Stub:
    """The received requests, and the trouble to make."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    """Asked in order for each request; the first response that one gives is sent."""
    once: list[web.Response] = field(default_factory=list)
    """Sent first, one for each request."""
    width: int = WIDTH
    hold: asyncio.Event | None = None
    running: int = 0
    most: int = 0
    """Requests at once."""

    @property
    def inputs(self) -> list[list[str]]:
        """The texts of each request."""
        return [body["input"] for body in self.bodies]

    async def answer(self, request: web.Request) -> web.Response:
        """Return a vector for each text, the last one first, so that clients must use the indexes."""
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            body = await request.json()
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            if self.hold is not None:
                await self.hold.wait()
            if self.once:
                return self.once.pop(0)
            for trouble in self.troubles:
                if (response := trouble(body)) is not None:
                    return response
            width = body.get("dimensions", self.width)
            items = [{"index": at, "embedding": numbers(text, width)} for at, text in enumerate(body["input"])]
            return web.json_response({"object": "list", "data": items[::-1], "model": body["model"]})
        finally:
            self.running -= 1


@asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[Stub]:
    """Serve the endpoint."""
    stub = Stub(**fields)
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/embeddings", stub.answer)
    async with serve_app(app, patience=1) as origin:
        stub.url = f"{origin}/v1"
        yield stub

"""Servers that the product calls: a receiver of webhooks, and an endpoint of embeddings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.web_apps import serve_app


@asynccontextmanager
async def serve_web(handler: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    """Serve every request with one handler; the address."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", handler)
    async with serve_app(app) as address:
        yield address


class Receiver:
    """Takes what is posted to `url`, and answers with the `statuses`, then with 204.

    Attributes:
        bodies: raw bodies.
        headers: headers of each request, with names in lower case.
    """

    def __init__(self, statuses: Sequence[int] = ()) -> None:
        self.url = ""
        self.statuses = [*statuses]
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)

    @property
    def payloads(self) -> list[dict[str, Any]]:
        """The payloads of the notices."""
        return [json.loads(body)["payload"] for body in self.bodies]


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    """Serve a receiver of webhooks."""
    made = Receiver(statuses)
    async with serve_web(made.take) as address:
        made.url = f"{address}/hook"
        yield made


class Embedder:
    """An endpoint of embeddings. A text lies in the direction of each meaning of which it has a word.

    Attributes:
        texts: all texts that were embedded, in order.
        status: status of the answers.
        refuse: what it answers to a request in place of vectors, if anything.
    """

    def __init__(self, meanings: Mapping[str, int]) -> None:
        self.url, self.meanings, self.status, self.width = "", meanings, 200, 8
        self.refuse: Callable[[dict[str, Any]], web.Response | None] = lambda body: None
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def texts(self) -> list[str]:
        return [text for body in self.bodies for text in body["input"]]

    def place(self, text: str) -> list[float]:
        vector = [0.01] * self.width
        for word, axis in self.meanings.items():
            if word in text.lower():
                vector[axis] = 1.0
        return vector

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if (refusal := self.refuse(body)) is not None:
            return refusal
        rows = [{"index": at, "embedding": self.place(text)} for at, text in enumerate(body["input"])]
        return web.json_response({"object": "list", "data": rows[::-1], "model": body["model"]})


@asynccontextmanager
async def embedder(**meanings: int) -> AsyncIterator[Embedder]:
    """Serve an endpoint of embeddings: `embedder(car=0, automobile=0, boat=1)`; there are eight directions."""
    made = Embedder(meanings)
    async with serve_web(made.answer) as address:
        made.url = f"{address}/v1"
        yield made

"""A reranker for tests on a real socket: scores by a rule, in any of the known formats, and any trouble that a test asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.web_apps import serve_app

Score = Callable[[str, str], float]


def longer_is_better(query: str, text: str) -> float:
    """Score each text by its length, which differs from every order by words."""
    return float(len(text))


def get_texts(body: dict[str, Any]) -> list[str]:
    """Return the texts of a request in any format."""
    texts: list[str] = body["texts"] if "texts" in body else body["documents"]
    return texts


@dataclass
class Stub:
    """The received requests, and the trouble to make."""

    url: str = ""
    score: Score = longer_is_better
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    once: list[web.Response] = field(default_factory=list)
    """Sent first, one for each request."""
    always: Callable[[], web.Response] | None = None
    hold: asyncio.Event | None = None
    name: str = "results"
    """`results`, `data`, or empty: the list alone."""
    field: str = "relevance_score"

    @property
    def texts(self) -> list[str]:
        """All texts that arrived."""
        return [text for body in self.bodies for text in get_texts(body)]

    async def answer(self, request: web.Request) -> web.Response:
        """Return a score for each text, the best first."""
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.hold is not None:
            await self.hold.wait()
        if self.once:
            return self.once.pop(0)
        if self.always is not None:
            return self.always()
        items = [{"index": at, self.field: self.score(body["query"], text)} for at, text in enumerate(get_texts(body))]
        items.sort(key=lambda item: -item[self.field])
        return web.json_response({"id": "r1", self.name: items} if self.name else items)


@asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[Stub]:
    """Serve the endpoint."""
    stub = Stub(**fields)
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v2/rerank", stub.answer)
    async with serve_app(app) as origin:
        stub.url = f"{origin}/v2"
        yield stub

"""The table of all routes, and the ASGI app made from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route as StarletteRoute

from holdfast.holdfast import Holdfast
from holdfast.limits import Limits
from holdfast.server import (
    artifacts,
    compactions,
    context,
    counting,
    memories,
    messages,
    meta,
    page,
    search,
    sessions,
    state,
    voice,
    workspaces,
)
from holdfast.server.access import Access, Admitted, Hosts
from holdfast.server.chat import Chat
from holdfast.server.chat_objects import CHAT_ROUTES
from holdfast.server.doors.base import Door
from holdfast.server.doors.messages import Messages, Spoken
from holdfast.server.doors.openai import ChatCompletions
from holdfast.server.http import Call, SentPath
from holdfast.server.intake import Intake
from holdfast.server.logs import Observed
from holdfast.server.metrics import Metrics
from holdfast.server.openapi import describe
from holdfast.server.permissions import METHODS, REST
from holdfast.server.relay import Relays
from holdfast.server.replies import Reply, error_body
from holdfast.server.requester import RequestRules
from holdfast.server.routes import JSON, Endpoint, Route, Routes
from holdfast.server.session_locator import Matching

description = Routes("server", lenient=True)


@description.add(
    "GET", "/openapi.json", "public", answer={JSON: {"schema": {"type": "object", "additionalProperties": True}}}
)
async def openapi(call: Call) -> Reply:
    """This description."""
    return Reply(describe(ROUTES, asks=call.request.app.state.access.asks))


@description.add("GET", "/docs", "public", answer={"text/html": meta.TEXT})
async def docs(_: Call) -> Reply:
    """This description, to read."""
    return page.docs(describe(ROUTES))


ROUTES: tuple[Route, ...] = (
    *CHAT_ROUTES,
    *(
        route
        for subject in (
            counting.routes,
            meta.routes,
            sessions.routes,
            messages.routes,
            context.routes,
            state.routes,
            voice.routes,
            compactions.routes,
            artifacts.routes,
            search.routes,
            memories.routes,
            workspaces.routes,
            meta.server_routes,
            description,
        )
        for route in subject.all
    ),
)
"""Every route. An app has one Starlette route for each path."""
PUBLIC: Final = frozenset(route.path for route in ROUTES if route.need == "public")
"""Paths that are answered whoever asks."""


async def no_route(call: Call) -> Reply:
    """Answer where no route is."""
    path = call.request.url.path
    message = f"there is no {call.request.method} {path}; GET /openapi.json lists what there is"
    return Reply(error_body(message, kind="invalid_request_error", code="not_found"), 404)


_NOT_FOUND: Final = tuple(
    Route(method=method, path=REST, need="read", tag="", summary="", answer=None, handler=no_route, lenient=True)
    for method in METHODS
)
DOORS: tuple[Door, ...] = (ChatCompletions(), Messages())
"""Where a reply is asked for."""


def make_app(
    hf: Holdfast,
    *,
    limits: Limits | Intake | None = None,
    matching: Matching | None = None,
    access: Access | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    relays: Relays | None = None,
    rules: RequestRules | None = None,
    close: bool = True,
) -> Starlette:
    """The server of one `Holdfast`; it opens it when it starts and closes it when it ends.

    Args:
        hf: not open yet, unless `close` is False: then its owner opens and closes it.
        limits: what a request may bring; an `Intake` may be given others later.
        matching: how chat requests that name no session are recognised.
        access: who may come in; None: whoever has one of the store's keys, and everybody while it has none.
        hosts: names by which the server may be called, besides loopback's; none: where keys are asked for, any.
        origins: of pages that may call it.
        relays: how replies are sent.
        rules: how chat requests name their user and their session.
        close: whether the app owns the lifetime of `hf`.
    """
    who = access or Access(hf)
    intake = limits if isinstance(limits, Intake) else Intake(limits or Limits())
    relays = relays or Relays()
    matching, rules = matching or Matching(), rules or RequestRules()
    chats = {door.path: Chat(door, hf, intake, relays, matching=matching, rules=rules) for door in DOORS}
    table: dict[str, list[Route]] = {}
    for route in (*ROUTES, *_NOT_FOUND):
        table.setdefault(route.path, []).append(route)
    metrics = Metrics(hf, relays)
    paths = sorted(table, key=lambda path: "{" in path)  # `/v1/memories/diary` is no memory's
    app = Starlette(
        routes=[StarletteRoute(path, Endpoint(table[path], hf, intake, post=chats.get(path))) for path in paths],
        middleware=[
            Middleware(SentPath),
            Middleware(Spoken),
            Middleware(Observed, metrics),
            Middleware(Hosts, hosts, origins, asks=lambda: who.asks),
            *_cors(origins),
            Middleware(Admitted, who, hf, PUBLIC),
        ],
        lifespan=_lifespan(hf) if close else None,
    )
    app.state.access, app.state.metrics = who, metrics
    return app


def _lifespan(hf: Holdfast) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """That of an app that opens and closes what it serves."""

    @asynccontextmanager
    async def open_while_served(_: Starlette) -> AsyncIterator[None]:
        async with hf:
            yield

    return open_while_served


def _cors(origins: Collection[str]) -> list[Middleware]:
    """What lets pages of these origins call the server: none, where there are none."""
    if not origins:
        return []
    told = [
        "ETag",
        "Request-Id",
        "Retry-After",
        "X-Artifact-Version",
        "X-Request-Id",
        "X-Session-Agent",
        "X-Session-Id",
    ]
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=[*METHODS, "HEAD"],
            allow_headers=["*"],
            expose_headers=told,
        )
    ]

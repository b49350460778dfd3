"""The list of all routes, and the ASGI app that serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route as StarletteRoute

from holdfast.config.inspector import Inspector
from holdfast.holdfast import Holdfast
from holdfast.mcp_server.call_limiter import CallLimiter
from holdfast.server import (
    artifacts,
    calls,
    compactions,
    context,
    conversations,
    deletions,
    health,
    keys,
    mcp,
    memories,
    memory_files,
    messages,
    records,
    response_compaction,
    responses,
    search,
    sessions,
    state,
    status,
    token_counting,
    turns,
    voice,
    workspaces,
)
from holdfast.server.access import Access, AuthMiddleware, HostMiddleware
from holdfast.server.apis.anthropic import PATH as MESSAGES_PATH
from holdfast.server.apis.anthropic import AnthropicErrorMiddleware, Messages
from holdfast.server.apis.api_format import ApiFormat
from holdfast.server.apis.openai import ChatCompletions
from holdfast.server.apis.responses import PATH as RESPONSES_PATH
from holdfast.server.apis.responses import Responses
from holdfast.server.body_limits import BodyLimits
from holdfast.server.chat import Chat, Resolve
from holdfast.server.chat_objects import CHAT_ROUTES
from holdfast.server.http import Call, RawPathMiddleware
from holdfast.server.inspector.access import InspectorMiddleware
from holdfast.server.inspector.frame import InspectorState
from holdfast.server.inspector.routes import PAGE_ROUTES
from holdfast.server.logs import RequestLogMiddleware
from holdfast.server.message_compaction import resolve_compaction
from holdfast.server.metrics import Metrics
from holdfast.server.openapi import describe_api
from holdfast.server.permissions import METHODS, REST
from holdfast.server.replies import Reply, make_error_body
from holdfast.server.requester import RequestRules
from holdfast.server.response_recordings import Recordings
from holdfast.server.routes import JSON, Endpoint, Route, Routes
from holdfast.server.streaming import ReplyStreams

description = Routes("server", lenient=True)


@description.add(
    "GET", "/openapi.json", "public", answer={JSON: {"schema": {"type": "object", "additionalProperties": True}}}
)
async def openapi(call: Call) -> Reply:
    """Return the OpenAPI description of this server."""
    return Reply(describe_api(ROUTES, requires_key=call.request.app.state.access.requires_key))


ROUTES: tuple[Route, ...] = (
    *CHAT_ROUTES,
    *(
        route
        for subject in (
            token_counting.routes,
            responses.routes,
            response_compaction.routes,
            conversations.routes,
            health.routes,
            sessions.routes,
            messages.routes,
            context.routes,
            calls.routes,
            turns.routes,
            state.routes,
            records.routes,
            voice.routes,
            compactions.routes,
            artifacts.routes,
            search.routes,
            memories.routes,
            memory_files.routes,
            workspaces.routes,
            keys.routes,
            deletions.routes,
            status.routes,
            mcp.routes,
            health.server_routes,
            description,
        )
        for route in subject.all
    ),
)
"""Every route. The app has one Starlette route per path."""
PUBLIC: Final = frozenset(route.path for route in ROUTES if route.need == "public")
"""Paths that need no authentication."""


async def no_route(call: Call) -> Reply:
    """Answer a request to an unknown path with status 404."""
    path = call.request.url.path
    message = f"no route {call.request.method} {path}; GET /openapi.json lists all routes"
    return Reply(make_error_body(message, kind="invalid_request_error", code="not_found"), 404)


_NOT_FOUND: Final = tuple(
    Route(method=method, path=REST, need="read", tag="", summary="", answer=None, handler=no_route, lenient=True)
    for method in METHODS
)
API_FORMATS: tuple[ApiFormat, ...] = (ChatCompletions(), Messages(), Responses())
"""The API formats of the gateway."""
RESOLVERS: Final[Mapping[str, Resolve]] = {
    RESPONSES_PATH: responses.resolve_request,
    MESSAGES_PATH: resolve_compaction,
}
"""For API formats whose requests have ids of stored objects, the function that replaces the ids; by path."""


def make_app(
    hf: Holdfast,
    *,
    limits: BodyLimits | None = None,
    access: Access | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    relays: ReplyStreams | None = None,
    rules: RequestRules | None = None,
    inspector: Inspector | None = None,
    close: bool = True,
) -> Starlette:
    """Create the ASGI app that serves one `Holdfast`.

    Args:
        hf: the `Holdfast` to serve.
        limits: limits of bodies and of large requests. They can be changed while the app runs.
        access: authenticates requests; None: a key is required as soon as the store contains one.
        hosts: host names of the server, in addition to loopback names. If there are none and keys are required, any host is accepted.
        origins: origins of web pages that may call the server.
        relays: settings for sending replies, and counters of replies.
        rules: rules for reading the user and session of chat requests.
        inspector: settings of the inspector; None: the defaults.
        close: True: the app opens `hf` at startup and closes it at shutdown. False: the caller opens and closes it.
    """
    who = access or Access(hf)
    limits = limits or BodyLimits()
    relays = relays or ReplyStreams()
    rules = rules or RequestRules()
    chats = {
        api_format.path: Chat(api_format, hf, limits, relays, rules=rules, resolve=RESOLVERS.get(api_format.path))
        for api_format in API_FORMATS
    }
    table: dict[str, list[Route]] = {}
    inspector = inspector or Inspector()
    for route in (*ROUTES, *(PAGE_ROUTES if inspector.enabled else ()), *_NOT_FOUND):
        table.setdefault(route.path, []).append(route)
    metrics = Metrics(hf, relays)
    paths = sorted(table, key=lambda path: "{" in path)  # `/v1/memories/diary` is not a memory id
    app = Starlette(
        routes=[StarletteRoute(path, Endpoint(table[path], hf, limits, post=chats.get(path))) for path in paths],
        middleware=[
            Middleware(RawPathMiddleware),
            Middleware(AnthropicErrorMiddleware),
            Middleware(mcp.McpErrorMiddleware),
            *([Middleware(InspectorMiddleware, lambda: who.requires_key)] if inspector.enabled else []),
            Middleware(RequestLogMiddleware, metrics),
            Middleware(
                HostMiddleware, hosts, origins, requires_key=lambda: who.requires_key, any_host=health.HEALTH_PATHS
            ),
            *_make_cors_middleware(origins),
            Middleware(AuthMiddleware, who, hf, PUBLIC, has_pages=inspector.enabled),
        ],
        lifespan=_make_lifespan(hf) if close else None,
    )
    app.state.access, app.state.metrics = who, metrics
    app.state.inspector = InspectorState(inspector, frozenset(origins))
    app.state.rules, app.state.mcp_calls = rules, CallLimiter()
    app.state.recordings = Recordings()
    return app


def _make_lifespan(hf: Holdfast) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def open_while_served(_: Starlette) -> AsyncIterator[None]:
        async with hf:
            yield

    return open_while_served


def _make_cors_middleware(origins: Collection[str]) -> list[Middleware]:
    """Return the CORS middleware for these origins. Without origins, return an empty list."""
    if not origins:
        return []
    exposed_headers = [
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
            expose_headers=exposed_headers,
        )
    ]

"""The list of all routes, and the ASGI app that serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route as StarletteRoute

from holdfast.config.gateway import Gateway, Inspector
from holdfast.holdfast import Holdfast
from holdfast.mcp_server.caller import CallLimiter
from holdfast.server import (
    artifacts,
    compactions,
    context,
    conversations,
    health,
    keys,
    mcp,
    memories,
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
from holdfast.server.access import Access
from holdfast.server.apis.anthropic import PATH as MESSAGES_PATH
from holdfast.server.apis.anthropic import Messages
from holdfast.server.apis.api_format import ApiFormat
from holdfast.server.apis.openai import ChatCompletions
from holdfast.server.apis.responses import PATH as RESPONSES_PATH
from holdfast.server.apis.responses import Responses
from holdfast.server.body_limits import BodyLimits
from holdfast.server.chat import Chat, Resolve
from holdfast.server.chat_objects import CHAT_ROUTES
from holdfast.server.gate import Gate
from holdfast.server.http import Call
from holdfast.server.inspector.frame import InspectorState
from holdfast.server.inspector.routes import PAGE_ROUTES
from holdfast.server.message_compaction import resolve_compaction
from holdfast.server.metrics import Metrics
from holdfast.server.openapi import describe_api
from holdfast.server.passthrough import NOT_FOUND_ROUTES
from holdfast.server.replies import Reply
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
            turns.routes,
            state.routes,
            records.routes,
            voice.routes,
            compactions.routes,
            artifacts.routes,
            search.routes,
            memories.routes,
            workspaces.routes,
            keys.routes,
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


API_FORMATS: tuple[ApiFormat, ...] = (ChatCompletions(), Messages(), Responses())
"""The API formats of the gateway."""
RESOLVERS: Final[Mapping[str, Resolve]] = {
    RESPONSES_PATH: responses.resolve_request,
    MESSAGES_PATH: resolve_compaction,
}
"""For API formats whose requests have ids of stored objects, the function that replaces the ids; by path."""


def make_app(
    hf: Holdfast,
    gateway: Gateway = Gateway(),  # noqa: B008 - it is frozen
    *,
    access: Access | None = None,
    limits: BodyLimits | None = None,
    inspector: Inspector | None = None,
    close: bool = True,
) -> Starlette:
    """Create the ASGI app that serves one `Holdfast`.

    Args:
        hf: the `Holdfast` to serve.
        gateway: settings of the gateway. Most of them can be changed while the app runs, see `set_gateway`.
        access: authenticates requests; None: a key is required as soon as the store contains one.
        limits: limits of bodies and of large requests; None: those of the gateway.
        inspector: settings of the inspector; None: the defaults.
        close: True: the app opens `hf` at startup and closes it at shutdown. False: the caller opens and closes it.
    """
    who = access or Access(hf)
    limits = limits or BodyLimits(gateway.max_body, gateway.max_media)
    relays = ReplyStreams(gateway.keep_alive, gateway.on_disconnect)
    chats = {api_format.path: Chat(api_format, resolve=RESOLVERS.get(api_format.path)) for api_format in API_FORMATS}
    table: dict[str, list[Route]] = {}
    inspector = inspector or Inspector()
    for route in (*ROUTES, *(PAGE_ROUTES if inspector.enabled else ()), *NOT_FOUND_ROUTES):
        table.setdefault(route.path, []).append(route)
    metrics = Metrics(hf, relays)
    paths = sorted(table, key=lambda path: "{" in path)  # `/v1/memories/diary` is not a memory id
    app = Starlette(
        routes=[StarletteRoute(path, Endpoint(table[path], post=chats.get(path))) for path in paths],
        middleware=[
            Middleware(
                Gate,
                who,
                hf,
                metrics,
                public=PUBLIC,
                hosts=gateway.allowed_hosts,
                origins=gateway.cors_origins,
                has_pages=inspector.enabled,
            )
        ],
        lifespan=_make_lifespan(hf) if close else None,
    )
    app.state.access, app.state.metrics = who, metrics
    rest = {f"{route.method} {route.path}": route for route in ROUTES}
    app.state.inspector = InspectorState(inspector, frozenset(gateway.cors_origins), rest)
    app.state.hf = hf
    app.state.gateway, app.state.limits, app.state.relays = gateway, limits, relays
    app.state.mcp_calls, app.state.recordings = CallLimiter(), Recordings()
    return app


def set_gateway(app: Starlette, gateway: Gateway) -> None:
    """Let an app use other settings of the gateway from the next request on, except for its hosts and origins."""
    app.state.gateway = gateway
    app.state.limits.body, app.state.limits.media = gateway.max_body, gateway.max_media
    app.state.relays.keep_alive, app.state.relays.on_disconnect = gateway.keep_alive, gateway.on_disconnect


def _make_lifespan(hf: Holdfast) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def open_while_served(_: Starlette) -> AsyncIterator[None]:
        async with hf:
            yield

    return open_while_served

"""The table of all routes, and the ASGI app made from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from holdfast.holdfast import Holdfast
from holdfast.limits import Limits
from holdfast.server import (
    artifacts,
    compactions,
    dreams,
    explanations,
    facts,
    index,
    memories,
    meta,
    moving,
    page,
    search,
    sessions,
    state,
    voice,
    workspaces,
)
from holdfast.server.access import Access, Admitted
from holdfast.server.addressing import Matching
from holdfast.server.chat import Chat
from holdfast.server.counting import count_tokens
from holdfast.server.doors.base import Door
from holdfast.server.doors.messages import Messages, Spoken
from holdfast.server.doors.openai import ChatCompletions
from holdfast.server.hosts import Hosts
from holdfast.server.http import Call, Endpoint, Handler, SentPath, no_route
from holdfast.server.intake import Intake
from holdfast.server.metrics import Metrics
from holdfast.server.observe import Observed
from holdfast.server.openapi import describe
from holdfast.server.operations import parameters_of
from holdfast.server.permissions import METHODS, REST
from holdfast.server.relay import Relays
from holdfast.server.replies import Reply
from holdfast.server.requester import RequestRules

ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/v1/messages/count_tokens": {"POST": count_tokens},
    "/v1/models": {"GET": meta.models},
    "/v1/sessions": {"GET": sessions.list_sessions, "POST": sessions.create},
    "/v1/sessions/{session_id}": {
        "GET": moving.export,
        "PUT": moving.install,
        "PATCH": sessions.change,
        "DELETE": moving.delete,
    },
    "/v1/sessions/{session_id}/close": {"POST": sessions.close},
    "/v1/sessions/{session_id}/fork": {"POST": moving.fork},
    "/v1/sessions/{session_id}/move": {"POST": moving.move},
    "/v1/sessions/{session_id}/rewind": {"POST": moving.rewind},
    "/v1/users/{user_id}": {"DELETE": moving.delete_user},
    "/v1/users/{user_id}/state": state.SCOPE,
    "/v1/state": state.SCOPE,
    "/v1/sessions/{session_id}/state": {"GET": state.get, "PATCH": state.patch, "POST": state.change},
    "/v1/sessions/{session_id}/messages": {"GET": sessions.page, "POST": sessions.append},
    "/v1/sessions/{session_id}/messages/{seq}": {"PATCH": sessions.annotate, "DELETE": sessions.erase},
    "/v1/sessions/{session_id}/context": {"POST": sessions.context},
    "/v1/sessions/{session_id}/facts": {"GET": facts.page},
    "/v1/sessions/{session_id}/facts/{fact_id}": {"PATCH": facts.change},
    "/v1/sessions/{session_id}/history": {"GET": voice.history},
    "/v1/sessions/{session_id}/interrupt": {"POST": voice.interrupt},
    "/v1/sessions/{session_id}/speak": {"POST": voice.speak},
    "/v1/sessions/{session_id}/explain": {"GET": explanations.explain},
    "/v1/sessions/{session_id}/compactions": {"GET": compactions.page, "POST": compactions.compact},
    "/v1/sessions/{session_id}/compactions/{compaction_id}": {"GET": compactions.get, "DELETE": compactions.drop},
    "/v1/sessions/{session_id}/artifacts": {"GET": artifacts.page},
    "/v1/sessions/{session_id}/artifacts/{name}": {
        "GET": artifacts.load,
        "PUT": artifacts.save,
        "DELETE": artifacts.delete,
    },
    "/v1/sessions/{session_id}/artifacts/{name}/versions": {"GET": artifacts.versions},
    "/v1/search": {"GET": search.search},
    "/v1/index": {"GET": index.status},
    "/v1/memories": {"GET": memories.page, "POST": memories.remember, "DELETE": memories.forget_source},
    "/v1/memories/dream": {"POST": dreams.dream},
    "/v1/memories/diary": {"GET": dreams.diary},
    "/v1/memories/{memory_id}": {"GET": memories.get, "PATCH": memories.change, "DELETE": memories.forget},
    "/v1/memories/{memory_id}/review": {"POST": memories.review},
    "/v1/workspaces/{agent}/history": {"GET": workspaces.history},
    "/v1/workspaces/{agent}/checkpoint": {"POST": workspaces.checkpoint},
    "/sessions": {"GET": sessions.short_list},
    "/sessions/{session_id}": {"GET": sessions.short_get, "DELETE": moving.delete},
    "/healthz": {"GET": meta.health},
    "/readyz": {"GET": meta.ready},
    "/": {"GET": meta.home},
}
"""Every route but the gateway's own, the metrics and the description, which need more than a call. One route a path."""
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
    metrics = Metrics(hf, relays)
    routes = [
        Route(path, Endpoint(handlers, hf, intake, parameters=parameters_of(path)))
        for path, handlers in _table(metrics, who).items()
    ]
    matching, rules = matching or Matching(), rules or RequestRules()
    chats = [Chat(door, hf, intake, relays, matching=matching, rules=rules) for door in DOORS]
    doors = [Route(door.path, Endpoint({}, hf, intake, post=chat)) for door, chat in zip(DOORS, chats, strict=True)]
    rest = Endpoint(dict.fromkeys(METHODS, no_route), hf, intake)
    return Starlette(
        routes=[*doors, *routes, Route(REST, rest)],
        middleware=[
            Middleware(SentPath),
            Middleware(Spoken),
            Middleware(Observed, metrics),
            Middleware(Hosts, hosts, origins, asks=lambda: who.asks),
            *_cors(origins),
            Middleware(Admitted, who, hf),
        ],
        lifespan=_lifespan(hf) if close else None,
    )


def _lifespan(hf: Holdfast) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """That of an app that opens and closes what it serves."""

    @asynccontextmanager
    async def open_while_served(_: Starlette) -> AsyncIterator[None]:
        async with hf:
            yield

    return open_while_served


def _table(metrics: Metrics, who: Access) -> Mapping[str, Mapping[str, Handler]]:
    """Every route but the doors."""
    table: dict[str, Mapping[str, Handler]] = {
        **ROUTES,
        "/metrics": {"GET": meta.metrics_of(metrics)},
        "/openapi.json": {"GET": _description(lambda: table, who)},
        "/docs": {"GET": _docs(lambda: table)},
    }
    return table


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


def _description(table: Callable[[], Mapping[str, Mapping[str, Handler]]], access: Access) -> Handler:
    async def openapi(_: Call) -> Reply:
        """This description."""
        return Reply(describe(table(), asks=access.asks))

    return openapi


def _docs(table: Callable[[], Mapping[str, Mapping[str, Handler]]]) -> Handler:
    async def read(_: Call) -> Reply:
        """This description, to read."""
        return page.docs(describe(table()))

    return read

"""Health, models, metrics, and the page that greets whoever opens the address in a browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast._version import __version__
from holdfast.agents import Agent, Roster
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.server import page
from holdfast.server.doors.messages import model_list
from holdfast.server.fields import PAGE
from holdfast.server.http import Call
from holdfast.server.metrics import Metrics
from holdfast.server.replies import Reply


async def health(_: Call) -> Reply:
    """The process is up."""
    return Reply({"status": "ok", "version": __version__})


async def ready(call: Call) -> Reply:
    """The store can be read and written; 503 otherwise."""
    await call.hf.store.ping()
    return Reply({"status": "ready", "version": __version__})


async def models(call: Call) -> Reply:
    """Agents and models, by the names that a request's `model` may have."""
    roster = call.hf.roster
    limit = call.number("limit", PAGE, 1, MAX_PAGE)
    if call.header("anthropic-version") is not None:
        return _anthropics(call, roster, limit)
    agents = [_agent(agent) for agent in roster.agents.values()]
    llms = [
        {"id": name, "object": "model", "created": 0, "owned_by": llm.model}
        for name, llm in roster.llms.items()
        if name not in roster.agents
    ]
    return Reply({"object": "list", "data": [*agents, *llms]})


def _agent(agent: Agent) -> dict[str, Any]:
    """An agent as one of the models, with what it is for where that is said."""
    told = {"id": agent.name, "object": "model", "created": 0, "owned_by": "holdfast-agent"}
    return {**told, "description": agent.description} if agent.description else told


def _anthropics(call: Call, roster: Roster, limit: int) -> Reply:
    """The same in the shape of Anthropic's API."""
    agents = [
        (name, f"agent {name}" + (f": {agent.description}" if agent.description else ""))
        for name, agent in roster.agents.items()
    ]
    llms = [(name, llm.model) for name, llm in roster.llms.items() if name not in roster.agents]
    after, before = call.text("after_id"), call.text("before_id")
    return Reply(model_list([*agents, *llms], limit=limit, after=after, before=before))


async def home(call: Call) -> Reply:
    """Where to go from here: a page in a browser, JSON for programs."""
    if _wants_page(call.header("accept") or ""):
        told = page.home("Holdfast", __version__)
    else:
        places = {
            "chat": "POST /v1/chat/completions",
            "messages": "POST /v1/messages",
            "sessions": "GET /v1/sessions",
            "api": "GET /openapi.json",
            "docs": "GET /docs",
        }
        told = Reply({"name": "holdfast", "version": __version__, **places})
    return msgspec.structs.replace(told, headers={**told.headers, "vary": "Accept"})


def _wants_page(accept: str) -> bool:
    """Whether `Accept` names HTML, and JSON not before it. Programs say `*/*`, or nothing."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    named = [kind for kind in kinds if kind in ("text/html", "application/xhtml+xml", "application/json")]
    return bool(named) and named[0] != "application/json"


def metrics_of(metrics: Metrics) -> Callable[[Call], Awaitable[Reply]]:
    """The endpoint that Prometheus reads."""

    async def scrape(_: Call) -> Reply:
        """Prometheus metrics."""
        return Reply(metrics.render(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    return scrape

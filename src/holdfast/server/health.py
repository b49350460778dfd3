"""Routes for health checks, the list of models, metrics, and the home page."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, UnsetType

from holdfast._version import __version__
from holdfast.agents import Agent, Roster
from holdfast.limits import PAGE
from holdfast.server.apis.anthropic import make_model_list
from holdfast.server.chat_objects import AnthropicError, Error
from holdfast.server.http import Call
from holdfast.server.metrics import Metrics
from holdfast.server.replies import Reply
from holdfast.server.routes import JSON, TEXT, Routes, describe_header
from holdfast.wire.objects import Answer, Count, JsonObject, Request, json_schema

routes = Routes("chat")
server_routes = Routes("server", lenient=True)
HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths of health checks. Their responses contain no user data, so they need no key and no allowed host name."""

# -- models ----------------------------------------------------------------------


class ModelsQuery(Request, kw_only=True):
    """Query parameters of the list of models. Only requests in Anthropic's format use them."""

    beta: str | None = None
    """Sent by Anthropic's client for beta features, and ignored."""
    limit: Annotated[int, json_schema(description="maximum number of models; default 20", minimum=1, maximum=PAGE)] = 20
    after_id: str | None = None
    """`last_id` of the previous page, after which this page begins."""
    before_id: str | None = None
    """`first_id` of the next page, before which this page ends."""


class Model(Answer, kw_only=True):
    """An agent or a model."""

    id: str
    object: Literal["model"] = "model"
    created: Count = 0
    owned_by: str
    """`holdfast-agent` for an agent; for a model, its name at the upstream."""
    description: str | UnsetType = UNSET
    """Purpose of the agent."""


class ModelList(Answer, kw_only=True):
    """Agents and models whose names can be used as `model` in a request."""

    object: Literal["list"] = "list"
    data: list[Model]


class AnthropicModel(Answer, kw_only=True):
    """An agent or a model."""

    type: Literal["model"]
    id: str
    display_name: str
    """`agent NAME: DESCRIPTION` for an agent; for a model, its name at the upstream."""
    created_at: Annotated[str, json_schema(format="date-time")]
    """Always the same date, because the real date is unknown."""
    lifecycle: Literal["active"]


class AnthropicModelList(Answer, kw_only=True):
    """A page of agents and models in Anthropic's format."""

    data: list[AnthropicModel]
    has_more: bool
    """True if there are more agents or models."""
    first_id: str | None
    last_id: str | None
    """Id of the last item. Pass it as `after_id` to get the next page."""


@routes.add(
    "GET",
    "/v1/models",
    "read",
    error_statuses=(400,),
    request_headers=(
        describe_header("anthropic-version", "selects Anthropic's format; the query parameters work only with it"),
    ),
    errors=(Error, AnthropicError),
    answer=(ModelList, AnthropicModelList),
)
async def models(call: Call, query: ModelsQuery) -> ModelList | JsonObject:
    """List the agents and models whose names can be used as `model` in a request."""
    roster = call.hf.roster
    if call.get_header("anthropic-version") is not None:
        return _list_for_anthropic(roster, query)
    agents = [_convert_agent(agent) for agent in roster.agents.values()]
    llms = [Model(id=name, owned_by=llm.model) for name, llm in roster.llms.items() if name not in roster.agents]
    return ModelList(data=[*agents, *llms])


def _convert_agent(agent: Agent) -> Model:
    return Model(id=agent.name, owned_by="holdfast-agent", description=agent.description or UNSET)


def _list_for_anthropic(roster: Roster, query: ModelsQuery) -> JsonObject:
    agents = [
        (name, f"agent {name}" + (f": {agent.description}" if agent.description else ""))
        for name, agent in roster.agents.items()
    ]
    llms = [(name, llm.model) for name, llm in roster.llms.items() if name not in roster.agents]
    return make_model_list([*agents, *llms], limit=query.limit, after=query.after_id, before=query.before_id)


# -- the server ------------------------------------------------------------------


class Health(Answer):
    """Health of the server."""

    status: str
    """`ok` (the process runs) or `ready` (the store can be read and written)."""
    version: str
    """Version of Holdfast."""


class Home(Answer, kw_only=True):
    """Overview of the server: its version and its main routes."""

    name: str = "holdfast"
    version: str = __version__
    chat: str = "POST /v1/chat/completions"
    messages: str = "POST /v1/messages"
    sessions: str = "GET /v1/sessions"
    api: str = "GET /openapi.json"


@server_routes.add("GET", "/healthz", "public")
async def health(_: Call) -> Health:
    """Check that the process runs."""
    return Health("ok", __version__)


@server_routes.add("GET", "/readyz", "public", error_statuses=(503,))
async def ready(call: Call) -> Health:
    """Check that the store can be read and written. If not, the status is 503."""
    await call.hf.store.ping()
    return Health("ready", __version__)


@server_routes.add("GET", "/", "public", answer={JSON: Home, "text/html": TEXT})
async def home(_: Call) -> Reply:
    """Return an overview of the server. Browsers get the first page of the inspector instead."""
    return Reply(Home(), headers={"vary": "Accept"})


@server_routes.add("GET", "/metrics", "server", answer={"text/plain": TEXT})
async def metrics(call: Call) -> Reply:
    """Return the metrics of the server in Prometheus text format."""
    counted: Metrics = call.request.app.state.metrics
    return Reply(counted.render(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

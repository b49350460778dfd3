"""Routes for health checks, the list of models, metrics, and the home page."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, UnsetType

from holdfast._version import __version__
from holdfast.domain.objects import Answer, Count, Page, Request, json_schema, make_object
from holdfast.errors import InvalidRequest
from holdfast.limits import PAGE
from holdfast.numbers import is_whole
from holdfast.server.chat_objects import AnthropicError, Error
from holdfast.server.http import Call
from holdfast.server.metrics import Metrics
from holdfast.server.passthrough import list_upstream_models
from holdfast.server.replies import Reply
from holdfast.server.routes import JSON, TEXT, Routes, describe_header

routes = Routes("chat")
server_routes = Routes("server", lenient=True)
HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths of health checks. Their responses contain no user data, so they need no key and no allowed host name."""

# -- models ----------------------------------------------------------------------


class ModelsQuery(Request, kw_only=True):
    """Query parameters of the list of models."""

    beta: str | None = None
    """Sent by Anthropic's client for beta features, and ignored."""
    limit: Annotated[int, json_schema(minimum=1, maximum=PAGE)] | None = None
    """Maximum number of models. Default: all, or 20 in Anthropic's format."""
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
    """`holdfast-agent` for an agent; for an llm of the configuration, its model at the upstream; `upstream` for another model of the upstream
    of the default llm.
    """
    description: str | UnsetType = UNSET
    """Purpose of the agent."""


class ModelList(Page[Model, str]):
    """A page of agents and models whose names can be used as `model` in a request."""


class AnthropicModel(Answer, kw_only=True):
    """An agent or a model."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    """`agent NAME: DESCRIPTION` for an agent; for a model, its name at the upstream, or the name that the upstream shows."""
    created_at: Annotated[str, json_schema(format="date-time")] = "1970-01-01T00:00:00Z"
    """Always the same date, because the real date is unknown."""
    lifecycle: Literal["active"] = "active"


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
    request_headers=(describe_header("anthropic-version", "selects Anthropic's format"),),
    errors=(Error, AnthropicError),
    answer=(ModelList, AnthropicModelList),
)
async def models(call: Call, query: ModelsQuery) -> ModelList | AnthropicModelList:
    """List the agents and models whose names can be used as `model` in a request.

    The models of the default llm's upstream are included, if the upstream lists them. The list is a minute old at most.
    """
    rows, is_anthropic = await _list_models(call), call.get_header("anthropic-version") is not None
    page, has_more = _cut_page(rows, query, 20 if is_anthropic else len(rows))
    made = ModelList.of([row for row, _ in page], has_more=has_more)
    if not is_anthropic:
        return made
    data = [AnthropicModel(id=row.id, display_name=shown) for row, shown in page]
    return make_object(AnthropicModelList, made, data=data)


async def _list_models(call: Call) -> list[tuple[Model, str]]:
    """Return agents, llms, and other models of the upstream, each with the name to show. No id is there twice."""
    roster, found = call.hf.roster, dict[str, tuple[Model, str]]()
    for name, agent in roster.agents.items():
        shown = f"agent {name}" + (f": {agent.description}" if agent.description else "")
        found[name] = Model(id=name, owned_by="holdfast-agent", description=agent.description or UNSET), shown
    for name, llm in roster.llms.items():
        found.setdefault(name, (Model(id=name, owned_by=llm.model), llm.model))
    for one in await list_upstream_models(call):
        created = one.created if is_whole(one.created) else 0
        found.setdefault(one.id, (Model(id=one.id, created=created, owned_by="upstream"), one.display_name or one.id))
    return list(found.values())


def _cut_page(rows: list[tuple[Model, str]], query: ModelsQuery, default: int) -> tuple[list[tuple[Model, str]], bool]:
    """Return a page of models, and whether there are more. Raise `InvalidRequest` if no model has the id at which the page begins or ends."""
    order = [row.id for row, _ in rows]
    for cursor, param in ((query.after_id, "after_id"), (query.before_id, "before_id")):
        if cursor is not None and cursor not in order:
            raise InvalidRequest(f"there is no model {cursor[:80]!r}", param=param)
    first = 0 if query.after_id is None else order.index(query.after_id) + 1
    part = rows[first : None if query.before_id is None else order.index(query.before_id)]
    limit = query.limit or default
    page = part[-limit:] if query.before_id is not None and query.after_id is None else part[:limit]
    return page, len(part) > len(page)


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

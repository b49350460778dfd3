"""Pages about agents and models: their configuration, the health of upstreams, and the history of workspaces. Keys of upstreams are never shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.agents.definitions import Llm
from holdfast.context.settings import STRATEGIES, ContextSettings, get_budget
from holdfast.models import LimitedModel, Upstream
from holdfast.server.http import Call
from holdfast.server.inspector.actions import declare_action
from holdfast.server.inspector.frame import HTML, PageQuery, render
from holdfast.server.inspector.rest import call_rest, make_path
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.workspace.workspace import DEFAULT

routes = Routes("inspector")
_COMMITS: Final = 20
"""Commits of a workspace on a page."""
_SHOWN_PARAMS: Final = frozenset(
    {"temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "reasoning_effort", "n"}
)
"""Request fields whose values pages show. Of other fields, pages show only the name, because the value may be a secret."""

declare_action("checkpoint", "POST", "/v1/workspaces/{agent}/checkpoint", "The files of the workspace were committed.")


class AgentQuery(PageQuery, kw_only=True):
    """Query parameters of the page of an agent."""

    diff: bool = False
    """True: show the changes of the listed commits."""


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A model of the configuration, without its key and its address."""

    name: str
    model: str
    dialect: str
    window: int | None
    reply: int | None
    fallbacks: tuple[str, ...]
    inputs: tuple[str, ...]
    params: dict[str, Any]
    running: tuple[int, int] | None
    """Running and waiting calls, if their number is limited."""
    upstream: Upstream
    is_available: bool
    learned: str
    """What refusals have shown about the model and its upstream, for people."""


@routes.add("GET", "/inspect/agents", "read", answer=HTML)
async def show_agents(call: Call, query: PageQuery) -> Reply:
    """Return the agents and models of the configuration."""
    roster = call.hf.roster
    return await render(
        call,
        "agents.html",
        title="Agents and models",
        agents=list(roster.agents.values()),
        models=[_make_row(call, name, llm) for name, llm in roster.llms.items()],
        default=roster.context,
        get_budget=get_budget,
    )


@routes.add("GET", "/inspect/agents/{agent}", "read", answer=HTML)
async def show_agent(call: Call, query: AgentQuery) -> Reply:
    """Return an agent: its settings, its team, its tools, and the commits of its workspace."""
    name, roster = call.path["agent"], call.hf.roster
    agent = roster.agents.get(name)
    if agent is None and name != DEFAULT:
        raise Refused(404, "not_found", f"there is no agent {name[:80]!r}")
    context = roster.context if agent is None else agent.context
    llm = roster.find_llm(None if agent is None else agent.llm)
    history, problem = await _read_history(call, name, diff=query.diff)
    return await render(
        call,
        "agent.html",
        title=name,
        agent=agent,
        name=name,
        model=_make_row(call, llm.name, llm),
        context=context,
        options=_list_options(context),
        recalls=roster.recalls if agent is None or agent.recalls is None else agent.recalls,
        tools=roster.find_responder(agent=None if agent is None else name).tools.tools.values(),
        history=history,
        problem=problem,
        query=query,
    )


def _make_row(call: Call, name: str, llm: Llm) -> ModelRow:
    upstream = call.hf.roster.find_upstream(llm)
    client = llm.client
    return ModelRow(
        name=name,
        model=llm.model,
        dialect=llm.dialect,
        window=llm.compute_budget().context_window,
        reply=llm.max_tokens,
        fallbacks=llm.fallbacks,
        inputs=tuple(sorted(llm.inputs or ())),
        params={key: value if key in _SHOWN_PARAMS else None for key, value in llm.params.items()},
        running=(client.running, client.waiting) if isinstance(client, LimitedModel) else None,
        upstream=upstream,
        is_available=upstream.is_available(call.hf.clock()),
        learned=call.hf.roster.describe_learned(llm, call.hf.clock()),
    )


def _list_options(context: ContextSettings) -> list[tuple[str, Any, bool, str]]:
    """Return name, value, whether it was set, and the description of each option of a strategy."""
    spec = STRATEGIES[context.strategy]
    return [
        (name, context.options.get(name, key.default), name in context.options, key.about)
        for name, key in spec.keys.items()
    ]


async def _read_history(call: Call, agent: str, *, diff: bool) -> tuple[Any, str]:
    """Return the history of a workspace and an empty text, or None and the reason why there is no history."""
    query = {"limit": str(_COMMITS), "diff": "true" if diff else "false"}
    path = make_path("/v1/workspaces/{agent}/history", agent=agent)
    status, answer = await call_rest(call, "GET", path, query=query)
    return (answer, "") if status < 400 else (None, answer["error"]["message"])

"""Pages for administrators: keys, retention with the journal of deletions, and agents with their models. No key of an upstream is shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, get_args

import msgspec

from holdfast.access import ApiKeyObject, is_usable_key
from holdfast.agents.definitions import Llm
from holdfast.context.settings import STRATEGIES, get_budget
from holdfast.domain.objects import Id, NonEmpty
from holdfast.durations import format_duration
from holdfast.errors import HoldfastError
from holdfast.log.align import Mode
from holdfast.models.health import Upstream
from holdfast.models.limited import LimitedModel
from holdfast.server.http import Call
from holdfast.server.inspector.actions import call_route
from holdfast.server.inspector.frame import GLOBALS, PageQuery, Pages, Values
from holdfast.server.keys import find_key
from holdfast.server.permissions import Refused
from holdfast.server.status import read_retention
from holdfast.stores.keys import Role
from holdfast.workspace.workspace import DEFAULT

routes = Pages()
_LISTED: Final = 50
"""Keys or deletions on a page."""
GLOBALS.update(roles=get_args(Role), modes=get_args(Mode), get_budget=get_budget)


# -- keys --------------------------------------------------------------------------

_COMPARED: Final = 1_000
"""Keys of a tenant among which another admin key is looked for."""


class KeysQuery(PageQuery, kw_only=True):
    """Query parameters of the list of keys."""

    tenant: Id | None = None
    after: NonEmpty | None = None
    """Id of the last key on the page before."""


@routes.page("/inspect/keys", "shared admin", "keys.html", "Keys")
async def show_keys(call: Call, query: KeysQuery) -> Values:
    """Return the keys that the caller may manage."""
    given = {"limit": _LISTED, "tenant": query.tenant, "after": query.after}
    found = await call_route(call, "GET /v1/keys", {}, given)
    return {
        "keys": found["data"],
        "is_own": call.caller.own,
        "requires_key": call.request.app.state.access.requires_key,
        "more": {"after": found["last_id"]} if found["has_more"] else None,
    }


@routes.page("/inspect/keys/{key_id}", "shared admin", "key.html")
async def show_key(call: Call, query: PageQuery) -> Values:
    """Return everything that is known about a key, with the button that revokes it."""
    key = msgspec.to_builtins(ApiKeyObject.from_key(await find_key(call), call.hf.clock()))
    own = call.server_hf.tenant
    is_admin = key["role"] == "admin" and key["user_id"] is None
    return {
        "title": key["name"] or key["id"],
        "key": key,
        "is_mine": key["id"] == call.principal.key_id,
        "is_own_tenant": key["tenant"] == own,
        "is_last_admin": is_admin and not await _has_other_admin(call, key["id"], {key["tenant"], own}),
    }


async def _has_other_admin(call: Call, key_id: str, tenants: Collection[str]) -> bool:
    """Return True if another valid key can manage the keys of these tenants, or if there are too many keys to know."""
    now = call.hf.clock()
    for tenant in tenants:
        found = await call.server_hf.store.keys(tenant=tenant, limit=_COMPARED)
        if len(found) == _COMPARED or any(
            one.role == "admin" and one.user_id is None and one.id != key_id and is_usable_key(one, now)
            for one in found
        ):
            return True
    return False


# -- retention ---------------------------------------------------------------------


class DeletionsQuery(PageQuery, kw_only=True):
    """Query parameters of the journal of deletions."""

    user_id: Id | None = None
    session_id: Id | None = None
    after: NonEmpty | None = None
    """Id of the last deletion on the page before."""


@routes.page("/inspect/retention", "shared admin", "retention.html", "Retention")
async def show_retention(call: Call, query: PageQuery) -> Values:
    """Return the rules that end and delete sessions, and what each of them would do now."""
    found = msgspec.to_builtins(await read_retention(call))
    ttl, most, kept = found["session_ttl"], found["max_sessions"], found["retention"]
    rules = [
        ("sessions.ttl", "Idle sessions end after", ttl and format_duration(ttl / 1000), found["expired"]),
        ("sessions.max_sessions", "Active sessions, at most", most and f"{most:,}", found["surplus"]),
        (
            "storage.sessions.retention",
            "Closed sessions are deleted after",
            kept and format_duration(kept / 1000),
            found["retired"],
        ),
    ]
    return {"found": found, "rules": rules}


@routes.page("/inspect/deletions", "shared admin", "deletions.html", "Deletions")
async def show_deletions(call: Call, query: DeletionsQuery) -> Values:
    """Return the journal of deletions with their receipts, newest first."""
    user_id = query.user_id or (None if query.session_id is None else "default")
    given = {"user_id": user_id, "session_id": query.session_id, "limit": _LISTED, "after": query.after}
    found = await call_route(call, "GET /v1/deletions", {}, given)
    return {"deletions": found["data"], "more": {"after": found["last_id"]} if found["has_more"] else None}


# -- agents ------------------------------------------------------------------------

_COMMITS: Final = 20
"""Commits of a workspace on a page."""
_SHOWN_PARAMS: Final = frozenset(
    {"temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "reasoning_effort", "n"}
)
"""Request fields whose values pages show. Of other fields, pages show only the name, because the value may be a secret."""


class AgentQuery(PageQuery, kw_only=True):
    """Query parameters of the page of an agent."""

    diff: bool = False
    """True: show the changes of the listed commits."""


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A model of the configuration, without its key and its address."""

    llm: Llm
    window: int | None
    params: dict[str, Any]
    running: tuple[int, int] | None
    """Running and waiting calls, if their number is limited."""
    upstream: Upstream
    is_available: bool
    learned: str
    """Changes of its profile that were learned from refusals, for people."""

    @classmethod
    def from_llm(cls, call: Call, llm: Llm) -> ModelRow:
        """Describe a model as it is now."""
        client, roster, now = llm.client, call.hf.roster, call.hf.clock()
        upstream = roster.find_upstream(llm)
        return cls(
            llm=llm,
            window=llm.compute_budget().context_window,
            params={key: value if key in _SHOWN_PARAMS else None for key, value in llm.params.items()},
            running=(client.running, client.waiting) if isinstance(client, LimitedModel) else None,
            upstream=upstream,
            is_available=upstream.is_available(now),
            learned="; ".join(roster.describe_learned(llm, now)),
        )


@routes.page("/inspect/agents", "read", "agents.html", "Agents and models")
async def show_agents(call: Call, query: PageQuery) -> Values:
    """Return the agents and models of the configuration."""
    roster = call.hf.roster
    return {
        "agents": list(roster.agents.values()),
        "models": [(name, ModelRow.from_llm(call, llm)) for name, llm in roster.llms.items()],
        "default": roster.context,
    }


@routes.page("/inspect/agents/{agent}", "read", "agent.html")
async def show_agent(call: Call, query: AgentQuery) -> Values:
    """Return an agent: its settings, its team, its tools, and the commits of its workspace."""
    name, roster = call.path["agent"], call.hf.roster
    agent = roster.agents.get(name)
    if agent is None and name != DEFAULT:
        raise Refused(404, "not_found", f"there is no agent {name[:80]!r}")
    context = roster.context if agent is None else agent.context
    history, problem = await _read_history(call, name, diff=query.diff)
    return {
        "title": name,
        "agent": agent,
        "name": name,
        "model": ModelRow.from_llm(call, roster.find_llm(None if agent is None else agent.llm)),
        "context": context,
        "options": [
            (key, context.options.get(key, spec.default), key in context.options, spec.about)
            for key, spec in STRATEGIES[context.strategy].keys.items()
        ],
        "recalls": roster.recalls if agent is None or agent.recalls is None else agent.recalls,
        "tools": roster.find_responder(agent=None if agent is None else name).tools.tools.values(),
        "history": history,
        "problem": problem,
    }


async def _read_history(call: Call, agent: str, *, diff: bool) -> tuple[Any, str]:
    """Return the history of a workspace and an empty text, or None and the reason why there is no history."""
    try:
        query = {"limit": _COMMITS, "diff": diff}
        return await call_route(call, "GET /v1/workspaces/{agent}/history", {"agent": agent}, query), ""
    except (HoldfastError, Refused) as exc:
        return None, getattr(exc, "public_message", str(exc))

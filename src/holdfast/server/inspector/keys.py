"""Pages about API keys: list them, create one, whose text is shown once, and revoke one."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.domain.reconcile import Mode
from holdfast.server.http import Call
from holdfast.server.inspector.actions import Action, declare_action, get_notice
from holdfast.server.inspector.frame import HTML, PageQuery, make_url, render
from holdfast.server.inspector.rest import make_path, read_rest
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.stores.keys import Role
from holdfast.wire.objects import Id, NonEmpty

routes = Routes("inspector")
_LISTED: Final = 50
"""Keys on a page."""

declare_action(
    "create_key",
    Action(
        method="POST",
        path="/v1/keys",
        notice="The key was created",
        kinds={"rate": "integer", "max_body": "integer", "budget": "integer"},
        template="key_created.html",
    ),
)
declare_action(
    "revoke_key",
    Action(method="DELETE", path="/v1/keys/{key_id}", notice="The key was revoked, and its sign-ins have ended."),
)


class KeysQuery(PageQuery, kw_only=True):
    """Query parameters of the list of keys."""

    tenant: Id | None = None
    after: NonEmpty | None = None
    """Id of the last key on the page before."""


@routes.add("GET", "/inspect/keys", "shared admin", answer=HTML)
async def show_keys(call: Call, query: KeysQuery) -> Reply:
    """Return the keys that the caller may manage."""
    found = await read_rest(call, "/v1/keys", limit=_LISTED, tenant=query.tenant, after=query.after)
    after = found["last_id"] if found["has_more"] else None
    return await render(
        call,
        "keys.html",
        title="Keys",
        notice=get_notice(query.notice),
        keys=found["data"],
        query=query,
        is_own=call.caller.own,
        requires_key=call.request.app.state.access.requires_key,
        next_url=make_url("/inspect/keys", tenant=query.tenant, after=after) if after else "",
        first_url=make_url("/inspect/keys", tenant=query.tenant) if query.after else None,
        roles=get_args(Role),
        modes=get_args(Mode),
    )


@routes.add("GET", "/inspect/keys/{key_id}", "shared admin", answer=HTML)
async def show_key(call: Call, query: PageQuery) -> Reply:
    """Return everything that is known about a key, with the button that revokes it."""
    key = await read_rest(call, make_path("/v1/keys/{key_id}", key_id=call.path["key_id"]))
    return await render(
        call,
        "key.html",
        title=key["name"] or key["id"],
        notice=get_notice(query.notice),
        key=key,
        is_mine=key["id"] == call.principal.key_id,
    )

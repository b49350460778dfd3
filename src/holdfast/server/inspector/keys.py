"""Pages about API keys: list them, create one, whose text is shown once, and revoke one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, get_args

import msgspec

from holdfast.access import is_usable_key
from holdfast.domain.objects import Id, NonEmpty
from holdfast.domain.reconcile import Mode
from holdfast.server.http import Call
from holdfast.server.inspector.actions import declare_action
from holdfast.server.inspector.frame import HTML, PageQuery, make_url, render
from holdfast.server.inspector.rest import read_rest
from holdfast.server.keys import ApiKeyObject, find_key
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.stores.keys import Role

routes = Routes("inspector")
_LISTED: Final = 50
"""Keys on a page."""
_COMPARED: Final = 1_000
"""Keys of a tenant among which another admin key is looked for."""

declare_action(
    "create_key",
    "POST",
    "/v1/keys",
    "The key was created",
    template="key_created.html",
    rate="integer",
    max_body="integer",
    budget="integer",
)
declare_action("revoke_key", "DELETE", "/v1/keys/{key_id}", "The key was revoked, and its sign-ins have ended.")


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
    key = msgspec.to_builtins(ApiKeyObject.from_key(await find_key(call), call.hf.clock()))
    own = call.server_hf.tenant
    return await render(
        call,
        "key.html",
        title=key["name"] or key["id"],
        key=key,
        is_mine=key["id"] == call.principal.key_id,
        is_own_tenant=key["tenant"] == own,
        is_last_admin=key["role"] == "admin"
        and key["user_id"] is None
        and not await _has_other_admin(call, key["id"], {key["tenant"], own}),
    )


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

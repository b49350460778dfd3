"""REST API for API keys: create, list and revoke them."""

from __future__ import annotations

import secrets
from typing import Annotated, Final

from msgspec import UNSET, UnsetType

from holdfast.access import ID_RANDOM, SECRET_RANDOM, ApiKeyObject, create_key
from holdfast.domain.objects import Id, NonEmpty, Page, Request, json_schema
from holdfast.durations import LONGEST, parse_duration
from holdfast.errors import InvalidRequest, KeyNotFound
from holdfast.log.align import Mode
from holdfast.numbers import MOST, check_whole
from holdfast.server.access import Access
from holdfast.server.http import Call
from holdfast.server.permissions import Refused
from holdfast.server.routes import PageLimit, Routes
from holdfast.stores.checks import check_new_id
from holdfast.stores.keys import ApiKey, KeyLimit, Role
from holdfast.stores.logic.tenants import KeyStore

routes = Routes("keys")
_ONE: Final = "/v1/keys/{key_id}"
_FIRST: Final = "This is the first key of the server. Every request needs a key from now on."
_NO_ADMIN: Final = (
    " This key cannot manage keys: create an admin key with `holdfast keys create --role admin` on the server."
)
_CAPPED: Final = ("rate", "max_body", "budget")
"""Limits of a key. Keys that it creates have the same limits or lower ones."""


class CreatedKey(ApiKeyObject, frozen=True, kw_only=True):
    """A key that was just created, with its secret text."""

    key: NonEmpty
    """The complete key. It is not stored, and shown only in this response."""
    note: str | UnsetType = UNSET
    """Says that every request needs a key from now on, if this is the server's first key."""


class ApiKeyList(Page[ApiKeyObject, str]):
    """A page of API keys."""


class KeysQuery(Request, kw_only=True):
    """Query parameters of a list of keys."""

    limit: PageLimit = 20
    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""
    tenant: NonEmpty | None = None
    """Only keys of this tenant; default: of all tenants that the caller may manage."""


class NewApiKey(Request, kw_only=True):
    """A key to create."""

    name: str = ""
    """Name of the key, for your own use."""
    tenant: Id | None = None
    """Tenant of the key; default: the caller's. Only a caller of the server's own tenant can name another one."""
    user_id: Id | None = None
    """The only user that the key acts for; null: any user of the tenant."""
    role: Role = "write"
    expires: Annotated[int | str | None, json_schema(examples=["90d", 7_776_000_000])] = None
    """Lifetime: milliseconds, or a text such as `90d` or `12h`. Null: as long as the caller's own key."""
    rate: KeyLimit | None = None
    """Maximum requests per minute; null: as for the caller's own key."""
    max_body: KeyLimit | None = None
    """Maximum bytes of a request body; null: as for the caller's own key."""
    session_mode: Mode | None = None
    """Interpretation of messages with a session id; null: the agent's or the server's setting."""
    budget: KeyLimit | None = None
    """Maximum tokens of the conversation in a prompt; null: as for the caller's own key."""


@routes.add("GET", "/v1/keys", "shared admin")
async def list_keys(call: Call, query: KeysQuery) -> ApiKeyList:
    """List API keys in the order of their ids, revoked and expired ones too. The keys themselves are not stored.

    An admin key lists the keys of its own tenant. An admin key of the server's own tenant lists the keys of all tenants.
    """
    tenant = query.tenant if query.tenant is None and call.caller.own else _check_tenant(call, query.tenant)
    store = _get_store(call)
    found = await store.keys(after=query.after or "", limit=query.limit, tenant=tenant)
    more = len(found) == query.limit and bool(await store.keys(after=found[-1].id, limit=1, tenant=tenant))
    now = call.hf.clock()
    return ApiKeyList.of([ApiKeyObject.from_key(key, now) for key in found], has_more=more)


@routes.add("POST", "/v1/keys", "shared admin", status=201)
async def create(call: Call, body: NewApiKey) -> CreatedKey:
    """Create an API key. The response is the only one that contains the key itself.

    The new key never has more power than the caller's own: its rate, body size, budget and lifetime are at most the caller's.
    """
    now, store = call.hf.clock(), _get_store(call)
    for value, param in ((body.tenant, "tenant"), (body.user_id, "user_id")):
        if value is not None:
            check_new_id(value, param)
            if any(char < " " for char in value):
                raise InvalidRequest(f"{param} must not contain control characters: {value!r:.80}", param=param)
    tenant = _check_tenant(call, body.tenant)
    given = {name: _cap(call, name, getattr(body, name)) for name in _CAPPED}
    made = create_key(secrets.token_bytes(ID_RANDOM + SECRET_RANDOM))
    key = ApiKey(
        id=made.id,
        hash=made.hash,
        name=body.name,
        tenant=tenant,
        user_id=body.user_id,
        role=body.role,
        created_at=now,
        expires_at=_find_expiry(call, body.expires, now),
        session_mode=body.session_mode,
        **given,
    )
    await store.add_key(key)
    access: Access = call.request.app.state.access
    note: str | UnsetType = UNSET
    if access.note_key():
        note = _FIRST if key.role == "admin" and key.user_id is None else _FIRST + _NO_ADMIN
    return CreatedKey.from_key(key, now, key=made.text, note=note)


@routes.add("DELETE", _ONE, "shared admin", error_statuses=(404,))
async def revoke(call: Call) -> ApiKeyObject:
    """Revoke an API key permanently, and end its sign-ins to the inspector. The key stays in the list.

    All servers refuse the key within 5 seconds. Revoking it again changes nothing.
    """
    key, now = await find_key(call), call.hf.clock()
    return ApiKeyObject.from_key(await _get_store(call).revoke_key(key.id, timestamp=now), now)


def _get_store(call: Call) -> KeyStore:
    """Return the store that has the keys of all tenants."""
    return call.server_hf.store


async def find_key(call: Call) -> ApiKey:
    """Return the key in the path. Raise `KeyNotFound` if there is none, or if the caller may not manage it."""
    key_id = call.path["key_id"]
    key = await _get_store(call).get_key(key_id)
    if key is None or not (call.caller.own or key.tenant == call.principal.tenant):
        raise KeyNotFound(key_id)
    return key


def _check_tenant(call: Call, named: str | None) -> str:
    """Return the tenant that a request names, or the caller's. Raise `Refused` if the caller may not manage its keys."""
    own = call.principal.tenant
    if named not in {None, own} and not call.caller.own:
        raise Refused(403, "forbidden", "this key can manage only keys of its own tenant")
    return own if named is None else named


def _cap(call: Call, name: str, wanted: int | None) -> int | None:
    """Return a limit of the new key, which is at most the caller's own limit. Raise `Refused` if it is higher."""
    most: int | None = getattr(call.principal, name)
    if wanted is None:
        return most
    check_whole(wanted, name, 1, MOST)
    if most is not None and wanted > most:
        raise Refused(403, "forbidden", f"{name} is {wanted}, but this key's own limit is {most}")
    return wanted


def _find_expiry(call: Call, lifetime: int | str | None, now: int) -> int | None:
    """Return the time when the new key expires, which is never later than the caller's own key.

    Raises:
        InvalidRequest: the lifetime is not valid.
        Refused: the caller's own key expires earlier.
    """
    latest = call.principal.expires_at
    if lifetime is None:
        return latest
    milliseconds = round(1000 * (parse_duration(lifetime) or 0)) if isinstance(lifetime, str) else lifetime
    if not 0 < milliseconds <= LONGEST * 1000:
        message = (
            f"expires must be a lifetime of at most 100 years, in milliseconds or like 90d or 12h, not {lifetime!r:.80}"
        )
        raise InvalidRequest(message, param="expires")
    if latest is not None and now + milliseconds > latest:
        raise Refused(403, "forbidden", "a key cannot create a key that expires later than itself")
    return now + milliseconds

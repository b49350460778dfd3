"""Who owns the state or the records of a request: a session, a user, or the tenant."""

from __future__ import annotations

from typing import Literal

from holdfast.domain.session import Session
from holdfast.errors import InvalidRequest
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.permissions import Need, permit
from holdfast.wire.objects import NonEmpty, Request


class SharedQuery(Request, kw_only=True):
    """Query parameters that name the owner of what sessions share: a user, or the tenant."""

    user_id: NonEmpty | None = None
    """User who owns the values. With `session_id`: user of the session."""
    scope: Literal["tenant"] | None = None
    """`tenant`: the values that all users share. Without another owner, it is required to write, and the default to read."""


class OwnerQuery(SharedQuery, kw_only=True):
    """Query parameters that name the owner: a session, a user, or the tenant."""

    session_id: NonEmpty | None = None
    """Session that owns the values. The state of a session includes the shared state."""


async def find_owner(call: Call, query: OwnerQuery, *, read: Need | None = None, write: Need) -> Session | str | None:
    """Return the session, or the id of the user, or None for the tenant. See `get_shared_owner`.

    Raises:
        SessionNotFound: there is no such session.
    """
    if query.session_id is None:
        return get_shared_owner(call, query, read=read, write=write)
    if query.scope is not None:
        raise InvalidRequest("scope cannot be used together with session_id", param="scope")
    return await get_session_by_id(call.hf, query.session_id, call.get_owner(query.user_id))


def get_shared_owner(call: Call, query: SharedQuery, *, read: Need | None = None, write: Need) -> str | None:
    """Return the id of the user, or None for the tenant. For the tenant, the caller needs the permission `read` or `write`.

    Raises:
        InvalidRequest: a request that writes names no owner. A client that loses a parameter must not change what all users share.
        UserNotFound: the key belongs to another user.
        Refused: the caller lacks the permission.
    """
    if query.user_id is not None and query.scope is not None:
        raise InvalidRequest("scope cannot be used together with user_id", param="scope")
    if query.user_id is not None:
        return call.get_owner(query.user_id)
    reads = call.request.method in ("GET", "HEAD")
    if (needed := read if reads else write) is not None:
        permit(call.request.scope, needed)
    if not reads and query.scope is None:
        raise InvalidRequest("name the owner: session_id, user_id, or scope=tenant", param="scope")
    return None

"""Check that a caller has a permission. Each route declares the permission that callers need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from starlette.types import Scope

from holdfast.access import Principal
from holdfast.domain.state import get_scope
from holdfast.stores.keys import Role

Need = Role | Literal["public", "server", "tenant", "shared", "shared write", "shared admin"]
"""Permission that a route requires.

- `read`, `write`, `admin`: a key with this role.
- `public`: no key. The route returns no user data.
- `server`: an admin key of the server's own tenant, without a user.
- `tenant`: a key without a user with the role write, or an admin key.
- `shared`: a key without a user with the role read, because the data belongs to all users.
- `shared write`: like `shared`, with the role write.
- `shared admin`: like `shared`, with the role admin.
"""
ROLES: Final[Mapping[Need, Role]] = {
    "read": "read",
    "write": "write",
    "admin": "admin",
    "server": "admin",
    "tenant": "write",
    "shared": "read",
    "shared write": "write",
    "shared admin": "admin",
}
"""Role that each permission requires. `public` requires none. Some permissions have more conditions; see `Need`."""

REST: Final = "/{path:path}"
"""Path pattern that matches every path, for the routes that answer requests to unknown paths."""
API_HEADS: Final = frozenset({"chat", "conversations", "messages", "models", "responses"})
"""First parts, after `/v1`, of the routes that clients of OpenAI and Anthropic call, and that Holdfast serves."""
UPSTREAM_HEADS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(
        ("audio", "classify", "completions", "embeddings", "images", "moderations", "rerank", "score"), False
    ),
    **dict.fromkeys(("batches", "files", "fine_tuning", "uploads", "vector_stores", "videos"), True),
}
"""First parts, after `/v1`, of the routes that are passed through to an upstream. True: the provider stores objects for the owner of the key."""
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def permit(scope: Scope, needed: Need) -> None:
    """Raise `Refused` if the caller of a request lacks the permission `needed`.

    Args:
        scope: ASGI scope of the request.
        needed: permission that the route requires.
    """
    caller = scope.get("state", {}).get("caller")
    if needed == "public":
        return
    if caller is None:
        raise Refused(403, "forbidden", "this request is not allowed without authentication")
    principal: Principal = caller.principal
    role = ROLES[needed]
    if not principal.has_role(role):
        raise Refused(403, "forbidden", f"this key has the role {principal.role!r}; the request needs {role!r}")
    if needed == "server" and not caller.own:
        raise Refused(403, "forbidden", "this request needs an admin key of the server's own tenant, without a user")
    if needed == "tenant":
        check_shared(principal)
    if needed in {"shared", "shared write", "shared admin"} and principal.user_id is not None:
        raise Refused(403, "forbidden", "this request affects all users: it needs a key without a user")


def is_permitted(scope: Scope, needed: Need) -> bool:
    """Return True if the caller of a request has the permission `needed`."""
    try:
        permit(scope, needed)
    except Refused:
        return False
    return True


def check_shared(principal: Principal) -> None:
    """Raise `Refused` if the key belongs to one user and is not an admin key.

    This check protects data that belongs to all users: the app's state, and memories of agents or the app.
    """
    if principal.user_id is not None and not principal.has_role("admin"):
        message = (
            "this key belongs to one user, but the data belongs to all users (app state, memories of an agent or the app): use a key"
            " without a user, or an admin key"
        )
        raise Refused(403, "forbidden", message)


def check_app(principal: Principal, keys: Iterable[str]) -> None:
    """Raise `Refused` if `keys` contains an `app:` key of the state and the caller may not write such keys."""
    if any(get_scope(key) == "app" for key in keys):
        check_shared(principal)


# -- refusals --------------------------------------------------------------------


class Refused(Exception):
    """A request is rejected because of its key, size, rate or another reason outside its content.

    The exception has the status, the error code and the headers of the response.
    """

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

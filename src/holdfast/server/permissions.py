"""The access table: what each route asks of whoever calls it. A route that is not in it is answered to nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from starlette.types import Scope

from holdfast.access import Principal
from holdfast.domain.state import scope_of
from holdfast.server.refused import Refused
from holdfast.stores.keys import Role

Need = Role | Literal["public", "server", "tenant", "shared", "shared write"]
"""`public`: no key is asked for, and nothing of anybody is told. `server`: an admin key of the server's own tenant, of no user.
`tenant`: a key that may write and is of no user, or an admin's. `shared`, `shared write`: a key that may read, or write, and is of
no user, whatever its role: what is asked for has something of all users."""
ROLES: Final[Mapping[Need, Role]] = {
    "read": "read",
    "write": "write",
    "admin": "admin",
    "server": "admin",
    "tenant": "write",
    "shared": "read",
    "shared write": "write",
}
"""The role that each of them asks for, but for `public`; some ask for more."""

REST: Final = "/{path:path}"
"""Where no route is."""
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ONE: Final = "/v1/sessions/{session_id}"

PERMISSIONS: Final[Mapping[tuple[str, str], Need]] = {
    ("POST", "/v1/chat/completions"): "write",
    ("POST", "/v1/messages"): "write",
    ("POST", "/v1/messages/count_tokens"): "read",
    ("GET", "/v1/models"): "read",
    ("GET", "/v1/sessions"): "read",
    ("POST", "/v1/sessions"): "write",
    ("GET", _ONE): "read",
    ("PUT", _ONE): "write",
    ("PATCH", _ONE): "write",
    ("DELETE", _ONE): "write",
    ("POST", f"{_ONE}/close"): "write",
    ("POST", f"{_ONE}/fork"): "write",
    ("POST", f"{_ONE}/move"): "write",
    ("POST", f"{_ONE}/rewind"): "write",
    ("DELETE", "/v1/users/{user_id}"): "admin",
    ("GET", "/v1/users/{user_id}/state"): "read",
    ("PATCH", "/v1/users/{user_id}/state"): "write",
    ("POST", "/v1/users/{user_id}/state"): "write",
    ("DELETE", "/v1/users/{user_id}/state"): "write",
    ("GET", "/v1/state"): "read",
    ("PATCH", "/v1/state"): "tenant",
    ("POST", "/v1/state"): "tenant",
    ("DELETE", "/v1/state"): "tenant",
    ("GET", f"{_ONE}/state"): "read",
    ("PATCH", f"{_ONE}/state"): "write",
    ("POST", f"{_ONE}/state"): "write",
    ("GET", f"{_ONE}/messages"): "read",
    ("POST", f"{_ONE}/messages"): "write",
    ("PATCH", f"{_ONE}/messages/{{seq}}"): "write",
    ("DELETE", f"{_ONE}/messages/{{seq}}"): "write",
    ("POST", f"{_ONE}/context"): "read",
    ("GET", f"{_ONE}/explain"): "read",
    ("GET", f"{_ONE}/facts"): "read",
    ("PATCH", f"{_ONE}/facts/{{fact_id}}"): "write",
    ("GET", f"{_ONE}/history"): "read",
    ("POST", f"{_ONE}/interrupt"): "write",
    ("POST", f"{_ONE}/speak"): "write",
    ("GET", f"{_ONE}/compactions"): "read",
    ("POST", f"{_ONE}/compactions"): "write",
    ("GET", f"{_ONE}/compactions/{{compaction_id}}"): "read",
    ("DELETE", f"{_ONE}/compactions/{{compaction_id}}"): "write",
    ("GET", f"{_ONE}/artifacts"): "read",
    ("GET", f"{_ONE}/artifacts/{{name}}"): "read",
    ("PUT", f"{_ONE}/artifacts/{{name}}"): "write",
    ("DELETE", f"{_ONE}/artifacts/{{name}}"): "write",
    ("GET", f"{_ONE}/artifacts/{{name}}/versions"): "read",
    ("GET", "/v1/search"): "read",
    ("GET", "/v1/index"): "shared",
    ("GET", "/v1/memories"): "read",
    ("POST", "/v1/memories"): "write",
    ("DELETE", "/v1/memories"): "write",
    ("POST", "/v1/memories/dream"): "write",
    ("GET", "/v1/memories/diary"): "read",
    ("GET", "/v1/memories/{memory_id}"): "read",
    ("PATCH", "/v1/memories/{memory_id}"): "write",
    ("DELETE", "/v1/memories/{memory_id}"): "write",
    ("POST", "/v1/memories/{memory_id}/review"): "write",
    ("GET", "/v1/workspaces/{agent}/history"): "shared",
    ("POST", "/v1/workspaces/{agent}/checkpoint"): "shared write",
    ("GET", "/sessions"): "read",
    ("GET", "/sessions/{session_id}"): "read",
    ("DELETE", "/sessions/{session_id}"): "write",
    ("GET", "/healthz"): "public",
    ("GET", "/readyz"): "public",
    ("GET", "/metrics"): "server",
    ("GET", "/openapi.json"): "public",
    ("GET", "/docs"): "public",
    ("GET", "/"): "public",
    **{(method, REST): "read" for method in METHODS},
}
"""By method and route; HEAD asks what GET asks."""

PUBLIC: Final = frozenset(path for (_, path), access in PERMISSIONS.items() if access == "public")
"""Paths that are answered whoever asks."""


def permit(scope: Scope, method: str) -> None:
    """Refuse a request whose caller may not do that. Raises `Refused`."""
    caller = scope.get("state", {}).get("caller")
    needed = PERMISSIONS.get((method, scope["route"].path))
    if needed == "public":
        return
    if needed is None or caller is None:
        raise Refused(403, "forbidden", "nobody may do that")
    principal: Principal = caller.principal
    role = ROLES[needed]
    if not principal.may(role):
        raise Refused(403, "forbidden", f"this key's role is {principal.role!r}; that needs {role!r}")
    if needed == "server" and not caller.own:
        raise Refused(403, "forbidden", "that needs an admin key of the server's own tenant, without a user")
    if needed == "tenant":
        check_shared(principal)
    if needed in {"shared", "shared write"} and principal.user_id is not None:
        raise Refused(403, "forbidden", "all users have a part in that: it needs a key without a user")


def check_shared(principal: Principal) -> None:
    """Refuse what is not one user's (state of the app, memories of an agent) to a key that is. Raises `Refused`."""
    if principal.user_id is not None and not principal.may("admin"):
        message = (
            "this key is one user's, and that is of all users (app: keys of the state, memories of an agent or the app): it"
            " needs a key without a user, or an admin's"
        )
        raise Refused(403, "forbidden", message)


def check_app(principal: Principal, keys: Iterable[str]) -> None:
    """Refuse `app:` keys of the state where the caller may not write them. Raises `Refused`."""
    if any(scope_of(key) == "app" for key in keys):
        check_shared(principal)

"""Check what a caller may do: what each route asks of its callers is declared with the route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from starlette.types import Scope

from holdfast.access import Principal
from holdfast.domain.state import scope_of
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


def permit(scope: Scope, needed: Need) -> None:
    """Refuse a request whose caller may not do that. Raises `Refused`."""
    caller = scope.get("state", {}).get("caller")
    if needed == "public":
        return
    if caller is None:
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


# -- refusals --------------------------------------------------------------------


class Refused(Exception):
    """A request that is answered before anybody has looked at what it says."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

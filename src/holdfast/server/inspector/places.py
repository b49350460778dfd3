"""The owner of state, records and artifacts that a page shows: the app, a user, or a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.domain.objects import Id
from holdfast.server.http import Call
from holdfast.server.inspector.frame import PageQuery, make_session_url, make_url
from holdfast.server.permissions import Need

Scope = Literal["app", "user", "session"]


class PlaceQuery(PageQuery, kw_only=True):
    """Query parameters that name the owner of data."""

    scope: Scope | None = None
    user_id: Id | None = None
    session_id: Id | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The owner of data. `id`, `user_id` and `session_id` are empty if they do not apply."""

    scope: Scope
    user_id: str = ""
    session_id: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters of pages, which name the owner."""
        return {"scope": self.scope, "user_id": self.user_id, "session_id": self.session_id}

    @property
    def query(self) -> dict[str, str]:
        """Query parameters of the REST routes `/v1/state` and `/v1/records`, which name the owner."""
        named = {name: value for name, value in self.parameters.items() if value and name != "scope"}
        return named or {"scope": "tenant"}

    def make_rest_url(self, path: str) -> str:
        """Return the address of the owner's data at a REST route."""
        return make_url(path, **self.query)

    def make_url(self, path: str, **query: Any) -> str:
        """Return the address of a page about this owner."""
        return make_url(path, **self.parameters, **query)

    @property
    def state_url(self) -> str:
        """Address of the page with the owner's state."""
        return make_session_url(self, "state") if self.scope == "session" else self.make_url("/inspect/state")


def find_place(call: Call, query: PlaceQuery) -> Place:
    """Return the owner that a request names.

    Without one, it is the key's user, or else the app. The routes that read the data check the caller's rights.

    Raises:
        UserNotFound: the key belongs to another user.
    """
    bound = call.principal.user_id
    if query.session_id is not None:
        return Place(scope="session", user_id=query.user_id or bound or "", session_id=query.session_id)
    scope = query.scope or ("user" if query.user_id or bound else "app")
    if scope == "app":
        return Place(scope="app")
    return Place(scope="user", user_id=call.get_owner_or_default(query.user_id))


def parse_place(call: Call, form: Mapping[str, list[str]]) -> Place:
    """Return the owner that a form names in its fields `scope`, `user_id` and `session_id`. Raises `UserNotFound`, as `find_place` does."""
    user_id, session_id = (form.get(name, [""])[0] or None for name in ("user_id", "session_id"))
    scope: Scope | None = "app" if form.get("scope") == ["app"] else None
    return find_place(call, PlaceQuery(scope=scope, user_id=user_id, session_id=session_id))


def find_need(place: Place, kind: Literal["records", "state"]) -> Need:
    """Return the permission that is needed to change data of the owner.

    An admin key of one user may change the state of the app, but not its records, which it cannot read either.
    """
    if place.scope != "app":
        return "write"
    return "tenant" if kind == "state" else "shared write"

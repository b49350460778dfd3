"""State of a session, a user or the tenant on a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.domain.state import Change, Extend, Increment, Scope, get_scope
from holdfast.errors import InvalidRequest
from holdfast.remote.objects import decode
from holdfast.remote.transport import Transport
from holdfast.sessions.state import StateHandle


def to_operations(delta: Mapping[str, Change]) -> list[dict[str, Any]]:
    """Return changes of state keys as operations of the REST API. Keys that exist only during a turn (`temp:`) are left out."""
    return [_to_operation(key, change) for key, change in delta.items() if get_scope(key) != "temp"]


def _to_operation(key: str, change: Change) -> dict[str, Any]:
    if isinstance(change, Increment):
        return {"op": "increment", "key": key, "by": change.by}
    if isinstance(change, Extend):
        return {"op": "append", "key": key, "values": list(change.values)}
    return {"op": "delete", "key": key} if change is None else {"op": "set", "key": key, "value": change}


class RemoteState(StateHandle):
    """State on a server. The methods are those of `session.state`.

    Args:
        transport: the connections.
        path: segments of the path of the state.
        user_id: user of the session, as a query parameter; None: the server decides.
        scope: the only scope whose keys the state has; None: all scopes.
    """

    def __init__(
        self, transport: Transport, *path: str, user_id: str | None = None, scope: Scope | None = None
    ) -> None:
        self._transport, self._path = transport, path
        self._query = {"user_id": user_id}
        self._scope = scope

    def __repr__(self) -> str:
        return f"<state at {'/'.join(self._path)}>"

    async def _read(self, key: str) -> Any:
        self._check(key)
        return (await self._read_all()).get(key)

    async def _read_all(self) -> dict[str, Any]:
        return await self._transport.call("GET", *self._path, query=self._query, parse=decode)

    async def _change(self, delta: Mapping[str, Change], *, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        for key in delta:
            self._check(key)
        changes = [{"op": "expect", "key": key, "value": value} for key, value in (expect or {}).items()]
        changes += to_operations(delta)
        if not changes:
            return {}
        body = {"changes": changes}
        changed = await self._transport.call("POST", *self._path, query=self._query, body=body, parse=decode)
        values: dict[str, Any] = changed["values"]
        return values

    def _check(self, key: str) -> None:
        if self._scope is not None and get_scope(key) != self._scope:
            raise InvalidRequest(f"{key!r:.80} must begin with {self._scope}:", param="key")

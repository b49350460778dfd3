"""State of a session, a user or the tenant on a server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.context.standing_facts import Fact
from holdfast.domain.state import Change, Extend, Increment, Scope, encode_value, get_scope
from holdfast.errors import InvalidRequest
from holdfast.remote.objects import decode, parse_page
from holdfast.remote.transport import Transport
from holdfast.sessions.state import StateHandle
from holdfast.wire.sendable import check_text


def to_operations(delta: Mapping[str, Change]) -> list[dict[str, Any]]:
    """Return changes of state keys as operations of the REST API. Keys that exist only during a turn (`temp:`) are left out."""
    return [_to_operation(key, change) for key, change in delta.items() if get_scope(key) != "temp"]


def _to_operation(key: str, change: Change) -> dict[str, Any]:
    if isinstance(change, Increment):
        return {"op": "increment", "key": key, "by": change.by}
    if isinstance(change, Extend):
        return {"op": "append", "key": key, "values": list(change.values)}
    return {"op": "delete", "key": key} if change is None else {"op": "set", "key": key, "value": _encode(key, change)}


def _encode(key: str, value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode_value(key, value))  # refuses `inf`, which would become null: a key that is missing


_PATH: Final = ("v1", "state")


class RemoteState(StateHandle):
    """State on a server. The methods are those of `session.state`.

    Args:
        transport: the connections.
        owner: query parameters that name the owner: a session, a user, or nothing for the app.
        scope: the only scope whose keys the state has; None: all scopes.
    """

    def __init__(self, transport: Transport, owner: Mapping[str, str | None], scope: Scope | None = None) -> None:
        self._transport, self._query, self._scope = transport, owner, scope

    def __repr__(self) -> str:
        return f"<state of {', '.join(f'{name} {value}' for name, value in self._query.items()) or 'the app'}>"

    async def _read(self, key: str) -> Any:
        self._check(key)
        return (await self._read_all()).get(key)

    async def _read_all(self) -> dict[str, Any]:
        return await self._transport.call("GET", *_PATH, query=self._query, parse=decode)

    async def _change(self, delta: Mapping[str, Change], *, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        for key in delta:
            self._check(key)
        changes = [{"op": "expect", "key": key, "value": _encode(key, value)} for key, value in (expect or {}).items()]
        changes += to_operations(delta)
        if not changes:
            return {}
        body = {"changes": changes}
        changed = await self._transport.call("POST", *_PATH, query=self._query, body=body, parse=decode)
        values: dict[str, Any] = changed["values"]
        return values

    def _check(self, key: str) -> None:
        if self._scope is not None and get_scope(key) != self._scope:
            raise InvalidRequest(f"{key!r:.80} must begin with {self._scope}:", param="key")


_parse_facts: Final = parse_page(partial(msgspec.convert, type=Fact))


class RemoteFacts:
    """The user's statements that prompts keep: `await session.facts()` lists them; `pin`, `drop` and `reset` change them.

    Args:
        transport: the connections.
        path: segments of the path of the session.
        query: query parameters that belong to the path.
        agent: agent whose prompt is checked; None: the session's own agent.
    """

    def __init__(
        self, transport: Transport, path: tuple[str, ...], query: Mapping[str, str], agent: str | None
    ) -> None:
        self._transport, self._path, self._query, self._agent = transport, (*path, "facts"), query, agent

    async def __call__(self, strategy: str | None = None, *, budget: int | None = None) -> list[Fact]:
        """Return the user's statements that the prompt contains or could contain, in the order in which they were said.

        Args:
            strategy: the strategy of the prompt, with the default values of its settings; None: the agent's.
            budget: token budget of the prompt; None: the agent's.

        Raises:
            InvalidRequest: the strategy is unknown.
            SessionNotFound: there is no such session.
            BudgetTooSmall: no valid working set fits.
        """
        check_text(strategy, "strategy", none=True)
        query = {**self._query, "agent": self._agent, "strategy": strategy, "budget": budget}
        return [*(await self._transport.call("GET", *self._path, query=query, parse=_parse_facts)).items]

    async def pin(self, fact_id: str) -> None:
        """Keep a statement in the block of standing facts, before all others. Raises the errors of `SessionFacts.pin`."""
        await self._choose(fact_id, pinned=True)

    async def drop(self, fact_id: str) -> None:
        """Keep a statement out of the block of standing facts. Raises the errors of `SessionFacts.drop`."""
        await self._choose(fact_id, dropped=True)

    async def reset(self, fact_id: str) -> None:
        """Undo `pin` or `drop`. Raises the errors of `SessionFacts.reset`."""
        await self._choose(fact_id, pinned=False, dropped=False)

    async def _choose(self, fact_id: str, **choice: bool) -> None:
        check_text(fact_id, "fact_id")
        if not fact_id:
            raise InvalidRequest("fact_id is empty", param="fact_id")
        await self._transport.call("PATCH", *self._path, fact_id, query=self._query, body=choice, parse=decode)

"""Run functions of a `Holdfast` for an application of ADK, from any event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import holdfast
from holdfast.adapters.adk.state import ELSEWHERE
from holdfast.errors import SessionExists, SessionNotFound

T = TypeVar("T")


class TenantService:
    """Base class of the services, which runs functions with the `Holdfast` of an application.

    Args:
        hf: an open `Holdfast`; or a portal, for several event loops.
    """

    def __init__(self, hf: holdfast.Holdfast | holdfast.Portal) -> None:
        self._hf = hf

    async def _run(self, app_name: str, function: Callable[[holdfast.Holdfast], Awaitable[T]]) -> T:
        """Call `function` with the `Holdfast` of an application, in the event loop of the `Holdfast`, and return the result."""

        async def run(hf: holdfast.Holdfast) -> T:
            async with hf.serve_tenant(app_name) as tenant:
                return await function(tenant)

        if isinstance(self._hf, holdfast.Portal):
            return await self._hf.run(run, self._hf.hf)
        return await run(self._hf)


async def get_stored(hf: holdfast.Holdfast, session_id: str, user_id: str) -> Any:
    """Return the description of a session that is stored here. As in ADK, spaces around the id do not count.

    Raises:
        SessionNotFound: there is no such session, or it is stored elsewhere.
    """
    name = session_id.strip()
    info = await hf.store.get(holdfast.SessionRef(user_id, name))
    if is_stored_elsewhere(info):
        raise SessionNotFound(name)
    return info


async def ensure_session(hf: holdfast.Holdfast, session_id: str, user_id: str) -> holdfast.SessionHandle:
    """Return a session of a user. If there is none, create one that never ends, and mark it as stored elsewhere.

    Such a session has artifacts and copied events, but `HoldfastSessionService` treats it as missing.
    """
    try:
        return await hf.get(session_id, user_id=user_id)
    except SessionNotFound:
        pass
    try:
        created = await hf.create(session_id, user_id=user_id, state={ELSEWHERE: True}, ttl=0, greet=False)
    except SessionExists:  # another process was faster
        return await hf.get(session_id, user_id=user_id)
    return hf.handle(created)


def is_stored_elsewhere(info: Any) -> bool:
    """Return True for a session that `ensure_session` created."""
    return ELSEWHERE in info.state

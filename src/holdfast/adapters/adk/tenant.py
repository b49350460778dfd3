"""Run functions of a `Holdfast` for an application of ADK, from any event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import holdfast
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


async def ensure_session(hf: holdfast.Holdfast, session_id: str, user_id: str) -> holdfast.SessionHandle:
    """Return a session of a user. If there is none, create one that never ends."""
    try:
        return await hf.get(session_id, user_id=user_id)
    except SessionNotFound:
        pass
    try:
        return hf.handle(await hf.create(session_id, user_id=user_id, ttl=0, greet=False))
    except SessionExists:  # another process was faster
        return await hf.get(session_id, user_id=user_id)

"""The caller of the MCP server: an assistant that acts for one user, and the limits for the calls of each principal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec

from holdfast.accounting import Owner as Principal
from holdfast.accounting import get_owner
from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.limits import MCP_CALLS, MCP_CALLS_WAITING

EXTRA = "mcp"
"""The extra that installs the SDK."""


class McpCaller(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant that acts for one user of one tenant."""

    hf: Holdfast
    """The `Holdfast` of the caller's tenant."""
    user_id: str
    """The only user whose sessions and memories the caller can read or change."""
    agent: str | None = None
    """The agent with whose name memories are stored, and whose own memories are recalled too; None: no agent."""
    can_write: bool = True
    """False: the caller can only read."""

    @property
    def owner(self) -> Owner:
        """The owner of the memories that the caller writes and forgets."""
        return Owner("user", self.user_id)

    def refer_to(self, session_id: str) -> SessionRef:
        """Return the reference to a session of the caller's user."""
        return SessionRef(self.user_id, session_id)


# -- limits ----------------------------------------------------------------------


class TooManyCalls(Exception):
    """Raised if too many calls of one principal are running or waiting."""


class CallLimiter:
    """Lets a few calls of each principal run at the same time. Other calls wait in order of arrival.

    Args:
        most: maximum number of running calls of one principal.
        waiting: maximum number of waiting calls of one principal.
    """

    def __init__(self, most: int = MCP_CALLS, waiting: int = MCP_CALLS_WAITING) -> None:
        self._most = most
        self._waiting = waiting
        self._slots: dict[Principal, _Slots] = {}

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Wait until a call of the current task's principal may run. The call counts as running for the duration of the block.

        Raises:
            TooManyCalls: too many calls of the principal are waiting.
        """
        owner = get_owner()
        slots = self._slots.setdefault(owner, _Slots(self._most))
        if slots.calls >= self._most + self._waiting:
            message = f"{slots.calls} calls are running or waiting, the most that one caller may have; try again later"
            raise TooManyCalls(message)
        slots.calls += 1
        try:
            async with slots.running:
                yield
        finally:
            slots.calls -= 1
            if not slots.calls:
                del self._slots[owner]


class _Slots:
    """The running and waiting calls of one principal."""

    def __init__(self, most: int) -> None:
        self.running = anyio.Semaphore(most)
        self.calls = 0
        """Number of running and waiting calls."""

"""The caller of the MCP server: an assistant that acts for one user."""

from __future__ import annotations

import msgspec

from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast

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

"""Define errors of the environment: a hook, a process, or the store failed."""

from __future__ import annotations

from typing import Final

from holdfast.errors.base import HoldfastError


class HookFailed(HoldfastError):
    """A hook failed; it will be called again.

    Args:
        message: what happened, without content or secrets.
        retry_after: seconds to wait before the next call, if requested.
    """

    code = "hook_failed"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PythonUnavailable(HoldfastError):
    """The process of the tool `python` cannot be started or sandboxed here; the message says what is missing."""

    code = "python_unavailable"


class ToolFailed(HoldfastError):
    """A tool of another server failed; the message is for the model."""

    code = "tool_failed"


class WorkspaceUnavailable(HoldfastError):
    """An agent's workspace or its repository cannot be used; the message says why. Trying again may help."""

    code = "workspace_unavailable"
    http_status = 503


class WorkspaceUnusable(WorkspaceUnavailable):
    """An agent's workspace cannot be used until someone repairs it. Trying again does not help."""

    code = "workspace_unusable"


class GitMissing(WorkspaceUnusable):
    """The git program is missing or too old; the message says what to install."""

    code = "git_missing"


class StoreError(HoldfastError):
    """The store failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached, is full, or is read-only."""

    code = "store_unavailable"
    http_status = 503


class StoreCorrupt(StoreError):
    """Stored data does not verify or cannot be decoded; the message says where.

    Args:
        message: what is wrong, and where.
        session_id: the affected session, if known.
        user_id: its user.
    """

    code = "store_corrupt"
    http_status = 500

    def __init__(self, message: str, *, session_id: str | None = None, user_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.user_id = user_id

    def with_session(self, user_id: str, session_id: str) -> StoreCorrupt:
        """Return the same error with the affected session in its message."""
        named = f"session {session_id!r} of user {user_id!r}: {self}"
        error = StoreCorrupt(named, session_id=session_id, user_id=user_id)
        error.public = f"session {session_id!r} of user {user_id!r}: {self.public_message}"
        error.__cause__ = self.__cause__ or self
        return error


INDEX_DAMAGED: Final = "search is not available: the index is damaged"
"""Message for clients and models about a damaged index. The log has the path and the remedy."""


def is_index_damaged(error: StoreError) -> bool:
    """Return True if the error says that the index is damaged, not the stored data."""
    return error.public == INDEX_DAMAGED


class StoreClosed(StoreError):
    """The store, or the `Holdfast` on it, was used before it was opened or after it was closed."""

    code = "store_closed"
    http_status = 503

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)

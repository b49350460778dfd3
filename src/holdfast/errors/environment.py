"""What the work is done with failed: a hook, a process, the store."""

from __future__ import annotations

from typing import Final

from holdfast.errors.base import HoldfastError


class HookFailed(HoldfastError):
    """A hook could not do its work; whoever told it tells it again.

    Args:
        message: what happened; neither content nor secrets.
        retry_after: seconds it asks to be left alone for, if it does.
    """

    code = "hook_failed"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PythonUnavailable(HoldfastError):
    """The process of the tool `python` cannot be started here, or not be held in; the message says what is missing."""

    code = "python_unavailable"


class ToolFailed(HoldfastError):
    """A tool that is somebody else's server did not do what it was called for; its words are for the model."""

    code = "tool_failed"


class WorkspaceUnavailable(HoldfastError):
    """An agent's workspace, or its repository, cannot be used; the message says why. Trying again may help."""

    code = "workspace_unavailable"
    http_status = 503


class WorkspaceUnusable(WorkspaceUnavailable):
    """The same, until somebody changes something here: trying again does not help."""

    code = "workspace_unusable"


class GitMissing(WorkspaceUnusable):
    """The git program is not there, or too old; the message says what to install."""

    code = "git_missing"


class StoreError(HoldfastError):
    """The store could not do its work."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached, is full or read-only."""

    code = "store_unavailable"
    http_status = 503


class StoreCorrupt(StoreError):
    """What is stored does not verify, or cannot be decoded; the message says where.

    Args:
        message: what is wrong, and where.
        session_id: the session that is affected, if one is known.
        user_id: its owner.
    """

    code = "store_corrupt"
    http_status = 500

    def __init__(self, message: str, *, session_id: str | None = None, user_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.user_id = user_id

    def naming(self, user_id: str, session_id: str) -> StoreCorrupt:
        """Return the same error with the session that is affected in its message."""
        named = f"session {session_id!r} of user {user_id!r}: {self}"
        error = StoreCorrupt(named, session_id=session_id, user_id=user_id)
        error.public = f"session {session_id!r} of user {user_id!r}: {self.public_message}"
        error.__cause__ = self.__cause__ or self
        return error


INDEX_DAMAGED: Final = "search is not available: the index is damaged"
"""What clients and models are told of a damaged index; the log has the path and what to do."""


def is_index_damaged(error: StoreError) -> bool:
    """Return True if the error says that the index, and not what is stored, is damaged."""
    return error.public == INDEX_DAMAGED


class StoreClosed(StoreError):
    """The store, or the `Holdfast` on it, was used before it was opened or after it was closed."""

    code = "store_closed"
    http_status = 503

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)

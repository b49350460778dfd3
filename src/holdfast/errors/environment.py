"""Define errors of the environment: of hooks, tools, workspaces and the store."""

from __future__ import annotations

from typing import Final

from holdfast.errors.base import HoldfastError


class HookFailed(HoldfastError):
    """A hook failed. It will be called again.

    Args:
        message: what happened. It must not contain content of the conversation, or secrets.
        retry_after: seconds to wait before the next call, if the receiver asked for a pause.
    """

    code = "hook_failed"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PythonUnavailable(HoldfastError):
    """The process of the tool `python` cannot be started or sandboxed on this machine. The message says what is missing."""

    code = "python_unavailable"


class ServerError(HoldfastError):
    """The server of `holdfast.connect` refused a call for a reason that has no class of its own, or its answer is not one of Holdfast.

    Args:
        message: what happened.
        code: `error.code` of the server's answer; None: the code of the class.
        status: HTTP status of the answer; None: there was none.
        retry_after: seconds to wait before the next call, if the server asked for a pause.
    """

    code = "server_error"

    def __init__(
        self, message: str, *, code: str | None = None, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code  # type: ignore[misc]  # the server's code is more exact than that of the class
        self.status = status
        self.retry_after = retry_after


class ServerUnavailable(ServerError):
    """The server of `holdfast.connect` cannot be reached, did not answer in time, or cannot answer now. Try again later.

    If the call was a write without an idempotency key, it may have been done: read the data before you repeat it.
    """

    code = "server_unavailable"


class ToolFailed(HoldfastError):
    """A tool of another server failed. The model gets the message."""

    code = "tool_failed"


class WorkspaceUnavailable(HoldfastError):
    """The workspace of an agent, or its repository, cannot be used. The message says why. Trying again may help."""

    code = "workspace_unavailable"
    http_status = 503


class WorkspaceUnusable(WorkspaceUnavailable):
    """The workspace of an agent cannot be used until someone repairs it. Trying again does not help."""

    code = "workspace_unusable"


class GitMissing(WorkspaceUnusable):
    """The git program is missing or too old. The message says what to install."""

    code = "git_missing"


class StoreError(HoldfastError):
    """The store failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached, is full, or is read-only."""

    code = "store_unavailable"
    http_status = 503


class StoreCorrupt(StoreError):
    """Stored data is damaged: it does not match its checksum, or cannot be decoded.

    Args:
        message: what is wrong, and where.
        session_id: id of the affected session, if known.
        user_id: user of the affected session.
    """

    code = "store_corrupt"
    http_status = 500

    def __init__(self, message: str, *, session_id: str | None = None, user_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.user_id = user_id

    def with_session(self, user_id: str, session_id: str) -> StoreCorrupt:
        """Return this error with the affected session named in its message."""
        named = f"session {session_id!r} of user {user_id!r}: {self}"
        error = StoreCorrupt(named, session_id=session_id, user_id=user_id)
        error.public = f"session {session_id!r} of user {user_id!r}: {self.public_message}"
        error.__cause__ = self.__cause__ or self
        return error


INDEX_DAMAGED: Final = "search is not available: the index is damaged"
"""Message for clients and models about a damaged index. The server's log has the path of the index, and says how to repair it."""


def is_index_damaged(error: StoreError) -> bool:
    """Return True if an error means that the search index is damaged, and not the sessions and memories."""
    return error.public == INDEX_DAMAGED


class StoreClosed(StoreError):
    """The store, or a `Holdfast` that uses it, was used before it was opened, or after it was closed."""

    code = "store_closed"
    http_status = 503

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)

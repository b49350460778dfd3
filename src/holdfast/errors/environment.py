"""What the work is done with failed: a hook, a process, the store."""

from __future__ import annotations

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
    """What is stored does not verify; the message says where."""

    code = "store_corrupt"
    http_status = 500


class StoreClosed(StoreError):
    """The store, or the `Holdfast` on it, was used before it was opened or after it was closed."""

    code = "store_closed"
    http_status = 503

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)

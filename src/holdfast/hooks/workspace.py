"""A hook that commits an agent's workspace when a session of the agent ends."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.domain.session import EndReason
from holdfast.errors import GitMissing, HookFailed, SecretBlocked, TooLarge, WorkspaceUnavailable, WorkspaceUnusable
from holdfast.hooks.registry import EndedSession
from holdfast.workspace import Workspaces
from holdfast.workspace.workspace import format_fields

_log = logging.getLogger("holdfast.hooks")
NAME: Final = "workspace_git"


class WorkspaceGit:
    """A hook that commits the workspace of a session's agent when the session ends; see docs/workspace.md.

    If the hook is called twice for a session, the second call finds nothing to commit. Problems that only an administrator can solve (git
    is missing, a secret blocks the commit) are logged and raise no error. An error would make Holdfast call the hook again, and keep a
    deleted session until the problem is solved.

    Args:
        workspaces: the workspaces of agents.
    """

    name = NAME
    reasons: frozenset[EndReason] = frozenset({"ttl", "cap", "delete", "close", "shutdown"})

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._has_warned = False

    async def __call__(self, ended: EndedSession) -> None:
        """Commit the workspace.

        Raises:
            HookFailed: the commit failed, but a later attempt may succeed.
        """
        session = ended.session
        workspace = self._workspaces.workspace(session.tenant, session.agent)
        details = {"session": session.id, "agent": workspace.agent, "user": session.user_id, "reason": ended.reason}
        try:
            await workspace.commit(f"session-close: {session.id}", format_fields(details))
        except GitMissing as exc:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("workspaces are not committed when sessions end: %s", exc)
        except (SecretBlocked, TooLarge, WorkspaceUnusable) as exc:
            about = {"agent": workspace.agent, "session_id": session.id, "error": exc.code}
            _log.warning("a workspace was not committed: %s", exc, extra={"fields": about})
        except WorkspaceUnavailable as exc:
            raise HookFailed(str(exc)) from exc

"""A commit of an agent's workspace at the end of each of its sessions."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.domain.session import EndReason
from holdfast.errors import (
    GitMissing,
    HookFailed,
    SecretBlocked,
    TooLarge,
    WorkspaceUnavailable,
    WorkspaceUnusable,
)
from holdfast.hooks.registry import EndedSession
from holdfast.workspace import Workspaces
from holdfast.workspace.workspace import format_fields

_log = logging.getLogger("holdfast.hooks")
NAME: Final = "workspace_git"


class WorkspaceGit:
    """A hook: commits what the workspace of a session's agent holds when the session ends. See docs/workspace.md.

    Told of an end twice it commits nothing twice: there is nothing left to commit. What only somebody who works at the machine can
    mend (there is no git, a secret is in the way) is logged, and the end counts as told: else a deleted session would wait for it.

    Args:
        workspaces: where they are.
    """

    name = NAME
    reasons: frozenset[EndReason] = frozenset({"ttl", "cap", "delete", "close", "shutdown"})

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._said = False

    async def __call__(self, ended: EndedSession) -> None:
        """See `Hook`. Raises `HookFailed` where it may be otherwise later."""
        session = ended.session
        workspace = self._workspaces.workspace(session.tenant, session.agent)
        told = {"session": session.id, "agent": workspace.agent, "user": session.user_id, "reason": ended.reason}
        try:
            await workspace.commit(f"session-close: {session.id}", format_fields(told))
        except GitMissing as exc:
            if not self._said:
                self._said = True
                _log.warning("workspaces are not committed at the end of sessions: %s", exc)
        except (SecretBlocked, TooLarge, WorkspaceUnusable) as exc:
            about = {"agent": workspace.agent, "session_id": session.id, "error": exc.code}
            _log.warning("a workspace was not committed: %s", exc, extra={"fields": about})
        except WorkspaceUnavailable as exc:
            raise HookFailed(str(exc)) from exc

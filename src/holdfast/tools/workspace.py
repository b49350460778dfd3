"""Define the built-in tools for an agent's workspace: commit it, and list its commits."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.limits import WORKSPACE_HISTORY
from holdfast.tools.context import ToolContext
from holdfast.tools.functions import tool_from
from holdfast.tools.tool import Tool, Toolset
from holdfast.workspace import Commit, CommitOutcome, Workspace, Workspaces

CHECKPOINT: Final = "checkpoint"
HISTORY: Final = "memory_history"
TOOLS: Final = (CHECKPOINT, HISTORY)
"""Names of the workspace tools."""
_CHECKPOINTS: Final = (
    "Commit the files of your workspace now, with a note that says why. Without changes, nothing is committed."
)
_HISTORIES: Final = """\
List the commits of your workspace, newest first, and on request the changes between the oldest of these commits and the newest."""
_NOTHING: Final = "nothing has changed since the last commit"
_USER: Final = re.compile(r"^user=(.*)$", re.MULTILINE)


class WorkspaceTools:
    """The functions of the workspace tools.

    Args:
        workspaces: the workspaces of all agents.
    """

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    async def checkpoint(
        self, context: ToolContext, note: Annotated[str, Meta(description="why, in one line")] = ""
    ) -> dict[str, Any]:
        """Commit the workspace, and return the outcome for the model."""
        outcome = await self._get_workspace(context).checkpoint(
            note, session_id=context.session_id, user_id=context.user_id
        )
        return describe_outcome(outcome)

    async def history(
        self,
        context: ToolContext,
        limit: Annotated[int, Meta(ge=1, le=WORKSPACE_HISTORY, description="maximum number of commits")] = 10,
        *,
        include_diff: Annotated[bool, Meta(description="include the changes")] = False,
    ) -> dict[str, Any]:
        """Return the newest commits, and on request the changes between them, for the model.

        Names of other users, subjects of their commits, and changes to their files are left out.
        """
        found = await self._get_workspace(context).history(limit, include_diff=include_diff, user_id=context.user_id)
        commits = [_mask_foreign(context.user_id, commit) for commit in found.commits]
        history: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(found, commits=commits))
        return history

    def _get_workspace(self, context: ToolContext) -> Workspace:
        return self._workspaces.workspace(context.call.tenant, context.agent)


def describe_outcome(outcome: CommitOutcome) -> dict[str, Any]:
    """Return the outcome of a checkpoint as a JSON object, for models and the REST API."""
    more = {"left_out": [one._asdict() for one in outcome.left_out]} if outcome.left_out else {}
    if outcome.commit is None:
        return {"ok": True, "skipped": True, "reason": _NOTHING, **more}
    return {"ok": True, "oid": outcome.commit.short_oid, "subject": outcome.commit.subject, "skipped": False, **more}


def _mask_foreign(user_id: str, commit: Commit) -> Commit:
    """Return a commit as a user may see it.

    The body of another user's commit is removed, and its subject is reduced to the kind of commit.
    """
    users = _USER.findall(commit.body)
    if not users or user_id in users:
        return commit
    return msgspec.structs.replace(commit, subject=commit.subject.partition(":")[0], body="")


def add_workspace_tools(known: Toolset, workspaces: Workspaces | None) -> Toolset:
    """Return a toolset with the workspace tools added, for agents that name them.

    If the program has a tool with the same name, that tool takes precedence.

    Args:
        known: the other tools.
        workspaces: the workspaces of all agents; None: no tools are added.
    """
    if workspaces is None:
        return known
    made = {tool.name: tool for tool in make_workspace_tools(workspaces) if tool.name not in known.tools}
    return msgspec.structs.replace(known, tools={**known.tools, **made})


def make_workspace_tools(workspaces: Workspaces) -> list[Tool]:
    """Create the workspace tools."""
    tools = WorkspaceTools(workspaces)
    made = (
        tool_from(tools.checkpoint, name=CHECKPOINT, description=_CHECKPOINTS),
        tool_from(tools.history, name=HISTORY, description=_HISTORIES),
    )
    return [msgspec.structs.replace(tool, named=True, reads_state=False) for tool in made]

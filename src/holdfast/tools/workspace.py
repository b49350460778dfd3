"""Built-in tools for an agent's workspace: commit it now, and see what was committed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.limits import WORKSPACE_HISTORY
from holdfast.tools.context import ToolContext
from holdfast.tools.functions import tool_from
from holdfast.tools.tool import Tool, Toolset
from holdfast.workspace import Commit, Outcome, Workspace, Workspaces
from holdfast.workspace.files import LeftOut

CHECKPOINT: Final = "checkpoint"
HISTORY: Final = "memory_history"
TOOLS: Final = (CHECKPOINT, HISTORY)
"""What they are called."""
_CHECKPOINTS: Final = "Commit the files of your workspace now, with a note why. Without changes nothing is committed."
_HISTORIES: Final = """\
Tell what was committed to your workspace, newest first, and on request what changed between the oldest of these commits and the \
newest."""
_NOTHING: Final = "nothing has changed since the last commit"
_USER: Final = re.compile(r"^user=(.*)$", re.MULTILINE)


class WorkspaceTools:
    """What the tools do.

    Args:
        workspaces: where they are.
    """

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    async def checkpoint(
        self, context: ToolContext, note: Annotated[str, Meta(description="why, in one line")] = ""
    ) -> dict[str, Any]:
        """Commit; what became of it."""
        outcome = await self._of(context).checkpoint(note, session_id=context.session_id, user_id=context.user_id)
        return told_of(outcome)

    async def history(
        self,
        context: ToolContext,
        limit: Annotated[int, Meta(ge=1, le=WORKSPACE_HISTORY, description="most commits")] = 10,
        *,
        include_diff: Annotated[bool, Meta(description="with what changed")] = False,
    ) -> dict[str, Any]:
        """What was committed. Whose another user's commit is, is not told, nor what changed in the files of that user's own."""
        found = await self._of(context).history(limit, include_diff=include_diff, user_id=context.user_id)
        commits = [_for(context.user_id, commit) for commit in found.commits]
        told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(found, commits=commits))
        return told

    def _of(self, context: ToolContext) -> Workspace:
        return self._workspaces.workspace(context.call.tenant, context.agent)


def told_of(outcome: Outcome) -> dict[str, Any]:
    """What a checkpoint tells, to a model and over REST."""
    more = {"left_out": left_out_to(outcome.left_out)} if outcome.left_out else {}
    if outcome.commit is None:
        return {"ok": True, "skipped": True, "reason": _NOTHING, **more}
    return {"ok": True, "oid": outcome.commit.short_oid, "subject": outcome.commit.subject, "skipped": False, **more}


def left_out_to(left_out: Iterable[LeftOut]) -> list[dict[str, str]]:
    """Files that are not in a commit."""
    return [one._asdict() for one in left_out]


def _for(user_id: str, commit: Commit) -> Commit:
    """A commit as a user's session may see it: of one in another user's session, only what kind it was and when."""
    said = _USER.findall(commit.body)
    if not said or user_id in said:
        return commit
    return msgspec.structs.replace(commit, subject=commit.subject.partition(":")[0], body="")


def with_workspaces(known: Toolset, workspaces: Workspaces | None) -> Toolset:
    """Tools with those for workspaces among them, for agents that name them.

    One of the program's own by the name of one of these stays in its place.

    Args:
        known: the others.
        workspaces: None: there are none, and no tools for them.
    """
    if workspaces is None:
        return known
    made = {tool.name: tool for tool in workspace_tools(workspaces) if tool.name not in known.tools}
    return msgspec.structs.replace(known, tools={**known.tools, **made})


def workspace_tools(workspaces: Workspaces) -> list[Tool]:
    """The tools; see `with_workspaces`."""
    tools = WorkspaceTools(workspaces)
    made = (
        tool_from(tools.checkpoint, name=CHECKPOINT, description=_CHECKPOINTS),
        tool_from(tools.history, name=HISTORY, description=_HISTORIES),
    )
    return [msgspec.structs.replace(tool, named=True, reads_state=False) for tool in made]

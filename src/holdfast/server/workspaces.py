"""The REST API over agents' workspaces: what was committed, and a checkpoint. For keys that are of no user."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import WorkspaceNotFound
from holdfast.limits import WORKSPACE_HISTORY
from holdfast.server.fields import check_fields, optional
from holdfast.server.http import Call
from holdfast.server.replies import Reply
from holdfast.tools.workspace import told_of
from holdfast.workspace import Workspace
from holdfast.workspace.workspaces import DEFAULT


async def history(call: Call) -> Reply:
    """What was committed to an agent's workspace, newest first.

    With `diff` also what changed between the oldest of these commits and the newest, as git tells it; it is left out where nothing
    differs. `default` is the workspace of sessions that have no agent.
    """
    limit = call.number("limit", 10, 1, WORKSPACE_HISTORY)
    diff = call.flag("diff")
    workspace = _workspace(call)
    found: dict[str, Any] = msgspec.to_builtins(await workspace.history(limit, include_diff=diff))
    return Reply({"object": "workspace.history", "agent": workspace.agent, **found})


async def checkpoint(call: Call) -> Reply:
    """Commit an agent's workspace now, with a note why; where nothing has changed, nothing is committed."""
    body = await call.body()
    check_fields(body, "note")
    note = optional(body, "note", str, "a string")
    workspace = _workspace(call)
    outcome = await workspace.checkpoint(note)
    return Reply({"object": "workspace.checkpoint", "agent": workspace.agent, **told_of(outcome)})


def _workspace(call: Call) -> Workspace:
    """The workspace that the path names. Raises `WorkspaceNotFound`."""
    agent, workspaces = call.path["agent"], call.hf.workspaces
    if workspaces is None:
        raise WorkspaceNotFound(None)
    workspace = workspaces.workspace(call.hf.tenant, agent)
    if agent != DEFAULT and agent not in call.hf.roster.agents and not workspace.exists:
        raise WorkspaceNotFound(agent)
    return workspace

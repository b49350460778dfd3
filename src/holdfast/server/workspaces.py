"""The REST API over agents' workspaces: what was committed, and a checkpoint. For keys that are of no user."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import WorkspaceNotFound
from holdfast.limits import WORKSPACE_DIFF_BYTES, WORKSPACE_HISTORY
from holdfast.server.http import Call
from holdfast.server.routes import BODY, STORE, Routes
from holdfast.tools.workspace import told_of
from holdfast.wire.objects import Answer, Request, json_schema
from holdfast.workspace import Workspace
from holdfast.workspace.workspace import DEFAULT

routes = Routes("workspaces")
_ONE: Final = "/v1/workspaces/{agent}"


class HistoryQuery(Request, kw_only=True):
    """Parameters of a history."""

    limit: Annotated[
        int, json_schema(description="most commits; 10 unless given", minimum=1, maximum=WORKSPACE_HISTORY)
    ] = 10
    diff: bool = False
    """With what changed from the oldest of them to the newest."""


class WorkspaceCommit(Answer):
    """A commit of a workspace."""

    oid: str
    """Its id."""
    short_oid: str
    """The first seven characters of that."""
    subject: str
    """Its first line."""
    body: str
    """What else it says: session, agent, user and reason where a session's end made it."""
    author: str
    """Name and address."""
    timestamp_unix: int
    """Seconds since the epoch."""


class WorkspaceHistory(Answer, kw_only=True):
    """What was committed, newest first."""

    object: Literal["workspace.history"] = "workspace.history"
    agent: str
    """The agent's name."""
    commits: list[WorkspaceCommit]
    diff: Annotated[
        str | UnsetType,
        json_schema(
            description=f"from the oldest to the newest, at most {WORKSPACE_DIFF_BYTES} bytes; its end says what is left out"
        ),
    ] = UNSET


class CheckpointRequest(Request):
    """Why."""

    note: str | None = None
    """One line; unset: `manual`."""


class LeftOutFile(Answer):
    """A file that is not in it, or not as it is now."""

    name: str
    why: str


class Checkpoint(Answer, kw_only=True):
    """What became of it."""

    object: Literal["workspace.checkpoint"] = "workspace.checkpoint"
    agent: str
    """The agent's name."""
    ok: Literal[True] = True
    skipped: bool
    """There was nothing to commit."""
    oid: str | UnsetType = UNSET
    """The commit's, its first seven characters."""
    subject: str | UnsetType = UNSET
    """The commit's first line."""
    reason: str | UnsetType = UNSET
    """Why there is no commit."""
    left_out: list[LeftOutFile] | UnsetType = UNSET


@routes.add("GET", f"{_ONE}/history", "shared", fails=(*STORE, 404))
async def history(call: Call, query: HistoryQuery) -> WorkspaceHistory:
    """What was committed to an agent's workspace, newest first.

    With `diff` also what changed between the oldest of these commits and the newest, as git tells it; it is left out where nothing
    differs. `default` is the workspace of sessions that have no agent.
    """
    workspace = _workspace(call)
    found = msgspec.to_builtins(await workspace.history(query.limit, include_diff=query.diff))
    return WorkspaceHistory(agent=workspace.agent, **found)


@routes.add("POST", f"{_ONE}/checkpoint", "shared write", fails=(*BODY, 404, 422, 503))
async def checkpoint(call: Call, body: CheckpointRequest) -> Checkpoint:
    """Commit an agent's workspace now, with a note why; where nothing has changed, nothing is committed."""
    workspace = _workspace(call)
    return Checkpoint(agent=workspace.agent, **told_of(await workspace.checkpoint(body.note)))


def _workspace(call: Call) -> Workspace:
    """Return the workspace that the path names. Raises `WorkspaceNotFound`."""
    agent, workspaces = call.path["agent"], call.hf.workspaces
    if workspaces is None:
        raise WorkspaceNotFound(None)
    workspace = workspaces.workspace(call.hf.tenant, agent)
    if agent != DEFAULT and agent not in call.hf.roster.agents and not workspace.exists:
        raise WorkspaceNotFound(agent)
    return workspace

"""REST API for agents' workspaces: list the commits, and commit the current files. Requests need a key without a user."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, UnsetType

from holdfast.domain.objects import Answer, Request, json_schema
from holdfast.errors import WorkspaceNotFound
from holdfast.limits import WORKSPACE_DIFF_BYTES, WORKSPACE_HISTORY
from holdfast.server.http import Call
from holdfast.server.routes import Routes
from holdfast.tools.workspace import describe_outcome
from holdfast.workspace import Workspace
from holdfast.workspace.repository import Commit
from holdfast.workspace.workspace import DEFAULT

routes = Routes("workspaces")
_ONE: Final = "/v1/workspaces/{agent}"


class HistoryQuery(Request, kw_only=True):
    """Query parameters of the history of a workspace."""

    limit: Annotated[
        int, json_schema(description="maximum number of commits; default 10", minimum=1, maximum=WORKSPACE_HISTORY)
    ] = 10
    diff: bool = False
    """True: include the changes between the oldest and the newest of the listed commits."""


class WorkspaceHistory(Answer, kw_only=True):
    """History of a workspace, newest commit first."""

    object: Literal["workspace.history"] = "workspace.history"
    agent: str
    """Name of the agent."""
    commits: list[Commit]
    diff: Annotated[
        str | UnsetType,
        json_schema(
            description=f"changes from the oldest to the newest commit, at most {WORKSPACE_DIFF_BYTES} bytes; the end says what is left out"
        ),
    ] = UNSET


class CheckpointRequest(Request):
    """Options of a checkpoint, which is a commit on request."""

    note: str | None = None
    """Reason for the checkpoint, in one line; default: `manual`."""


class LeftOutFile(Answer):
    """A file whose current content was not committed, and the reason."""

    name: str
    why: str


class Checkpoint(Answer, kw_only=True):
    """Result of a checkpoint."""

    object: Literal["workspace.checkpoint"] = "workspace.checkpoint"
    agent: str
    """Name of the agent."""
    ok: Literal[True] = True
    skipped: bool
    """True if there was nothing to commit."""
    oid: str | UnsetType = UNSET
    """First seven characters of the commit id."""
    subject: str | UnsetType = UNSET
    """First line of the commit message."""
    reason: str | UnsetType = UNSET
    """Reason why there is no commit."""
    left_out: list[LeftOutFile] | UnsetType = UNSET


@routes.add("GET", f"{_ONE}/history", "shared", error_statuses=(404,))
async def history(call: Call, query: HistoryQuery) -> WorkspaceHistory:
    """List the commits of an agent's workspace, newest first.

    With `diff`, the response has the changes between the oldest and the newest of the listed commits as a git diff. It has no `diff` if
    there are no changes. `default` is the workspace of sessions without an agent.
    """
    workspace = _get_workspace(call)
    found = await workspace.history(query.limit, include_diff=query.diff)
    diff = UNSET if found.diff is None else found.diff
    return WorkspaceHistory(agent=workspace.agent, commits=found.commits, diff=diff)


@routes.add("POST", f"{_ONE}/checkpoint", "shared write", error_statuses=(404, 422))
async def checkpoint(call: Call, body: CheckpointRequest) -> Checkpoint:
    """Commit the current files of an agent's workspace. If nothing has changed, there is no commit."""
    workspace = _get_workspace(call)
    return Checkpoint(agent=workspace.agent, **describe_outcome(await workspace.checkpoint(body.note)))


def _get_workspace(call: Call) -> Workspace:
    """Return the workspace of the agent in the path.

    Raises:
        WorkspaceNotFound: there are no workspaces, or the agent is unknown and has none.
    """
    agent, workspaces = call.path["agent"], call.hf.workspaces
    if workspaces is None:
        raise WorkspaceNotFound(None)
    workspace = workspaces.workspace(call.hf.tenant, agent)
    if agent != DEFAULT and agent not in call.hf.roster.agents and not workspace.exists:
        raise WorkspaceNotFound(agent)
    return workspace

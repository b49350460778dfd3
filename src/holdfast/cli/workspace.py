"""`holdfast workspace`: history, checkpoint and purge of an agent's workspace. These commands open no store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.command import CONFIG, JSON, Call, Note, Output, command, confirm, limit_option, yes_option
from holdfast.cli.errors import Misuse
from holdfast.cli.terminal import format_line, format_time, sanitize, show_busy
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.workspace import CommitOutcome, Workspace

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_SHARED = (CONFIG, JSON)


@click.group
def workspace() -> None:
    """Show, commit and purge the workspace of an agent. `default` is the workspace of sessions without an agent."""


def _place_options(function: F) -> F:
    agent = click.argument("agent", metavar="AGENT")
    tenant = click.option("--tenant", metavar="ID", default="default", help="Tenant of the agent.  [default: default]")
    return agent(tenant(function))


def _run(call: Call, what: Callable[[Workspace], Awaitable[T]], *, agent: str, tenant: str) -> T:
    """Call `what` with the workspace of an agent, and return the result of `what`.

    Raises:
        WorkspaceNotFound: the agent is unknown and has no workspace.
    """
    import anyio

    from holdfast.config.build import build_workspace_settings
    from holdfast.errors import WorkspaceNotFound
    from holdfast.holdfast import get_milliseconds
    from holdfast.secrets.guard import make_guard
    from holdfast.workspace import Workspaces
    from holdfast.workspace.workspace import DEFAULT

    config = call.load_settings()
    settings = build_workspace_settings(config.hooks.workspace_git)
    if settings is None:
        raise Misuse("the configuration has no workspaces; enable them with hooks.workspace_git")
    guard = make_guard(config.redaction, config.secret_guard)

    async def run() -> T:
        one = Workspaces.from_settings(settings, get_milliseconds, guard).workspace(tenant, agent)
        if agent != DEFAULT and agent not in config.agents and not one.exists:
            raise WorkspaceNotFound(agent)
        return await what(one)

    with show_busy():
        return anyio.run(run)


@command(workspace, shared=_SHARED)
@limit_option("commits", most=100, default=10)
@click.option("--diff", is_flag=True, help="Also show the changes between the oldest and the newest of them.")
@_place_options
def history(call: Call, *, limit: int, diff: bool, **place: Any) -> Output:
    """List commits, newest first."""
    import msgspec

    found = _run(call, lambda one: one.history(limit, include_diff=diff), **place)
    rows = [
        {"commit": one.short_oid, "when": format_time(one.timestamp_unix * 1000), "what": format_line(one.subject)}
        for one in found.commits
    ]
    changes = [sanitize(found.diff)] if found.diff else []
    return Output(msgspec.to_builtins(found), [rows, *changes] if rows else [Note("There are no commits.")])


@command(workspace, shared=_SHARED)
@click.option("--note", metavar="TEXT", help="Reason, in one line.")
@_place_options
def checkpoint(call: Call, *, note: str | None, **place: Any) -> Output:
    """Commit the current files of the workspace."""
    outcome = _run(call, lambda one: one.checkpoint(note), **place)
    made = outcome.commit
    return _report("Nothing has changed." if made is None else f"{made.short_oid} {format_line(made.subject)}", outcome)


@command(workspace, shared=_SHARED)
@yes_option
@_place_options
def purge(call: Call, *, yes: bool, agent: str, tenant: str) -> Output:
    """Delete the history of a workspace. Its current files become the only commit."""
    if not yes:
        confirm(f"Delete the history of {format_line(agent)}'s workspace, including all branches?")
    outcome = _run(call, lambda one: one.purge(), agent=agent, tenant=tenant)
    return _report(None if outcome.commit is None else f"{outcome.commit.short_oid} is the only commit now.", outcome)


def _report(words: str | None, outcome: CommitOutcome) -> Output:
    """Return the result of a commit, with the files that were left out. If `words` is None, no text is printed."""
    from holdfast.tools.workspace import describe_outcome

    left = outcome.left_out
    files = [Note(f"{format_count(len(left), 'file')} left out:")] if left else []
    files += [Note(f"  {format_line(one.name)}: {format_line(one.why)}") for one in left]
    return Output(describe_outcome(outcome), [] if words is None else [words, *files])

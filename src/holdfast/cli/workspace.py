"""`holdfast workspace`: history, checkpoint and purge of an agent's workspace. These commands open no store."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import config_option, json_option, limit_option
from holdfast.cli.terminal import (
    Column,
    format_line,
    format_time,
    is_interactive,
    sanitize,
    show_busy,
    show_json,
    show_table,
)
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.workspace import CommitOutcome, History, Workspace

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@click.group
def workspace() -> None:
    """Show, commit and purge the workspace of an agent. `default` is the workspace of sessions without an agent."""


def _add_options(command: F) -> F:
    agent = click.argument("agent", metavar="AGENT")
    tenant = click.option("--tenant", metavar="ID", default="default", help="Tenant of the agent.  [default: default]")
    return agent(tenant(config_option(json_option(command))))


def _run(what: Callable[[Workspace], Awaitable[T]], agent: str, tenant: str, config: str | None) -> T:
    """Call `what` with the workspace of an agent, and return the result of `what`.

    Raises:
        WorkspaceNotFound: the agent is unknown and has no workspace.
    """
    import anyio

    from holdfast.config import load_settings
    from holdfast.config.build import build_workspace_settings
    from holdfast.errors import WorkspaceNotFound
    from holdfast.holdfast import get_milliseconds
    from holdfast.secrets import make_guard
    from holdfast.workspace import Workspaces
    from holdfast.workspace.workspace import DEFAULT

    found = load_settings({"config": config}, os.environ).config
    settings = build_workspace_settings(found.hooks.workspace_git)
    if settings is None:
        raise Misuse("the configuration has no workspaces; enable them with hooks.workspace_git")
    guard = make_guard(found.redaction, found.secret_guard)

    async def run() -> T:
        one = Workspaces.from_settings(settings, get_milliseconds, guard).workspace(tenant, agent)
        if agent != DEFAULT and agent not in found.agents and not one.exists:
            raise WorkspaceNotFound(agent)
        return await what(one)

    with show_busy():
        return anyio.run(run)


@workspace.command
@limit_option("commits", most=100, default=10)
@click.option("--diff", is_flag=True, help="Also show the changes between the oldest and the newest of them.")
@_add_options
def history(agent: str, tenant: str, config: str | None, *, limit: int, diff: bool, as_json: bool) -> None:
    """List commits, newest first."""
    found = _run(lambda one: one.history(limit, include_diff=diff), agent, tenant, config)
    if as_json:
        import msgspec

        show_json(msgspec.to_builtins(found))
    else:
        _show(found)


def _show(found: History) -> None:
    if not found.commits:
        click.echo("There are no commits.", err=True)
        return
    rows = [
        [
            one.short_oid,
            format_time(one.timestamp_unix * 1000),
            format_line(one.subject),
        ]
        for one in found.commits
    ]
    show_table([Column("commit"), Column("when"), Column("what")], rows)
    if found.diff:
        click.echo(sanitize(found.diff))


@workspace.command
@click.option("--note", metavar="TEXT", help="Reason, in one line.")
@_add_options
def checkpoint(agent: str, tenant: str, config: str | None, *, note: str | None, as_json: bool) -> None:
    """Commit the current files of the workspace."""
    from holdfast.tools.workspace import describe_outcome

    outcome = _run(lambda one: one.checkpoint(note), agent, tenant, config)
    if as_json:
        show_json(describe_outcome(outcome))
        return
    made = outcome.commit
    _report("Nothing has changed." if made is None else f"{made.short_oid} {format_line(made.subject)}", outcome)


@workspace.command
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_add_options
def purge(agent: str, tenant: str, config: str | None, *, yes: bool, as_json: bool) -> None:
    """Delete the history of a workspace. Its current files become the only commit."""
    if not yes:
        if not is_interactive():
            raise click.UsageError("Standard input is not a terminal: confirm with --yes.")
        if not click.confirm(
            f"Delete the history of {format_line(agent)}'s workspace, including all branches?", err=True
        ):
            raise Failure("nothing was deleted")
    outcome = _run(lambda one: one.purge(), agent, tenant, config)
    made = outcome.commit
    if as_json:
        from holdfast.tools.workspace import describe_outcome

        show_json(describe_outcome(outcome))
    elif made is not None:
        _report(f"{made.short_oid} is the only commit now.", outcome)


def _report(words: str, outcome: CommitOutcome) -> None:
    click.echo(words)
    left: Sequence[Any] = outcome.left_out
    if left:
        click.echo(f"{format_count(len(left), 'file')} left out:", err=True)
        for one in left:
            click.echo(f"  {format_line(one.name)}: {format_line(one.why)}", err=True)

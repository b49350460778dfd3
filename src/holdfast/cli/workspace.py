"""`holdfast workspace`: history, checkpoint, purge of an agent's workspace. No store is opened for it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import config_option, json_option
from holdfast.cli.terminal import Column, attended, counted, line, moment, plain, show_json, show_table

if TYPE_CHECKING:
    from holdfast.workspace import History, Outcome, Workspace

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@click.group
def workspace() -> None:
    """Look at an agent's workspace, and commit it. `default` is that of sessions without an agent."""


def _options(command: F) -> F:
    """What all of them take: whose workspace, where that is said, and how it is told."""
    agent = click.argument("agent", metavar="AGENT")
    tenant = click.option("--tenant", metavar="ID", default="default", help="Whose agent.  [default: default]")
    return agent(tenant(config_option(json_option(command))))


def _do(what: Callable[[Workspace], Awaitable[T]], agent: str, tenant: str, config: str | None) -> T:
    """Do something with a workspace that the configuration has."""
    import anyio

    from holdfast.config import load_settings
    from holdfast.config.build import build_workspace_settings
    from holdfast.errors import WorkspaceNotFound
    from holdfast.holdfast import milliseconds
    from holdfast.secrets import guard_of
    from holdfast.workspace import Workspaces
    from holdfast.workspace.workspace import DEFAULT

    found = load_settings({"config": config}, os.environ).config
    settings = build_workspace_settings(found.hooks.workspace_git)
    if settings is None:
        raise Misuse("the configuration has no workspaces: hooks.workspace_git turns them on")
    guard = guard_of(found.redaction, found.secret_guard)

    async def done() -> T:
        one = Workspaces.of(settings, milliseconds, guard).workspace(tenant, agent)
        if agent != DEFAULT and agent not in found.agents and not one.exists:
            raise WorkspaceNotFound(agent)
        return await what(one)

    return anyio.run(done)


@workspace.command
@click.option("--limit", metavar="N", type=click.IntRange(1, 100), default=10, show_default=True, help="Most commits.")
@click.option("--diff", is_flag=True, help="With what changed from the oldest of them to the newest.")
@_options
def history(agent: str, tenant: str, config: str | None, *, limit: int, diff: bool, as_json: bool) -> None:
    """Show what was committed, newest first."""
    found = _do(lambda one: one.history(limit, include_diff=diff), agent, tenant, config)
    if as_json:
        import msgspec

        show_json(msgspec.to_builtins(found))
    else:
        _show(found)


def _show(found: History) -> None:
    if not found.commits:
        click.echo("Nothing was committed.", err=True)
        return
    rows = [
        [
            one.short_oid,
            moment(one.timestamp_unix * 1000),
            line(one.subject),
        ]
        for one in found.commits
    ]
    show_table([Column("commit"), Column("when"), Column("what")], rows)
    if found.diff:
        click.echo(plain(found.diff))


@workspace.command
@click.option("--note", metavar="TEXT", help="Why, in one line.")
@_options
def checkpoint(agent: str, tenant: str, config: str | None, *, note: str | None, as_json: bool) -> None:
    """Commit what the workspace holds now."""
    from holdfast.tools.workspace import told_of

    outcome = _do(lambda one: one.checkpoint(note), agent, tenant, config)
    if as_json:
        show_json(told_of(outcome))
        return
    made = outcome.commit
    _told("Nothing has changed." if made is None else f"{made.short_oid} {line(made.subject)}", outcome)


@workspace.command
@click.option("--yes", is_flag=True, help="Do not ask.")
@_options
def purge(agent: str, tenant: str, config: str | None, *, yes: bool, as_json: bool) -> None:
    """Remove all that was ever committed, but for what the workspace holds now: that becomes the only commit."""
    if not yes:
        if not attended():
            raise click.UsageError("There is nobody to ask: --yes removes without asking.")
        if not click.confirm(f"Remove the history of {line(agent)}'s workspace, all its branches included?", err=True):
            raise Failure("nothing was removed")
    outcome = _do(lambda one: one.purge(), agent, tenant, config)
    made = outcome.commit
    if as_json:
        from holdfast.tools.workspace import told_of

        show_json(told_of(outcome))
    elif made is not None:
        _told(f"{made.short_oid} is the only commit now.", outcome)


def _told(words: str, outcome: Outcome) -> None:
    click.echo(words)
    left: Sequence[Any] = outcome.left_out
    if left:
        click.echo(f"Left out, {counted(len(left), 'file')}:", err=True)
        for one in left:
            click.echo(f"  {line(one.name)}: {line(one.why)}", err=True)

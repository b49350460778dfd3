"""`holdfast sessions`: list, show, verify, export, import, delete."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import all_found, found, ids_argument, json_option, place_options, user_option, work
from holdfast.cli.terminal import Column, counted, line, moment, show_json, show_table
from holdfast.cli.transfer import export, import_
from holdfast.cli.verify import verify

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.session import Session, StoredCompaction
    from holdfast.stores.base import SessionPage, WindowRows

MAX_LISTED = 1000


@click.group
def sessions() -> None:
    """Look at stored sessions, verify them, move them, delete them."""


sessions.add_command(export)
sessions.add_command(import_)
sessions.add_command(verify)


@sessions.command(name="list")
@user_option
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=20, show_default=True, help="How many.")
@place_options
@json_option
def list_(
    user: str | None, agent: str | None, limit: int, store: str | None, config: str | None, *, as_json: bool
) -> None:
    """List sessions, the last used first."""

    async def do(hf: Holdfast) -> SessionPage:
        return await hf.sessions(user_id=user, agent=agent, limit=limit)

    page = work(do, store=store, config=config)
    if as_json:
        from holdfast.wire.exports import session_to

        show_json([session_to(session) for session in page.sessions])
    else:
        _table(page.sessions)
    if page.has_more:
        click.echo(f"These are the last {limit}; there are more, see --limit.", err=True)


def _table(listed: Sequence[Session]) -> None:
    if not listed:
        click.echo("There are no such sessions.", err=True)
        return
    columns = [Column("id"), Column("user"), Column("agent"), Column("updated")]
    columns += [Column(name, number=True) for name in ("turns", "messages", "tokens")]
    rows = [
        [
            session.id,
            session.user_id,
            session.agent or "-",
            moment(session.updated_at),
            f"{session.tail.turn_id + 1:,}",
            f"{session.messages:,}",
            f"{session.tokens:,}",
        ]
        for session in listed
    ]
    show_table(columns, rows)


@sessions.command
@click.argument("session_id", metavar="ID")
@user_option
@click.option("--full", is_flag=True, help="Show long texts, calls and results whole.")
@place_options
@json_option
def show(
    session_id: str, user: str | None, store: str | None, config: str | None, *, full: bool, as_json: bool
) -> None:
    """Show what was said in a session, and what was summarized of it. What was edited away is not shown."""

    async def do(hf: Holdfast) -> tuple[WindowRows, Sequence[StoredCompaction]]:
        session = await found(hf, session_id, user)
        rows = await hf.store.window(session.ref, None)  # session and live path, seen at one moment
        return rows, await hf.store.compactions(session.ref)

    rows, compactions = work(do, store=store, config=config)
    if as_json:
        from holdfast.wire.exports import export_to

        show_json(export_to(rows.session, rows.entries))
        return
    from holdfast.cli.transcript import transcript

    told = transcript(rows.session, rows.entries, full=full, compactions=compactions)
    click.echo("\n".join(shown.rstrip() for shown in told))


@sessions.command
@ids_argument
@user_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
def delete(
    ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, yes: bool, as_json: bool
) -> None:
    """Delete sessions and all that belongs to them. There is no way back.

    Nothing is deleted when one of them is not there.
    """

    async def look(hf: Holdfast) -> list[Session]:
        return await all_found(hf, ids, user)

    meant = work(look, store=store, config=config)
    if not yes:
        _confirm(meant)

    async def do(hf: Holdfast) -> list[Session]:
        return [session for session in meant if await hf.store.delete(session.ref)]

    gone = work(do, store=store, config=config)
    if as_json:
        show_json([{"id": session.id, "user_id": session.user_id} for session in gone])
    else:
        click.echo(f"Deleted {counted(len(gone), 'session')}.")


def _confirm(meant: Sequence[Session]) -> None:
    """Ask whoever sits there; the store is not open meanwhile."""
    if not attended():
        raise click.UsageError("There is nobody to ask: --yes deletes without asking.")
    for session in meant:
        click.echo(
            f"  {line(session.id)} of user {line(session.user_id)}, {counted(session.messages, 'message')}", err=True
        )
    if not click.confirm(f"Delete {counted(len(meant), 'session')}?", err=True):
        raise Failure("nothing was deleted")


def attended() -> bool:
    """Whether somebody sits there to be asked."""
    return sys.stdin.isatty()

"""`holdfast sessions`: list, show, verify, export, import, fork, move, rewind, lift, close, delete, prune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.exporting import export
from holdfast.cli.importing import import_
from holdfast.cli.moving import fork, lift, move, rewind
from holdfast.cli.removal import delete, prune
from holdfast.cli.stores import all_found, found, ids_argument, json_option, place_options, user_option, work
from holdfast.cli.terminal import Column, counted, moment, show_json, show_table
from holdfast.cli.verify import verify

if TYPE_CHECKING:
    from holdfast.domain.session import Entry, Session, StoredCompaction
    from holdfast.holdfast import Holdfast
    from holdfast.stores.log import WindowRows
    from holdfast.stores.sessions import SessionPage

MAX_LISTED = 1000


@click.group
def sessions() -> None:
    """Look at stored sessions, verify them, move them, close them, delete them."""


sessions.add_command(export)
sessions.add_command(import_)
sessions.add_command(verify)
sessions.add_command(fork)
sessions.add_command(move)
sessions.add_command(rewind)
sessions.add_command(lift)
sessions.add_command(delete)
sessions.add_command(prune)


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
        from holdfast.wire.sessions import SessionObject

        show_json([SessionObject.from_session(session) for session in page.sessions])
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
            f"{session.turns:,}",
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

    async def do(hf: Holdfast) -> tuple[WindowRows, Sequence[StoredCompaction], Sequence[Entry]]:
        from holdfast.media.leaving import whole_entries

        session = await found(hf, session_id, user)
        rows = await hf.store.window(session.ref, None)  # session and live path, seen at one moment
        told = await whole_entries(hf.store, session.ref, rows.entries) if as_json else rows.entries
        return rows, await hf.store.compactions(session.ref), told

    rows, compactions, entries = work(do, store=store, config=config)
    if as_json:
        from holdfast.wire.exports import export_to

        show_json(export_to(rows.session, entries))
        return
    from holdfast.cli.session_text import transcript

    told = transcript(rows.session, rows.entries, full=full, compactions=compactions)
    click.echo("\n".join(shown.rstrip() for shown in told))


@sessions.command
@ids_argument
@user_option
@place_options
@json_option
def close(ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """End sessions. They stay, and open again with the next message.

    Nothing is closed when one of them is not there. One that is closed already stays as it is.
    """

    async def do(hf: Holdfast) -> list[Session]:
        return [await hf.close_session(session.ref) for session in await all_found(hf, ids, user)]

    closed = work(do, store=store, config=config, ends=True)
    if as_json:
        from holdfast.wire.sessions import SessionObject

        show_json([SessionObject.from_session(session) for session in closed])
    else:
        click.echo(f"Closed {counted(len(closed), 'session')}.")

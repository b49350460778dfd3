"""`holdfast sessions`: list, show, verify, export, import, fork, move, rewind, annotate, close, delete and prune."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure
from holdfast.cli.prompt_bar import (
    draw_prompt,
    format_marks_legend,
    is_output_terminal,
    read_last_prompt,
)
from holdfast.cli.session_text import CALL_CHARACTERS, fit_line, format_heading, format_log, format_transcript
from holdfast.cli.stores import (
    find_session,
    find_sessions,
    ids_argument,
    json_option,
    limit_option,
    run_with_store,
    session_user_option,
    store_options,
    user_option,
)
from holdfast.cli.terminal import (
    Column,
    format_line,
    format_time,
    is_interactive,
    show_json,
    show_progress,
    show_table,
)
from holdfast.cli.transfer import export, import_, verify
from holdfast.errors import InvalidRequest
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.domain.session import Entry, Receipt, Session, StoredCompaction
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.prompt_views import PromptView
    from holdfast.stores.log import WindowRows
    from holdfast.stores.sessions import SessionPage

MAX_LISTED = 1000
LAST_ON_TERMINAL = 10
"""Number of messages that `show` prints on a terminal, if `--last` is not given."""


@click.group
def sessions() -> None:
    """List, show, verify, move, close and delete sessions."""


sessions.add_command(export)
sessions.add_command(import_)
sessions.add_command(verify)


@sessions.command(name="list")
@user_option
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@limit_option("sessions", most=MAX_LISTED, default=20)
@store_options
@json_option
def list_(
    user: str | None, agent: str | None, limit: int, store: str | None, config: str | None, *, as_json: bool
) -> None:
    """List sessions, most recently used first."""

    async def do(hf: Holdfast) -> SessionPage:
        return await hf.sessions(user_id=user, agent=agent, limit=limit)

    page = run_with_store(do, store=store, config=config)
    if as_json:
        from holdfast.wire.sessions import SessionObject

        show_json([SessionObject.from_session(session) for session in page.sessions])
    else:
        _show_table(page.sessions)
    if page.has_more:
        click.echo(f"Only the last {limit} are listed; show more with --limit.", err=True)


def _show_table(listed: Sequence[Session]) -> None:
    if not listed:
        click.echo("No sessions found.", err=True)
        return
    columns = [Column("id"), Column("user"), Column("agent"), Column("updated")]
    columns += [Column(name, number=True) for name in ("turns", "messages", "tokens")]
    rows = [
        [
            session.id,
            session.user_id,
            session.agent or "-",
            format_time(session.updated_at),
            f"{session.turns:,}",
            f"{session.messages:,}",
            f"{session.tokens:,}",
        ]
        for session in listed
    ]
    show_table(columns, rows)


@sessions.command
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--full", is_flag=True, help="Do not shorten long texts, calls and results.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(1),
    help=f"Only the last N messages.  [default: {LAST_ON_TERMINAL} on a terminal, otherwise all]",
)
@store_options
@json_option
def show(
    session_id: str,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    full: bool,
    last: int | None,
    as_json: bool,
) -> None:
    """Show the messages and compactions (summaries and digests) of a session. Messages that were edited away are not shown.

    A terminal also shows the last prompt as a bar, and marks which messages it contains.
    """
    if as_json and last is not None:
        raise click.UsageError("--json prints all messages: leave out --last.")
    draws = is_output_terminal() and not as_json
    if draws or last is not None:
        _show_end(session_id, user, store, config, full=full, last=last or LAST_ON_TERMINAL, draws=draws)
        return

    async def do(hf: Holdfast) -> tuple[WindowRows, Sequence[StoredCompaction], Sequence[Entry]]:
        from holdfast.media.outgoing import restore_entries

        session = await find_session(hf, session_id, user)
        rows = await hf.store.window(session.ref, None)  # session and live path, read in one transaction
        shown = await restore_entries(hf.store, session.ref, rows.entries) if as_json else rows.entries
        return rows, await hf.store.compactions(session.ref), shown

    rows, compactions, entries = run_with_store(do, store=store, config=config)
    if as_json:
        from holdfast.wire.exports import build_export

        show_json(build_export(rows.session, entries))
        return

    lines = format_transcript(rows.session, rows.entries, full=full, compactions=compactions)
    click.echo("\n".join(text.rstrip() for text in lines))


def _show_end(
    session_id: str, user: str | None, store: str | None, config: str | None, *, full: bool, last: int, draws: bool
) -> None:
    """Print a session with its last messages only. On a terminal, draw the last prompt and mark the messages."""

    async def do(hf: Holdfast) -> tuple[Session, Sequence[Entry], Sequence[StoredCompaction], PromptView | None]:
        session = await find_session(hf, session_id, user)
        entries = (await hf.store.entries(session.ref, limit=last, descending=True))[::-1]
        view = await read_last_prompt(hf, session, entries) if draws else None
        return session, entries, await hf.store.compactions(session.ref), view

    session, entries, compactions, view = run_with_store(
        do, store=store, config=config, with_agents=draws, index_read_only=True
    )
    for text in format_heading(session):
        click.echo(text)
    if view is not None:
        click.echo()
        draw_prompt(view)
        click.echo(f"\n{format_marks_legend()}")
    marks = {one.seq: one for one in view.log} if view is not None else {}
    for text in format_log(session, entries, full=full, compactions=compactions, marks=marks):
        click.echo(fit_line(text, full=full) if draws else text.rstrip())


@sessions.command
@ids_argument
@session_user_option
@store_options
@json_option
def close(ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Close sessions. They are kept, and the next message opens them again.

    If one of the IDs does not exist, nothing is closed. A session that is already closed does not change.
    """

    async def do(hf: Holdfast) -> list[Session]:
        found = await find_sessions(hf, ids, user)
        closed = []
        with show_progress(len(found), "closing") as bar:
            for session in found:
                closed.append(await hf.close_session(session.ref))
                bar.advance()
        return closed

    closed = run_with_store(do, store=store, config=config, writes=True)
    if as_json:
        from holdfast.wire.sessions import SessionObject

        show_json([SessionObject.from_session(session) for session in closed])
    else:
        click.echo(f"Closed {format_count(len(closed), 'session')}.")


# -- fork, move, rewind, annotate ------------------------------------------------


@sessions.command
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--at-turn", metavar="N", type=click.IntRange(0), help="Last turn to copy.  [default: the last turn]")
@click.option("--id", "new_id", metavar="ID", help="ID of the new session.  [default: a random one]")
@store_options
@json_option
def fork(
    session_id: str,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    at_turn: int | None,
    new_id: str | None,
    as_json: bool,
) -> None:
    """Copy a session, up to a turn, into a new session. The original does not change."""

    async def do(hf: Holdfast) -> Session:
        from holdfast.sessions.forks import fork_session

        return await fork_session(
            hf.engine, (await find_session(hf, session_id, user)).ref, at_turn=at_turn, new_id=new_id
        )

    _report("Created", run_with_store(do, store=store, config=config, writes=True), as_json=as_json)


@sessions.command
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--to-user", metavar="ID", help="New user of the session.")
@click.option("--id", "new_id", metavar="ID", help="New ID of the session.  [default: unchanged]")
@click.option("--agent", metavar="NAME", help="New agent of the session.  [default: unchanged]")
@store_options
@json_option
def move(
    session_id: str,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    to_user: str | None,
    new_id: str | None,
    agent: str | None,
    as_json: bool,
) -> None:
    """Move a session to another user or agent, or change its ID.

    Data that the sessions of a user share stays with that user. If a move is interrupted, run the same command again.
    """
    if to_user is None and new_id is None and agent is None:
        raise click.UsageError("Name the target with --to-user, --agent or --id.")

    async def do(hf: Holdfast) -> Session:
        from msgspec import UNSET

        ref = (await find_session(hf, session_id, user)).ref
        handle = await hf.move(ref, user_id=to_user, id=new_id, agent=UNSET if agent is None else agent)
        return await handle.info()

    # Only a known agent can be set. No other move reads the configuration's agents.
    moved = run_with_store(do, store=store, config=config, writes=True, with_agents=agent is not None)
    _report("Moved:", moved, as_json=as_json)


@sessions.command
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--at-turn", metavar="N", type=click.IntRange(0), required=True, help="Last turn to keep.")
@store_options
@json_option
def rewind(
    session_id: str, user: str | None, store: str | None, config: str | None, *, at_turn: int, as_json: bool
) -> None:
    """Go back to a turn of a session. Later messages stay in the log but are no longer sent."""

    async def do(hf: Holdfast) -> Session:
        from holdfast.sessions.forks import rewind_session

        return (await rewind_session(hf.engine, (await find_session(hf, session_id, user)).ref, at_turn))[0]

    _report("Rewound:", run_with_store(do, store=store, config=config, writes=True), as_json=as_json)


@sessions.command
@click.argument("session_id", metavar="ID")
@click.argument("seq", type=click.IntRange(0))
@click.option("--pin/--unpin", "pinned", default=None, help="Whether every prompt includes the message.")
@click.option("--importance", type=click.FloatRange(0, 1), help="Importance for the strategy salience.")
@click.option(
    "--lift", metavar="UPSTREAM", help="Send the message again to this upstream, which refused it; `all`: to all."
)
@session_user_option
@store_options
@json_option
def annotate(
    session_id: str,
    seq: int,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    pinned: bool | None,
    importance: float | None,
    lift: str | None,
    as_json: bool,
) -> None:
    """Pin or rate message SEQ, or send it again to an upstream that refused it."""
    changes = {name: value for name, value in (("pinned", pinned), ("importance", importance)) if value is not None}
    if not changes and lift is None:
        raise click.UsageError("Name a change: --pin, --unpin, --importance or --lift.")

    async def do(hf: Holdfast) -> Entry:
        from holdfast.domain.refusals import read_refusals
        from holdfast.errors import EntryNotFound
        from holdfast.sessions.annotations import annotate

        ref = (await find_session(hf, session_id, user)).ref
        if lift is None:
            return await annotate(hf.store, ref, seq, **changes)
        entries = await hf.store.entries(ref, start=seq, stop=seq + 1)
        if not entries:
            raise EntryNotFound(ref.id, seq)
        kept = [name for name in read_refusals(entries[0].metadata) if lift not in ("all", name)]
        return await annotate(hf.store, ref, seq, refused_by=kept, **changes)

    entry = run_with_store(do, store=store, config=config, writes=True)
    if as_json:
        from holdfast.wire.openai import to_entry_json

        show_json(to_entry_json(entry))
        return
    done = [] if pinned is None else ["pinned" if pinned else "unpinned"]
    done += [] if importance is None else [f"importance {importance:g}"]
    done += [] if lift is None else ["will be sent again"]
    click.echo(f"Message {seq}, {', '.join(done)}: {format_line(entry.message.text, CALL_CHARACTERS)}")


def _report(verb: str, session: Session, *, as_json: bool) -> None:
    if as_json:
        from holdfast.wire.sessions import SessionObject

        show_json(SessionObject.from_session(session))
    else:
        click.echo(
            f"{verb} {format_line(session.id)} of user {format_line(session.user_id)}, {format_count(session.messages, 'message')}."
        )


# -- delete ------------------------------------------------------------------


@sessions.command
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--user", metavar="ID", help="User of the sessions. Without an ID, all data of this user is deleted.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_options
@json_option
def delete(
    ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, yes: bool, as_json: bool
) -> None:
    """Delete sessions, or all data of a user.

    Deletes sessions with all their data. With --user and without an ID, deletes all data of that user. This cannot be undone.

    If one of the IDs does not exist, nothing is deleted.
    """
    if ids:
        _delete_sessions(ids, user, store, config, yes=yes, as_json=as_json)
    elif user is not None:
        _delete_user(user, store, config, yes=yes, as_json=as_json)
    else:
        raise click.UsageError("Name sessions by ID, or a user with --user.")


def _delete_sessions(
    ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, yes: bool, as_json: bool
) -> None:
    async def look(hf: Holdfast) -> list[Session]:
        return await find_sessions(hf, ids, user)

    chosen = run_with_store(look, store=store, config=config)
    if not yes:
        descriptions = [
            f"{format_line(one.id)} of user {format_line(one.user_id)}, {format_count(one.messages, 'message')}"
            for one in chosen
        ]
        _confirm(descriptions, format_count(len(chosen), "session"))

    async def do(hf: Holdfast) -> list[tuple[Session, Receipt]]:
        removed = []
        with show_progress(len(chosen), "deleting") as bar:
            for session in chosen:
                removed.append((session, await hf.remove(session.ref)))
                bar.advance()
        return [(session, receipt) for session, receipt in removed if receipt is not None]

    removed = run_with_store(do, store=store, config=config, writes=True)
    if as_json:
        show_json([_to_row(session, receipt) for session, receipt in removed])
    else:
        click.echo(f"Deleted {_format_receipts([receipt for _, receipt in removed])}.")


def _delete_user(user: str, store: str | None, config: str | None, *, yes: bool, as_json: bool) -> None:
    async def look(hf: Holdfast) -> int:
        from holdfast.stores.walk import iterate_session_pages

        return sum([len(page) async for page in iterate_session_pages(hf.store, user_id=user)])

    if not yes:
        count = run_with_store(look, store=store, config=config)
        _confirm(
            [f"{format_count(count, 'session')} and the artifacts that they share"],
            f"all data of user {format_line(user)}",
        )

    async def do(hf: Holdfast) -> Receipt:
        return await hf.delete_user(user)

    receipt = run_with_store(do, store=store, config=config, writes=True)
    if as_json:
        show_json({"user_id": user, "receipt": receipt})
    else:
        click.echo(f"Deleted {_format_receipts([receipt])}.")


def _confirm(descriptions: Sequence[str], what: str) -> None:
    """Ask the user to confirm a deletion. The store is not open while the user decides.

    Raises:
        click.UsageError: standard input is not a terminal.
        Failure: the user did not confirm.
    """
    if not is_interactive():
        raise click.UsageError("Standard input is not a terminal: confirm with --yes.")
    for description in descriptions:
        click.echo(f"  {description}", err=True)
    if not click.confirm(f"Delete {what}?", err=True):
        raise Failure("nothing was deleted")


# -- prune -------------------------------------------------------------------


def _parse_age(_: click.Context, __: click.Parameter, value: str) -> int:
    from holdfast.durations import parse_milliseconds

    try:
        return parse_milliseconds(value, "--older-than")
    except InvalidRequest as exc:
        raise click.BadParameter(str(exc).removeprefix("--older-than ")) from exc


@sessions.command
@click.option(
    "--older-than", metavar="AGE", required=True, callback=_parse_age, help="Minimum age, like 30d, 12h or 90m."
)
@click.option(
    "--status",
    type=click.Choice(["closed", "active", "any"]),
    default="closed",
    show_default=True,
    help="Status of the sessions.",
)
@user_option
@click.option("--dry-run", is_flag=True, help="Only list the sessions.")
@store_options
@json_option
def prune(
    older_than: int,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    status: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete sessions that were closed, or last used, long ago.

    This cannot be undone. Run it with --dry-run first to see which sessions it would delete.
    """

    async def do(hf: Holdfast) -> list[tuple[Session, Receipt]]:
        removed = []
        found = hf.prune(older_than, status=None if status == "any" else status, user_id=user, dry_run=dry_run)
        with show_progress(None) as bar:
            async with aclosing(found):
                async for session, receipt in found:
                    bar.describe(session.id)
                    removed.append((session, receipt))
                    bar.advance()
        return removed

    removed = run_with_store(do, store=store, config=config, writes=not dry_run)
    if as_json:
        show_json([_to_pruned_row(session, receipt, dry_run=dry_run) for session, receipt in removed])
    elif dry_run:
        for session, _ in removed:
            when = format_time(session.updated_at)
            click.echo(
                f"{format_line(session.id)} of user {format_line(session.user_id)}, {session.status}, last changed {when}"
            )
        messages = sum(session.messages for session, _ in removed)
        click.echo(
            f"Would delete {format_count(len(removed), 'session')}, {format_count(messages, 'message')}.", err=True
        )
    else:
        click.echo(f"Deleted {_format_receipts([receipt for _, receipt in removed])}.")


def _to_pruned_row(session: Session, receipt: Receipt, *, dry_run: bool) -> dict[str, Any]:
    row = {"status": session.status, "updated_at": session.updated_at, "messages": session.messages}
    return {**({"id": session.id, "user_id": session.user_id} if dry_run else _to_row(session, receipt)), **row}


# -- receipts ----------------------------------------------------------------


def _to_row(session: Session, receipt: Receipt) -> dict[str, Any]:
    return {"id": session.id, "user_id": session.user_id, "receipt": receipt}


def _format_receipts(receipts: Sequence[Receipt]) -> str:
    """Format the total amount of deleted data. Sessions and messages are always listed, other data only if there was any."""
    from holdfast.domain.session import Receipt

    total = sum(receipts, start=Receipt())
    parts = [format_count(total.sessions, "session"), format_count(total.messages + total.retired, "message")]
    if total.artifacts:
        parts.append(
            f"{format_count(total.artifacts, 'version')} of artifacts with {format_count(total.artifact_bytes, 'byte')}"
        )
    if total.memories:
        parts.append(format_count(total.memories, "memory", "memories"))
    if total.transcripts:
        parts.append(format_count(total.transcripts, "transcript"))
    if total.pending_deliveries:
        parts.append(f"{total.pending_deliveries:,} of them after their hooks have been notified")
    return ", ".join(parts)

"""`holdfast sessions`: list, show, verify, export, import, fork, move, rewind, annotate, close, delete and prune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import (
    Call,
    Note,
    Output,
    command,
    confirm,
    find_session,
    find_sessions,
    ids_argument,
    limit_option,
    session_user_option,
    user_option,
    yes_option,
)
from holdfast.cli.prompt_bar import draw_prompt, format_marks_legend, is_output_terminal, read_last_prompt
from holdfast.cli.session_text import CALL_CHARACTERS, fit_line, format_heading, format_log
from holdfast.cli.terminal import format_line, format_time, show_progress
from holdfast.cli.transfer import export, import_, verify
from holdfast.errors import InvalidRequest
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.domain.session import Receipt, Session
    from holdfast.holdfast import Holdfast
    from holdfast.wire.sessions import SessionObject

LAST_ON_TERMINAL = 10
"""Number of messages that `show` prints on a terminal, if `--last` is not given."""


@click.group
def sessions() -> None:
    """List, show, verify, move, close and delete sessions."""


for _command in (export, import_, verify):
    sessions.add_command(_command)


@command(sessions)
@user_option
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@limit_option("sessions", most=1000, default=20)
async def list_(hf: Holdfast, *, user: str | None, agent: str | None, limit: int) -> Output:
    """List sessions, most recently used first."""
    page = await hf.sessions(user_id=user, agent=agent, limit=limit)
    rows = [
        {
            "id": session.id,
            "user": session.user_id,
            "agent": session.agent or "-",
            "updated": format_time(session.updated_at),
            "turns": session.turns,
            "messages": session.messages,
            "tokens": session.tokens,
        }
        for session in page.sessions
    ]
    more = [f"Only the last {limit} are listed; show more with --limit."] if page.has_more else []
    text = [rows] if rows else [Note("No sessions found.")]
    return Output([_to_object(session) for session in page.sessions], text, more)


@command(sessions)
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--full", is_flag=True, help="Do not shorten long texts, calls and results.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(1),
    help=f"Only the last N messages.  [default: {LAST_ON_TERMINAL} on a terminal, otherwise all]",
)
def show(call: Call, session_id: str, user: str | None, *, full: bool, last: int | None) -> Output | None:
    """Show the messages and compactions (summaries and digests) of a session. Messages that were edited away are not shown.

    A terminal also shows the last prompt as a bar, and marks which messages it contains.
    """
    if call.as_json and last is not None:
        raise click.UsageError("--json prints all messages: leave out --last.")
    draws = is_output_terminal() and not call.as_json

    async def do(hf: Holdfast) -> tuple[Any, ...]:
        from holdfast.media.outgoing import restore_entries
        from holdfast.wire.exports import build_export

        session = await find_session(hf, session_id, user)
        if draws or last is not None:
            entries = (await hf.store.entries(session.ref, limit=last or LAST_ON_TERMINAL, descending=True))[::-1]
        else:
            rows = await hf.store.window(session.ref, None)  # session and live path, read in one transaction
            session, entries = rows.session, rows.entries
        if call.as_json:
            return (build_export(session, await restore_entries(hf.store, session.ref, entries)),)
        view = await read_last_prompt(hf, session, entries) if draws else None
        return session, entries, await hf.store.compactions(session.ref), view

    found = call.run(do, with_agents=draws, index_read_only=True)
    if call.as_json:
        return Output(*found)
    session, entries, compactions, view = found
    for text in format_heading(session):
        click.echo(text)
    if view is not None:
        click.echo()
        draw_prompt(view)
        click.echo(f"\n{format_marks_legend()}")
    marks = {one.seq: one for one in view.log} if view is not None else {}
    for text in format_log(session, entries, full=full, compactions=compactions, marks=marks):
        click.echo(fit_line(text, full=full) if draws else text.rstrip())
    return None


@command(sessions, writes=True)
@ids_argument
@session_user_option
async def close(hf: Holdfast, *, ids: Sequence[str], user: str | None) -> Output:
    """Close sessions. They are kept, and the next message opens them again.

    If one of the IDs does not exist, nothing is closed. A session that is already closed does not change.
    """
    found = await find_sessions(hf, ids, user)
    closed = []
    with show_progress(len(found), "closing") as bar:
        for session in found:
            closed.append(_to_object(await hf.close_session(session.ref)))
            bar.advance()
    return Output(closed, [f"Closed {format_count(len(closed), 'session')}."])


# -- fork, move, rewind, annotate ------------------------------------------------


@command(sessions, writes=True)
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--at-turn", metavar="N", type=click.IntRange(0), help="Last turn to copy.  [default: the last turn]")
@click.option("--id", "new_id", metavar="ID", help="ID of the new session.  [default: a random one]")
async def fork(hf: Holdfast, *, session_id: str, user: str | None, at_turn: int | None, new_id: str | None) -> Output:
    """Copy a session, up to a turn, into a new session. The original does not change."""
    from holdfast.sessions.forks import fork_session

    session = await find_session(hf, session_id, user)
    return _report("Created", await fork_session(hf.engine, session.ref, at_turn=at_turn, new_id=new_id))


@command(sessions)
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--to-user", metavar="ID", help="New user of the session.")
@click.option("--id", "new_id", metavar="ID", help="New ID of the session.  [default: unchanged]")
@click.option("--agent", metavar="NAME", help="New agent of the session.  [default: unchanged]")
def move(
    call: Call, session_id: str, user: str | None, *, to_user: str | None, new_id: str | None, agent: str | None
) -> Output:
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
    return _report("Moved:", call.run(do, writes=True, with_agents=agent is not None))


@command(sessions, writes=True)
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--at-turn", metavar="N", type=click.IntRange(0), required=True, help="Last turn to keep.")
async def rewind(hf: Holdfast, *, session_id: str, user: str | None, at_turn: int) -> Output:
    """Go back to a turn of a session. Later messages stay in the log but are no longer sent."""
    from holdfast.sessions.forks import rewind_session

    session = await find_session(hf, session_id, user)
    return _report("Rewound:", (await rewind_session(hf.engine, session.ref, at_turn))[0])


def _report(verb: str, session: Session) -> Output:
    return Output(_to_object(session), [f"{verb} {_describe(session)}, {format_count(session.messages, 'message')}."])


def _describe(session: Session) -> str:
    return f"{format_line(session.id)} of user {format_line(session.user_id)}"


def _to_object(session: Session) -> SessionObject:
    from holdfast.wire.sessions import SessionObject

    return SessionObject.from_session(session)


@command(sessions)
@click.argument("session_id", metavar="ID")
@click.argument("seq", type=click.IntRange(0))
@click.option("--pin/--unpin", "pinned", default=None, help="Whether every prompt includes the message.")
@click.option("--importance", type=click.FloatRange(0, 1), help="Importance for the strategy salience.")
@click.option(
    "--lift", metavar="UPSTREAM", help="Send the message again to this upstream, which refused it; `all`: to all."
)
@session_user_option
def annotate(call: Call, session_id: str, seq: int, user: str | None, *, lift: str | None, **given: Any) -> Output:
    """Pin or rate message SEQ, or send it again to an upstream that refused it."""
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes and lift is None:
        raise click.UsageError("Name a change: --pin, --unpin, --importance or --lift.")

    async def do(hf: Holdfast) -> Output:
        from holdfast.domain.refusals import read_refusals
        from holdfast.errors import EntryNotFound
        from holdfast.sessions.log_writes import annotate
        from holdfast.wire.openai import to_entry_json

        ref = (await find_session(hf, session_id, user)).ref
        if lift is not None:
            entries = await hf.store.entries(ref, start=seq, stop=seq + 1)
            if not entries:
                raise EntryNotFound(ref.id, seq)
            refused = read_refusals(entries[0].metadata)
            changes["refused_by"] = [name for name in refused if lift not in ("all", name)]
        entry = await annotate(hf.store, ref, seq, **changes)
        done = ["pinned" if changes["pinned"] else "unpinned"] if "pinned" in changes else []
        done += [f"importance {changes['importance']:g}"] if "importance" in changes else []
        done += [] if lift is None else ["will be sent again"]
        text = f"Message {seq}, {', '.join(done)}: {format_line(entry.message.text, CALL_CHARACTERS)}"
        return Output(to_entry_json(entry), [text])

    return call.run(do, writes=True)


# -- delete ------------------------------------------------------------------


@command(sessions)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--user", metavar="ID", help="User of the sessions. Without an ID, all data of this user is deleted.")
@yes_option
def delete(call: Call, ids: Sequence[str], user: str | None, *, yes: bool) -> Output:
    """Delete sessions, or all data of a user.

    Deletes sessions with all their data. With --user and without an ID, deletes all data of that user. This cannot be undone.

    If one of the IDs does not exist, nothing is deleted.
    """
    if ids:
        return _delete_sessions(call, ids, user, yes=yes)
    if user is not None:
        return _delete_user(call, user, yes=yes)
    raise click.UsageError("Name sessions by ID, or a user with --user.")


def _delete_sessions(call: Call, ids: Sequence[str], user: str | None, *, yes: bool) -> Output:
    chosen = call.run(lambda hf: find_sessions(hf, ids, user))
    if not yes:
        descriptions = [f"{_describe(one)}, {format_count(one.messages, 'message')}" for one in chosen]
        confirm(f"Delete {format_count(len(chosen), 'session')}?", descriptions)

    async def do(hf: Holdfast) -> Output:
        removed = []
        with show_progress(len(chosen), "deleting") as bar:
            for session in chosen:
                removed.append((session, await hf.remove(session.ref)))
                bar.advance()
        found = [(session, receipt) for session, receipt in removed if receipt is not None]
        return Output([_to_row(*one) for one in found], [_format_receipts([receipt for _, receipt in found])])

    return call.run(do, writes=True)


def _delete_user(call: Call, user: str, *, yes: bool) -> Output:
    async def count(hf: Holdfast) -> int:
        from holdfast.stores.walk import iterate_session_pages

        return sum([len(page) async for page in iterate_session_pages(hf.store, user_id=user)])

    if not yes:
        descriptions = [f"{format_count(call.run(count), 'session')} and the artifacts that they share"]
        confirm(f"Delete all data of user {format_line(user)}?", descriptions)
    receipt = call.run(lambda hf: hf.delete_user(user), writes=True)
    return Output({"user_id": user, "receipt": receipt}, [_format_receipts([receipt])])


# -- prune -------------------------------------------------------------------


def _parse_age(_: click.Context, __: click.Parameter, value: str) -> int:
    from holdfast.durations import parse_milliseconds

    try:
        return parse_milliseconds(value, "--older-than")
    except InvalidRequest as exc:
        raise click.BadParameter(str(exc).removeprefix("--older-than ")) from exc


@command(sessions)
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
def prune(call: Call, older_than: int, user: str | None, *, status: str, dry_run: bool) -> Output:
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

    removed = call.run(do, writes=not dry_run)
    rows = [
        {
            **({"id": session.id, "user_id": session.user_id} if dry_run else _to_row(session, receipt)),
            "status": session.status,
            "updated_at": session.updated_at,
            "messages": session.messages,
        }
        for session, receipt in removed
    ]
    if not dry_run:
        return Output(rows, [_format_receipts([receipt for _, receipt in removed])])
    text = [
        f"{_describe(session)}, {session.status}, last changed {format_time(session.updated_at)}"
        for session, _ in removed
    ]
    messages = format_count(sum(session.messages for session, _ in removed), "message")
    return Output(rows, [*text, Note(f"Would delete {format_count(len(removed), 'session')}, {messages}.")])


# -- receipts ----------------------------------------------------------------


def _to_row(session: Session, receipt: Receipt) -> Mapping[str, Any]:
    return {"id": session.id, "user_id": session.user_id, "receipt": receipt}


def _format_receipts(receipts: Sequence[Receipt]) -> str:
    """Format the total amount of deleted data. Sessions and messages are always listed, other data only if there was any."""
    from holdfast.domain.session import Receipt

    total = sum(receipts, start=Receipt())
    parts = [format_count(total.sessions, "session"), format_count(total.messages + total.retired, "message")]
    if total.artifacts:
        size = format_count(total.artifact_bytes, "byte")
        parts.append(f"{format_count(total.artifacts, 'version')} of artifacts with {size}")
    if total.memories:
        parts.append(format_count(total.memories, "memory", "memories"))
    if total.transcripts:
        parts.append(format_count(total.transcripts, "transcript"))
    if total.pending_deliveries:
        parts.append(f"{total.pending_deliveries:,} of them after their hooks have been notified")
    return f"Deleted {', '.join(parts)}."

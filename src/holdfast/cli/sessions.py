"""`holdfast sessions`: list, show, verify, export, import, fork, move, rewind, lift, close, delete, prune."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure
from holdfast.cli.stores import all_found, found, ids_argument, json_option, place_options, user_option, work
from holdfast.cli.terminal import Column, attended, counted, line, moment, plain, progress, show_json, show_table
from holdfast.cli.transfer import export, import_, verify
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from holdfast.domain.messages import Message
    from holdfast.domain.session import Entry, Session, StoredCompaction
    from holdfast.holdfast import Holdfast
    from holdfast.lifecycle.removal import Receipt
    from holdfast.stores.log import WindowRows
    from holdfast.stores.sessions import SessionPage

MAX_LISTED = 1000


@click.group
def sessions() -> None:
    """Look at stored sessions, verify them, move them, close them, delete them."""


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


# -- a session as text -----------------------------------------------------------

LONGEST = 600
"""Characters of a text that are shown, unless all of it is wanted."""
MOST_LINES = 12
FOLDED = 110
"""Characters of a call or a result in its one line."""
_COLORS = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "magenta", "developer": "magenta"}


def transcript(
    session: Session, entries: Sequence[Entry], *, full: bool, compactions: Sequence[StoredCompaction] = ()
) -> Iterator[str]:
    """The lines of a session.

    Args:
        session: the session itself.
        entries: its live path.
        full: whether long texts, calls and results are shown whole.
        compactions: what was made of ranges of the log, and what failed; told behind it.
    """
    yield from _heading(session)
    for message in session.system_messages:
        yield from ("", role_shown(message.role), *said(message, full=full))
    turn = -1
    tools: dict[str, str] = {}
    for entry in entries:
        if entry.turn_id != turn:
            turn = entry.turn_id
            yield from ("", click.style(f"turn {turn}", bold=True) + f"  {moment(entry.timestamp)}")
        yield f"  {entry.seq:>4}  {role_shown(entry.message.role)}  {', '.join(_notes(entry))}"
        yield from said(entry.message, full=full, tools=tools)
    if compactions:
        yield from ("", click.style("compactions", bold=True))
    for one in compactions:
        yield from _compaction(one, full=full)


def _compaction(one: StoredCompaction, *, full: bool) -> Iterator[str]:
    """What stands for a range, with its text where that is what is sent; of a failed one why there is none."""
    status = click.style(one.status, bold=one.status == "live")
    by = f" by {line(one.model, 60)}" if one.model else ""
    size = f", {counted(one.tokens, 'token')} of {one.source_tokens:,}" if one.error is None else ""
    yield f"  {one.id:>4}  {status}  {one.kind} of messages {one.first} to {one.last}{by}{size}, {moment(one.created_at)}"
    if one.error is not None:
        yield f"        {line(one.error, LONGEST)}"
    elif one.status == "live":
        yield from _text(one.text, full=full)


def _heading(session: Session) -> Iterator[str]:
    whose = f" of user {line(session.user_id)}"
    agent = f", agent {line(session.agent)}" if session.agent else ""
    yield click.style(f"session {line(session.id)}", bold=True) + whose + agent
    yield ", ".join(
        (
            f"{session.status}, version {session.version}",
            counted(session.turns, "turn"),
            counted(session.messages, "message"),
            counted(session.tokens, "token"),
        )
    )
    yield f"created {moment(session.created_at)}, updated {moment(session.updated_at)}"
    usage = session.usage
    if usage.calls:
        prompt = f"{usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached)"
        yield f"{counted(usage.calls, 'model call')}, {prompt}, {usage.completion_tokens:,} completion tokens"


def role_shown(role: str) -> str:
    """A role, in its colour."""
    return click.style(role, fg=_COLORS.get(role), bold=True)


def _notes(entry: Entry) -> Iterator[str]:
    """What is worth knowing of an entry beside its role."""
    yield counted(entry.tokens, "token")
    if entry.agent:
        yield line(entry.agent, 60)
    metadata = entry.metadata or {}
    if metadata.get("source"):
        yield line(str(metadata["source"]), 60)
    if metadata.get("interrupted"):
        yield "interrupted"
    if entry.importance is not None:
        yield f"importance {entry.importance:g}"
    if entry.pinned:
        yield "pinned"
    if entry.erased:
        yield "erased"


def said(message: Message, *, full: bool, tools: dict[str, str] | None = None) -> Iterator[str]:
    """The words of a message, its media, its calls; indented so far that no text can pass for a heading."""
    tools = {} if tools is None else tools
    if message.role == "tool":
        name = tools.get(str(message.tool_call_id)) or message.name or str(message.tool_call_id)
        yield from _folded(f"<- {line(name, 60)}: ", message.text, full=full)
    elif message.text:
        yield from _text(message.text, full=full)
    for part in message.media:
        yield f"        [{line(part.type, 60)}]"
    for call in message.tool_calls:
        tools[call.id] = call.name
        yield from _folded(f"-> {line(call.name, 60)} ", call.arguments, full=full)


def _folded(prefix: str, text: str, *, full: bool) -> Iterator[str]:
    """A call or a result in one line, or with all its lines."""
    if not full:
        yield f"        {prefix}{line(text, FOLDED)}"
        return
    first, *rest = plain(text).split("\n")
    yield f"        {prefix}{first}"
    yield from (f"           {following}" for following in rest)


def _text(text: str, *, full: bool) -> Iterator[str]:
    shown = text if full else "\n".join(text[:LONGEST].split("\n")[:MOST_LINES])
    yield from (f"        {one}" for one in plain(shown).split("\n"))
    if len(shown) < len(text):
        yield click.style(f"        … {len(text) - len(shown):,} more characters, see --full", dim=True)


# -- fork, move, rewind, lift ----------------------------------------------------


@sessions.command
@click.argument("session_id", metavar="ID")
@user_option
@click.option("--at-turn", type=click.IntRange(0), help="The last turn that is copied.  [default: all of them]")
@click.option("--id", "new_id", metavar="ID", help="Of the new session.  [default: a random one]")
@place_options
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
    """Make a new session out of another one's turns, from the first one on. The other one stays as it is."""

    async def do(hf: Holdfast) -> Session:
        from holdfast.sessions.forking import fork_session

        return await fork_session(hf.engine, (await found(hf, session_id, user)).ref, at_turn=at_turn, new_id=new_id)

    _told("Made", work(do, store=store, config=config, ends=True), as_json=as_json)


@sessions.command
@click.argument("session_id", metavar="ID")
@user_option
@click.option("--to-user", metavar="ID", help="Whose it is to be.")
@click.option("--id", "new_id", metavar="ID", help="What it is to be called.  [default: as before]")
@click.option("--agent", metavar="NAME", help="Whose agent it is to be.  [default: as before]")
@place_options
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
    """Make a session another user's, or another agent's, with all that belongs to it; or give it another id.

    What its user's sessions share stays with that user. A move that was interrupted is finished by the same command.
    """
    if to_user is None and new_id is None and agent is None:
        raise click.UsageError("Nothing says where to: give --to-user, --agent or --id.")

    async def do(hf: Holdfast) -> Session:
        from msgspec import UNSET

        ref = (await found(hf, session_id, user)).ref
        handle = await hf.move(ref, user_id=to_user, id=new_id, agent=UNSET if agent is None else agent)
        return await handle.info()

    _told("Moved:", work(do, store=store, config=config, ends=True), as_json=as_json)


@sessions.command
@click.argument("session_id", metavar="ID")
@user_option
@click.option("--at-turn", type=click.IntRange(0), required=True, help="The last turn that stays.")
@place_options
@json_option
def rewind(
    session_id: str, user: str | None, store: str | None, config: str | None, *, at_turn: int, as_json: bool
) -> None:
    """Go back to a turn of a session: what came after it is kept, and no longer sent."""

    async def do(hf: Holdfast) -> Session:
        from holdfast.sessions.forking import rewound

        return (await rewound(hf.engine, (await found(hf, session_id, user)).ref, at_turn))[0]

    _told("Went back:", work(do, store=store, config=config, ends=True), as_json=as_json)


@sessions.command
@click.argument("session_id", metavar="ID")
@click.argument("seq", type=click.IntRange(0))
@user_option
@click.option("--upstream", metavar="NAME", help="Only for this one.  [default: all that refused it]")
@place_options
@json_option
def lift(
    session_id: str,
    seq: int,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    upstream: str | None,
    as_json: bool,
) -> None:
    """Send message SEQ of a session again to the upstreams that refused it."""

    async def do(hf: Holdfast) -> Entry:
        from holdfast.domain.refusals import refusals_of
        from holdfast.errors import EntryNotFound
        from holdfast.sessions.annotating import annotate

        ref = (await found(hf, session_id, user)).ref
        entries = await hf.store.entries(ref, start=seq, stop=seq + 1)
        if not entries:
            raise EntryNotFound(ref.id, seq)
        kept = [name for name in refusals_of(entries[0].metadata) if upstream not in (None, name)]
        return await annotate(hf.store, ref, seq, refused_by=kept)

    entry = work(do, store=store, config=config, ends=True)
    if as_json:
        from holdfast.wire.openai import entry_to

        show_json(entry_to(entry))
    else:
        click.echo(f"Message {seq} is sent again.")


def _told(verb: str, session: Session, *, as_json: bool) -> None:
    if as_json:
        from holdfast.wire.sessions import SessionObject

        show_json(SessionObject.from_session(session))
    else:
        click.echo(
            f"{verb} {line(session.id)} of user {line(session.user_id)}, {counted(session.messages, 'message')}."
        )


# -- delete ------------------------------------------------------------------


@sessions.command
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--user", metavar="ID", help="Whose sessions; without an ID all of them, and what they share.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
def delete(
    ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, yes: bool, as_json: bool
) -> None:
    """Delete sessions and all that belongs to them, or with --user alone everything of a user. There is no way back.

    Nothing is deleted when one of them is not there.
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
        return await all_found(hf, ids, user)

    meant = work(look, store=store, config=config)
    if not yes:
        told = [f"{line(one.id)} of user {line(one.user_id)}, {counted(one.messages, 'message')}" for one in meant]
        _confirm(told, counted(len(meant), "session"))

    async def do(hf: Holdfast) -> list[tuple[Session, Receipt]]:
        gone = [(session, await hf.remove(session.ref)) for session in meant]
        return [(session, receipt) for session, receipt in gone if receipt is not None]

    gone = work(do, store=store, config=config, ends=True)
    if as_json:
        show_json([_row(session, receipt) for session, receipt in gone])
    else:
        click.echo(f"Deleted {_sum([receipt for _, receipt in gone])}.")


def _delete_user(user: str, store: str | None, config: str | None, *, yes: bool, as_json: bool) -> None:
    async def look(hf: Holdfast) -> int:
        from holdfast.stores.walk import pages

        return sum([len(page) async for page in pages(hf.store, user_id=user)])

    if not yes:
        count = work(look, store=store, config=config)
        _confirm(
            [f"{counted(count, 'session')}, and the artifacts that they share"], f"everything of user {line(user)}"
        )

    async def do(hf: Holdfast) -> Receipt:
        return await hf.delete_user(user)

    receipt = work(do, store=store, config=config, ends=True)
    if as_json:
        show_json({"user_id": user, "receipt": receipt})
    else:
        click.echo(f"Deleted {_sum([receipt])}.")


def _confirm(told: Sequence[str], what: str) -> None:
    """Ask whoever sits there; the store is not open meanwhile."""
    if not attended():
        raise click.UsageError("There is nobody to ask: --yes deletes without asking.")
    for one in told:
        click.echo(f"  {one}", err=True)
    if not click.confirm(f"Delete {what}?", err=True):
        raise Failure("nothing was deleted")


# -- prune -------------------------------------------------------------------


def _age(_: click.Context, __: click.Parameter, value: str) -> int:
    """Milliseconds of an age like `30d`."""
    from holdfast.durations import milliseconds_of

    try:
        return milliseconds_of(value, "--older-than")
    except InvalidRequest as exc:
        raise click.BadParameter(str(exc).removeprefix("--older-than ")) from exc


@sessions.command
@click.option("--older-than", metavar="AGE", required=True, callback=_age, help="Like 30d, 12h or 90m.")
@click.option(
    "--status",
    type=click.Choice(["closed", "active", "any"]),
    default="closed",
    show_default=True,
    help="Which sessions.",
)
@user_option
@click.option("--dry-run", is_flag=True, help="Only say which sessions those are.")
@place_options
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
    """Delete sessions that ended, or were used last, before a certain time, and were not changed since.

    There is no way back: a --dry-run first says which ones it would be.
    """

    async def do(hf: Holdfast) -> list[tuple[Session, Receipt]]:
        gone = []
        found = hf.prune(older_than, status=None if status == "any" else status, user_id=user, dry_run=dry_run)
        with progress(None) as bar:
            async with aclosing(found):
                async for session, receipt in found:
                    bar.about(session.id)
                    gone.append((session, receipt))
                    bar.step()
        return gone

    gone = work(do, store=store, config=config, ends=not dry_run)
    if as_json:
        show_json([_pruned(session, receipt, dry_run=dry_run) for session, receipt in gone])
    elif dry_run:
        for session, _ in gone:
            when = moment(session.updated_at)
            click.echo(f"{line(session.id)} of user {line(session.user_id)}, {session.status}, changed last {when}")
        messages = sum(session.messages for session, _ in gone)
        click.echo(f"Would delete {counted(len(gone), 'session')}, {counted(messages, 'message')}.", err=True)
    else:
        click.echo(f"Deleted {_sum([receipt for _, receipt in gone])}.")


def _pruned(session: Session, receipt: Receipt, *, dry_run: bool) -> dict[str, Any]:
    row = {"status": session.status, "updated_at": session.updated_at, "messages": session.messages}
    return {**({"id": session.id, "user_id": session.user_id} if dry_run else _row(session, receipt)), **row}


# -- receipts ----------------------------------------------------------------


def _row(session: Session, receipt: Receipt) -> dict[str, Any]:
    return {"id": session.id, "user_id": session.user_id, "receipt": receipt}


def _sum(receipts: Sequence[Receipt]) -> str:
    """Receipts in words: what there is always, and what else there was."""
    from holdfast.lifecycle.removal import Receipt

    total = sum(receipts, start=Receipt())
    said = [counted(total.sessions, "session"), counted(total.messages + total.retired, "message")]
    if total.artifacts:
        said.append(f"{counted(total.artifacts, 'version')} of artifacts with {counted(total.artifact_bytes, 'byte')}")
    if total.memories:
        said.append(counted(total.memories, "memory", "memories"))
    if total.transcripts:
        said.append(counted(total.transcripts, "transcript"))
    if total.pending_deliveries:
        said.append(f"of which {total.pending_deliveries:,} will go when hooks were told")
    return ", ".join(said)

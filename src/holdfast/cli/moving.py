"""`holdfast sessions fork`, `move`, `rewind` and `lift`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import found, json_option, place_options, user_option, work
from holdfast.cli.terminal import counted, line, show_json

if TYPE_CHECKING:
    from holdfast.domain.session import Entry, Session
    from holdfast.holdfast import Holdfast


@click.command
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
        from holdfast.sessions.forking import forked

        return await forked(hf.engine, (await found(hf, session_id, user)).ref, at_turn=at_turn, new_id=new_id)

    _told("Made", work(do, store=store, config=config, ends=True), as_json=as_json)


@click.command
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


@click.command
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


@click.command
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

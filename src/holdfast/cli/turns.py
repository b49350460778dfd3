"""`holdfast sessions fork` and `rewind`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import found, json_option, place_options, user_option, work
from holdfast.cli.terminal import counted, line, show_json

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.session import Session


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
        from holdfast.moving import forked

        return await forked(hf.engine, (await found(hf, session_id, user)).ref, at_turn=at_turn, new_id=new_id)

    _told("Made", work(do, store=store, config=config, ends=True), as_json=as_json)


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
        from holdfast.moving import rewound

        return (await rewound(hf.engine, (await found(hf, session_id, user)).ref, at_turn))[0]

    _told("Went back:", work(do, store=store, config=config, ends=True), as_json=as_json)


def _told(verb: str, session: Session, *, as_json: bool) -> None:
    if as_json:
        from holdfast.wire.exports import session_to

        show_json(session_to(session))
    else:
        click.echo(
            f"{verb} {line(session.id)} of user {line(session.user_id)}, {counted(session.messages, 'message')}."
        )

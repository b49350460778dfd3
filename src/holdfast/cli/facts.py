"""`holdfast facts`: the standing facts of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.stores import found, json_option, place_options, user_option, work
from holdfast.cli.terminal import Column, show_json, show_table

if TYPE_CHECKING:
    from holdfast.context.standing_facts import Fact
    from holdfast.domain.fact_choices import Choice
    from holdfast.holdfast import Holdfast

_SHOWN = 100
"""Characters of a text in the table."""


@click.command
@click.argument("session_id", metavar="SESSION")
@click.option("--pin", metavar="ID", multiple=True, help="Keep this fact in the prompt, before all others.")
@click.option("--drop", metavar="ID", multiple=True, help="Keep this fact out of the block.")
@click.option("--reset", metavar="ID", multiple=True, help="Undo --pin or --drop.")
@click.option("--strategy", metavar="NAME", help="Whose prompt.  [default: the session's]")
@click.option("--budget", type=click.IntRange(1), help="Tokens of the conversation in it.")
@user_option
@place_options
@json_option
def facts(
    session_id: str,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    pin: tuple[str, ...],
    drop: tuple[str, ...],
    reset: tuple[str, ...],
    strategy: str | None,
    budget: int | None,
    as_json: bool,
) -> None:
    """List what a session's user said that still holds, and whether the prompt has it. Pin or drop facts first, if asked."""
    wanted: list[tuple[tuple[str, ...], Mapping[Choice, bool]]] = [
        (pin, {"pinned": True}),
        (drop, {"dropped": True}),
        (reset, {"pinned": False, "dropped": False}),
    ]
    options: dict[str, Any] = {"budget": budget} if budget is not None else {}

    async def do(hf: Holdfast) -> list[Fact]:
        from holdfast.sessions.facts import choose

        session = await found(hf, session_id, user)
        for ids, change in wanted:
            for fact_id in ids:
                await choose(hf.store, session.ref, fact_id, change)
        return await hf.handle(session).facts(strategy, **options)

    listed = work(do, store=store, config=config, ends=bool(pin or drop or reset))
    if as_json:
        from holdfast.sessions.facts import FactObject

        show_json([FactObject.from_fact(session_id, one) for one in listed])
    elif listed:
        rows = [[one.id, one.source or "", _choice(one), one.corrected_by or "", _short(one.text)] for one in listed]
        columns = (Column("id"), Column("in prompt"), Column("choice"), Column("corrected by"), Column("text"))
        show_table(columns, rows)
    else:
        click.echo("There are none.", err=True)


def _choice(fact: Fact) -> str:
    return "pinned" if fact.pinned else "dropped" if fact.dropped else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"

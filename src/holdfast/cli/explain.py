"""`holdfast explain`: whether messages of a session are in the prompt, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.stores import found, json_option, place_options, user_option, work
from holdfast.cli.terminal import Column, plain, show_json, show_table

if TYPE_CHECKING:
    from holdfast.context.standing_facts import Fact
    from holdfast.domain.fact_choices import Choice
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.explanation import Explanation


@click.command
@click.argument("session_id", metavar="SESSION")
@click.option("--seq", metavar="N", type=click.IntRange(0), help="The message; `holdfast sessions show` numbers them.")
@click.option("--text", metavar="TEXT", help="Words that the messages contain, instead of --seq.")
@click.option("--turn", metavar="N", type=click.IntRange(0), help="The prompt of that turn.  [default: the next one]")
@click.option("--before", metavar="N", type=click.IntRange(0), help="With --text: only messages before that one.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 50), default=10, show_default=True, help="Most messages.")
@click.option("--agent", metavar="NAME", help="Whose prompt it is.  [default: the session's agent]")
@click.option("--model", metavar="NAME", help="The same, for a model.")
@user_option
@place_options
@json_option
def explain(
    session_id: str, user: str | None, store: str | None, config: str | None, *, as_json: bool, **asked: Any
) -> None:
    """Explain what became of messages: in the prompt or not, in which block, why, since when, and what brings them back.

    Without --seq and --text the prompt alone is described.
    """
    agent, model = asked.pop("agent"), asked.pop("model")

    async def do(hf: Holdfast) -> Explanation:
        session = await found(hf, session_id, user)
        handle = hf.handle(session, agent=agent, model=model)
        return await handle.explain(**asked)

    explanation = work(do, store=store, config=config, agents=True, looks=True)
    if as_json:
        show_json(explanation)
        return
    click.echo(plain(str(explanation)))
    if asked["text"] is not None and not explanation.messages:
        click.echo("No message contains that text.", err=True)


# -- facts -----------------------------------------------------------------------

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
